# SPDX-License-Identifier: Apache-2.0
"""What a process group is beside its operations: what torch asks about it, how it begins and ends, how operations get to C.

torch lets a class of Python be a ProcessGroup, but not a Backend below one; so the group is both, and answers what torch would ask a
backend.
"""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _library as c
from .._comm import Comm, Stats, make_call
from .._errors import ArgumentError, Error, TimeoutError
from . import _buffers as buffers
from ._compression import current, from_environment
from ._rendezvous import is_connected_to, port_of_rank_0, rendezvous
from ._work import DoneWork, PithWork, SingleWaiter, Waiter, begin_event, seconds

_GRACE = 5.0  # seconds for operations that nobody waited for, when a group ends
_STORE_GRACE = 5.0  # seconds for rank 0 to close torch's store, when the world ends
_LEAST_TIMEOUT = 1e-3  # a time-out of zero: whatever is not there at once is too late
is_profiling = torch.autograd._profiler_enabled
Tensors = Sequence[torch.Tensor]
# A C function with its arguments, the memory lent to it, and how its result gets to its tensors.
Part = tuple[tuple[Any, ...], Any, buffers.Finish | None]


@dataclass(frozen=True)
class Usage:
    """Statistics of a group: those of its comm, and how many reductions were compressed, or why not."""

    comm: Stats
    reductions: dict[str, int]


def option(opts: Any, name: str, otherwise: Any) -> Any:
    return getattr(opts, name, otherwise) if opts is not None else otherwise


class GroupBase(dist.ProcessGroup):
    """All of a process group but its operations."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: float,
        global_ranks: Sequence[int] = (),
        timeout_set_by: str = "init_process_group(timeout=…)",
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store: dist.Store | None = store
        self._name, self._description = "", ""
        self._global_ranks = list(global_ranks)
        self._seconds = max(timeout, _LEAST_TIMEOUT)
        self._timeout_set_by = timeout_set_by
        self._monitored = 0  # monitored barriers so far
        self._compression = from_environment()
        spec = self._compression.spec if self._compression else None
        self._comm: Comm | None = rendezvous(store, rank, size, self._seconds, spec)
        self._waiter = Waiter("pith-futures")
        self._point_waiter = SingleWaiter("pith-message")
        self._sequence = 0
        self._steps = 0  # of compressed reductions: the same on all ranks
        self._reductions: Counter[str] = Counter()

    # ---- What torch asks about a group

    def getBackendName(self) -> str:
        """``pith``."""
        return "pith"

    name = getBackendName

    # torch keeps names of groups in their C++ backends, which a group of Python does not have.

    def setGroupName(self, name: str) -> None:
        """Called by torch: the name of this group."""
        self._name = name

    def getGroupName(self) -> str:
        """The name that torch gave this group."""
        return self._name

    def setGroupDesc(self, text: str) -> None:
        """Called by torch: what this group is for."""
        self._description = text

    def getGroupDesc(self) -> str:
        """What torch was told that this group is for."""
        return self._description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> GroupBase:
        """The group is its own backend: a class of Python cannot be one of torch's Backend objects."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the backend pith has nothing for {device} tensors")
        return self

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def get_group_store(self) -> dist.Store | None:
        """The store that the group was made with."""
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: Any) -> None:
        """The time-out of this rank's operations from now on, and of those in flight. Zero: what is not there at once is too late."""
        self._seconds = max(timeout.total_seconds(), _LEAST_TIMEOUT)
        self._timeout_set_by = "_set_pg_timeout()"
        self.comm.timeout = self._seconds

    _set_default_timeout = set_timeout

    @property
    def comm(self) -> Comm:
        """The comm below."""
        if self._comm is None:
            raise ArgumentError("the process group has been destroyed")
        return self._comm

    def usage(self) -> Usage:
        """What the group has sent, and how many reductions were compressed or why not."""
        return Usage(self.comm.stats, dict(self._reductions))

    # ---- Ends

    def shutdown(self) -> None:
        """Leaves the group. Operations that were not waited for get a moment to complete."""
        comm, self._comm = self._comm, None
        if comm is None:
            return
        end = time.monotonic() + _GRACE
        while (
            any(not request.done() for request in list(comm._requests)) and time.monotonic() < end
        ):
            time.sleep(1e-3)
        if any(not request.done() for request in list(comm._requests)):
            comm.abort(
                f"rank {comm.rank} destroyed the process group while operations were under way"
            )
        self._waiter.close()
        comm.close()
        # Waits for a moment until rank 0 has closed torch's store, where it serves it. A rank that initialized a group again before that
        # would find the old store, which then ends under its hands.
        waits = dist.group.WORLD is self and comm.rank > 0
        port = port_of_rank_0(self._store) if waits and self._store is not None else None
        end = time.monotonic() + _STORE_GRACE
        while port is not None and is_connected_to(port) and time.monotonic() < end:
            time.sleep(2e-3)
        self._store = None  # rank 0's process holds its port as long as somebody holds the store

    def abort(self) -> None:
        """Ends all operations in flight on every rank."""
        if self._comm is not None:
            self._comm.abort(f"rank {self._comm.rank} aborted the process group")

    # ---- Handing operations to C

    def _describe(self, error: Error) -> Error:
        """Errors name ranks of the group; says which those are where they are not the world's. And time-outs are those of torch's settings."""
        if isinstance(error, TimeoutError):
            text = str(error)
            for of_the_comm in ("pith_config.timeout", "pith_comm_set_timeout()"):
                text = text.replace(f"set by {of_the_comm}", f"set by {self._timeout_set_by}")
            error = TimeoutError(text, error.status)
        world = dist.get_world_size() if dist.is_initialized() else len(self._global_ranks)
        if not self._global_ranks or self._global_ranks == list(range(world)):
            return error
        return type(error)(
            f"{error} (ranks of a group: 0 to {self.size() - 1} are {self._global_ranks})",
            error.status,
        )

    def _run(
        self, parts: Sequence[Part], result: Tensors, opts: Any = None, waiter: Waiter | None = None
    ) -> PithWork:
        """Calls the C functions of all parts, and makes them one Work. Callers that want to wait get one that is done."""
        self._sequence += 1
        given, event = seconds(option(opts, "timeout", None)), None
        timeout = given if given and given < self._seconds else None
        if parts and is_profiling():  # events have the names that gloo gives them
            name = parts[0][0][0].__name__.replace("pith_", "pith:")
            event = begin_event(name.replace("allreduce", "all_reduce"))
        is_now = event is None and timeout is None and not option(opts, "asyncOp", True)
        try:
            if is_now and len(parts) == 1:
                (function, *arguments), _, finish = parts[0]
                c.check(function(self.comm.pointer, *arguments, None))
                if finish is not None:
                    with torch.no_grad():
                        finish()
                return DoneWork(result)
            requests = [
                self.comm.submit(function, *arguments, result=None, lent=lent, wait=False)
                for (function, *arguments), lent, _ in parts
            ]
        except Error as error:
            raise self._describe(error) from None
        work = PithWork(
            result,
            requests,
            [finish for _, _, finish in parts if finish is not None],
            timeout=timeout,
            waiter=waiter or self._waiter,
            describe=self._describe,
        )
        if is_now:
            work.wait()
        if event is not None:
            work.record(event)
        return work

    # ---- A barrier that tells who is missing

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier after which rank 0 names the ranks that did not arrive within the time-out: all of them with
        ``wait_all_ranks``, else the first.

        It uses torch's store, so a rank that is stuck in another operation does not block it, and the group can be used
        afterwards. The messages are those of gloo, for scripts that look for them.
        """
        limit = self._seconds if timeout is None else timeout.total_seconds()
        self._monitored += 1
        key = f"pith/monitored/{self._monitored}"
        store, milliseconds = self._store, round(1000 * limit)
        assert store is not None
        if self.rank() != 0:
            store.set(f"{key}/{self.rank()}", "here")
            with contextlib.suppress(RuntimeError):  # nothing from rank 0 in time
                store.wait([f"{key}/end"], timedelta(seconds=max(limit, _LEAST_TIMEOUT)))
                if not json.loads(store.get(f"{key}/end")):
                    return
            raise TimeoutError(
                f"Rank {self.rank()} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
                "Please check rank 0 logs for faulty rank."
            )
        if limit <= 0:
            raise TimeoutError(f"Rank 0 timed out in monitoredBarrier after {milliseconds} ms.")
        end = time.monotonic() + limit
        missing = list(range(1, self.size()))
        while missing and time.monotonic() < end:
            missing = [rank for rank in missing if not store.check([f"{key}/{rank}"])]
            time.sleep(1e-3 if missing else 0)
        store.set(f"{key}/end", json.dumps(missing))
        if missing:
            named = ", ".join(map(str, missing)) if wait_all_ranks else str(missing[0])
            several = "s" if wait_all_ranks and len(missing) > 1 else ""
            raise TimeoutError(
                f"Rank{several} {named} failed to pass monitoredBarrier in {milliseconds} ms"
            )

    # ---- Compression

    def _call_for(self, n: int, dtype: int, reduction: int, caps: int) -> Any:
        """How a reduction is compressed, None if it is not; counts what happens, and says once what cannot be done."""
        chosen = current(self._compression)
        if chosen is None:
            self._reductions["exact"] += 1
            return None
        if dtype not in buffers.COMPRESSIBLE or reduction not in (buffers.SUM, buffers.MEAN):
            reason = "exact: not a sum of f32, f16 or bf16"
        elif n < chosen.minimal:
            reason = f"exact: under {chosen.minimal} values"
        elif caps & ~chosen.caps:
            reason = f"exact: {chosen.spec} needs the whole tensor"
            if reason not in self._reductions:
                warnings.warn(f"pith: reduce and reduce-scatter stay {reason}", stacklevel=2)
        else:
            self._reductions[chosen.spec] += 1
            self._steps += 1
            return make_call(chosen.codec, seed=chosen.seed, step=self._steps)
        self._reductions[reason] += 1
        return None
