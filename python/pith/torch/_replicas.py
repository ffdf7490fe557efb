# SPDX-License-Identifier: Apache-2.0
"""The allreduce between replicas, where fully_shard has a mesh of two dimensions (HSDP), compressed.

FSDP2 reduces a module's gradients inside a shard group first. Then each rank holds the mean of its own shards, and an allreduce over the
ranks that own the same shards makes it that of all replicas. That allreduce goes to the process group which FSDP2 has for replicas, and
has no hook that could take its place: ``set_all_reduce_hook`` comes behind it. So a module gets a process group of its own there, which
reduces what it is given by a reducer of the C library. What that keeps between steps is as large as this rank's shards.

On CPUs FSDP2 waits for each allreduce. Where it does nothing to the result but keep it as the gradient, the reducer works on in the
background, and the end of the backward pass waits for all of them. On GPUs that is so over ``pith``; over NCCL everything is enqueued.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from .._comm import Comm
from .._errors import UnsupportedError
from .._reducer import Reducer
from ._engine import carried, in_turn
from ._layers import COMPRESSIBLE, Layer
from ._shards import follow_plan, is_mean, measure, why_exact
from ._table import Meter
from ._work import DoneWork


class Between:
    """What reduces shards over one group of replicas: a reducer of the C library, on a stream of its own for tensors of a device."""

    def __init__(self, group: Any, device: torch.device, seed: int, adaptive: str = "") -> None:
        """``adaptive``: an adaptive spec, for the layers that have it."""
        over, self._side = carried(group, device, own=False)
        self.group, self.device, self.ranks = group, device, over.ranks
        with torch.cuda.device(device) if self._side is not None else nullcontext():
            cuda = None if self._side is None else self._side.cuda
            self.reducer = Reducer(
                over, adaptive or "none", seed, cuda=cuda, in_parts=bool(adaptive)
            )
        # Groups of NCCL want their collectives in one order on all ranks, those of other groups counted in: nothing may go on in the background.
        self._in_background = self._side is None or isinstance(over, Comm)
        self._lent: dict[int, torch.Tensor] = {}  # by layer, what is under way

    def ordered(self) -> Any:
        """For calls of the reducer behind what the current stream has been given; what it is given next comes behind them."""
        return in_turn(self._side)

    def reduce(self, shards: Sequence[ReplicaShard], values: torch.Tensor, later: bool) -> None:
        """To means, in place. Behind what the current stream has been given; what it is given next comes behind the results.

        ``later``: the results may come when the backward pass ends.
        """
        if any(shard.number in self._lent for shard in shards):
            self.finish()  # a backward pass that did not end, or a second one
        waits = not (later and self._in_background and _at_the_end(self.finish))
        if self._side is not None:
            self._side.stream.wait_stream(torch.cuda.current_stream(values.device))
        address = values.data_ptr()
        try:
            for shard in shards:
                self._lent[shard.number] = values
                self.reducer.start_at(shard.number, address)
                address += shard.n * values.element_size()
        finally:
            if waits:
                self.finish()

    def finish(self) -> None:
        """Waits for what is under way."""
        if not self._lent:
            return
        try:
            self.reducer.finish()
        finally:
            if self._side is not None:
                stream = self._side.stream
                torch.cuda.current_stream(stream.device).wait_stream(stream)
            self._lent.clear()


def _at_the_end(call: Callable[[], None]) -> bool:
    """Whether it will be called when the backward pass ends; False outside of one."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(call)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return False
    return True


class ReplicaShard:
    """This rank's part of a layer, which its replicas have too."""

    def __init__(self, layer: Layer, parameter: Any, dtype: torch.dtype, between: Between) -> None:
        self.layer, self.messages, self.dtype = layer, between, dtype
        self.parameter = parameter  # FSDP2's own object
        self.shape = list(parameter.padded_sharded_param_size)
        self.n = math.prod(self.shape)
        # Rules have judged the whole layer: whether a shard is small is no matter.
        spec = layer.adaptive or layer.spec
        self.number = between.reducer.add_as(layer.name, self.shape, dtype, spec)
        self.meter = Meter()


class ReplicaGroup(dist.ProcessGroup):
    """The replicas of one module, as FSDP2 sees them."""

    def __init__(self, owner: Any, group: Any, exact: Any, shards: list[ReplicaShard]) -> None:
        super().__init__(exact.rank(), exact.size())  # type: ignore[call-arg]
        self._owner, self._exact, self._shards = owner, exact, shards
        self._group = group  # what FSDP2 keeps of the module

    def getBackendName(self) -> str:
        return str(dist.get_backend(self._exact))

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        (values,) = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        shards = [s for s in self._shards if s.parameter.sharded_param.requires_grad]
        reason = why_exact(values, shards, op)
        if reason is None and any(shard.dtype != values.dtype for shard in shards):
            reason = f"{values.dtype} was not to be expected of this module"
        if reason is not None:
            self._owner.exact[f"replicas: {reason}"] += 1
            self._shards[0].messages.finish()  # nothing else is on the wire then
            return self._exact.allreduce([values], opts)
        self._owner._follow()
        measure(shards, values)
        if shards:
            later = bool(is_mean(op)) and self._is_kept_as_it_is(shards, values)
            shards[0].messages.reduce(shards, values, later)
            follow_plan(self._shards)
        if not is_mean(op):
            values.mul_(self.size())
        return DoneWork([values])

    def _is_kept_as_it_is(self, shards: Sequence[ReplicaShard], values: torch.Tensor) -> bool:
        """Whether FSDP2 only makes gradients of the result: it does not add it to others, convert it, or call anybody."""
        parameters = [shard.parameter.sharded_param for shard in shards]
        return (
            getattr(self._group, "_orig_dtype", None) == values.dtype
            and getattr(self._group, "_all_reduce_hook", None) is None
            and all(p.grad is None and p.dtype == values.dtype for p in parameters)
            and not any(getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters)
        )


def replicas_of(group: Any) -> Any:
    """The process group of the replicas of a module's shards; None where there are none. ``group``: what FSDP2 keeps of the module."""
    info = getattr(group, "mesh_info", None)
    found = getattr(info, "replicate_process_group", None)
    if found is None and getattr(info, "replicate_mesh_dim", None) is not None:
        raise _unknown()
    return found if found is not None and found.size() > 1 else None


def take_place(group: Any, mine: ReplicaGroup) -> Callable[[], None]:
    """FSDP2 reduces the module over our group from now on. Gives what puts back its own."""
    info, before = group.mesh_info, group.mesh_info.replicate_process_group

    def restore() -> None:
        info.replicate_process_group = before

    info.replicate_process_group = mine
    if getattr(group, "_all_reduce_process_group", None) is not mine:
        restore()
        raise _unknown()
    return restore


def _unknown() -> UnsupportedError:
    return UnsupportedError(
        f"FSDP2 of torch {torch.__version__} keeps the process group of replicas where Pith does not find it, so that their allreduce cannot be "
        'compressed: replicas="none" leaves it exact'
    )


def gradient_dtype(group: Any, parameter: Any) -> torch.dtype:
    """The type in which FSDP2 reduces a module's gradients."""
    policy = getattr(group, "mp_policy", None)
    asked = getattr(policy, "reduce_dtype", None) or getattr(policy, "param_dtype", None)
    found: torch.dtype = asked or parameter.sharded_param.dtype
    return found if found in COMPRESSIBLE else torch.float32
