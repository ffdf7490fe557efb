"""How the ranks of a process group meet: rank 0 chooses an address and a free port, and tells them in torch's store.

The port of torch's own store is not used: it is held, by rank 0 or by torchrun. Each group has a store of its own (a prefix), so any number
of groups can meet at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import struct
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .._comm import Comm
from .._errors import MismatchError, TimeoutError

_KEY = "pith/meeting"
_SIOCGIFADDR = 0x8915
_ANYWHERE = (
    "192.0.2.1"  # an address for documentation: nothing is sent there, it only tells our way out
)


def _address_towards(host: str) -> str | None:
    """Our address as the machine there would see it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return probe.getsockname()[0]
    except OSError:
        return None


def _address_of_interface(name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
        except OSError:
            return name if "." in name or ":" in name else None  # an address is allowed, too


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1" or address == "localhost"


def _store_host(store: dist.Store) -> str | None:
    """The host of the TCP store below all prefixes."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, dist.TCPStore) else None


def _own_address(store: dist.Store) -> str:
    """An address of this machine that the other ranks can reach."""
    chosen = os.environ.get("PITH_IFNAME")
    found = _address_of_interface(chosen) if chosen else None
    if found:
        return found
    master = _store_host(store) or os.environ.get("MASTER_ADDR")
    own = _address_towards(master or _ANYWHERE)
    if own is None:
        return "127.0.0.1"
    # A machine may know its own name as a loopback address; the others know it by that name.
    return master if master and _is_loopback(own) and not _is_loopback(master) else own


def _reserve_port() -> socket.socket:
    """A port that the system gives to nobody else while the socket is open. It does not listen: the comm will."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder


def _read_invitation(store: dist.Store, timeout: float) -> dict[str, Any]:
    try:
        store.wait([_KEY], timedelta(seconds=timeout))
    except RuntimeError as error:
        raise TimeoutError(
            f"rank 0 of the group did not say within {timeout:g} s where to meet: {error}"
        ) from None
    return json.loads(store.get(_KEY))


def meet(store: dist.Store, rank: int, ranks: int, timeout: float, spec: str | None) -> Comm:
    """A comm of the group's ranks. All must have the same spec in PITH_SPEC."""
    if ranks == 1:
        return Comm(0, 1, timeout=timeout)
    if rank > 0:
        invitation = _read_invitation(store, timeout)
        comm = _join(rank, ranks, timeout, invitation)
        if invitation["spec"] != spec:
            why = f"PITH_SPEC is {spec or 'not set'} on rank {rank} and {invitation['spec'] or 'not set'} on rank 0"
            comm.abort(why)
            raise MismatchError(why)
        comm.barrier()
        return comm
    with _reserve_port() as holder:
        invitation = {
            "host": _own_address(store),
            "port": holder.getsockname()[1],
            "secret": secrets.token_hex(16),
            "spec": spec,
        }
        store.set(_KEY, json.dumps(invitation))
        comm = _join(rank, ranks, timeout, invitation)
    comm.barrier()  # others may have found that they disagree
    _forget_invitation(store)
    return comm


def _forget_invitation(store: dist.Store) -> None:
    """Where torchrun starts ranks again, they meet in the same store: an old invitation would lead some of them astray."""
    with contextlib.suppress(RuntimeError, NotImplementedError):  # not every store can forget
        store.delete_key(_KEY)


def _join(rank: int, ranks: int, timeout: float, invitation: dict[str, Any]) -> Comm:
    return Comm(
        rank,
        ranks,
        host=invitation["host"],
        port=invitation["port"],
        secret=None if os.environ.get("PITH_SECRET") else invitation["secret"],
        timeout=timeout,
    )
