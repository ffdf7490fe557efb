# SPDX-License-Identifier: Apache-2.0
"""What codecs have not sent yet, for torch.distributed.checkpoint: in a form that any number of ranks can go on with.

A state of a compressor is as codecs keep it, and belongs to one rank. Here each layer has one tensor for all ranks: what the mean of its
gradients still lacks ("owed"). That is the mean over ranks of their residuals, with what results have lost. It does not depend on how many
ranks there are, nor on who has which shard; so a run may go on with others, and DDP with what FSDP2 has saved.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._errors import StateError, UnsupportedError
from .._reducer import Reducer
from ._carrier import all_gather_single
from ._compression import compression
from ._fsdp import ShardedCompressor, reduce_scatter_single
from ._hook import Compressor, compressor
from ._host_engine import HostEngine
from ._layers import COMPRESSIBLE, Layer
from ._optimizer import DistributedOptimizer
from ._rates import LossScale, Rates
from ._reduction import Reduction

_VERSION = 1


class Checkpoint:
    """The gradients that a compressed model has not sent yet, as an object that torch.distributed.checkpoint saves and
    loads::

        pending = pith.torch.Checkpoint(model)
        dcp.save({"model": …, "optimizer": …, "pith": pending}, checkpoint_id=folder)
        …
        dcp.load({"model": …, "optimizer": …, "pith": pending}, checkpoint_id=folder)      # on any number of ranks

    ``what`` is a compressed model, its handle, or a DistributedOptimizer. All ranks save and load, between steps.

    The residuals of all ranks are summed, and the ranks that load get their share. So the part of the gradients that is
    still missing from the means is the same before and after. A layer whose spec has no memory now adds its share to
    its next 16 gradients. The run does not continue with the same bits, since all ranks have equal residuals
    afterwards; ``state_dict()`` of the handle keeps each rank's own. Adaptive specs begin with their warm-up, and
    low-rank codecs with new factors.
    """

    def __init__(self, what: Any) -> None:
        found = (
            what
            if isinstance(what, (Compressor, ShardedCompressor, DistributedOptimizer))
            else compressor(what)
        )
        if isinstance(found, Compressor) and found._moments is not None:
            raise UnsupportedError(
                "what moment/… has not sent is a part of the optimizer's momentum: each rank saves its own, by state_dict() of the handle"
            )
        if not isinstance(found, ShardedCompressor) and isinstance(
            found._reduction.engine, HostEngine
        ):
            raise UnsupportedError(
                "methods written in Python keep their residuals in main memory: each rank saves its own, by state_dict() of the handle"
            )
        self._of: _Whole | _Sharded = (
            _Sharded(found)
            if isinstance(found, ShardedCompressor)
            else _Whole(found._reduction, found.group)
        )

    def __repr__(self) -> str:
        return f"<pith.torch.Checkpoint of {len(self._of.names)} layers that keep something>"

    def state_dict(self) -> dict[str, Any]:
        """Returns a tensor for each layer whose spec has a memory. All ranks call it."""
        of = self._of
        with torch.no_grad(), compression(None):
            owed = {name: of.owed(name) for name in of.names}
            momentum = {name: of.momentum(name) for name in of.names_of_momentum}
        return {"about": json.dumps(self._about()), "owed": owed, "momentum": momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a checkpoint of any number of ranks. All ranks call it. If it has values for which there is no layer,
        raises an error and changes nothing.
        """
        of, about = self._of, json.loads(state["about"])
        if about["version"] != _VERSION:
            raise StateError(f"the checkpoint was saved as version {about['version']}")
        for kind, mine in (("owed", of.names), ("momentum", of.names_of_momentum)):
            lost = sorted(set(about[kind]) - set(mine))
            if lost:
                raise StateError(
                    f"the checkpoint has what layer {lost[0]} had not sent yet ({kind}), and its spec here has no place for that: compress with "
                    "the same specs, or leave pith out of what is loaded"
                )
        owed, momentum = state["owed"], state["momentum"]
        for name in of.names:
            of.check(name, owed.get(name))
            if name in momentum:
                of.check(name, momentum[name])
        with torch.no_grad(), compression(None):
            of.resume(about["step"])
            for name in of.names:
                of.owe(name, owed[name], momentum.get(name))
        of.scale.value = about["scale"]
        of.rates.load([about["rates"].get(layer.name) for layer in of.layers])

    def _about(self) -> dict[str, Any]:
        of = self._of
        rates = zip(of.layers, of.rates.save(), strict=True)
        return {
            "version": _VERSION,
            "step": of.step(),
            "owed": of.names,
            "momentum": of.names_of_momentum,
            "scale": of.scale.value,
            "rates": {layer.name: rate for layer, rate in rates if rate is not None},
        }


def _is_kept(layer: Layer) -> bool:
    """Whether something of it may be owed: the same before and after a step."""
    return bool(layer.adaptive) or layer.codec.has_memory


def _check_shape(name: str, found: Any, shape: Sequence[int]) -> None:
    if found is None:
        raise StateError(f"the checkpoint has nothing of layer {name}")
    if list(found.shape) != list(shape):
        raise StateError(
            f"the checkpoint has {list(found.shape)} values of layer {name}, which has {list(shape)}"
        )


def _has_momentum(reducer: Reducer, number: int, layer: Layer) -> bool:
    return not layer.adaptive and reducer.array_sizes(number)[1] > 0


# ---- Whole gradients -------------------------------------------------------------------------------------------------


class _Whole:
    """Of DistributedDataParallel, or an optimizer: every rank has all of a layer, and tensors are the same on all ranks."""

    def __init__(self, reduction: Reduction, group: Any) -> None:
        self._reduction, self._engine, self._group = reduction, reduction.engine, group
        self.scale: LossScale = reduction._scale
        self.rates: Rates = reduction.rates
        numbers = {
            layer.name: index
            for index, layer in enumerate(reduction.layers)
            if layer.dtype in COMPRESSIBLE and not layer.sparse and _is_kept(layer)
        }
        self._index = numbers
        self.names = list(numbers)
        self.names_of_momentum = [
            name
            for name, i in numbers.items()
            if _has_momentum(self._engine.reducer, self._engine.number(i), reduction.layers[i])
        ]

    @property
    def layers(self) -> Sequence[Layer]:
        return self._reduction.layers

    def step(self) -> int:
        return max((layer.steps for layer in self._engine.reducer.layers), default=0)

    def resume(self, step: int) -> None:
        self._engine.reducer.resume(step)

    def owed(self, name: str) -> torch.Tensor:
        return self._mean(name, lambda number, at: self._engine.reducer.owed(number, at))

    def momentum(self, name: str) -> torch.Tensor:
        return self._mean(name, lambda number, at: self._engine.reducer.owed(number, None, at))

    def _mean(self, name: str, call: Any) -> torch.Tensor:
        index = self._index[name]
        layer = self._reduction.layers[index]
        found = torch.zeros(layer.shape, dtype=torch.float32, device=self._engine.device)
        with self._engine.in_turn():
            call(self._engine.number(index), found.data_ptr())
        dist.all_reduce(found, group=self._group)
        return found.div_(self._engine.ranks)

    def check(self, name: str, given: Any) -> None:
        _check_shape(name, given, self._reduction.layers[self._index[name]].shape)

    def owe(self, name: str, owed: torch.Tensor, momentum: torch.Tensor | None) -> None:
        number = self._engine.number(self._index[name])
        values = self._in_a_row(owed)
        means = None if momentum is None else self._in_a_row(momentum)
        with self._engine.in_turn():
            self._engine.reducer.owe(
                number, values.data_ptr(), None if means is None else means.data_ptr()
            )

    def _in_a_row(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._engine.device, torch.float32).contiguous()


# ---- Shards ----------------------------------------------------------------------------------------------------------


class _Sharded:
    """Of fully_shard: tensors are sharded as the parameters are. What replicas owe each other belongs to the same means as what ranks of a
    shard group do; they are added up."""

    def __init__(self, owner: ShardedCompressor) -> None:
        self._owner = owner
        self.scale, self.rates = owner._scale, owner._rates
        self._shards = {
            shard.layer.name: shard
            for shard in owner._shards
            if _is_kept(shard.layer) or _is_kept(self._level_two(shard) or shard.layer)
        }
        self.names = list(self._shards)
        self.names_of_momentum = [
            name
            for name, shard in self._shards.items()
            if _has_momentum(shard.messages.reducer, shard.number, shard.layer)
        ]
        for shard in owner._replicas:
            if _has_momentum(shard.messages.reducer, shard.number, shard.layer):
                raise UnsupportedError(
                    f"{shard.layer.spec} between replicas keeps a mean of past gradients, which belongs to as many replicas: each rank saves "
                    "its own, by state_dict() of the handle"
                )

    def _level_two(self, shard: Any) -> Layer | None:
        found = self._owner._replica.get(shard.parameter)
        return None if found is None else found.layer

    @property
    def layers(self) -> Sequence[Layer]:
        return self._owner.layers

    def step(self) -> int:
        steps = (s.messages.reducer.layer(s.number).steps for s in self._owner._shards)
        return max(steps, default=0)

    def resume(self, step: int) -> None:
        for reducer in self._owner._kept():
            reducer.resume(step)

    def owed(self, name: str) -> Any:
        shard = self._shards[name]
        inside, between = _units(self._owner, shard)
        own = _mean_of(shard, lambda r, number, at: r.owed(number, at)).mul_(inside)
        replica = self._owner._replica.get(shard.parameter)
        if replica is not None:
            mine = torch.zeros_like(own)
            with replica.messages.ordered():
                replica.messages.reducer.owed(replica.number, mine.data_ptr())
            own += mine.mul_(between)
        return _as_parameter(shard, self._mean_of_replicas(shard, own))

    def momentum(self, name: str) -> Any:
        shard = self._shards[name]
        own = _mean_of(shard, lambda r, number, at: r.owed(number, None, at))
        own.mul_(_units(self._owner, shard)[0])
        return _as_parameter(shard, self._mean_of_replicas(shard, own))

    def _mean_of_replicas(self, shard: Any, own: torch.Tensor) -> torch.Tensor:
        group = self._owner._replica_groups.get(shard.parameter)
        if group is not None:
            dist.all_reduce(own, group=group)
            own.div_(group.size())
        return own

    def check(self, name: str, given: Any) -> None:
        shard = self._shards[name]
        _check_shape(name, given, shard.parameter.sharded_param.shape)
        if not hasattr(given, "to_local") or given.to_local().shape != _local(shard).shape:
            raise StateError(
                f"the checkpoint's values of layer {name} are not sharded as the layer is"
            )

    def owe(self, name: str, owed: Any, momentum: Any) -> None:
        shard = self._shards[name]
        replica = self._owner._replica.get(shard.parameter)
        inside, between = _units(self._owner, shard)
        own = _padded(shard, owed)
        to_replicas = replica is not None and _is_kept(replica.layer) and not _is_kept(shard.layer)
        if replica is not None:
            at = own.div(between)
            with replica.messages.ordered():
                replica.messages.reducer.owe(replica.number, at.data_ptr() if to_replicas else None)
        whole = None if to_replicas else _of_all(shard, own.div_(inside))
        means = None if momentum is None else _of_all(shard, _padded(shard, momentum).div_(inside))
        with shard.messages.ordered():
            shard.messages.reducer.owe(
                shard.number,
                None if whole is None else whole.data_ptr(),
                None if means is None else means.data_ptr(),
            )


def _mean_of(shard: Any, call: Any) -> torch.Tensor:
    """The mean over the ranks of a shard group of what they have of this rank's shard."""
    messages = shard.messages
    every = torch.zeros(shard.n * messages.ranks, dtype=torch.float32, device=messages.device)
    with messages.ordered():
        call(messages.reducer, shard.number, every.data_ptr())
    own = torch.empty(shard.n, dtype=torch.float32, device=messages.device)
    reduce_scatter_single(own, every, group=messages.group)
    return own.div_(messages.ranks)


def _of_all(shard: Any, own: torch.Tensor) -> torch.Tensor:
    """The shards of all owners: every rank is given as much."""
    every = torch.empty(shard.n * shard.messages.ranks, dtype=torch.float32, device=own.device)
    all_gather_single(every, own, group=shard.messages.group)
    return every


def _local(shard: Any) -> Any:
    return shard.parameter.sharded_param.to_local()


def _as_parameter(shard: Any, own: torch.Tensor) -> Any:
    """A rank's padded shard as a part of a tensor that is sharded as the parameter is."""
    from torch.distributed.tensor import DTensor

    parameter = shard.parameter.sharded_param
    part = own.view(shard.shape)[tuple(slice(0, size) for size in _local(shard).shape)]
    return DTensor.from_local(
        part.contiguous(),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _padded(shard: Any, values: Any) -> torch.Tensor:
    local = values.to_local()
    own = torch.zeros(shard.shape, dtype=torch.float32, device=shard.messages.device)
    own[tuple(slice(0, size) for size in local.shape)] = local
    return own.view(-1)


def _units(owner: ShardedCompressor, shard: Any) -> tuple[float, float]:
    """What residuals inside a shard group and between replicas are multiplied by, to be in units of the mean of gradients. FSDP2 divides
    halves by a part of the number of ranks before they are summed, and by the rest afterwards."""
    if shard.dtype != torch.float16:
        return 1.0, 1.0
    group = owner._replica_groups.get(shard.parameter)
    ranks, before = shard.messages.ranks * (1 if group is None else group.size()), 1
    while ranks % before == 0 and ranks / before > before:
        before *= 2
    return float(before), before / shard.messages.ranks
