# SPDX-License-Identifier: Apache-2.0
"""Encryption of tcp links through the package, and what torch's store gives away of a job."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from datetime import timedelta

import numpy as np
import pytest

import needs
import pith
from pith import _library as c
from ranks import run

SECRET = "a secret that only the ranks have"


@pytest.fixture
def tls() -> None:
    """The module is there."""
    config = c.Config(rank=-1, ranks=-1, tls=b"off")
    if c.lib.pith_tls_probe(config, None) != 0:
        needs.lacks("tls", c.lib.pith_error().decode())


def encrypted(rank: int, size: int) -> list[float]:
    with pith.Comm(transport="tcp", tls="psk", secret=SECRET) as comm:
        return comm.allreduce(np.full(5000, rank + 1, np.float32))[:2].tolist()


def test_a_comm_is_encrypted(tls: None) -> None:
    assert run(encrypted, 3) == [[6.0, 6.0]] * 3


def by_environment(rank: int, size: int) -> list[float]:
    with pith.Comm() as comm:
        return comm.allreduce(np.full(5000, rank + 1, np.float32))[:2].tolist()


def test_the_environment_encrypts(tls: None) -> None:
    env = {"PITH_TLS": "psk", "PITH_SECRET": SECRET, "PITH_TRANSPORT": "tcp"}
    assert run(by_environment, 2, env=env) == [[3.0, 3.0]] * 2


def test_a_key_needs_a_secret() -> None:
    with pytest.raises(pith.Error, match="PITH_SECRET, which is not set"):
        pith.Comm(0, 1, tls="psk")
    with pytest.raises(pith.Error, match="PITH_TLS=always is unknown"):
        pith.Comm(0, 1, tls="always")


def test_the_secret_is_in_no_repr(tls: None) -> None:
    with pith.Comm(0, 1, tls="psk", secret=SECRET) as comm:
        assert SECRET not in repr(comm) and SECRET not in str(vars(comm))


# ---- torch's store


class Store:
    """What torch's store does, and a list of all that was ever in it."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self.published: list[bytes] = []

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self.published.append(value.encode())
            self._changed.notify_all()

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(key in self._values for key in keys), timeout.total_seconds()
            ):
                raise RuntimeError("timeout")

    def get(self, key: str) -> bytes:
        with self._changed:
            return self._values[key]

    def delete_key(self, key: str) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None


_STRANGER = """
import sys, pith
id = bytes.fromhex(sys.argv[1])
guesses = [None, *sys.argv[2:]]
for guess in guesses:
    try:
        pith.Comm(1, 2, id=id, timeout=1, secret=guess).close()
        sys.exit("joined")
    except pith.Error as error:
        print(error)
"""


def stranger(published: list[bytes]) -> subprocess.CompletedProcess[str]:
    """One who has read the store joins with all it found there, and without PITH_SECRET."""
    invitation = json.loads(published[0])
    found = bytes.fromhex(invitation["id"])
    guesses = [part.decode() for part in found.split(b"\0") if len(part) >= 8 and part.isascii()]
    return subprocess.run(
        [sys.executable, "-c", _STRANGER, invitation["id"], *guesses[-1:], invitation["id"][:64]],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_store_is_not_enough_to_join_a_job_with_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PITH_SECRET", SECRET)
    needs.module("torch", "the backend needs torch")
    from pith.torch._rendezvous import rendezvous

    store, comms = Store(), {}

    def be(rank: int) -> None:
        comms[rank] = rendezvous(store, rank, 2, 20, None)  # type: ignore[arg-type]

    first = threading.Thread(target=be, args=(0,))
    first.start()
    while not store.published:
        first.join(0.01)
    monkeypatch.delenv("PITH_SECRET")
    outcome = stranger(store.published)
    monkeypatch.setenv("PITH_SECRET", SECRET)
    assert outcome.returncode == 0, outcome.stderr
    assert "secret" in outcome.stdout
    be(1)  # the job goes on
    first.join()
    for comm in comms.values():
        comm.close()
    assert len(comms) == 2
    assert not any(SECRET.encode() in value for value in store.published)


def test_the_store_is_enough_to_join_a_job_without_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As docs/security.md says."""
    monkeypatch.delenv("PITH_SECRET", raising=False)
    needs.module("torch", "the backend needs torch")
    from pith import unique_id

    made = unique_id()
    comms: list[pith.Comm] = []
    first = threading.Thread(target=lambda: comms.append(pith.Comm(0, 2, id=made, timeout=20)))
    first.start()
    outcome = stranger([json.dumps({"id": made.hex()}).encode()])
    first.join()
    for comm in comms:
        comm.close()
    assert "joined" in outcome.stderr
