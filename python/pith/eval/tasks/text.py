# SPDX-License-Identifier: Apache-2.0
"""Text: a GPT on bytes and an LSTM on words. The text is that of Python's own manual, or the .txt files of a folder."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from . import Task, generator

_MOST_BYTES = 64 << 20


def read_text(data: str | None) -> bytes:
    if data is None:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics)).encode()
    path = Path(data)
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    text = b"\n".join(file.read_bytes() for file in files)[:_MOST_BYTES]
    if len(text) < 1 << 16:
        raise ValueError(
            f"{data} has {len(text)} bytes of text (.txt); a model needs 64 KiB at least"
        )
    return text


def _windows(text: torch.Tensor, batch: int, length: int, source: torch.Generator) -> torch.Tensor:
    at = torch.randint(len(text) - length - 1, (batch,), generator=source)
    places = (at[:, None] + torch.arange(length + 1)).to(text.device)
    return text[places]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = (
            part.view(b, t, self.heads, w // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(w, 2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if last else 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _OfText(Task):
    @classmethod
    def origin(cls, data: str | None) -> str:
        """The manual is another one in other versions of Python."""
        return hashlib.sha256(read_text(data)).hexdigest()[:12]


class Text(_OfText):
    name, title, metric, unit, higher = "text", "GPT on text", "bits per byte", "bit", False
    steps, batches_of = 300, {"small": 8, "gpu": 16}
    rates = {"sgd": 0.06, "adamw": 1.5e-3}

    def __init__(self, size: str = "small", data: str | None = None) -> None:
        super().__init__(size, data)
        shapes = {"small": (64, 2, 2, 32), "gpu": (512, 6, 8, 128)}
        self.shape = shapes[size]
        encoded = torch.frombuffer(bytearray(read_text(data)), dtype=torch.uint8).long()
        held_out = len(encoded) // 10
        self.train, rest = encoded[:-held_out], encoded[-held_out:]
        self.held_out = _windows(rest, 64, self.shape[3], generator())

    def model(self) -> nn.Module:
        return GPT(*self.shape)

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        while True:
            yield _windows(self.train, self.batch, self.shape[3], generator)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def score(self, model: nn.Module, part: slice) -> tuple[float, float]:
        windows = self.held_out[part]
        return self.loss(model, windows).item() * len(windows), len(windows)

    def metric_of(self, first: float, second: float) -> float:
        return first / second / math.log(2)


class LSTM(nn.Module):
    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.cells = nn.LSTM(width, width, layers, batch_first=True)
        self.out = nn.Linear(width, words)
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(self.embed(x))[0])


class Words(_OfText):
    name, title, metric, unit, higher = "words", "LSTM on words", "perplexity", "", False
    steps, batches_of = 300, {"small": 16, "gpu": 32}
    rates = {"sgd": 2.0, "adamw": 1e-2}

    def __init__(self, size: str = "small", data: str | None = None) -> None:
        super().__init__(size, data)
        self.words, self.width, self.layers = {"small": (1000, 96, 1), "gpu": (10000, 650, 2)}[size]
        self.context = {"small": 16, "gpu": 35}[size]
        words = read_text(data).decode("utf-8", "replace").split()
        common = [word for word, _ in Counter(words).most_common(self.words - 1)]
        numbers = {word: i + 1 for i, word in enumerate(common)}  # 0: any other word
        encoded = torch.tensor([numbers.get(word, 0) for word in words])
        held_out = len(encoded) // 10
        self.train, rest = encoded[:-held_out], encoded[-held_out:]
        self.held_out = _windows(rest, 64, self.context, generator())

    def model(self) -> nn.Module:
        return LSTM(self.words, self.width, self.layers)

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        while True:
            yield _windows(self.train, self.batch, self.context, generator)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def score(self, model: nn.Module, part: slice) -> tuple[float, float]:
        windows = self.held_out[part]
        return self.loss(model, windows).item() * len(windows), len(windows)

    def metric_of(self, first: float, second: float) -> float:
        return math.exp(min(20.0, first / second))
