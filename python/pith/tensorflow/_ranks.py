# SPDX-License-Identifier: Apache-2.0
"""The ranks of this program."""

from __future__ import annotations

from .._comm import Comm
from .._ranks import Ranks

_ranks = Ranks("pith.tensorflow")


def initialize(comm: Comm | None = None) -> None:
    """Joins the other ranks, or uses a comm that has joined. The first use of gradients or variables calls it.

    Without a comm, rank, size and address come from the launcher: ``pith run``, torchrun, mpirun or srun.
    """
    _ranks.initialize(comm)


def shutdown() -> None:
    """Leaves the group. Functions that were traced before must be traced again."""
    _ranks.shutdown()


def the_comm(given: Comm | None = None) -> Comm:
    """The comm that is meant."""
    return _ranks.the_comm(given)


def rank() -> int:
    """The number of this rank."""
    return the_comm().rank


def ranks() -> int:
    """The number of ranks."""
    return the_comm().ranks
