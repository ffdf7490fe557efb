# SPDX-License-Identifier: Apache-2.0
"""Adam's steps with a variance that is frozen, and with local steps between two exchanges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ._engine import Engine
from ._freeze import Size, span_of
from ._moment_steps import Factors, Member, Scales, Steps

_FLOOR = 0.1  # of a layer's mean variance: what every value has at least once it is frozen
_LEAST, _MOST = 1e-30, 1e30  # factors that an f32 can be multiplied by


@dataclass
class Round:
    """Steps from one exchange to the next, for layers of a parameter group that have them together.

    In a local step the update of a rank's own momentum is added to the residual, in units of that step's rate; so ``unit`` is the rate of the
    last local step. The exchange brings the mean of the sums, and all go on from the common start.
    """

    group: int
    every: int
    offset: int
    unit: float = 0.0
    total: float = 0.0  # of the rates of local steps
    decay: float = 1.0  # of these steps together
    local: int = 0  # how many
    peak: float = 0.0  # the largest rate so far

    def step(
        self, lr: float, rate: float, weight_decay: float, beta: float, number: int
    ) -> Factors:
        """The factors of a step of the optimizer. ``rate``: lr with Adam's correction of the momentum's bias."""
        following = beta if (number + 1) % self.every == 0 else 0.0
        self.peak = max(self.peak, rate)
        decay = 1 - lr * weight_decay
        if number % self.every != 0:
            return self._local(rate, decay, beta, following)
        unit = self.unit if self.local and self.unit else rate
        parts = self.total / unit + 1 if unit else 1.0
        decay *= self.decay
        self.unit, self.total, self.decay, self.local = unit, 0.0, 1.0, 0
        return Factors(keep=0, take=1 / parts, decay=decay, rate=unit * parts, fold=following)

    def _local(self, rate: float, decay: float, beta: float, following: float) -> Factors:
        keep = 1.0
        if rate:
            keep = min(max(self.unit / rate, _LEAST), _MOST) if self.unit else 1.0
            self.unit = rate
        self.total += rate
        self.decay *= decay
        self.local += 1
        fold = (1 if rate else 0) + following
        return Factors(beta, 1 - beta, decay, rate, pass_=keep, fold=fold)


class AdamSteps(Steps):
    """x = (1 − lr·wd)·x − lr/(1−β₁ᵗ) · M/(√(s·v/(1−β₂ᵀ)) + ε), with v as it was at step T, and s ≤ 1, one number for a layer, as
    gradients have shrunk since."""

    passes_by = True

    def __init__(self, optimizer: torch.optim.Optimizer, engine: Engine) -> None:
        super().__init__(optimizer, engine)
        self._since = 0  # T
        self._sizes: list[Size] = []  # s, of members
        self._rounds: list[Round] = []
        self._of_round: list[list[int]] = []  # the members of each
        self._starts: dict[int, torch.Tensor] = {}  # common parameters, where steps are local
        self._counts: list[torch.Tensor] = []
        self._left_out: list[int] = []  # members of this step

    def beta(self, group: Mapping[str, Any]) -> float:
        return float(group["betas"][0])

    carry = beta

    def momentum(self, member: Member) -> torch.Tensor | None:
        found = self.optimizer.state.get(member.parameter, {}).get("exp_avg")
        return found if isinstance(found, torch.Tensor) else None

    def count(self, members: Sequence[Member], before: int) -> int:
        """Counts on a device are read once, so that nobody waits for it."""
        for member in members:
            count = self.optimizer.state.get(member.parameter, {}).get("step")
            if count is None:
                continue
            if count is self._seen:
                return before + 1
            self._seen = None if count.device.type == "cpu" else count
            return int(count)
        return before

    def span(self, members: Sequence[Member]) -> int:
        groups = {member.group for member in members}
        return max(span_of(float(self.optimizer.param_groups[g]["betas"][1])) for g in groups)

    def variance_norm(self, members: Iterable[Member]) -> float:
        found = [self.optimizer.state[m.parameter]["exp_avg_sq"] for m in members]
        if not found:
            return 0.0
        norms = [torch.linalg.vector_norm(v, 1, dtype=torch.float32) for v in found]
        return float(torch.stack(norms).sum(dtype=torch.float64))

    # ---- Phases

    @torch.no_grad()
    def freeze(self, members: list[Member], step: int, kept: float) -> None:
        """A variance near zero, as that of a word that was seldom met, would make large steps of what compression adds to its momentum, and
        would not grow any more. Each value gets a share of its layer's mean at least."""
        self._since = step
        for member in members:
            state = self.optimizer.state[member.parameter]
            member.offset = int(state["step"]) - step
            variance = state["exp_avg_sq"]
            variance.clamp_(min=_FLOOR * variance.mean(dtype=torch.float32).to(variance.dtype))
        self._rounds, self._sizes = [], [Size() for _ in members]
        self._starts = {
            m.index: m.parameter.detach().to(torch.float32, copy=True)
            for m in members
            if m.moment.every > 1
        }
        super().freeze(members, step, kept)

    def thaw(self, step: int) -> None:
        """The variance goes on from what it was with its bias corrected: then, not by the steps made since."""
        for member, size in zip(self.members, self._sizes, strict=True):
            beta = float(self.optimizer.param_groups[member.group]["betas"][1])
            then, now = (1 - beta ** (at + member.offset) for at in (self._since, step))
            self.optimizer.state[member.parameter]["exp_avg_sq"].mul_(size.factor * now / then)
        self._starts, self._rounds, self._sizes = {}, [], []
        super().thaw(step)

    def bind(self) -> None:
        if self._array is not None:
            return
        super().bind()
        self._counts = [self.optimizer.state[m.parameter]["step"] for m in self.members]
        known = {(r.group, r.every, r.offset): r for r in self._rounds}
        entries: dict[tuple[int, int, int], list[int]] = {}
        for at, member in enumerate(self.members):
            key = member.group, member.moment.every, member.offset
            entries.setdefault(key, []).append(at)
        self._rounds = [known.get(key) or Round(*key) for key in entries]
        self._of_round = list(entries.values())

    def _fill(self, entry: Any, member: Member) -> None:
        variance = self.optimizer.state[member.parameter]["exp_avg_sq"]
        entry.variance = self._address(member, variance)
        if member.moment.every > 1:
            entry.start = self._starts[member.index].data_ptr()

    def _unit(self, member: Member) -> float:
        """Where steps are local, residuals are in units of the rate, and grow as that falls."""
        if member.moment.every == 1:
            return 1.0
        self.bind()
        key = member.group, member.moment.every, member.offset
        round_ = next(r for r in self._rounds if (r.group, r.every, r.offset) == key)
        return round_.unit / round_.peak if round_.peak else 1.0

    def follow(self, sizes: Sequence[float]) -> None:
        for mine, size in zip(self._sizes, sizes, strict=True):
            mine.look(size)

    # ---- A step

    def apply(self, step: int, scales: Scales, sent: Mapping[int, torch.Tensor]) -> None:
        self.bind()
        borrowed: list[torch.Tensor] = []  # memory that C reads
        for round_, members in zip(self._rounds, self._of_round, strict=True):
            factors = self._factors(round_, step, scales)
            raw, is_common = factors.raw(), step % round_.every == 0
            for at in members:
                member, entry = self.members[at], self._entries[at]
                parameter, gradient = member.parameter, member.parameter.grad
                if gradient is None and is_common and round_.every > 1:
                    gradient = sent[member.index]  # the others' steps are in it
                if gradient is None:
                    self._leave_out(at, factors, sent.get(member.index) if is_common else None)
                    continue
                if gradient.stride() != parameter.stride() or gradient.dtype != parameter.dtype:
                    gradient = torch.empty_like(parameter).copy_(gradient)
                    borrowed.append(gradient)
                entry.gradient, entry.parameter = gradient.data_ptr(), parameter.data_ptr()
                if round_.every > 1:
                    entry.start = self._starts[member.index].data_ptr() if is_common else None
                self._write(at, raw)
                entry.root = factors.root * self._sizes[at].factor ** 0.5
        self._engine.update(self._array)
        torch._foreach_add_(self._counts, 1)
        for at in self._left_out:
            self._entries[at].moment = self._there(self.members[at]).data_ptr()
        self._left_out.clear()

    def _factors(self, round_: Round, step: int, scales: Scales) -> Factors:
        group = self.optimizer.param_groups[round_.group]
        beta, second = (float(value) for value in group["betas"])
        lr, own = float(group["lr"]), step + round_.offset
        made = round_.step(lr, lr / (1 - beta**own), float(group["weight_decay"]), beta, step)
        sign = self.sign(group)
        return made._replace(
            take=sign * made.take / scales.gradient,
            root=(1 - second ** (self._since + round_.offset)) ** -0.5,
            epsilon=float(group["eps"]),
            fold=sign * made.fold * scales.kept,
        )

    def _leave_out(self, at: int, factors: Factors, sent: torch.Tensor | None) -> None:
        """A layer without a gradient keeps its parameters. What was sent goes back into the residual, as if it had not been."""
        entry = self._entries[at]
        entry.gradient = entry.parameter = entry.start = None
        self._left_out.append(at)
        if sent is not None:
            entry.moment = sent.data_ptr()
            self._write(at, Factors(fold=1).raw())
        else:  # of its momentum, only the part that the next exchange needs
            own = math.copysign(1.0, factors.take) if factors.rate else 0.0
            self._write(at, Factors(pass_=factors.pass_, fold=factors.fold - own).raw())

    # ---- Checkpoints

    def save(self) -> dict[str, Any]:
        return super().save() | {
            "since": self._since,
            "sizes": [size.save() for size in self._sizes],
            "rounds": [dict(vars(round_)) for round_ in self._rounds],
            "starts": {
                m.name: self._starts[m.index].clone()
                for m in self.members
                if m.index in self._starts
            },
        }

    def load(self, saved: Mapping[str, Any], members: list[Member]) -> None:
        super().load(saved, members)
        self._since = saved["since"]
        self._sizes = [Size(*pair) for pair in saved["sizes"]]
        self._rounds = [Round(**entry) for entry in saved["rounds"]]
        self._starts = {
            m.index: saved["starts"][m.name].to(m.parameter.device, copy=True)
            for m in self.members
            if m.moment.every > 1
        }
