# SPDX-License-Identifier: Apache-2.0
"""Gradients of a CUDA device by way of main memory, for methods written in Python, which have no kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .._codec import Rules
from ._carrier import TorchCarrier
from ._engine import Engine
from ._group import PithGroup
from ._layers import Layer

_CPU = torch.device("cpu")


class HostEngine(Engine):
    """Copies each gradient to main memory, where it is reduced, and its mean back at the end of the step.

    Over NCCL, which does not move what is there, bytes travel by gloo.
    """

    def __init__(
        self, group: Any, rules: Rules, layers: list[Layer], seed: int, in_order: bool
    ) -> None:
        if not isinstance(group, PithGroup) and dist.get_backend(group) == "nccl":
            group = dist.new_group(dist.get_process_group_ranks(group), backend="gloo")
        over = group.comm if isinstance(group, PithGroup) else TorchCarrier(group, _CPU)
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        super().__init__(over, rules, layers, seed, in_order)

    def put(self, index: int, gradient: torch.Tensor) -> None:
        copy = gradient.to(_CPU, copy=True)
        self._copies.append((gradient, copy))
        super().put(index, copy)

    def finish(self) -> bool:
        copies, self._copies = self._copies, []
        changed = super().finish()
        for gradient, copy in copies:
            gradient.copy_(copy)
        return changed
