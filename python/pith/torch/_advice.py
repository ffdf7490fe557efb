# SPDX-License-Identifier: Apache-2.0
"""A word to those who have not said which optimizer they have, where it does not go well with what ``auto`` has chosen."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from .._codec import Caps
from ._auto import is_open, is_plain
from ._layers import Layer
from ._moment_plan import is_tried

# What auto may choose and brings a part of the gradient, the rest later.
_LATE = Caps.SPARSE | Caps.ROUNDS
_PERIOD = 64  # steps between two looks

_stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_watching: list[Any] = []


def _watch() -> None:
    """Notes all optimizers that make steps from now on."""
    if not _watching:
        _watching.append(
            register_optimizer_step_post_hook(
                lambda optimizer, args, kwargs: _stepped.add(optimizer)
            )
        )


def optimizer_of(layers: Iterable[Layer]) -> torch.optim.Optimizer | None:
    """One that has made a step with one of these layers."""
    wanted = {id(layer.parameter) for layer in layers}
    for optimizer in list(_stepped):
        if any(
            id(parameter) in wanted
            for group in optimizer.param_groups
            for parameter in group["params"]
        ):
            return optimizer
    return None


class Advice:
    """Looks now and then, and warns once, on the first rank."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._steps = 0
        self._done = not any(is_open(layer.adaptive) for layer in layers)
        if not self._done:
            _watch()

    def step(self, layers: Sequence[Layer]) -> None:
        """At the end of a step."""
        self._steps += 1
        if not self._done and self._steps % _PERIOD == 0:
            self._look([layer for layer in layers if layer.adaptive and layer.codec.caps & _LATE])

    def _look(self, late: list[Layer]) -> None:
        optimizer = optimizer_of(late)
        if optimizer is None or "trial" in late[0].reason:
            return
        self._done = True
        if is_plain(optimizer) or dist.get_rank() != 0:
            return
        layer = max(late, key=lambda layer: layer.n)
        momentum = ", and tries its momentum at one bit a value" if is_tried(optimizer) else ""
        warnings.warn(
            f"auto has chosen {layer.spec} for {layer.name} and others, since it is fastest here. Such gradients arrive late, and "
            f"{type(optimizer).__name__}, which keeps moments of them, can end at a higher loss. "
            f'compress(model, "auto", optimizer=optimizer) leaves these methods out{momentum}; "auto,delayed=1" keeps them without this '
            "warning (docs/optimizers.md)",
            stacklevel=2,
        )
