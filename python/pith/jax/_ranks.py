# SPDX-License-Identifier: Apache-2.0
"""The ranks of this program: how they find each other, and how they part."""

from __future__ import annotations

import os
import sys
from typing import Any

import jax
import jax.numpy as jnp

from .. import _library as c
from .._comm import Comm
from .._errors import ArgumentError
from .._launch import unique_id
from .._ranks import Ranks, join

_KEY = "pith/comm/{}"  # in the key-value store of jax.distributed
_SECONDS = 300  # to wait for rank 0's entry there

_CARRIERS = ("auto", "nccl", "comm")

_carrier: str | None = None  # chosen by initialize()
_made = 0  # comms over the store so far: each has an entry of its own


def _join() -> Comm:
    store = _store()
    return join() if store is None else _join_by(store)


def _store() -> Any:
    """The client of jax.distributed's key-value store; None if that is not initialized. JAX has no public name for it."""
    from jax._src import distributed

    return distributed.global_state.client


def _join_by(store: Any) -> Comm:
    global _made
    from jax._src import distributed

    state, key = distributed.global_state, _KEY.format(_made)
    _made += 1
    if state.process_id == 0:
        host = str(state.coordinator_address).rsplit(":", 1)[0]
        made = unique_id(host.strip("[]"))
        store.key_value_set(key, made.hex())
    else:
        made = bytes.fromhex(store.blocking_key_value_get(key, 1000 * _SECONDS))
    return Comm(state.process_id, state.num_processes, id=made)


def settle() -> None:
    """Waits for what was dispatched: programs of a CPU run in the order in which a thread dispatched them."""
    jax.block_until_ready(jnp.zeros(()) + 1)


def _end(comm: Comm) -> None:
    """Before JAX and the comm go: steps under way end first, and one that failed is told."""
    settle()
    if c.lib.pith_xla_check(comm.pointer):
        print(f"pith: steps have failed: {c.text(c.lib.pith_error())}", file=sys.stderr)


_ranks = Ranks("pith.jax", _join, _end)


def initialize(comm: Comm | None = None, *, carrier: str | None = None) -> None:
    """Joins the other ranks, or uses a comm that has joined. The first ``init`` or ``allreduce`` calls it.

    Without a comm: if ``jax.distributed`` is initialized, the ranks are its processes and find each other by its store.
    Otherwise rank, size and address come from the launcher: ``pith run``, torchrun, mpirun or srun.

    ``carrier`` is the path of messages from GPUs, the same on all ranks: "nccl", "comm" (through pinned memory), or
    "auto", which is NCCL if all ranks can use it. The default is the variable PITH_JAX_CARRIER.
    """
    global _carrier
    _known(carrier or "auto", "carrier")
    _ranks.initialize(comm)
    _carrier = carrier


def carrier() -> str:
    """How messages are to travel from GPUs."""
    return _carrier or _known(os.environ.get("PITH_JAX_CARRIER") or "auto", "PITH_JAX_CARRIER")


def _known(name: str, where: str) -> str:
    if name not in _CARRIERS:
        raise ArgumentError(f"{where} is {name!r}: {', '.join(_CARRIERS)} are known")
    return name


def shutdown() -> None:
    """Waits for steps in flight, and leaves the group. Programs that were traced before must be traced again."""
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
