"""Adaptive specs for gradients in device memory: what the adapter is shown, what ranks add up for it, and the change of specs between
two steps.

In main memory the reducer of the C library does all this by itself.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
import torch.distributed as dist

from .._adapt import Adapter
from .._codec import codec_of
from .._errors import StateError
from ._coder import to_tensor
from ._layers import Layer

_DEBT_STEPS = 16  # PITH_DEBT_STEPS
_MANY = 64  # numbers whose exchange is timed to learn the bandwidth
_TIMED = 32  # steps before a plan whose times count (PITH_ADAPT_RING)


class Debt:
    """What a layer had not sent when it moved to a spec without a residual: added to the gradients of the next steps."""

    def __init__(self, values: torch.Tensor, steps: int = _DEBT_STEPS) -> None:
        self.values, self.steps = values, steps

    def pay(self, gradient: torch.Tensor) -> bool:
        """Adds a part to a gradient; whether that was the last."""
        part = self.values / self.steps
        self.values -= part
        gradient.add_(part.view_as(gradient))
        self.steps -= 1
        return self.steps == 0


def move(state: Any, new: Layer, coder: Any, debt: torch.Tensor | None) -> tuple[Any, Any]:
    """A state for the layer's new spec, and what is owed then. A debt from before joins the residual or what is owed."""
    fresh = coder.state(new)
    kept, place = state.get("memory"), fresh.get("memory")
    owed = kept if debt is None else debt if kept is None else kept + debt
    if place is None or owed is None:
        return fresh, owed
    place.copy_(owed)
    return fresh, None


class Adapting:
    """The adapter of an engine. ``layers`` and ``states`` are the engine's own lists, which change in place."""

    def __init__(
        self, spec: str, layers: list[Layer], states: list[Any], coder: Any, group: Any
    ) -> None:
        self._spec, self._layers, self._states = spec, layers, states
        self._coder, self._group = coder, group
        self._places = [i for i, layer in enumerate(layers) if layer.adaptive]
        self._number = {index: place for place, index in enumerate(self._places)}
        self._adapter = self._make()
        self._admit()
        self._debts: dict[int, Debt] = {}
        self._begun, self._last, self._ended = 0.0, 0.0, 0.0
        self._describe()
        for index in self._places:  # those of the warm-up
            states[index] = coder.state(layers[index])

    def _make(self) -> Adapter:
        layers = [(self._layers[i].name, self._layers[i].shape) for i in self._places]
        return Adapter(self._spec, layers, self._coder.rank, self._coder.ranks, self._coder.seed)

    def _admit(self) -> None:
        """An error now if the device has no kernels for a spec that a plan may choose."""
        for spec in self._adapter.candidates:
            self._coder.admit(self._layers[self._places[0]], codec_of(spec))

    def _describe(self) -> None:
        for place, index in enumerate(self._places):
            spec, reason = self._adapter.spec(place), self._adapter.reason(place)
            self._layers[index] = dataclasses.replace(self._layers[index], spec=spec, reason=reason)

    # ---- A step

    def put(self, index: int, gradient: torch.Tensor) -> None:
        """A gradient is there, and about to be sent."""
        self._last = time.perf_counter()
        self._begun = self._begun or self._last
        place = self._number.get(index)
        if place is None:
            return
        if self._adapter.wants(place):
            self._adapter.observe(place, gradient.detach().cpu().contiguous())
        if index in self._debts and self._debts[index].pay(gradient):
            del self._debts[index]

    def finish(self) -> bool:
        """All gradients are means, or will be when the device gets there. Whether layers have other specs now."""
        self._coder.keep_pace(exact=self._adapter.next_plan <= self._adapter.step + _TIMED)
        now = time.perf_counter()
        seconds = now - self._ended if self._ended else 0.0
        span, waiting = (now - self._begun, now - self._last) if self._begun else (0.0, 0.0)
        numbers = self._adapter.finish(seconds, span, waiting)
        spent = self._add_up(numbers) if numbers is not None else 0.0
        changed = self._adapter.advance(spent)
        if changed:
            self._change()
        elif (
            self._adapter.reason(0) != self._layers[self._places[0]].reason
        ):  # a trial has become the choice
            self._describe()
        self._begun, self._ended = 0.0, time.perf_counter()
        return changed

    def _add_up(self, numbers: Any) -> float:
        """Over all ranks, in place; how long that took. Many numbers wait until all ranks are there."""
        mine = torch.frombuffer(numbers, dtype=torch.float64)
        values = mine.to(self._device())
        if len(mine) > _MANY:
            dist.all_reduce(torch.zeros(1, device=values.device), group=self._group)
        begun = time.perf_counter()
        dist.all_reduce(values, group=self._group)
        if values is not mine:
            mine.copy_(values)
        return time.perf_counter() - begun

    def _device(self) -> torch.device:
        """Where the backend takes tensors."""
        nccl = dist.get_backend(self._group) == "nccl"
        return self._layers[0].parameter.device if nccl else torch.device("cpu")

    def _change(self) -> None:
        before = list(self._layers)
        self._describe()
        for index in self._places:
            old, new = before[index], self._layers[index]
            if new.spec == old.spec:
                continue
            debt = self._debts.pop(index, None)
            values = debt.values if debt else None
            state, owed = move(self._states[index], new, self._coder, values)
            self._states[index] = state
            if owed is not None:
                self._debts[index] = Debt(owed)

    def scale(self, factor: float) -> None:
        """Gradients come in other units now."""
        for debt in self._debts.values():
            debt.values *= factor

    # ---- Checkpoints

    def save(self) -> dict[str, Any]:
        debts = {index: (debt.values.cpu(), debt.steps) for index, debt in self._debts.items()}
        return {"adapter": to_tensor(self._adapter.save()), "debts": debts}

    def read(self, saved: dict[str, Any]) -> tuple[Adapter, list[Layer]]:
        """A saved adapter, and layers as it has them; nothing changes yet."""
        if "adapter" not in saved:
            raise StateError("the state was saved without an adaptive spec")
        adapter = self._make()
        adapter.load(saved["adapter"])
        layers = list(self._layers)
        for place, index in enumerate(self._places):
            layers[index] = dataclasses.replace(layers[index], spec=adapter.spec(place))
        return adapter, layers

    def load(self, adapter: Adapter, saved: dict[str, Any]) -> None:
        """Takes what was read."""
        self._adapter = adapter
        device = self._layers[0].parameter.device
        self._debts = {
            int(index): Debt(values.to(device).clone(), int(steps))
            for index, (values, steps) in saved["debts"].items()
        }
        self._begun = self._ended = 0.0
        self._describe()
