# SPDX-License-Identifier: Apache-2.0
"""A U-Net that finds defects, scratches and stains, on generated surfaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from . import Task, drawn, generator

_SIDE = 32


def generated_defects(n: int, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Surfaces with a grain of random direction; on each a line or a disc that is a little darker, and where it is."""
    grid = torch.arange(float(_SIDE))
    column, row = grid[None, None, :], grid[None, :, None]
    angle = 3.14 * torch.rand(n, 1, 1, generator=source)
    grain = torch.sin(0.9 * (torch.cos(angle) * column + torch.sin(angle) * row))
    x, y = (_SIDE * torch.rand(2, n, 1, 1, generator=source)).unbind()
    slope = 3.14 * torch.rand(n, 1, 1, generator=source)
    along = torch.cos(slope) * (column - x) + torch.sin(slope) * (row - y)
    across = -torch.sin(slope) * (column - x) + torch.cos(slope) * (row - y)
    line = (across.abs() < 1.5) & (along.abs() < 11)
    disc = along.square() + across.square() < 16
    mask = torch.where(torch.rand(n, 1, 1, generator=source) < 0.5, line, disc)
    noise = torch.randn(n, _SIDE, _SIDE, generator=source)
    return (0.5 * grain - 1.3 * mask + 0.6 * noise)[:, None], mask[:, None].float()


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1, self.down2 = _double(1, width), _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join2 = _double(4 * width, 2 * width)
        self.up1, self.join1 = nn.ConvTranspose2d(2 * width, width, 2, 2), _double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.bottom(F.max_pool2d(two, 2))
        x = self.join2(torch.cat((self.up2(x), two), 1))
        return self.out(self.join1(torch.cat((self.up1(x), one), 1)))


class Defects(Task):
    name, title, metric, unit, higher = "defects", "U-Net on defects", "IoU", "%", True
    steps, batches_of = 200, {"small": 8, "gpu": 64}
    rates = {"sgd": 0.08, "adamw": 5e-3}

    def __init__(self, size: str = "small", data: str | None = None) -> None:
        super().__init__(size, data)
        self.width = {"small": 8, "gpu": 64}[size]
        self.train = generated_defects(1500, generator(6))
        self.held_out = generated_defects(200, generator(7))

    def model(self) -> nn.Module:
        return UNet(self.width)

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        return drawn(self.train, self.batch, generator)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, mask = batch
        found = model(x)
        share = torch.sigmoid(found)
        dice = 1 - (2 * (share * mask).sum() + 1) / (share.sum() + mask.sum() + 1)
        return F.binary_cross_entropy_with_logits(found, mask) + dice

    def score(self, model: nn.Module, part: slice) -> tuple[float, float]:
        x, mask = (values[part] for values in self.held_out)
        found, wanted = model(x) > 0, mask > 0
        return int((found & wanted).sum()), int((found | wanted).sum())
