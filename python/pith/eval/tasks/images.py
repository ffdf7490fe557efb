# SPDX-License-Identifier: Apache-2.0
"""Images: a CNN on scikit-learn's digits, and a ResNet-9 on generated images or CIFAR-10."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from . import Task, drawn, generator


def _right(
    model: nn.Module, held_out: tuple[torch.Tensor, ...], part: slice
) -> tuple[float, float]:
    """How many are classified as what they are, of how many."""
    x, y = (values[part] for values in held_out)
    right = sum(
        int((model(x[i : i + 500]).argmax(1) == y[i : i + 500]).sum())
        for i in range(0, len(x), 500)
    )
    return right, len(x)


def read_digits(data: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of scikit-learn, or of a file like its digits.csv.gz: lines of 64 levels from 0 to 16, and what they show."""
    if data is None:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ValueError(
                "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
            ) from None
        found = load_digits()
        return torch.tensor(found.images, dtype=torch.float32), torch.tensor(found.target)
    raw = Path(data).read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    try:
        rows = [[float(number) for number in line.split(b",")] for line in raw.split()]
        table = torch.tensor(rows)
        if table.shape[1] != 65 or not ((table[:, 64] >= 0) & (table[:, 64] <= 9)).all():
            raise ValueError("it takes 64 levels and a digit in a line")
    except (ValueError, IndexError) as error:
        raise ValueError(f"{data} has no digits: {error}") from None
    return table[:, :64].view(-1, 8, 8), table[:, 64].long()


class Digits(Task):
    name, title, metric, unit, higher = "digits", "CNN on digits", "accuracy", "%", True
    steps, batches_of = 250, {"small": 16, "gpu": 64}
    rates = {"sgd": 0.04, "adamw": 4e-3}

    def __init__(self, size: str = "small", data: str | None = None) -> None:
        super().__init__(size, data)
        self.width = {"small": 256, "gpu": 2048}[size]
        x, y = read_digits(data)
        order = torch.randperm(len(y), generator=generator())
        x, y = x[order, None] / 16, y[order]
        x = x + 0.25 * torch.randn(x.shape, generator=generator(1))  # noise: else all are right
        held_out = len(x) // 4
        self.held_out, self.train = (x[:held_out], y[:held_out]), (x[held_out:], y[held_out:])

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(32 * 16, self.width), nn.ReLU(),
            nn.Linear(self.width, self.width), nn.ReLU(), nn.Linear(self.width, 10),
        )  # fmt: skip

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        return drawn(self.train, self.batch, generator)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def score(self, model: nn.Module, part: slice) -> tuple[float, float]:
        return _right(model, self.held_out, part)


# ---- ResNet-9


def _conv(inputs: int, outputs: int, pool: bool = False) -> nn.Module:
    parts: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(4, outputs),
        nn.ReLU(),
    ]
    return nn.Sequential(*parts, *([nn.MaxPool2d(2)] if pool else []))


class _Scaled(nn.Module):
    """Small at the start, so that SGD can have a rate at which all layers learn."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.125 * x


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(width, width), _conv(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def resnet9(width: int) -> nn.Module:
    return nn.Sequential(
        _conv(3, width), _conv(width, 2 * width, True), _Residual(2 * width),
        _conv(2 * width, 4 * width, True), _conv(4 * width, 8 * width, True), _Residual(8 * width),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10), _Scaled(),
    )  # fmt: skip


def generated_images(n: int, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes of 3×32×32: a tint and a wave of the class's direction, length and colours, a bright disc, and noise."""
    fixed = generator(2)  # the classes are the same in both parts
    angle = torch.arange(10) * 0.31
    length = 0.35 + 0.1 * (torch.arange(10) % 3)
    colour = torch.randn(10, 3, generator=fixed)
    y = torch.randint(10, (n,), generator=source)
    grid = torch.arange(32.0)
    across = (
        torch.cos(angle)[y, None, None] * grid[None, None, :]
        + torch.sin(angle)[y, None, None] * grid[None, :, None]
    )
    phase = 6.3 * torch.rand(n, 1, 1, generator=source)
    wave = torch.sin(length[y, None, None] * across + phase)
    centre = 32 * torch.rand(n, 2, generator=source)
    disc = (grid[None, None, :] - centre[:, 0, None, None]).square() + (
        grid[None, :, None] - centre[:, 1, None, None]
    ).square() < 30
    x = colour[y][:, :, None, None] * (0.15 + 0.5 * wave[:, None]) + disc[:, None].float()
    return x + 1.1 * torch.randn(n, 3, 32, 32, generator=source), y


def read_cifar(folder: str) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """CIFAR-10 in its binary form, which is plain bytes; that for Python is a program to be run, and is not read."""
    path = Path(folder)
    inner = path / "cifar-10-batches-bin"
    path = inner if inner.is_dir() else path
    parts = []
    for names in ([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]):
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise ValueError(
                f"{folder} has no {missing[0]}; it takes the binary version of CIFAR-10"
            )
        raw = b"".join((path / name).read_bytes() for name in names)
        if not raw or len(raw) % 3073:
            raise ValueError(f"{path}: {names[0]} is not made of records of 3073 bytes")
        rows = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, 3073)
        x = rows[:, 1:].float().view(-1, 3, 32, 32) / 64 - 2
        parts.append((x, rows[:, 0].long()))
    return parts[0], parts[1]


class Images(Task):
    name, title, metric, unit, higher = "images", "ResNet-9 on images", "accuracy", "%", True
    steps, batches_of = 200, {"small": 16, "gpu": 128}
    rates = {"sgd": 0.06, "adamw": 3e-3}

    def __init__(self, size: str = "small", data: str | None = None) -> None:
        super().__init__(size, data)
        self.width = {"small": 8, "gpu": 64}[size]
        if data:
            self.train, self.held_out = read_cifar(data)
            self.held_out = tuple(part[:2000] for part in self.held_out)
        else:
            self.train = generated_images(2000, generator(3))
            self.held_out = generated_images(400, generator(4))

    def model(self) -> nn.Module:
        return resnet9(self.width)

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        return drawn(self.train, self.batch, generator)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def score(self, model: nn.Module, part: slice) -> tuple[float, float]:
        return _right(model, self.held_out, part)
