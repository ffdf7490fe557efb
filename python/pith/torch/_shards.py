# SPDX-License-Identifier: Apache-2.0
"""The shards of layers that FSDP2 hands over in one tensor, and the reducer that exchanges them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from .. import _library as c
from .._reducer import Reducer
from .._tensors import dtype_of
from ._engine import carried, in_turn
from ._layers import COMPRESSIBLE, Layer
from ._table import Meter


class Messages:
    """What exchanges the shards of one process group: a reducer of the C library, on a stream of its own for tensors of a device."""

    def __init__(self, group: Any, device: torch.device, seed: int, adaptive: str = "") -> None:
        over, self._side = carried(group, device, own=False)
        self.group, self.device = group, device
        self.ranks, self.rank = over.ranks, over.rank
        with torch.cuda.device(device) if self._side is not None else nullcontext():
            cuda = None if self._side is None else self._side.cuda
            self.reducer = Reducer(over, adaptive or "none", seed, cuda=cuda, sharded=True)

    def ordered(self) -> Any:
        """For calls of the reducer behind what the current stream has been given; what it is given next comes behind them."""
        return in_turn(self._side)

    def run(
        self,
        call: Callable[..., None],
        shards: Sequence[Shard],
        source: torch.Tensor,
        target: torch.Tensor,
        *more: Any,
    ) -> None:
        with self.ordered():
            call([shard.number for shard in shards], span_of(source), span_of(target), *more)


def follow_plan(shards: Sequence[Any]) -> None:
    """Layers as the adapter of their reducer has them, if that has changed: the reason of any of them tells."""
    adapted = [shard for shard in shards if shard.layer.adaptive]
    if not adapted or _now(adapted[0]).reason == adapted[0].layer.reason:
        return
    for shard in adapted:
        now = _now(shard)
        shard.layer = dataclasses.replace(shard.layer, spec=now.spec, reason=now.reason)
        shard.meter.ask()  # what was measured is of other specs


def _now(shard: Any) -> Any:
    return shard.messages.reducer.layer(shard.number)


def span_of(tensor: torch.Tensor) -> c.Span:
    return c.Span(tensor.data_ptr(), tensor.numel(), dtype_of(tensor.dtype))


class Shard:
    """A layer's part on each rank, as FSDP2 lays it out: as many values on every rank, padded."""

    def __init__(
        self,
        layer: Layer,
        parameter: Any,
        dtype: torch.dtype,
        messages: Messages,
        delta: str = "",
    ) -> None:
        self.layer, self.messages, self.delta = layer, messages, delta
        self.dtype = dtype  # in which gradients are reduced
        self.parameter = parameter  # FSDP2's own object
        self.shape = list(parameter.padded_sharded_param_size)
        self.n = math.prod(self.shape)
        spec = layer.adaptive or delta + layer.spec
        self.number = messages.reducer.add_shards(layer.name, self.shape, spec)
        self.meter = Meter()


def measure(shards: Sequence[Any], values: torch.Tensor) -> None:
    """This rank's part of a new message: what encoding loses of it, now and then."""
    for shard, part in zip(shards, values.split([shard.n for shard in shards]), strict=True):
        shard.meter.begin()
        shard.meter.look(shard.layer, part, shard.shape[0] if len(shard.shape) > 1 else 0)


def copy_to_compare(shards: Sequence[Shard], values: torch.Tensor) -> torch.Tensor | None:
    """This rank's part of a new message, if it is to be compared with what all ranks receive, which takes its place."""
    for shard in shards:
        shard.meter.begin()
    looks = any(shard.meter.looks_at(shard.layer, values) for shard in shards)
    return values.clone() if looks else None


def compare(shards: Sequence[Shard], values: torch.Tensor, received: torch.Tensor) -> None:
    sizes = [shard.n for shard in shards]
    for shard, x, y in zip(shards, values.split(sizes), received.split(sizes), strict=True):
        shard.meter.compare(shard.layer, x, y)


def why_exact(values: torch.Tensor, shards: Sequence[Any], op: Any) -> str | None:
    """Why these gradients are reduced exactly, if they are."""
    if values.dtype not in COMPRESSIBLE:
        return f"{values.dtype} is not compressed"
    if values.numel() != sum(shard.n for shard in shards):
        return "some parameters of a module had no gradient"
    if is_mean(op) is None:
        return "a divide factor of your own"
    return None


def is_mean(op: Any) -> bool | None:
    """Whether it is a mean; None for anything but sums and means."""
    for kind, mean in ((dist.ReduceOp.AVG, True), (dist.ReduceOp.SUM, False)):
        if op == kind:
            return mean
    return None
