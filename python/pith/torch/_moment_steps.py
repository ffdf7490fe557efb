# SPDX-License-Identifier: Apache-2.0
"""The steps of optimizers whose momentum travels.

After an exchange, ``.grad`` of such a layer holds M, the momentum that all ranks have in common. For Adam, whose variance is frozen by then,
the C library does the rest of the step in one pass. SGD and Muon make their own steps: ``.grad`` becomes the gradient with which their
momentum is M. Either way the step leaves a = e + β·M in the layer's residual, where e is what was not sent: with (1−β) times the next
gradient that is what travels next (docs/optimizers.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import _library as c
from .._codec import Codec, Moment
from .._errors import StateError
from ._engine import Engine
from ._freeze import PERIOD


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
        """How its momentum travels. Only beta and store matter to the codec, and a memory is the first part of a spec, once presets are taken apart."""
        memory, _, rest = (
            self.codec.spec if self.codec.spec.startswith("moment") else self.codec.parts
        ).partition("/")
        store = "".join(f",{pair}" for pair in memory.split(",") if pair.startswith("store="))
        return f"moment,beta={beta!r}{store}/{rest}"

    def is_common(self, step: int) -> bool:
        """Whether it is exchanged in a step of the optimizer; else the step is local."""
        return step % self.moment.every == 0


_Raw = ctypes.c_float * 8


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

    def raw(self) -> Any:
        """As they are in memory."""
        return _Raw(*self)


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
        self._places: list[int] = []  # of their factors
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
        first, size = ctypes.addressof(self._array) + c.Update.keep.offset, ctypes.sizeof(c.Update)
        self._places = [first + at * size for at in range(len(self.members))]
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

    def _write(self, at: int, raw: Any) -> None:
        """The factors of a member's step."""
        ctypes.memmove(self._places[at], raw, ctypes.sizeof(_Raw))

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
        pending = momenta = 0.0
        for member in self.members:
            residual = self._engine.residual(member.index)
            pending += float(torch.linalg.vector_norm(residual) * self._unit(member)) ** 2
            momentum = self._there(member)
            momenta += float(torch.linalg.vector_norm(momentum, dtype=torch.float32)) ** 2
        return (pending / momenta) ** 0.5 / kept if momenta else 0.0

    def follow(self, sizes: Sequence[float]) -> None:
        """The mean ‖g‖² of each layer over all ranks; NaN where a rank had none."""

    def _unit(self, member: Member) -> float:
        """What the residual of a layer is multiplied by in updates, to what it was at most."""
        return 1.0

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
            gradients: list[Any] = [m.parameter.grad for m in found]
            before = [self._there(m) for m in found]
            factor = self.carry(group) * self.sign(group) * scales.gradient
            torch._foreach_add_(gradients, before, alpha=-factor)
            if self.beta(group):
                torch._foreach_div_(gradients, 1 - self.beta(group))

    def after(self, step: int, scales: Scales, sent: Mapping[int, torch.Tensor]) -> None:
        self.bind()
        factors = {
            number: Factors(fold=self.carry(group) * self.sign(group) * scales.kept).raw()
            for number, group in enumerate(self.optimizer.param_groups)
        }
        for at, member in enumerate(self.members):
            entry = self._entries[at]
            if member.parameter.grad is not None:
                entry.moment = self._there(member).data_ptr()
                self._write(at, factors[member.group])
            else:  # no step was made with it: what was sent goes back
                entry.moment = sent[member.index].data_ptr()
                self._write(at, Factors(fold=1).raw())
        self._engine.update(self._array)


class SgdSteps(OwnSteps):
    """buffer = μ·buffer + (1−dampening)·(gradient + wd·x)."""

    def beta(self, group: Mapping[str, Any]) -> float:
        return float(group["dampening"])


class MuonSteps(OwnSteps):
    """buffer = μ·buffer + (1−μ)·gradient."""

    def beta(self, group: Mapping[str, Any]) -> float:
        return float(group["momentum"])
