# SPDX-License-Identifier: Apache-2.0
"""What encoding loses of gradients, for the table of layers (pith/_table.py)."""

from __future__ import annotations

import ctypes

import torch

from .. import _library as c
from .._codec import context, through
from .._methods import in_python
from .._table import ALLREDUCE, LayerStats, ratio_of
from .._tensors import dtype_of
from ._layers import COMPRESSIBLE, Layer


class Meter:
    """Measures what encoding loses of a rank's own gradients, now and then, since it costs an encoding: in steps 1, 2, 4, 8, …, and in
    the step after somebody has asked; on GPUs only then. There it is enqueued where the gradient is, and nobody waits for it but who
    reads the table. (The means that parameters hold after a step would not tell: they have been encoded already.)"""

    def __init__(self) -> None:
        self._errors: dict[str, float | torch.Tensor] = {}
        self._step, self._asked, self._wanted, self._measures = 0, False, False, False

    def begin(self) -> None:
        """A step begins."""
        self._step += 1
        self._wanted, self._asked = self._asked, False
        self._measures = self._wanted or self._step & (self._step - 1) == 0

    def ask(self) -> None:
        self._asked = True

    def forget(self) -> None:
        """What was measured is of other specs."""
        self._errors.clear()

    def look(self, layer: Layer, values: torch.Tensor, rows: int) -> None:
        if self.looks_at(layer, values):
            self._errors[layer.name] = _error(layer, values.detach().contiguous(), rows)

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
        found = 0.0 if layer.spec == "none" else self._errors.get(layer.name)
        error = None if found is None else float(found)
        ratio = ratio_of(raw, wire, ranks, passes)
        about = layer.name, layer.spec, layer.reason, layer.n
        return LayerStats(*about, steps, raw, wire, ratio, error)


def _error(layer: Layer, values: torch.Tensor, rows: int) -> float | torch.Tensor:
    """The relative error of encoding values once, with a fresh memory."""
    if values.numel() == 0:
        return 0.0
    if values.is_cuda and not in_python(layer.spec):
        with torch.cuda.device(values.device):
            stream = torch.cuda.current_stream().cuda_stream
            return _difference(values, through_there(layer, values, rows, stream))
    values = values.cpu()
    received = through(layer.codec, values, torch.empty_like(values), layer=layer.number, rows=rows)
    return _difference(values, received)


def through_there(
    layer: Layer, values: torch.Tensor, rows: int, stream: int | None
) -> torch.Tensor:
    """What others get of a tensor in the memory of a device. Only enqueued."""
    codec, n = layer.codec, values.numel()

    def room(size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=values.device)

    received, payload, size = torch.empty_like(values), room(codec.bound(n)), room(8)
    memory, momentum = (room(4 * n if codec.has_memory else 0) for _ in range(2))
    ctx = context(layer=layer.number, rows=rows)
    item = c.CudaItem(
        codec=codec._pointer,
        dtype=dtype_of(values.dtype),
        n=n,
        values=values.data_ptr(),
        payload=payload.data_ptr(),
        memory=memory.data_ptr() or None,
        momentum=momentum.data_ptr() or None,
        payload_size=size.data_ptr(),
        **{
            name: getattr(ctx, name)
            for name in ("seed", "step", "layer", "rank", "ranks", "rows", "gamma")
        },
    )
    items = ctypes.pointer(item)
    needs = c.lib.pith_cuda_workspace(items, 1)
    workspace = room(needs)
    c.check(c.lib.pith_cuda_encode(items, 1, workspace.data_ptr() or None, needs, stream))
    item.values, item.memory, item.momentum = received.data_ptr(), None, None
    c.check(c.lib.pith_cuda_decode(items, 1, 0, workspace.data_ptr() or None, needs, stream))
    return received


def _difference(values: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """As a tensor of one number, which may still be under way."""
    whole = torch.linalg.vector_norm(values.float())
    lost = torch.linalg.vector_norm(values.float() - received.float())
    return torch.where(whole == 0, whole, lost / whole)
