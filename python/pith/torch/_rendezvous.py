# SPDX-License-Identifier: Apache-2.0
"""The rendezvous of the ranks of a process group: rank 0 opens a port and puts a unique id into torch's store.

The port of torch's own store is not used: it is held, by rank 0 or by torchrun. Each group has a store of its own (a prefix), so any number
of groups can be formed at the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .._comm import Comm
from .._errors import MismatchError, PeerError, TimeoutError
from .._launch import unique_id

_KEY = "pith/rendezvous"


def _tcp_store(store: dist.Store) -> dist.TCPStore | None:
    """The TCP store below all prefixes."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, dist.TCPStore) else None


def port_of_rank_0(store: dist.Store) -> int | None:
    """The store's port where rank 0's process serves it, as with env://, and ends it with the group. torchrun's agent serves its own: None."""
    tcp = _tcp_store(store)
    if tcp is None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    return tcp.port if os.environ.get("MASTER_PORT") == str(tcp.port) else None


def is_connected_to(port: int) -> bool:
    """Whether a connection of this process to a server at that port is open at both ends. The store itself would log a warning when asked."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.getpeername()[1] != port:
                    continue
                if end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    return True
        except BlockingIOError:  # open, and there is nothing to read
            return True
        except (OSError, IndexError):  # closed meanwhile, or of another kind
            continue
    return False


def _read_invitation(store: dist.Store, timeout: float) -> dict[str, Any]:
    started = time.monotonic()
    try:
        store.wait([_KEY], timedelta(seconds=timeout))
        return json.loads(store.get(_KEY))
    except RuntimeError as error:
        waited = time.monotonic() - started
        if waited < timeout:
            raise PeerError(
                f"torch's store failed after {waited:.1f} s, before rank 0 of the group had published its address: {error}"
            ) from None
        raise TimeoutError(
            f"Timed out waiting {waited:.1f} s for rank 0 of the group to publish its address "
            f"(a timeout of {timeout:g} s, set by init_process_group(timeout=…)): {error}"
        ) from None


def rendezvous(store: dist.Store, rank: int, ranks: int, timeout: float, spec: str | None) -> Comm:
    """A comm of the group's ranks. All must have the same spec in PITH_SPEC."""
    if ranks == 1:
        return Comm(0, 1, timeout=timeout)
    if rank == 0:
        host = getattr(_tcp_store(store), "host", None)
        invitation: dict[str, Any] = {"id": unique_id(host).hex(), "spec": spec}
        store.set(_KEY, json.dumps(invitation))
    else:
        invitation = _read_invitation(store, timeout)
    comm = Comm(rank, ranks, id=bytes.fromhex(invitation["id"]), timeout=timeout)
    if invitation["spec"] != spec:
        why = f"PITH_SPEC is {spec or 'not set'} on rank {rank} and {invitation['spec'] or 'not set'} on rank 0"
        comm.abort(why)
        raise MismatchError(why)
    comm.barrier()  # others may have found that they disagree
    if rank == 0:
        # Where torchrun starts ranks again, they use the same store: some of them would read an old invitation.
        with contextlib.suppress(RuntimeError, NotImplementedError):  # not every store can forget
            store.delete_key(_KEY)
    return comm
