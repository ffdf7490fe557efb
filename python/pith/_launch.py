# SPDX-License-Identifier: Apache-2.0
"""How this process was started, and how ranks find each other where a program tells them by other means."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from . import _library as c


@dataclass(frozen=True)
class Launch:
    """What the launcher (torchrun, pith run, mpirun, srun) has set in the environment."""

    launcher: str
    rank: int
    ranks: int
    local_rank: int | None  #: among the ranks of this host; None where the launcher does not say
    local_ranks: int | None
    host: str | None  #: where rank 0 runs
    port: int | None  #: where rank 0 listens; the same on all ranks


def launch() -> Launch:
    """Reads the launcher's variables. Without any, raises ``pith.ArgumentError``, which says what to set."""
    found = c.Launch()
    c.check(c.lib.pith_launch_find(ctypes.byref(found)))
    return Launch(
        found.launcher.decode(),
        found.rank,
        found.ranks,
        found.local_rank if found.local_rank >= 0 else None,
        found.local_ranks if found.local_ranks >= 0 else None,
        found.host.decode() or None,
        found.port or None,
    )


def unique_id(host: str | None = None, interface: str | None = None) -> bytes:
    """Creates the id of one comm, on rank 0. Send it to all ranks, and pass it to ``pith.Comm(rank, ranks, id=…)`` on
    each.

    ``host`` is a machine that all ranks can reach (rank 0's own will do); it decides which network is tried first.
    Without ``PITH_SECRET``, anyone who has the id can join the comm.
    """
    config = c.Config(
        rank=-1,
        ranks=-1,
        host=c.encoded(host, "host"),
        interface=c.encoded(interface, "interface"),
    )
    made = c.UniqueId()
    c.check(c.lib.pith_unique_id_create(ctypes.byref(config), ctypes.byref(made)))
    return bytes(made.bytes)


def id_pointer(unique: bytes | None) -> ctypes._Pointer[c.UniqueId] | None:
    """What ``pith_config.id`` takes."""
    return ctypes.pointer(c.UniqueId.from_buffer_copy(unique)) if unique else None
