# SPDX-License-Identifier: Apache-2.0
"""When momentum begins to travel, and when it stops: the rules, apart from those who follow them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .._errors import ArgumentError

_CHANGE = (
    0.04  # of ‖v‖ over one span, at which the variance counts as settled (1-bit Adam, Tang 2021)
)
_SPANS = 4  # before which it never does: in three of them even the variance of equal gradients grows by more
PERIOD = 50  # steps between two looks at how it goes
_MOST_PENDING = (
    100.0  # times the momentum; it is 20 where topk sends a thousandth of it, 1.2 with one bit
)
_WORSE = 1.5  # times the best loss
_LEAST = 1e-4  # of a frozen variance


def span_of(beta: float) -> int:
    """The steps over which a moving average of this weight looks back."""
    return math.ceil(1 / (1 - beta) - 1e-9)


def is_settled(norms: Sequence[float], step: int, span: int) -> bool:
    """Whether the variance is as good as constant: ``norms`` of it were taken every ``span`` steps, the last one after ``step``."""
    if len(norms) < 2 or step < _SPANS * span:
        return False
    before, now = norms[-2:]
    return math.isfinite(now) and abs(now - before) < _CHANGE * before


def first_frozen(freeze: float, steps: int | None) -> int | None:
    """The step after which ``freeze`` of a spec says so; None: when the variance has settled."""
    if freeze == 0:
        return None
    if freeze >= 1:
        return math.ceil(freeze)
    if steps is None:
        raise ArgumentError(
            f"moment:freeze={freeze:g} is a share of the run: say how many steps that has, compress(…, steps=…); or name a step, or auto"
        )
    return max(1, math.ceil(freeze * steps))


def earliest_again(step: int, span: int) -> int:
    """After momentum has stopped: the step before which it does not travel again."""
    return step + _SPANS * span


class Size:
    """How much smaller a layer's variance would be now than it was when it was frozen: as the squares of gradients, which are looked at now
    and then, to those of the first look. The mean of the last looks counts, each half as much as the one after.

    Towards the end of a run, gradients may be a fraction of what they were, and steps would be as much too short. Where gradients have grown the
    variance stays: to make steps shorter there ended at a higher loss (docs/optimizers.md)."""

    def __init__(self, first: float = 0.0, mean: float = 0.0) -> None:
        self._first, self._mean = first, mean

    def look(self, size: float) -> None:
        if not math.isfinite(size):
            return
        self._mean = (self._mean + size) / 2 if self._first else size
        self._first = self._first or size

    @property
    def factor(self) -> float:
        """On the frozen variance."""
        return min(max(self._mean / self._first, _LEAST), 1.0) if self._first else 1.0

    def save(self) -> list[float]:
        return [self._first, self._mean]


class Watch:
    """Looks now and then whether training goes on well."""

    def __init__(self) -> None:
        self._sum: Any = None
        self._count = 0
        self._best = math.inf
        self.last = (0.0, 0)  # of the warm-up's last period, as take() gives it

    def report(self, loss: float | torch.Tensor) -> None:
        value = loss.detach().float() if isinstance(loss, torch.Tensor) else float(loss)
        self._sum = value if self._sum is None else self._sum + value
        self._count += 1

    def take(self) -> tuple[float, int]:
        """The sum of the losses reported since the last time, and how many they were."""
        found = (float(self._sum) if self._count else 0.0), self._count
        self._sum, self._count = None, 0
        return found

    def why_not(self, ratios: Sequence[float], losses: Sequence[tuple[float, int]]) -> str:
        """What speaks against going on, from what all ranks have found; empty if nothing does."""
        ratio = math.nan if any(map(math.isnan, ratios)) else max(ratios)
        if not math.isfinite(ratio):
            return "the residual is not finite"
        if ratio > _MOST_PENDING:
            return f"the residual is {ratio:.0f} times the momentum"
        count = sum(n for _, n in losses)
        if not count:
            return ""
        mean = sum(total for total, _ in losses) / count
        if not math.isfinite(mean):
            return "the loss is not finite"
        best, self._best = self._best, min(mean, self._best)
        if 0 < best < math.inf and mean > _WORSE * best:
            return f"the loss rose from {best:.4g} to {mean:.4g}"
        return ""

    def roll(self) -> None:
        """A period of the warm-up is over."""
        self.last = self.take()

    def start(self, losses: Sequence[tuple[float, int]]) -> None:
        """Momentum begins to travel; ``losses``: the last ones of all ranks."""
        self.take()
        count = sum(n for _, n in losses)
        self._best = sum(total for total, _ in losses) / count if count else math.inf

    def save(self) -> dict[str, Any]:
        total, count = self.take()
        self._sum, self._count = (total if count else None), count
        return {"sum": total, "count": count, "best": self._best, "last": list(self.last)}

    def load(self, saved: dict[str, Any]) -> None:
        self._count, self._best = saved["count"], saved["best"]
        self._sum = saved["sum"] if self._count else None
        self.last = (saved["last"][0], saved["last"][1])
