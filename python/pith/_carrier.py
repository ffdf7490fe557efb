# SPDX-License-Identifier: Apache-2.0
"""A reducer over somebody else's collectives: what moves its bytes.

Subclass :class:`Carrier`, or hand in anything with the same methods. Memory is given as ``memoryview`` of bytes, or as :class:`DeviceMemory`; it is
the reducer's, and stays until :meth:`Carrier.wait` has returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _library as c
from ._errors import SystemError
from ._tensors import NAMES

_ALL_TO_ALL, _ALL_GATHER = 0, 1
_OPS = ("sum", "max", "min", "prod", "mean", "band", "bor", "bxor")


class DeviceMemory:
    """Bytes of a CUDA device, for whatever reads ``__cuda_array_interface__``: torch, CuPy, Numba."""

    def __init__(self, address: int | None, nbytes: int) -> None:
        self.nbytes = nbytes if address else 0
        self.__cuda_array_interface__ = {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (address or 0, False),
            "version": 3,
        }


@dataclass(frozen=True)
class Cuda:
    """Where a reducer for device tensors works: on a stream of the current device, with the memory of a framework."""

    stream: int
    allocate: Callable[[int], int]
    release: Callable[[int], None]
    chunk_bytes: int = 0  # layers much larger are sent in several exchanges; 0: what is usual
    # Over a comm: "ipc", "staged", "auto/nccl" (by NCCL between hosts); None: PITH_CUDA_CARRIER, else ipc where all ranks can.
    carrier: str | None = None


class Carrier:
    """Moves a reducer's bytes between ranks.

    A method that begins a collective returns a handle and should not wait for other ranks; ``wait`` receives the
    handle. All ranks begin the same collectives in the same order. With ``threads`` a thread of the reducer calls these
    methods, concurrently with the program; without it they are called within calls of the reducer.
    """

    name = "carrier"
    rank: int
    ranks: int
    threads = False
    cuda: Cuda | None = None  # gradients are on a device

    def all_to_all(
        self, send: memoryview, recv: memoryview, send_bytes: list[int], recv_bytes: list[int]
    ) -> Any:
        """Sends ``send_bytes[p]`` bytes to rank p and receives ``recv_bytes[p]`` bytes from it. The pieces lie one after another."""
        raise NotImplementedError

    def all_gather(self, send: memoryview, recv: memoryview) -> Any:
        """Writes ``send`` of all ranks into ``recv``, one after another."""
        raise NotImplementedError

    def allreduce(self, values: memoryview, dtype: str, op: str) -> Any:
        """Reduces values of a type ("f32", "f64", "i8", …) in place by "sum" or "max", to the same bits on all ranks."""
        raise NotImplementedError

    def wait(self, handle: Any) -> None:
        """Waits until the collective is complete."""
        handle.wait()


class NcclCarrier(Carrier):
    """Moves the bytes of one reducer over NCCL, in C: everything is enqueued on the stream.

    ``comm`` is the address of a communicator (``ncclComm_t``), which lives longer. Ranks that NCCL says are gone, and a step that takes the device
    more than ``timeout`` seconds (0: no limit), end the reducer; ``abort`` is called then, possibly by another thread, so that what hangs ends.
    """

    name = "nccl"

    def __init__(
        self,
        comm: int,
        cuda: Cuda,
        timeout: float = 0.0,
        abort: Callable[[str], None] | None = None,
    ) -> None:
        self.struct = c.Carrier()
        c.check(c.lib.pith_nccl_carrier(comm, timeout, ctypes.byref(self.struct)))
        self.rank, self.ranks, self.cuda = self.struct.rank, self.struct.ranks, cuda
        self.struct.interrupted = c.signals.callback
        if abort is not None:
            self._abort = c.CARRIER_ABORT(lambda _self, why: abort(c.text(why)))
            self.struct.abort = self._abort


def _view(address: int | None, size: int) -> memoryview:
    data = (ctypes.c_uint8 * size).from_address(address) if size and address else bytearray()
    return memoryview(data).cast("B")


class Options:
    """Those of a reducer, with what they point to."""

    def __init__(
        self,
        group_bytes: int,
        in_order: bool,
        cuda: Cuda | None,
        sharded: bool = False,
        lent: bool = False,
        in_parts: bool = False,
    ) -> None:
        self.struct = c.ReducerOptions(
            group_bytes,
            int(in_order),
            sharded=int(sharded),
            lent=int(lent),
            in_parts=int(in_parts),
        )
        self.error: BaseException | None = None
        if cuda is not None:
            self._cuda = cuda
            self._allocator = c.Allocator(
                None,
                c.ALLOCATE(self._allocate),
                c.RELEASE(lambda _self, memory: cuda.release(memory)),
            )
            self.struct.cuda, self.struct.stream = 1, cuda.stream
            self.struct.chunk_bytes = cuda.chunk_bytes
            self.struct.carrier = cuda.carrier.encode() if cuda.carrier else None
            self.struct.allocator = ctypes.addressof(self._allocator)

    def _allocate(self, _self: Any, size: int) -> int:
        try:
            return self._cuda.allocate(size)
        except BaseException as error:
            self.error = self.error or error
            return 0


_waiting: list[Bridge] = []  # that threads will come back to


class Bridge:
    """A carrier as the C library sees it. Exceptions of its methods are kept, and become those of the reducer."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._handles: dict[int, Any] = {}
        self._next = 0
        self.error: BaseException | None = None
        self._functions = (c.CARRIER_START(self._start), c.CARRIER_WAIT(self._wait))
        self._name = carrier.name.encode()
        self.struct = c.Carrier(
            name=self._name,
            rank=carrier.rank,
            ranks=carrier.ranks,
            caps=int(carrier.threads) | (0 if carrier.cuda is None else 2),
            start=self._functions[0],
            wait=self._functions[1],
            interrupted=c.signals.callback,
        )

    def close(self) -> None:
        """The reducer is gone. A thread of its may still wait for a collective that other ranks never begin."""
        if self._handles:
            _waiting.append(self)

    def _guarded(self, what: str, call: Callable[[], None]) -> int:
        try:
            call()
        except BaseException as error:
            self.error = self.error or error
            text = f"{what} over {self._carrier.name} failed: {error}"
            return int(c.lib.pith_fail(SystemError.status, b"%s", text.encode()))
        return 0

    def _start(self, _self: Any, exchange: Any, ticket: Any) -> int:
        def start() -> None:
            self._next += 1
            self._handles[self._next] = self._begin(exchange.contents)
            ticket[0] = self._next

        return self._guarded("an exchange", start)

    def _begin(self, x: Any) -> Any:
        carrier, ranks = self._carrier, self._carrier.ranks
        view: Any = _view if carrier.cuda is None else DeviceMemory
        if x.kind == _ALL_TO_ALL:
            sent, received = x.send_bytes[:ranks], x.recv_bytes[:ranks]
            return carrier.all_to_all(
                view(x.send, sum(sent)), view(x.recv, sum(received)), sent, received
            )
        if x.kind == _ALL_GATHER:
            return carrier.all_gather(view(x.send, x.bytes), view(x.recv, x.bytes * ranks))
        size = x.count * c.lib.pith_dtype_size(x.dtype)
        return carrier.allreduce(view(x.recv, size), NAMES[x.dtype], _OPS[x.op])

    def _wait(self, _self: Any, ticket: int) -> int:
        return self._guarded("waiting", lambda: self._carrier.wait(self._handles.pop(ticket)))
