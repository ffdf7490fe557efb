# SPDX-License-Identifier: Apache-2.0
"""A process group of torch as a carrier: the collectives of gloo, NCCL, MPI, UCC or any other backend."""

from __future__ import annotations

import ctypes
import weakref
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _library as c
from .._carrier import Carrier, Cuda, NcclCarrier
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
_OPS["mean"] = dist.ReduceOp.SUM  # the work divides: only NCCL has means


class Side:
    """A stream beside the backward pass, on which a reducer works, with the memory that PyTorch keeps for it."""

    def __init__(self, device: torch.device, chunk_bytes: int = 0) -> None:
        self.stream = torch.cuda.Stream(device)
        self.cuda = Cuda(
            self.stream.cuda_stream,
            lambda size: torch.cuda.caching_allocator_alloc(size, device, self.stream),
            torch.cuda.caching_allocator_delete,
            chunk_bytes,
        )


class TorchCarrier(Carrier):
    """Moves a reducer's bytes over a group of its own, so that nobody else's collectives come between them.

    For tensors of a device everything is enqueued on the side stream. ``own=False``: over the group itself, for a reducer that is only called
    where collectives of the group would be.
    """

    threads = True

    def __init__(
        self, group: Any, device: torch.device, side: Side | None = None, own: bool = True
    ) -> None:
        self.name = str(dist.get_backend(group))
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._parent, self._device = group, device
        self._own = own and self.ranks > 1
        self._group = taken_group(group) if self._own else group
        self._stream = None if side is None else side.stream
        self.cuda = None if side is None else side.cuda

    def _working(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()

    def all_to_all(self, send: Any, recv: Any, send_bytes: list[int], recv_bytes: list[int]) -> Any:
        with self._working():
            source, output = self._tensor(send), self._tensor(recv)
            return dist.all_to_all_single(
                output, source, recv_bytes, send_bytes, group=self._group, async_op=True
            )

    def all_gather(self, send: Any, recv: Any) -> Any:
        with self._working():
            source, output = self._tensor(send), self._tensor(recv)
            return all_gather_single(output, source, group=self._group, async_op=True)

    def allreduce(self, values: Any, dtype: str, op: str) -> Any:
        with self._working():
            tensor = self._tensor(values).view(_TYPES[dtype])
            work = dist.all_reduce(tensor, _OPS[op], group=self._group, async_op=True)
        return _Mean(work, tensor, self.ranks) if op == "mean" else work

    def wait(self, handle: Any) -> None:
        with self._working():
            handle.wait()

    def close(self) -> None:
        """The group is there for the next one."""
        if self._own:
            give_group_back(self._parent, self._group)
            self._own = False

    def _tensor(self, memory: Any) -> torch.Tensor:
        """The same memory."""
        if not memory.nbytes:
            return torch.empty(0, dtype=torch.uint8, device=self._device)
        if self._stream is None:
            return torch.frombuffer(memory, dtype=torch.uint8)
        return torch.as_tensor(memory, device=self._device)


class _Mean:
    """The work of a sum that becomes a mean."""

    def __init__(self, work: Any, tensor: torch.Tensor, ranks: int) -> None:
        self._work, self._tensor, self._ranks = work, tensor, ranks

    def wait(self) -> None:
        self._work.wait()
        self._tensor /= self._ranks


# ---- NCCL in C -------------------------------------------------------------------------------------------------------


class TorchNcclCarrier(NcclCarrier):
    """The communicator of a group of our own, so that nobody else's collectives come between ours."""

    def __init__(self, group: Any, own: Any, comm: int, side: Side) -> None:
        timeout = _timeout_of(group)
        super().__init__(comm, side.cuda, timeout.total_seconds() if timeout else 0.0, self._end)
        self._parent, self._group, self._is_ended = group, own, False

    def _end(self, why: str) -> None:
        """Ends what hangs on the device. The watchdog of torch knows nothing of it, since it did not begin it."""
        self._is_ended = True
        backend = nccl_backend(self._group)
        for name in ("abort", "_abort"):
            if hasattr(backend, name):
                getattr(backend, name)()
                return

    def close(self) -> None:
        """The group is there for the next one."""
        if not self._is_ended:
            give_group_back(self._parent, self._group)


def device_carrier(group: Any, device: torch.device, side: Side) -> TorchCarrier | TorchNcclCarrier:
    """NCCL in C where torch hands out the communicator; else the collectives of torch. All ranks call it."""
    is_nccl = dist.get_backend(group) == "nccl" and dist.get_world_size(group) > 1
    if not is_nccl or not _is_same_nccl():
        return TorchCarrier(group, device, side)
    own = taken_group(group)
    dist.all_reduce(torch.zeros(1, device=device), group=own)  # makes the communicator
    torch.cuda.synchronize(device)
    comm = getattr(nccl_backend(own), "_comm_ptr", lambda: 0)()
    if comm:
        return TorchNcclCarrier(group, own, comm, side)
    give_group_back(group, own)
    return TorchCarrier(group, device, side)


def _is_same_nccl() -> bool:
    """Whether the library finds the NCCL that made torch's communicators: another one could not use them."""
    found = ctypes.c_int()
    if c.lib.pith_nccl_probe(ctypes.byref(found)):
        return False
    number = found.value
    return (number // 10000, number // 100 % 100, number % 100) == tuple(torch.cuda.nccl.version())


def nccl_backend(group: Any) -> Any:
    return group._get_backend(torch.device("cuda"))


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


# By the group that they were made from; they live as long.
_over_pith: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def over_pith(group: Any) -> Any:
    """A group of NCCL's ranks over the backend ``pith``, for payloads that go from GPU to GPU without NCCL; other groups as they are."""
    if dist.get_backend(group) != "nccl":
        return group
    if group not in _over_pith:
        _over_pith[group] = own_group(group, "pith")
    return _over_pith[group]


def own_group(group: Any, backend: str | None = None) -> Any:
    """A second group of the same ranks and backend, or of another one."""
    backend = backend or dist.get_backend(group)
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
