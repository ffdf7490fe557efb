# SPDX-License-Identifier: Apache-2.0
"""Momentum as a candidate of ``auto``: the time of a step decides.

Steps with gradients are timed while the adapter is at rest, then as many with momentum. The rule is that of the adapter's own trials
(src/adapt/adapt_trial.c): the first steps after a change do not count, a time is the lower quartile of those of the steps, as mean over the
ranks, for what disturbs a step only ever makes it longer; and what replaces the plan in force must gain a twentieth. Where it gains little more,
the steps with gradients may just have been disturbed: they are timed once more, and the shorter time counts.

A step lasts from the end of the optimizer's step to the end of the next one. On a device that end is waited for while steps are timed: the
host runs ahead otherwise, and the exchange would not be in what it measures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

CANDIDATE = "moment/onebit"

_STEPS = 24  # that are timed of each
_SKIPPED = 2  # before them, after a change
_GAIN = 0.05  # of the time of a step; less does not pay
_CLEAR = 0.2  # a gain that needs no second look
_WAIT = 4096  # steps after a trial that momentum has lost; twice as many after each further one

WAITING, GRADIENTS, MOMENTUM, KEPT = "waiting", "gradients", "momentum", "kept"

_now = time.perf_counter  # tests have another clock


def is_calm(reason: str) -> bool:
    """Whether the adapter has chosen a plan and tries no other, by what it says of a layer."""
    return " since step " in reason


class Trial:
    """What is timed now, and what was found. The same on all ranks but for the times under way."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stage = WAITING
        self.gradients = self.momentum = 0.0  # seconds of a step, as means over the ranks
        self.confirms = False  # gradients are timed for the second time
        self._lost = 0  # trials in a row
        self._plan = ""  # what the adapter says of the plan that is timed
        self._times: list[float] = []
        self._laps = 0  # steps since the beginning, also those whose time is not known
        self._last: float | None = None  # when the last step ended; None: not known

    def begin(self, stage: str, plan: str = "") -> None:
        """Steps are timed from now on."""
        self.stage, self._plan = stage, plan
        self._times, self._laps = [], 0
        self._last = self._time()

    def hold(self) -> None:
        """How long the step that comes takes is not known."""
        self._last = None

    def lap(self, plan: str = "") -> bool:
        """A step is over. Whether enough of them were timed; with another plan in force than before they do not count."""
        if plan != self._plan:
            self.begin(self.stage, plan)
            return False
        last, self._last = self._last, self._time()
        self._laps += 1
        if last is not None and self._laps > _SKIPPED:
            self._times.append(self._last - last)
        return self._laps >= _SKIPPED + _STEPS and bool(self._times)

    @property
    def typical(self) -> float:
        return sorted(self._times)[len(self._times) // 4]

    def _time(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return _now()

    def note(self, found: Sequence[float]) -> None:
        """The times of what was timed, on all ranks."""
        seconds = sum(found) / len(found)
        if self.stage == MOMENTUM:
            self.momentum = seconds
        else:
            self.gradients = min(self.gradients, seconds) if self.confirms else seconds

    def gains(self, share: float = _GAIN) -> bool:
        return self.momentum <= (1 - share) * self.gradients

    @property
    def is_clear(self) -> bool:
        return self.gains(_CLEAR)

    def keep(self) -> None:
        """Momentum stays."""
        self.stage, self.confirms, self._lost = KEPT, False, 0

    def lose(self) -> None:
        """It does not: it is too slow, or training does not go well."""
        self.stage, self.confirms, self._lost = WAITING, False, self._lost + 1

    @property
    def pause(self) -> int:
        """Steps until the next trial, after one that was lost."""
        return _WAIT << min(self._lost - 1, 20)

    @property
    def times(self) -> str:
        return (
            f"{_short(self.momentum)} a step with momentum, {_short(self.gradients)} with gradients"
        )

    def save(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "gradients": self.gradients,
            "momentum": self.momentum,
            "confirms": self.confirms,
            "lost": self._lost,
            "plan": self._plan,
            "times": list(self._times),
            "laps": self._laps,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.stage, self._plan = saved["stage"], saved["plan"]
        self.gradients, self.momentum = saved["gradients"], saved["momentum"]
        self._lost, self._laps, self.confirms = saved["lost"], saved["laps"], saved["confirms"]
        self._times, self._last = list(saved["times"]), None


def _short(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
