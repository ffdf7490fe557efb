# SPDX-License-Identifier: Apache-2.0
"""Ranks that fork, as data loaders do: a child ends without a word, however it ends, and its parent goes on."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

import numpy as np
import pytest

import pith
from ranks import free_port, outcomes, run


def fork(child: Callable[[], None]) -> int:
    """Runs `child` in a forked process that ends as Python programs do, atexit included."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # What sys.exit() does, without unwinding into the test's own frames.
            import atexit

            atexit._run_exitfuncs()
            gc.collect()
            os._exit(status)
    return pid


def check_ended(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed"


def go_on_after_children(rank: int, size: int, transport: str) -> int:
    comm = pith.Comm(transport=transport)
    done = 0

    def end_at_once() -> None:
        pass

    def close_the_copy() -> None:
        comm.close()

    def use_the_copy() -> None:
        with pytest.raises(pith.Error, match="forked from rank"):
            comm.allreduce(np.ones(3, np.float32))

    def wait_for_the_copy() -> None:
        with pytest.raises(pith.Error, match="forked from rank"):
            request.wait()

    for child in (end_at_once, close_the_copy, use_the_copy):
        pid = fork(child) if rank == size - 1 else None
        if pid is not None:
            check_ended(pid)
        total = comm.allreduce(np.full(100, rank + 1.0, np.float32))
        assert total[0] == size * (size + 1) / 2
        done += 1
    request = comm.allreduce(np.ones(200_000, np.float32), wait=False)
    if rank == 0:
        check_ended(fork(wait_for_the_copy))
    assert request.wait()[0] == size
    comm.close()
    return done + 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_forked_child_does_not_end_its_parents_comm(transport: str) -> None:
    assert run(go_on_after_children, 2, transport) == [4, 4]


EXITS = """
import os, sys, time
import numpy as np
import pith

comm = pith.Comm()
if comm.rank == 1 and os.fork() == 0:
    sys.exit()
comm.barrier()
time.sleep(0.3)
assert comm.allreduce(np.ones(10, np.float32))[0] == 2
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sys_exit_in_a_child_is_silent(transport: str) -> None:
    env = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "PITH_TRANSPORT": transport,
        "PITH_TIMEOUT": "20",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", EXITS], env=env | {"RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()


def be_killed_with_a_living_child(rank: int, size: int, transport: str) -> float:
    comm = pith.Comm(transport=transport, timeout=1800)
    comm.barrier()
    if rank == 1:
        if os.fork() == 0:
            time.sleep(6)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(pith.Error, match="rank 1"):
        while True:
            comm.allreduce(np.ones(1000, np.float32))
    return time.monotonic() - start


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_rank_with_a_living_child_is_noticed(transport: str) -> None:
    found = outcomes(be_killed_with_a_living_child, 3, transport)
    for rank in (0, 2):
        assert found[rank].error is None, found[rank].trace
        assert found[rank].value < 2
