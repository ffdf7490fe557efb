# SPDX-License-Identifier: Apache-2.0
"""A small GPT on characters.

    python examples/pytorch/gpt.py                                                   # alone
    torchrun --nproc-per-node 4 examples/pytorch/gpt.py --spec ef/powersgd:4         # four ranks, low rank
    pith lab -n 4 --rate 1gbit -- python examples/pytorch/gpt.py --spec q:4          # four hosts behind 1 Gbit/s

Without --data it learns Python's own manual pages, which every Python has.
"""

from __future__ import annotations

import argparse
import itertools
import math
import pathlib

import common
import torch
from torch import nn
from torch.nn import functional as F


def read_text(path: str | None) -> str:
    if path:
        files = (
            sorted(pathlib.Path(path).rglob("*.txt"))
            if pathlib.Path(path).is_dir()
            else [pathlib.Path(path)]
        )
        return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = (
            y.view(b, t, self.heads, w // self.heads).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).split(w, 2)
        )
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        )
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, symbols: int, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(symbols, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(
                    p,
                    std=0.02 / math.sqrt(2 * layers)
                    if name.endswith(("out.weight", "down.weight"))
                    else 0.02,
                )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(text: torch.Tensor, batch: int, context: int, generator: torch.Generator):
    while True:
        at = torch.randint(len(text) - context - 1, (batch,), generator=generator)
        window = torch.stack([text[i : i + context + 1] for i in at])
        yield window[:, :-1], window[:, 1:]


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loss_of(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common.add_arguments(parser, steps=300, batch=8, rate=1e-3)
    parser.add_argument("--data", help="a text file, or a folder of them")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    a = parser.parse_args()
    rank, ranks = common.start(a)
    text = read_text(a.data)
    symbols = {c: i for i, c in enumerate(sorted(set(text)))}
    encoded = torch.tensor([symbols[c] for c in text])
    held_out = None
    if a.evaluate:
        encoded, kept = encoded[: -len(encoded) // 10], encoded[-len(encoded) // 10 :]
        held_out = list(itertools.islice(batches(kept, 8, a.context, numbers(rank)), 1))
    for seed in range(a.seed, a.seed + a.seeds):
        a.seed = seed
        torch.manual_seed(a.seed)
        model = common.distribute(
            GPT(len(symbols), a.width, a.layers, max(1, a.width // 64), a.context), a, ranks
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95))
        source = batches(encoded, a.batch, a.context, numbers(1000 * a.seed + rank))
        outcome = common.train(
            model, optimizer, source, loss_of, a, "GPT on characters", rank, ranks, held_out
        )
        common.report(outcome, a, rank)
    common.end()


if __name__ == "__main__":
    main()
