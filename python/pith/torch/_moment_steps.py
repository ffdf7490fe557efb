"""The steps of optimizers whose momentum travels.

After an exchange, ``.grad`` of such a layer holds M, the momentum that all ranks have in common. For Adam, whose variance is frozen by then,
the C library does the rest of the step in one pass. SGD and Muon make their own steps: ``.grad`` becomes the gradient with which their
momentum is M. Either way the step leaves a = e + β·M in the layer's residual, where e is what was not sent: with (1−β) times the next
gradient that is what travels next (docs/optimizers.md).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import _library as c
from .._codec import Codec, Moment
from .._errors import StateError
from ._engine import Engine
from ._freeze import PERIOD, span_of

_LEAST, _MOST = 1e-30, 1e30  # factors that an f32 can be multiplied by


@dataclass
class Member:
    """A layer whose momentum travels once the optimizer's variance is frozen."""

    index: int  # of the layer
    name: str
    parameter: torch.nn.Parameter
    group: int  # of the optimizer's parameter groups
    codec: Codec
    moment: Moment
    offset: int = 0  # the optimizer's count of this layer's steps, less that of all steps

    @property
    def warm_up(self) -> str:
        """How its gradients travel until then."""
        return f"q:{self.moment.warm}" if self.moment.warm else "none"

    def spec(self, beta: float) -> str:
        """How its momentum travels. Only beta matters to the codec, and a memory is the first part of a spec, once presets are taken apart."""
        text = self.codec.spec if self.codec.spec.startswith("moment") else self.codec.parts
        return f"moment,beta={beta!r}/{text.partition('/')[2]}"

    def is_common(self, step: int) -> bool:
        """Whether it is exchanged in a step of the optimizer; else the step is local."""
        return step % self.moment.every == 0


class Factors(NamedTuple):
    """Those of a ``pith_update``, in its order."""

    keep: float = 1
    take: float = 0
    decay: float = 1
    rate: float = 0
    root: float = 1
    epsilon: float = 0
    pass_: float = 1
    fold: float = 0


_FACTORS = c.Update.keep.offset
_FACTORS_SIZE = ctypes.sizeof(ctypes.c_float) * len(Factors._fields)


@dataclass(frozen=True)
class Scales:
    """Loss scales: of what travels and is kept, and of ``.grad`` when the optimizer's step begins."""

    kept: float = 1.0
    gradient: float = 1.0


class Steps:
    """What all of them share. A structure of C for each layer is made once; then only what changes is written."""

    passes_by = False  # whether the optimizer's own step leaves these layers out

    def __init__(self, optimizer: torch.optim.Optimizer, engine: Engine) -> None:
        self.optimizer, self._engine = optimizer, engine
        self.members: list[Member] = []
        self._array: Any = None
        self._entries: list[Any] = []
        self._written: list[Factors | None] = []
        self._seen: torch.Tensor | None = None  # a count on a device that was read

    # ---- What an optimizer calls things

    def beta(self, group: Mapping[str, Any]) -> float:
        """1 less the factor on a gradient in the momentum."""
        raise NotImplementedError

    def carry(self, group: Mapping[str, Any]) -> float:
        """The factor on the momentum of the step before."""
        raise NotImplementedError

    def sign(self, group: Mapping[str, Any]) -> float:
        """That of a gradient in the momentum."""
        return -1.0 if group.get("maximize") else 1.0

    def momentum(self, member: Member) -> torch.Tensor | None:
        """The optimizer's, if it has made a step with the layer."""
        raise NotImplementedError

    def count(self, members: Sequence[Member], before: int) -> int:
        """Steps that the optimizer has made, after one more."""
        return before + 1

    def span(self, members: Sequence[Member]) -> int:
        """The steps that it looks back."""
        return PERIOD

    # ---- Structures of C

    def release(self) -> None:
        """The optimizer's tensors are others now."""
        self._array, self._seen = None, None

    def bind(self) -> None:
        if self._array is not None:
            return
        self._array = c.array(c.Update, len(self.members))
        self._entries = list(self._array)
        self._written = [None] * len(self.members)
        for entry, member in zip(self._entries, self.members, strict=True):
            entry.index = self._engine.number(member.index)
            entry.moment = self._address(member, self._there(member))
            self._fill(entry, member)

    def _fill(self, entry: Any, member: Member) -> None:
        """The rest of a structure that stays the same."""

    def _there(self, member: Member) -> torch.Tensor:
        found = self.momentum(member)
        if found is None:
            raise StateError(
                f"layer {member.name} sends its momentum, and the optimizer has none: load the optimizer's state too"
            )
        return found

    def _address(self, member: Member, tensor: torch.Tensor) -> int:
        """Values are compared one by one, so all tensors of a layer have the same order in memory."""
        parameter = member.parameter
        if tensor.dtype != parameter.dtype or tensor.stride() != parameter.stride():
            raise StateError(
                f"layer {member.name}: the optimizer's state has {tensor.dtype} values with strides {tensor.stride()}, the parameter "
                f"{parameter.dtype} with {parameter.stride()}"
            )
        return tensor.data_ptr()

    def _write(self, at: int, factors: Factors) -> None:
        if self._written[at] == factors:
            return
        self._written[at] = factors
        where = ctypes.addressof(self._array) + at * ctypes.sizeof(c.Update) + _FACTORS
        ctypes.memmove(where, (ctypes.c_float * len(factors))(*factors), _FACTORS_SIZE)

    # ---- Between steps

    def fold(self, factor: Callable[[Member, Mapping[str, Any]], float], kept: float) -> None:
        """Residuals a += factor · momentum."""
        array = c.array(c.Update, len(self.members))
        for entry, member in zip(array, self.members, strict=True):
            group = self.optimizer.param_groups[member.group]
            entry.index = self._engine.number(member.index)
            entry.moment = self._address(member, self._there(member))
            entry.keep = 1
            entry.fold = factor(member, group) * self.sign(group) * kept
        self._engine.update(array)

    def freeze(self, members: list[Member], step: int, kept: float) -> None:
        """Momentum travels from the next step on. Specs are set already."""
        self.members = members
        self.release()
        self.fold(lambda m, group: self.carry(group) * m.is_common(step + 1), kept)

    def thaw(self, step: int) -> None:
        """Gradients travel again."""
        self.members = []
        self.release()

    # ---- Sizes

    def ratio(self, kept: float) -> float:
        """‖a‖/‖M‖ over all layers."""
        pending, momenta = (
            sum(float(torch.linalg.vector_norm(t, dtype=torch.float32)) ** 2 for t in tensors)
            for tensors in (
                [self._engine.residual(m.index) for m in self.members],
                [self._there(m) for m in self.members],
            )
        )
        return (pending / momenta) ** 0.5 / kept if momenta else 0.0

    def variance_norm(self, members: Iterable[Member]) -> float:
        """‖v‖₁ over layers; 0 where there is none."""
        return 0.0

    # ---- A step

    def apply(self, step: int, scales: Scales, sent: Mapping[int, torch.Tensor]) -> None:
        """Before the optimizer's own step. ``sent``: what the exchange gave, also of layers whose ``.grad`` is None."""
        raise NotImplementedError

    def after(self, step: int, scales: Scales, sent: Mapping[int, torch.Tensor]) -> None:
        """After it."""

    # ---- Checkpoints

    def save(self) -> dict[str, Any]:
        return {"offsets": {m.name: m.offset for m in self.members}}

    def load(self, saved: Mapping[str, Any], members: list[Member]) -> None:
        self.members = [m for m in members if m.name in saved["offsets"]]
        for member in self.members:
            member.offset = saved["offsets"][member.name]
        self.release()


# ---- Adam ------------------------------------------------------------------------------------------------------------


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

    def step(
        self, lr: float, rate: float, weight_decay: float, beta: float, number: int
    ) -> Factors:
        """The factors of a step of the optimizer. ``rate``: lr with Adam's correction of the momentum's bias."""
        following = beta if (number + 1) % self.every == 0 else 0.0
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
    """x = (1 − lr·wd)·x − lr/(1−β₁ᵗ) · M/(√(v/(1−β₂ᵀ)) + ε), with v as it was at step T."""

    passes_by = True

    def __init__(self, optimizer: torch.optim.Optimizer, engine: Engine) -> None:
        super().__init__(optimizer, engine)
        self._since = 0  # T
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

    def freeze(self, members: list[Member], step: int, kept: float) -> None:
        self._since = step
        for member in members:
            member.offset = int(self.optimizer.state[member.parameter]["step"]) - step
        self._rounds = []
        self._starts = {
            m.index: m.parameter.detach().to(torch.float32, copy=True)
            for m in members
            if m.moment.every > 1
        }
        super().freeze(members, step, kept)

    def thaw(self, step: int) -> None:
        """The variance goes on from what it was with its bias corrected: then, not by the steps made since."""
        for member in self.members:
            beta = float(self.optimizer.param_groups[member.group]["betas"][1])
            then, now = (1 - beta ** (at + member.offset) for at in (self._since, step))
            self.optimizer.state[member.parameter]["exp_avg_sq"].mul_(now / then)
        self._starts, self._rounds = {}, []
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

    # ---- A step

    def apply(self, step: int, scales: Scales, sent: Mapping[int, torch.Tensor]) -> None:
        self.bind()
        borrowed: list[torch.Tensor] = []  # memory that C reads
        for round_, members in zip(self._rounds, self._of_round, strict=True):
            factors = self._factors(round_, step, scales)
            is_common = step % round_.every == 0
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
                self._write(at, factors)
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
            self._write(at, Factors(fold=1))
        else:  # of its momentum, only the part that the next exchange needs
            own = math.copysign(1.0, factors.take) if factors.rate else 0.0
            self._write(at, Factors(pass_=factors.pass_, fold=factors.fold - own))

    # ---- Checkpoints

    def save(self) -> dict[str, Any]:
        return super().save() | {
            "since": self._since,
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
        self._rounds = [Round(**entry) for entry in saved["rounds"]]
        self._starts = {
            m.index: saved["starts"][m.name].to(m.parameter.device, copy=True)
            for m in self.members
            if m.moment.every > 1
        }


# ---- SGD and Muon ----------------------------------------------------------------------------------------------------


class OwnSteps(Steps):
    """Of optimizers that are linear in the momentum: ``.grad`` becomes (M − μ·buffer)/(1−β), and their step makes M of it."""

    def momentum(self, member: Member) -> torch.Tensor | None:
        found = self.optimizer.state.get(member.parameter, {}).get("momentum_buffer")
        return found if isinstance(found, torch.Tensor) else None

    def carry(self, group: Mapping[str, Any]) -> float:
        return float(group["momentum"])

    @torch.no_grad()
    def apply(self, step: int, scales: Scales, sent: Mapping[int, torch.Tensor]) -> None:
        present: dict[int, list[Member]] = {}
        for member in self.members:
            if member.parameter.grad is not None:
                present.setdefault(member.group, []).append(member)
        for number, found in present.items():
            group = self.optimizer.param_groups[number]
            gradients = [m.parameter.grad for m in found]
            before = [self._there(m) for m in found]
            factor = self.carry(group) * self.sign(group) * scales.gradient
            torch._foreach_add_(gradients, before, alpha=-factor)
            if self.beta(group):
                torch._foreach_div_(gradients, 1 - self.beta(group))

    def after(self, step: int, scales: Scales, sent: Mapping[int, torch.Tensor]) -> None:
        self.bind()
        for at, member in enumerate(self.members):
            group = self.optimizer.param_groups[member.group]
            if member.parameter.grad is not None or member.index not in sent:
                self._entries[at].moment = self._there(member).data_ptr()
                self._write(at, Factors(fold=self.carry(group) * self.sign(group) * scales.kept))
            else:
                self._entries[at].moment = sent[member.index].data_ptr()
                self._write(at, Factors(fold=1))
        self._engine.update(self._array)


class SgdSteps(OwnSteps):
    """buffer = μ·buffer + (1−dampening)·(gradient + wd·x)."""

    def beta(self, group: Mapping[str, Any]) -> float:
        return float(group["dampening"])


class MuonSteps(OwnSteps):
    """buffer = μ·buffer + (1−μ)·gradient."""

    def beta(self, group: Mapping[str, Any]) -> float:
        return float(group["momentum"])
