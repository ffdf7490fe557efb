"""What a process group is beside its operations: what torch asks about it, how it begins and ends, how operations get to C.

torch lets a class of Python be a ProcessGroup, but not a Backend below one; so the group is both, and answers what torch would ask a
backend.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .. import _library as c
from .._comm import Comm, Stats, make_call
from .._errors import ArgumentError, Error
from . import _buffers as buffers
from ._compression import SMALL, Compression, current, from_environment
from ._meeting import meet
from ._work import DoneWork, PithWork, SingleWaiter, Waiter, seconds

_GRACE = 5.0  # seconds for operations that nobody waited for, when a group ends

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Usage:
    """What a group has done: the comm's statistics, and how its reductions travelled and why."""

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
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        self._name, self._description = "", ""
        self._global_ranks = list(global_ranks)
        self._seconds = timeout
        self._wait_seconds: float | None = None  # where shorter than the comm's own
        self._compression = from_environment()
        spec = self._compression.spec if self._compression else None
        self._comm: Comm | None = meet(store, rank, size, timeout, spec)
        self._waiter = Waiter("pith-futures")
        self._point_waiter = SingleWaiter("pith-message")
        self._sequence = 0
        self._steps = 0  # of compressed reductions: the same on all ranks
        self._reductions: Counter[str] = Counter()
        self._warned: set[str] = set()

    # ---- What torch asks about a group

    def getBackendName(self) -> str:
        return "pith"

    def name(self) -> str:
        return "pith"

    # torch keeps names of groups in their C++ backends, which a group of Python does not have.

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, text: str) -> None:
        self._description = text

    def getGroupDesc(self) -> str:
        return self._description

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

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

    def get_group_store(self) -> dist.Store:
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: Any) -> None:
        """The time-out of operations from now on; a comm's own cannot grow any more."""
        self._wait_seconds = seconds(timeout)

    _set_default_timeout = set_timeout

    @property
    def comm(self) -> Comm:
        """The comm below."""
        if self._comm is None:
            raise ArgumentError("the process group has been destroyed")
        return self._comm

    def usage(self) -> Usage:
        return Usage(self.comm.stats, dict(self._reductions))

    # ---- Ends

    def shutdown(self) -> None:
        """Leaves the group; operations that nobody waited for have a moment to complete."""
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

    def abort(self) -> None:
        """Ends what is under way on every rank."""
        if self._comm is not None:
            self._comm.abort(f"rank {self._comm.rank} aborted the process group")

    # ---- Handing operations to C

    def _describe(self, error: Error) -> Error:
        """Errors name ranks of the group; says which those are where they are not the world's."""
        world = dist.get_world_size() if dist.is_initialized() else len(self._global_ranks)
        if not self._global_ranks or self._global_ranks == list(range(world)):
            return error
        return type(error)(
            f"{error} (ranks of a group: 0 to {self.size() - 1} are {self._global_ranks})",
            error.status,
        )

    def _is_now(self, opts: Any) -> bool:
        """Whether the caller wants to wait, with no other time-out than the comm's."""
        return not option(opts, "asyncOp", True) and self._timeout_of(opts) is None

    def _timeout_of(self, opts: Any) -> float | None:
        given = seconds(option(opts, "timeout", None)) or self._wait_seconds
        return given if given and given < self._seconds else None

    def _run(
        self,
        calls: Sequence[tuple[Any, ...]],
        result: Tensors,
        lent: Any,
        opts: Any = None,
        finishes: Sequence[buffers.Finish | None] = (),
        waiter: Waiter | None = None,
    ) -> PithWork:
        """Calls C functions, given with their arguments, and makes them one Work."""
        self._sequence += 1
        timeout = self._timeout_of(opts)
        try:
            if opts is not None and self._is_now(opts):
                return self._run_now(calls, result, lent, finishes)
            requests = [
                self.comm.submit(function, *arguments, result=None, lent=lent, wait=False)
                for function, *arguments in calls
            ]
        except Error as error:
            raise self._describe(error) from None
        return PithWork(
            result,
            requests,
            _all_of(finishes),
            timeout=timeout,
            waiter=waiter or self._waiter,
            describe=self._describe,
        )

    def _run_now(
        self,
        calls: Sequence[tuple[Any, ...]],
        result: Tensors,
        lent: Any,
        finishes: Sequence[buffers.Finish | None],
    ) -> PithWork:
        if len(calls) == 1:
            function, *arguments = calls[0]
            c.check(function(self.comm.pointer, *arguments, None))
        else:  # together under way
            for request in [
                self.comm.submit(f, *a, result=None, lent=lent, wait=False) for f, *a in calls
            ]:
                request.wait()
        finish = _all_of(finishes)
        if finish is not None:
            with torch.no_grad():
                finish()
        return DoneWork(result)

    # ---- Compression

    def _choose(self, n: int, dtype: int, reduction: int, caps: int) -> Compression | None:
        """Whether and how a reduction is compressed; counts what happens, and says once what cannot be done."""
        chosen = current(self._compression)
        if chosen is None:
            self._reductions["exact"] += 1
            return None
        if dtype not in buffers.COMPRESSIBLE or reduction not in (buffers.SUM, buffers.MEAN):
            reason = "exact: not a sum of f32, f16 or bf16"
        elif n < SMALL:
            reason = f"exact: under {SMALL} values"
        elif caps & ~chosen.caps:
            reason = f"exact: {chosen.spec} needs the whole tensor"
            self._warn(reason)
        else:
            self._reductions[chosen.spec] += 1
            self._steps += 1
            return chosen
        self._reductions[reason] += 1
        return None

    def _warn(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"pith: reduce and reduce-scatter stay {reason}", stacklevel=2)

    def _call(self, chosen: Compression | None) -> Any:
        return make_call(chosen.codec, seed=chosen.seed, step=self._steps) if chosen else None


def _all_of(finishes: Sequence[buffers.Finish | None]) -> buffers.Finish | None:
    needed = [finish for finish in finishes if finish is not None]
    if not needed:
        return None

    def run() -> None:
        for finish in needed:
            finish()

    return run
