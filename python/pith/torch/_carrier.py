"""A process group of torch as a carrier: the collectives of gloo, MPI, UCC or any other backend that takes CPU tensors."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._carrier import Carrier
from .._errors import ArgumentError

# Its name changed in torch 2.13.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

_TYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class TorchCarrier(Carrier):
    """Moves a reducer's bytes over a group of its own, so that nobody else's collectives come between them."""

    threads = True

    def __init__(self, group: Any) -> None:
        self.name = str(dist.get_backend(group))
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._parent = group
        self._group = taken_group(group) if self.ranks > 1 else None

    def all_to_all(
        self, send: memoryview, recv: memoryview, send_bytes: list[int], recv_bytes: list[int]
    ) -> Any:
        return dist.all_to_all_single(
            _tensor(recv), _tensor(send), recv_bytes, send_bytes, group=self._group, async_op=True
        )

    def all_gather(self, send: memoryview, recv: memoryview) -> Any:
        return all_gather_single(_tensor(recv), _tensor(send), group=self._group, async_op=True)

    def allreduce(self, values: memoryview, dtype: str, op: str) -> Any:
        tensor = _tensor(values, _TYPES[dtype])
        return dist.all_reduce(tensor, _OPS[op], group=self._group, async_op=True)

    def close(self) -> None:
        """The group is there for the next one."""
        if self._group is not None:
            give_group_back(self._parent, self._group)
            self._group = None


def _tensor(view: memoryview, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """The same memory."""
    return torch.frombuffer(view, dtype=dtype) if view.nbytes else torch.empty(0, dtype=dtype)


# ---- Groups of our own -----------------------------------------------------------------------------------------------

# Those that are free, by the group that they were made from. They are not destroyed: torch would give the next one the same name, under
# which the store still has the addresses of the old one.
_spare: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def taken_group(group: Any) -> Any:
    """One that is free, else a new one. All ranks take them and give them back in the same order."""
    spare = _spare.get(group)
    return spare.pop() if spare else own_group(group)


def give_group_back(parent: Any, group: Any) -> None:
    _spare.setdefault(parent, []).append(group)


def own_group(group: Any) -> Any:
    """A second group of the same ranks and backend."""
    backend = dist.get_backend(group)
    ranks = dist.get_process_group_ranks(group)
    local = backend != "mpi"
    if not local and len(ranks) != dist.get_world_size():
        raise ArgumentError("over MPI, only models of the whole world can be compressed")
    return dist.new_group(
        ranks,
        timeout=_timeout_of(group),
        backend=backend,
        use_local_synchronization=local,
        group_desc="pith",
    )


def _timeout_of(group: Any) -> timedelta | None:
    """The group's own time-out, where torch tells; None is torch's default."""
    try:
        device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
        return group._get_backend(torch.device(device)).options._timeout
    except (AttributeError, RuntimeError):
        return None
