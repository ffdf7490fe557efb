"""What encoding loses of gradients, for the table of layers (pith/_table.py)."""

from __future__ import annotations

import torch

from .._codec import through
from .._table import ALLREDUCE, LayerStats, ratio_of
from ._layers import COMPRESSIBLE, Layer


class Meter:
    """Measures what encoding loses of a rank's own gradients, now and then, since it costs an encoding: in steps 1, 2, 4, 8, …, and in
    the step after somebody has asked; on GPUs, which would wait for that, only then. (The means that parameters hold after a step would
    not tell: they have been encoded already.)"""

    def __init__(self) -> None:
        self._errors: dict[str, float] = {}
        self._step, self._asked, self._wanted, self._measures = 0, False, False, False

    def begin(self) -> None:
        """A step begins."""
        self._step += 1
        self._wanted, self._asked = self._asked, False
        self._measures = self._wanted or self._step & (self._step - 1) == 0

    def ask(self) -> None:
        self._asked = True

    def look(self, layer: Layer, values: torch.Tensor, rows: int) -> None:
        if self.looks_at(layer, values):
            self._errors[layer.name] = _error(layer, values.detach().cpu().contiguous(), rows)

    def compare(self, layer: Layer, values: torch.Tensor, received: torch.Tensor) -> None:
        """The same where it is known what others received."""
        if self.looks_at(layer, values):
            self._errors[layer.name] = _difference(values, received)

    def looks_at(self, layer: Layer, values: torch.Tensor) -> bool:
        measures = self._wanted if values.is_cuda else self._measures
        return measures and layer.spec != "none" and values.dtype in COMPRESSIBLE

    def line(
        self, layer: Layer, steps: int, raw: int, wire: int, ranks: int, passes: int = ALLREDUCE
    ) -> LayerStats:
        """A line of the table."""
        error = 0.0 if layer.spec == "none" else self._errors.get(layer.name)
        ratio = ratio_of(raw, wire, ranks, passes)
        about = layer.name, layer.spec, layer.reason, layer.n
        return LayerStats(*about, steps, raw, wire, ratio, error)


def _error(layer: Layer, values: torch.Tensor, rows: int) -> float:
    """The relative error of encoding values once, with a fresh memory."""
    if values.numel() == 0:
        return 0.0
    received = through(layer.codec, values, torch.empty_like(values), layer=layer.number, rows=rows)
    return _difference(values, received)


def _difference(values: torch.Tensor, received: torch.Tensor) -> float:
    whole = torch.linalg.vector_norm(values.float())
    if not whole:
        return 0.0
    return float(torch.linalg.vector_norm(values.float() - received.float()) / whole)
