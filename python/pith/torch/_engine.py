# SPDX-License-Identifier: Apache-2.0
"""The reducer of the C library for the layers of a model, over a comm of Pith's own or the collectives of a backend of torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from .. import _library as c
from .._codec import Rules
from .._comm import Comm
from .._errors import StateError, UnsupportedError
from .._methods import in_python
from .._reducer import Reducer
from .._spec import texts_of
from ._carrier import Side, TorchCarrier, TorchNcclCarrier, device_carrier, over_pith
from ._group import PithGroup
from ._layers import COMPRESSIBLE, Layer
from ._malloc import keep_memory


def engine_for(
    group: Any, rules: Rules, layers: list[Layer], seed: int, in_order: bool = False
) -> Engine:
    """The engine for these layers, which are on one device.

    ``in_order``: groups are sent in one order on all ranks, whatever order gradients become ready in. Without it, they must become ready in
    the same order on all ranks.
    """
    device = layers[0].parameter.device
    if device.type == "cuda" and any(in_python(layer.spec) for layer in layers):
        from ._host_engine import HostEngine

        return HostEngine(group, rules, layers, seed, in_order)
    over, side = carried(group, device)
    with torch.cuda.device(device) if side is not None else nullcontext():
        return Engine(over, rules, layers, seed, in_order, side)


def check_device(device: torch.device) -> None:
    """An error if gradients there cannot be compressed."""
    why = "pith.torch.compress takes models on CPUs and CUDA devices"
    if device.type == "cuda":
        status = c.lib.pith_cuda_probe(None)
        why = str(c.last_error(status)) if status else ""
    if device.type != "cpu" and why:
        raise UnsupportedError(f"gradients on {device} cannot be compressed: {why}")


def carried(
    group: Any, device: torch.device, own: bool = True
) -> tuple[Comm | TorchCarrier | TorchNcclCarrier, Side | None]:
    """What moves a reducer's bytes for tensors of a device, and where it works there.

    ``own=False``: the bytes of a reducer that is only called where collectives of the group would be.
    """
    check_device(device)
    if device.type == "cuda" and own and os.environ.get("PITH_CUDA_CARRIER") == "ipc":
        group = over_pith(group)
    is_ours = isinstance(group, PithGroup)
    if device.type == "cpu":
        keep_memory()
        return group.comm if is_ours else TorchCarrier(group, device, own=own), None
    with torch.cuda.device(device):
        side = Side(device)
        if is_ours:
            return group.comm, side
        if not own:  # the watchdog of torch then knows of all exchanges
            return TorchCarrier(group, device, side, own=False), side
        return device_carrier(group, device, side), side


@contextmanager
def in_turn(side: Side | None) -> Iterator[None]:
    """Work of a side stream between that of the current stream."""
    if side is None:
        yield
        return
    current = torch.cuda.current_stream(side.stream.device)
    side.stream.wait_stream(current)
    yield
    current.wait_stream(side.stream)


def to_tensor(data: bytes) -> torch.Tensor:
    """Bytes for a checkpoint: torch.load reads tensors without trusting anybody."""
    return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)].clone()


_COMM_GROUP_BYTES = 4 << 20  # enough to be worth a message, soon enough to overlap


class Engine:
    """Takes gradients as they become ready, reduces them in groups in the background, and writes means in place."""

    def __init__(
        self,
        over: Comm | TorchCarrier | TorchNcclCarrier,
        rules: Rules,
        layers: list[Layer],
        seed: int,
        in_order: bool,
        side: Side | None = None,
    ) -> None:
        self._over, self._layers = over, layers
        self.name = "pith" if isinstance(over, Comm) else over.name
        self.rank, self.ranks = over.rank, over.ranks
        self._side = side
        self._set: set[int] = set()  # layers whose specs were set
        self._adapted = [i for i, layer in enumerate(layers) if layer.adaptive]
        self._lent: list[torch.Tensor] = []
        inside = [i for i, layer in enumerate(layers) if not layer.sparse]
        self.reducer = Reducer(
            over,
            _rules_for([layers[i].name for i in inside], rules),
            seed,
            group_bytes=_COMM_GROUP_BYTES if isinstance(over, Comm) and side is None else 0,
            in_order=in_order,
            cuda=None if side is None else side.cuda,
        )
        self._numbers: dict[int, int] = {}
        for i in inside:
            layer, shape, dtype = layers[i], layers[i].shape, layers[i].dtype
            exact = None if dtype in COMPRESSIBLE else layer.reason
            if dtype.is_complex:
                shape, dtype = (*shape, 2), dtype.to_real()
            self._numbers[i] = self.reducer.add(layer.name, shape, dtype, exact=exact)
        if inside:
            self.reducer.check()
        self._follow()

    def put(self, index: int, gradient: torch.Tensor) -> None:
        values = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        self._lent.append(values)
        if self._side is not None:  # its work comes behind what has made the gradient
            self._side.stream.wait_stream(torch.cuda.current_stream(gradient.device))
        self.reducer.start_at(self._numbers[index], values.data_ptr())

    def finish(self) -> bool:
        try:
            self.reducer.finish()
        finally:
            if self._side is not None:  # the caller's work comes behind the means
                stream = self._side.stream
                torch.cuda.current_stream(stream.device).wait_stream(stream)
            self._lent.clear()
        return self._follow()

    def _follow(self) -> bool:
        """Layers as the adapter of the reducer has them, if that has changed: the reason of any of them tells. Others have specs that were set."""
        led = [i for i in self._adapted if i not in self._set] if self._set else self._adapted
        if not led:
            return False
        if self.reducer.layer(self._numbers[led[0]]).reason == self._layers[led[0]].reason:
            return False
        for i in led:
            now = self.reducer.layer(self._numbers[i])
            self._layers[i] = dataclasses.replace(self._layers[i], spec=now.spec, reason=now.reason)
        return True

    def scale_residual(self, index: int, factor: float) -> None:
        """What is pending of a layer's gradients; that of momentum is not in units of these."""
        if index in self._numbers and not self._layers[index].codec.moment:
            self.reducer.scale_residual(self._numbers[index], factor)

    # ---- Momentum

    def set_spec(self, index: int, spec: str, reason: str) -> None:
        """Another spec for a layer from the next step on, on all ranks alike. The adapter rests while any of its layers has one."""
        self.reducer.set_spec(self._numbers[index], spec)
        now = self.reducer.layer(self._numbers[index]).spec
        self._layers[index] = dataclasses.replace(self._layers[index], spec=now, reason=reason)
        self._set.add(index)

    def leave_to_adapter(self, indices: Iterable[int]) -> None:
        """Layers have the specs of the adapter again."""
        for index in self._set.intersection(indices):
            self.reducer.set_spec(self._numbers[index], None)
            self._set.remove(index)
        self._follow()

    def number(self, index: int) -> int:
        """What the reducer calls a layer."""
        return self._numbers[index]

    def update(self, updates: Any) -> None:
        """An optimizer's step for an array of ``pith_update``, behind what the current stream has been given."""
        with self._ordered() as stream:
            self.reducer.update(updates, stream)

    def residual(self, index: int) -> torch.Tensor:
        """A copy of what is pending of a layer."""
        device = None if self._side is None else self._side.stream.device
        copy = torch.empty(self._layers[index].n, dtype=torch.float32, device=device)
        with self._ordered() as stream:
            self.reducer.copy_residual(self._numbers[index], copy.data_ptr(), stream)
        return copy

    @property
    def device(self) -> torch.device:
        """Where gradients, and what is kept of them, are."""
        return torch.device("cpu") if self._side is None else self._side.stream.device

    def in_turn(self) -> Any:
        """For calls of the reducer behind what the current stream has been given; what it is given next comes behind them."""
        return in_turn(self._side)

    @contextmanager
    def _ordered(self) -> Iterator[int | None]:
        """The current stream, behind what the reducer's has been given, which then waits for it in turn; None in main memory."""
        if self._side is None:
            yield None
            return
        side = self._side.stream
        current = torch.cuda.current_stream(side.device)
        current.wait_stream(side)
        yield current.cuda_stream
        side.wait_stream(current)

    # ---- Statistics and checkpoints

    def sent(self) -> list[int]:
        found = [0] * len(self._layers)
        layers = self.reducer.layers
        for index, number in self._numbers.items():
            found[index] = layers[number].traffic.sent_bytes
        return found

    def save(self) -> dict[str, Any]:
        return {"reducer": to_tensor(self.reducer.save())}

    def load(self, saved: dict[str, Any]) -> None:
        if "reducer" not in saved:
            raise StateError(
                f"the state was saved over {self.name} by Pith 0.1, which kept it in another form; train on without it"
            )
        self.reducer.load(saved["reducer"])
        self._follow()

    def close(self) -> None:
        self.reducer.close()
        if not isinstance(self._over, Comm):
            self._over.close()


def _rules_for(names: Sequence[str], rules: Rules) -> str:
    """Rules that match none of these would be slips to a reducer."""
    texts = enumerate(texts_of(rules))
    return ";".join(t for i, t in texts if any(rules.matches(i, name) for name in names)) or "none"
