# SPDX-License-Identifier: Apache-2.0
"""The ranks of a program that says nothing of a comm: how they find each other, and how they part."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable

from ._comm import Comm
from ._errors import ArgumentError
from ._launch import launch


def join() -> Comm:
    """A comm of the ranks that the launcher (``pith run``, torchrun, mpirun, srun) has started."""
    launch()  # an error that says what to set, where there is no launcher
    return Comm()


class Ranks:
    """The comm of a package such as ``pith.tensorflow``: taken, or made when it is first needed.

    ``settle`` waits for steps under way that nobody has waited for.
    """

    def __init__(
        self,
        package: str,
        join: Callable[[], Comm] = join,
        settle: Callable[[Comm], None] = lambda comm: None,
    ) -> None:
        self._package, self._join, self._settle = package, join, settle
        self._lock = threading.RLock()
        self._comm: Comm | None = None
        atexit.register(self._leave)

    @property
    def comm(self) -> Comm | None:
        """The comm, if there is one."""
        return self._comm if self._comm is not None and not self._comm.closed else None

    def initialize(self, comm: Comm | None = None) -> None:
        """Joins the other ranks, or takes a comm that has."""
        with self._lock:
            if self.comm is not None:
                raise ArgumentError(
                    f"{self._package} is initialized: {self._package}.shutdown() ends that"
                )
            self._comm = comm if comm is not None else self._join()

    def shutdown(self) -> None:
        """Waits for steps under way, and leaves the other ranks."""
        with self._lock:
            comm, self._comm = self.comm, None
        if comm is not None:
            self._settle(comm)
            comm.close()

    def the_comm(self, given: Comm | None = None) -> Comm:
        """The comm that is meant."""
        with self._lock:
            if given is None and self.comm is None:
                self.initialize()
            found = given if given is not None else self.comm
            assert found is not None
            return found

    def _leave(self) -> None:
        """An exception that ends this rank is told to the others, which would wait; else steps under way end first."""
        comm = self.comm
        if comm is None:
            return
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is not None:
            comm.abort(f"{type(error).__name__}: {error}")
        else:
            self._settle(comm)
