# SPDX-License-Identifier: Apache-2.0
"""A model of a few small layers, and its loss in a step: the same for the same rank and step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 120), nn.Tanh(), nn.Linear(120, 80), nn.Linear(80, 20))


def loss_of(model: nn.Module, rank: int, step: int) -> Any:
    torch.manual_seed(1000 * step + rank)
    return (model(torch.randn(8, 40)) - torch.randn(8, 20)).pow(2).mean()
