# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks that exchange tensors."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import _library as c
from ._codec import Codec, State, codec_of
from ._errors import ArgumentError, Error, TimeoutError
from ._launch import id_pointer
from ._tensors import View, target_of, view_of

REDUCTIONS = {"sum": 0, "max": 1, "min": 2, "prod": 3, "mean": 4, "band": 5, "bor": 6, "bxor": 7}
ANY_RANK = -1  # receives from whoever sends first
_NO_CALL = None
_MANY_REQUESTS = 32  # that nobody waited for, before we look which of them are complete


def _reduction(name: str) -> int:
    try:
        return REDUCTIONS[name]
    except KeyError:
        raise ArgumentError(f"there is no reduction {name!r}: {', '.join(REDUCTIONS)}") from None


def sizes(counts: Sequence[int] | None, ranks: int) -> Any:
    """Counts for the C library, one for each rank."""
    if counts is None:
        return None
    if len(counts) != ranks:
        raise ArgumentError(f"{len(counts)} counts for {ranks} ranks")
    if any(count < 0 for count in counts):
        raise ArgumentError(f"the counts {list(counts)} contain a negative one")
    return c.numbers(counts)


def make_call(
    codec: Codec | None,
    state: State | None = None,
    *,
    seed: int = 0,
    step: int = 0,
    layer: int = 0,
    rows: int = 0,
    gamma: float = 1.0,
    algorithm: str | None = None,
) -> Any:
    """A pith_call by reference; None for an uncompressed one."""
    if codec is None and not (layer or step or seed) and algorithm is None:
        return _NO_CALL
    call = c.Call(
        seed=c.whole(ctypes.c_uint64, seed, "seed"),
        step=c.whole(ctypes.c_uint64, step, "step"),
        layer=c.whole(ctypes.c_uint64, layer, "layer"),
        rows=c.whole(ctypes.c_uint64, rows, "rows"),
        gamma=gamma,
    )
    call.codec = codec._pointer if codec else None
    call.state = state._pointer if state else None
    call.algorithm = c.encoded(algorithm, "algorithm")
    return ctypes.byref(call)


class Request:
    """An operation in flight. Its tensors must not be changed until it is complete."""

    def __init__(
        self,
        comm: Comm,
        pointer: ctypes.c_void_p,
        result: Any,
        lent: Any,
        is_receive: bool = False,
    ) -> None:
        self._comm = comm
        self._is_receive = is_receive
        self._pointer: ctypes.c_void_p | None = pointer
        self._lent = lent
        self._lock = threading.Lock()  # two threads may wait; the C library wants one
        self._error: Error | None = None
        self._result = result
        self.source = -1  #: of a receive that is complete: the rank that sent

    def __repr__(self) -> str:
        if self._pointer is not None:
            return f"<pith.Request in flight on {self._comm!r}>"
        return f"<pith.Request failed: {self._error}>" if self._error else "<pith.Request complete>"

    def done(self) -> bool:
        """Whether the operation is complete. Never waits."""
        with _Try(self._lock) as mine:
            if not mine:
                return False  # somebody waits for it just now
            if self._pointer is None:
                return True
            done = ctypes.c_int()
            c.check(c.lib.pith_test(self._pointer, ctypes.byref(done)))
            return bool(done.value)

    def wait(self, timeout: float | None = None, *, set_by: str = "wait(timeout)") -> Any:
        """Waits until the operation is complete, and returns its result or raises its error.

        A signal is handled while it waits. If the handler raises (Ctrl-C: KeyboardInterrupt), the operation stays in
        flight and can be waited for again. The comm's time-out always applies. ``timeout`` (seconds) is a shorter one;
        after it the comm is aborted, since an operation cannot be taken back. ``set_by`` appears in the message of that
        error.
        """
        if timeout is not None and not self._poll(timeout):
            why = (
                f"Timed out waiting {timeout:g} s for an operation, seen by rank {self._comm.rank} "
                f"(a timeout of {timeout:g} s, set by {set_by})"
            )
            self._comm.abort(why)
            self._finish()
            raise TimeoutError(why)
        self._finish()
        if self._error is not None:
            raise self._error
        return self._result

    def _poll(self, seconds: float) -> bool:
        end, pause = time.monotonic() + seconds, 20e-6
        while not self.done():
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        return True

    def _finish(self) -> None:
        with self._lock:
            if self._pointer is None:
                return
            if self._is_receive:
                source = ctypes.c_int(-1)
                status = c.lib.pith_wait_source(self._pointer, ctypes.byref(source))
                self.source = source.value
            else:
                status = c.lib.pith_wait(self._pointer)
            error = c.last_error(status) if status else None
            if error is not None and not isinstance(error, Error):
                raise error  # a handler of a signal did; the operation goes on
            self._error = error
            self._pointer = self._lent = None
        self._comm._requests.discard(self)


class _Try:
    """A lock that is taken if nobody has it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> bool:
        self._mine = self._lock.acquire(blocking=False)
        return self._mine

    def __exit__(self, *_: object) -> None:
        if self._mine:
            self._lock.release()


@dataclass(frozen=True)
class Stats:
    """What a comm has done since it was created. Times are in seconds."""

    operations: int
    messages: int
    raw_bytes: int
    sent_bytes: int
    encode: float
    decode: float
    wait: float
    links: int  # peers with which this rank is connected


@dataclass(frozen=True)
class Traffic:
    """What operations have sent, and how long they took (in seconds)."""

    operations: int
    uncompressed: int  # of those, how many had no codec
    messages: int
    raw_bytes: int
    sent_bytes: int
    encode: float
    decode: float
    wire: float


def traffic_of(found: c.Traffic) -> Traffic:
    return Traffic(**{name: getattr(found, name) for name in Traffic.__dataclass_fields__})


class Comm:
    """A group of ranks. Every rank calls the same operations in the same order.

    Without arguments, rank, size and address come from the environment, as set by ``pith run``, torchrun, mpirun or
    srun; with ``id``, from ``pith.unique_id`` of rank 0::

        with pith.Comm() as comm:
            comm.allreduce(gradient, "mean", codec="q:4")

    Tensors are numpy arrays, torch CPU tensors, or anything with ``__dlpack__``; they are not copied. Every operation
    returns its result, or with ``wait=False`` a ``Request`` at once. If a rank dies, stalls or disagrees, the call
    raises an error that names it, on every rank. After that the comm refuses all further operations with the same
    error.

    ``tls`` encrypts tcp links: ``"psk"`` with a key derived from ``secret``, ``"cert"`` with the certificates in the
    files ``tls_cert``, ``tls_key`` and ``tls_ca``. Each has an environment variable, such as ``PITH_TLS``.

    Up to ``eager`` ranks (0: ``PITH_EAGER``, else 16; the same on all ranks) connect to each other at the start. In
    larger groups two ranks connect when one first sends something to the other.

    Signals are handled while a call waits. If a handler raises (Ctrl-C: KeyboardInterrupt) during a call that waits for
    its result, the comm is aborted and the other ranks get an error, since the operation cannot be taken back.
    """

    def __init__(
        self,
        rank: int | None = None,
        ranks: int | None = None,
        *,
        host: str | None = None,
        port: int = 0,
        transport: str | None = None,
        interface: str | None = None,
        host_id: str | None = None,
        secret: str | None = None,
        timeout: float = 0.0,
        chunk: int = 0,
        algorithm: str | None = None,
        inside: str | None = None,
        connections: int = 0,
        threads: int = 0,
        id: bytes | None = None,
        liveness: float = 0.0,
        tls: str | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        eager: int = 0,
    ) -> None:
        config = c.Config(
            rank=-1 if rank is None else c.whole(ctypes.c_int, rank, "rank"),
            ranks=-1 if ranks is None else c.whole(ctypes.c_int, ranks, "ranks"),
            host=c.encoded(host, "host"),
            port=c.whole(ctypes.c_uint16, port, "port"),
            transport=c.encoded(transport, "transport"),
            interface=c.encoded(interface, "interface"),
            host_id=c.encoded(host_id, "host_id"),
            secret=c.encoded(secret, "secret"),
            timeout=timeout,
            chunk=c.whole(ctypes.c_size_t, chunk, "chunk"),
            algorithm=c.encoded(algorithm, "algorithm"),
            inside=c.encoded(inside, "inside"),
            connections=c.whole(ctypes.c_uint16, connections, "connections"),
            threads=c.whole(ctypes.c_uint16, threads, "threads"),
            id=id_pointer(id),
            liveness=liveness,
            interrupted=c.signals.callback,
            tls=c.encoded(tls, "tls"),
            tls_cert=os.fsencode(tls_cert) if tls_cert else None,
            tls_key=os.fsencode(tls_key) if tls_key else None,
            tls_ca=os.fsencode(tls_ca) if tls_ca else None,
            eager=c.whole(ctypes.c_uint16, eager, "eager"),
        )
        pointer = ctypes.c_void_p()
        c.check(c.lib.pith_comm_create(ctypes.byref(config), ctypes.byref(pointer)))
        self._adopt(pointer)

    def _adopt(self, pointer: ctypes.c_void_p) -> None:
        self._pointer: ctypes.c_void_p | None = pointer
        self.rank: int = c.lib.pith_comm_rank(pointer)
        self.ranks: int = c.lib.pith_comm_size(pointer)
        self._requests: set[Request] = set()
        self._dependents: weakref.WeakSet[Any] = weakref.WeakSet()  # reducers, which end before us
        self._process = os.getpid()
        _alive.add(self)

    # ---- Life

    def close(self) -> None:
        """Leaves the group. Operations that are still in flight fail."""
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer is None:
            return
        for dependent in list(self._dependents):
            dependent.close()
        c.lib.pith_comm_destroy(pointer)  # in a forked child, silently
        if (
            self._process == os.getpid()
        ):  # else threads of the parent may have held the requests' locks
            for request in list(self._requests):
                request._finish()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Comm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.wait()
            elif self._pointer and not isinstance(error, Error):
                self.abort(f"{type(error).__name__}: {error}")
        finally:
            self.close()

    def __repr__(self) -> str:
        if self._pointer is None:
            return f"<pith.Comm rank {self.rank} of {self.ranks}, closed>"
        over = {self.transport(peer) for peer in range(self.ranks) if peer != self.rank}
        return f"<pith.Comm rank {self.rank} of {self.ranks}{' over ' + ', '.join(sorted(over)) if over else ''}>"

    @property
    def closed(self) -> bool:
        return self._pointer is None

    @property
    def pointer(self) -> ctypes.c_void_p:
        """The pith_comm of the C library."""
        if self._pointer is None:
            raise ArgumentError("the comm is closed")
        return self._pointer

    def wait(self) -> None:
        """Waits for all requests that were not waited for, and raises the error of the first that failed."""
        for request in list(self._requests):
            request.wait()

    def abort(self, why: str) -> None:
        """Ends all operations in flight on every rank, with an error that contains ``why``."""
        c.lib.pith_comm_abort(self.pointer, why.encode())

    def split(self, color: int, key: int = 0) -> Comm | None:
        """Creates a comm for each color, ranked by key and then by old rank. A negative color gets None."""
        pointer = ctypes.c_void_p()
        c.check(c.lib.pith_comm_split(self.pointer, color, key, ctypes.byref(pointer)))
        if not pointer:
            return None
        group = Comm.__new__(Comm)
        group._adopt(pointer)
        return group

    def transport(self, peer: int) -> str:
        """The transport to a peer: "shm", "tcp", …; "self" for this rank."""
        return c.text(c.lib.pith_comm_transport(self.pointer, peer))

    @property
    def timeout(self) -> float:
        """Seconds without progress before an operation fails. Setting it also affects operations in flight. Each rank has its own."""
        return c.lib.pith_comm_timeout(self.pointer)

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        c.check(c.lib.pith_comm_set_timeout(self.pointer, seconds))

    @property
    def stats(self) -> Stats:
        stats = c.Stats()
        c.check(c.lib.pith_comm_stats(self.pointer, ctypes.byref(stats)))
        return Stats(**{name: getattr(stats, name) for name in Stats.__dataclass_fields__})

    def traffic(self, operation: str) -> Traffic:
        """Statistics of one kind of operation ("allreduce", "all_gather", …; "send" for both directions)."""
        found = c.Traffic()
        c.check(c.lib.pith_comm_traffic(self.pointer, operation.encode(), ctypes.byref(found)))
        return traffic_of(found)

    # ---- Operations

    def submit(self, function: Any, *arguments: Any, result: Any, lent: Any, wait: bool) -> Any:
        """Calls a C operation. ``lent`` must stay alive until it is complete."""
        if wait:
            c.check(function(self.pointer, *arguments, None))
            return result
        if len(self._requests) >= _MANY_REQUESTS:
            self._reap()
        pointer = ctypes.c_void_p()
        c.check(function(self.pointer, *arguments, ctypes.byref(pointer)))
        request = Request(self, pointer, result, lent, function is c.lib.pith_recv)
        self._requests.add(request)  # nobody else may hold on to it
        return request

    def _reap(self) -> None:
        for request in [r for r in list(self._requests) if r.done()]:
            request._finish()

    def allreduce(
        self,
        src: Any,
        reduce: str = "sum",
        dst: Any = None,
        *,
        codec: str | Codec | None = None,
        state: State | None = None,
        wait: bool = True,
        **where: Any,
    ) -> Any:
        """Reduces ``src`` of all ranks into ``dst``, or in place, on every rank.

        ``reduce`` is one of sum, mean, max, min, prod, band, bor, bxor. A codec compresses sums and means of f32, f16
        and bf16; ``state`` is for codecs with a memory. ``where`` is seed, step, layer, rows, gamma and algorithm
        (include/pith/comm.h, pith_call).
        """
        dst = src if dst is None else dst
        source, target = view_of(src), target_of(dst)
        codec = codec_of(codec) if codec is not None else None
        return self.submit(
            c.lib.pith_allreduce,
            source.span,
            target.span,
            _reduction(reduce),
            make_call(codec, state, **where),
            result=dst,
            lent=(source, target, codec, state),
            wait=wait,
        )

    def reduce_to(
        self,
        src: Any,
        root: int = 0,
        reduce: str = "sum",
        dst: Any = None,
        *,
        codec: str | Codec | None = None,
        state: State | None = None,
        wait: bool = True,
        **where: Any,
    ) -> Any:
        """Reduces ``src`` of all ranks on ``root`` only, into ``dst`` or in place."""
        dst = src if dst is None else dst
        source = view_of(src)
        target = target_of(dst) if self.rank == root else source
        codec = codec_of(codec) if codec is not None else None
        return self.submit(
            c.lib.pith_reduce,
            source.span,
            target.span,
            _reduction(reduce),
            root,
            make_call(codec, state, **where),
            result=dst,
            lent=(source, target, codec, state),
            wait=wait,
        )

    def reduce_scatter(
        self,
        src: Any,
        dst: Any,
        reduce: str = "sum",
        counts: Sequence[int] | None = None,
        *,
        codec: str | Codec | None = None,
        wait: bool = True,
        **where: Any,
    ) -> Any:
        """Rank r gets the reduction of part r. Parts have ``counts`` values for each rank, or are equal."""
        source, target = view_of(src), target_of(dst)
        codec = codec_of(codec) if codec is not None else None
        return self.submit(
            c.lib.pith_reduce_scatter,
            source.span,
            target.span,
            sizes(counts, self.ranks),
            _reduction(reduce),
            make_call(codec, **where),
            result=dst,
            lent=(source, target, codec),
            wait=wait,
        )

    def all_gather(
        self,
        src: Any,
        dst: Any,
        counts: Sequence[int] | None = None,
        *,
        codec: str | Codec | None = None,
        wait: bool = True,
        **where: Any,
    ) -> Any:
        """Writes ``src`` of all ranks into ``dst`` on every rank, in rank order."""
        source, target = view_of(src), target_of(dst)
        codec = codec_of(codec) if codec is not None else None
        return self.submit(
            c.lib.pith_all_gather,
            source.span,
            target.span,
            sizes(counts, self.ranks),
            make_call(codec, **where),
            result=dst,
            lent=(source, target, codec),
            wait=wait,
        )

    def broadcast(
        self,
        tensor: Any,
        root: int = 0,
        *,
        codec: str | Codec | None = None,
        wait: bool = True,
        **where: Any,
    ) -> Any:
        """Copies the tensor of ``root`` to every rank."""
        target = target_of(tensor)
        codec = codec_of(codec) if codec is not None else None
        return self.submit(
            c.lib.pith_broadcast,
            target.span,
            root,
            make_call(codec, **where),
            result=tensor,
            lent=(target, codec),
            wait=wait,
        )

    def all_to_all(
        self,
        src: Any,
        dst: Any,
        send: Sequence[int] | None = None,
        receive: Sequence[int] | None = None,
        *,
        wait: bool = True,
    ) -> Any:
        """Sends part p of ``src`` to rank p, and receives part p of ``dst`` from it."""
        source, target = view_of(src), target_of(dst)
        return self.submit(
            c.lib.pith_all_to_all,
            source.span,
            sizes(send, self.ranks),
            target.span,
            sizes(receive, self.ranks),
            result=dst,
            lent=(source, target),
            wait=wait,
        )

    def gather(
        self,
        src: Any,
        dst: Any = None,
        counts: Sequence[int] | None = None,
        root: int = 0,
        *,
        wait: bool = True,
    ) -> Any:
        """Writes ``src`` of all ranks into ``dst`` on ``root``; the other ranks need no ``dst``."""
        source = view_of(src)
        target = _needed(dst, self.rank == root, "gather", "dst")
        return self.submit(
            c.lib.pith_gather,
            source.span,
            target.span if target else c.Span(None, 0, source.dtype),
            sizes(counts, self.ranks),
            root,
            result=dst,
            lent=(source, target),
            wait=wait,
        )

    def scatter(
        self,
        dst: Any,
        src: Any = None,
        counts: Sequence[int] | None = None,
        root: int = 0,
        *,
        wait: bool = True,
    ) -> Any:
        """Sends part r of ``src`` on ``root`` to ``dst`` of rank r; the other ranks need no ``src``."""
        target = target_of(dst)
        source = _needed(src, self.rank == root, "scatter", "src")
        if source and source.dtype != target.dtype:
            raise ArgumentError("scatter: src and dst have different types")
        return self.submit(
            c.lib.pith_scatter,
            source.span if source else c.Span(None, 0, target.dtype),
            sizes(counts, self.ranks),
            target.span,
            root,
            result=dst,
            lent=(source, target),
            wait=wait,
        )

    def barrier(self, *, wait: bool = True) -> Any:
        """Returns once all ranks have called it."""
        return self.submit(c.lib.pith_barrier, result=None, lent=None, wait=wait)

    def send(self, src: Any, peer: int, tag: int = 0, *, wait: bool = True) -> Any:
        """Sends to one rank, which receives with the same tag."""
        source = view_of(src)
        return self.submit(
            c.lib.pith_send, source.span, peer, tag, result=None, lent=source, wait=wait
        )

    def receive(self, dst: Any, peer: int = ANY_RANK, tag: int = 0, *, wait: bool = True) -> Any:
        """Receives from one rank, which sends with the same tag, in the order of sending. Without ``peer``, receives
        from the first rank that sends; with ``wait=False``, ``request.source`` then says which.
        """
        target = target_of(dst)
        return self.submit(
            c.lib.pith_recv, target.span, peer, tag, result=dst, lent=target, wait=wait
        )


def _needed(tensor: Any, is_root: bool, operation: str, name: str) -> View | None:
    if not is_root:
        return None
    if tensor is None:
        raise ArgumentError(f"{operation}: the root needs {name}")
    return target_of(tensor) if name == "dst" else view_of(tensor)


_alive: weakref.WeakSet[Comm] = weakref.WeakSet()
os.register_at_fork(after_in_child=_alive.clear)  # a child says no goodbye for its parent


@atexit.register
def _say_goodbye() -> None:
    """Ranks that end without closing their comm still tell the others that all is well."""
    for comm in list(_alive):
        if not comm._requests:
            comm.close()
