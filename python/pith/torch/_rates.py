# SPDX-License-Identifier: Apache-2.0
"""Residuals that follow the learning rate.

A residual is what gradients have not brought yet. An update is the rate times a gradient, so a residual that was left at rate a and
arrives at rate b brings b/a of the update that it stood for: after a drop by 10, a tenth. Multiplied by a/b when the rate changes, it
brings all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._errors import ArgumentError
from ._layers import Layer

_LEAST, _MOST = 1e-30, 1e30  # factors that an f32 can be multiplied by


def plain_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer of torch in what accelerate and others put around it."""
    found = optimizer
    while not isinstance(found, torch.optim.Optimizer) or hasattr(found, "optimizer"):
        if not hasattr(found, "optimizer"):
            raise ArgumentError(f"{type(optimizer).__name__} is not an optimizer of torch")
        found = found.optimizer
    return found


def plain_optimizers(optimizer: Any) -> list[torch.optim.Optimizer]:
    """The optimizers of torch in what a user gave: one, several in a list, or None."""
    given = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    return [plain_optimizer(each) for each in given if each is not None]


def followed(optimizer: Any, follow: bool | None) -> list[torch.optim.Optimizer]:
    """Optimizers whose rates residuals follow. ``optimizer``: one, several in a list, or None. ``follow``: None for those whose update is
    the rate times gradients, those of earlier steps included: SGD.

    Others, as Adam, divide by the size of past gradients: a residual ten times as large would not be an update ten times as large, and it
    would make later updates smaller.
    """
    plain = plain_optimizers(optimizer)
    if follow and not plain:
        raise ArgumentError("follow_lr=True needs the optimizer: optimizer=…")
    linear = torch.optim.SGD
    return [each for each in plain if follow or (follow is None and isinstance(each, linear))]


class LossScale:
    """The loss scale of a GradScaler, in units of which layers keep what they keep."""

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self.value: float | None = None  # of the last step; None without a scaler

    def follow(self, scale: Callable[[float], None]) -> None:
        """At the beginning of a step: ``scale(factor)`` if it has changed."""
        if self._scaler is None or not self._scaler.is_enabled():
            return
        last, self.value = self.value, float(self._scaler.get_scale())
        if last is not None and last != self.value and math.isfinite(self.value / last):
            scale(self.value / last)


class Rates:
    """The learning rate of each layer, as the optimizer had it in the last step."""

    def __init__(self, layers: Sequence[Layer], optimizer: Any, follow: bool | None) -> None:
        self._optimizers = followed(optimizer, follow)
        self._index = {id(layer.parameter): index for index, layer in enumerate(layers)}
        self._last: list[float | None] = [None] * len(layers)
        self._seen: list[float] = []  # the rates of all groups in the last step

    def change(self, optimizer: Any, follow: bool | None) -> None:
        """Another optimizer from the next step on. Its rates are compared with those of the one before."""
        self._optimizers, self._seen = followed(optimizer, follow), []

    def follow(self, scale: Callable[[int, float], None]) -> None:
        """At the beginning of a step: ``scale(layer, factor)`` for layers whose rate has changed.

        A rate of zero makes no update, and the next one is compared with the last that was not zero.
        """
        groups = [group for each in self._optimizers for group in each.param_groups]
        rates = [float(group["lr"]) for group in groups]
        if rates == self._seen:
            return
        self._seen = rates
        for group, rate in zip(groups, rates, strict=True):
            if rate == 0 or not math.isfinite(rate):
                continue
            known = [self._index.get(id(parameter)) for parameter in group["params"]]
            for index in (index for index in known if index is not None):
                last, self._last[index] = self._last[index], rate
                if last is not None and last != rate:
                    scale(index, min(max(last / rate, _LEAST), _MOST))

    def save(self) -> list[float | None]:
        return list(self._last)

    def load(self, saved: Sequence[float | None] | None) -> None:
        """``None``: from a checkpoint without rates."""
        self._last = list(saved) if saved is not None else [None] * len(self._last)
        self._seen = []
