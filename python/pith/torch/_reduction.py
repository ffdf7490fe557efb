# SPDX-License-Identifier: Apache-2.0
"""Gradients as they come, to an engine; steps, checkpoints and statistics. What the hook and the optimizer share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._errors import ArgumentError, StateError
from .._table import MomentStats, Table
from ._advice import Advice
from ._engine import Engine
from ._layers import Layer, described
from ._rates import LossScale, Rates
from ._states import check_head, head_of
from ._table import Meter


class Reduction:
    """Reduces the gradients of layers to their means, step after step."""

    def __init__(
        self,
        layers: Sequence[Layer],
        engine: Engine,
        *,
        scaler: Any = None,
        optimizer: Any = None,
        follow_lr: bool | None = None,
    ) -> None:
        self.layers = layers
        self.engine = engine
        self._scale = LossScale(scaler)
        self.rates = Rates(layers, optimizer, follow_lr)
        self._present: set[int] = set()  # layers whose gradients have come in this step
        self._steps = [0] * len(layers)
        self._meter = Meter()
        self._advice = Advice(layers)

    def __repr__(self) -> str:
        return described(self.layers, self.engine.name, self.engine.rank, self.engine.ranks)

    # ---- A step

    @property
    def under_way(self) -> bool:
        return bool(self._present)

    def put(self, index: int, gradient: torch.Tensor) -> None:
        """The gradient of a layer is there. It is lent until the end of the step."""
        layer = self.layers[index]
        if gradient.dtype != layer.dtype or gradient.numel() != layer.n:
            raise ArgumentError(
                f"layer {layer.name} has {layer.n} {layer.dtype} values, its gradient {gradient.numel()} {gradient.dtype}"
            )
        if index in self._present:
            raise StateError(f"layer {layer.name} has two gradients in one step")
        if not self.under_way:
            self._scale.follow(self.engine.reducer.scale)
            self.rates.follow(self.engine.scale_residual)
            self._meter.begin()
        self._meter.look(layer, gradient, layer.rows)
        self._present.add(index)
        self._steps[index] += 1
        self.engine.put(index, gradient)

    def has(self, index: int) -> bool:
        """Whether the layer's gradient has come in this step."""
        return index in self._present

    def keep(self, index: int) -> None:
        """A step in which the gradient of a layer stays the rank's own."""
        self._steps[index] += 1

    @property
    def scale(self) -> float | None:
        """The loss scale of what layers keep, if there is one."""
        return self._scale.value

    def flush(self) -> None:
        """No other gradient comes in this step: sends all that have come."""
        self.engine.reducer.flush()

    def finish(self) -> None:
        """Waits until all gradients that came are means. Layers whose gradients did not come are left out, on all ranks alike."""
        try:
            changed = self.engine.finish()
        finally:
            self._present.clear()
        if changed:
            self._meter.forget()
        self._advice.step(self.layers)

    # ---- Checkpoints

    def state_dict(self) -> dict[str, Any]:
        if self.under_way:
            raise StateError("a step is under way: save between steps")
        return head_of(self.engine.rank, self.engine.ranks) | {
            "backend": self.engine.name,
            "scale": self.scale,
            "rates": self.rates.save(),
            "layers": [(layer.name, layer.declared, list(layer.shape)) for layer in self.layers],
            "engine": self.engine.save(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if self.under_way:
            raise StateError("a step is under way: load between steps")
        self.check_saved(saved)
        self.engine.load(saved["engine"])
        self._scale.value = saved["scale"]
        self.rates.load(saved.get("rates"))

    def check_saved(self, saved: dict[str, Any]) -> None:
        """Raises if the state is not one of this rank, backend and these layers."""
        check_head(saved, self.engine.rank, self.engine.ranks)
        if saved["backend"] != self.engine.name:
            raise StateError(
                f"the state was saved with backend {saved['backend']}, and now it is {self.engine.name}"
            )
        if len(saved["layers"]) != len(self.layers):
            raise StateError(
                f"the state has {len(saved['layers'])} layers, the model {len(self.layers)}"
            )
        for layer, entry in zip(self.layers, saved["layers"], strict=True):
            mine, theirs = (layer.name, layer.declared, list(layer.shape)), tuple(entry)
            if mine != theirs:
                raise StateError(
                    f"the state has {_describe(*theirs)} where the model has {_describe(*mine)}"
                )

    # ---- Statistics

    def stats(self, moments: MomentStats | None = None) -> Table:
        self._meter.ask()
        ranks = self.engine.ranks
        found = [
            self._meter.line(layer, steps, layer.bytes * steps, wire, ranks)
            for layer, steps, wire in zip(self.layers, self._steps, self.engine.sent(), strict=True)
        ]
        return Table(found, ranks, self.engine.name, moments=moments)


def _describe(name: str, spec: str, shape: Sequence[int]) -> str:
    return f"{name} ({spec}, {'×'.join(map(str, shape))})"
