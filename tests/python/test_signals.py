# SPDX-License-Identifier: Apache-2.0
"""Signals while a rank waits: Ctrl-C ends the wait long before the time-out, and what is left behind is what the documentation says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import needs
import pith
from ranks import free_port, run

TIMEOUT = 60.0  # seconds that a wait would take without the signal
SOON = 15.0  # much less, and much more than a busy machine needs


def interrupt_soon(number: int = signal.SIGINT, seconds: float = 0.5) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), number)).start()


@contextmanager
def interrupted() -> Iterator[None]:
    """What is inside waits for somebody who does not come, and Ctrl-C ends that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt_soon()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        yield
    assert time.monotonic() - start < SOON


def wait_in_allreduce(rank: int, size: int, transport: str) -> None:
    with pith.Comm(transport=transport, timeout=TIMEOUT) as comm:
        values = np.ones(8, np.float32)
        comm.allreduce(values)
        if rank == 0:
            with pytest.raises(pith.AbortedError, match="rank 1 was interrupted"):
                comm.receive(values, 1)
        else:
            with interrupted():
                comm.allreduce(values)
            with pytest.raises(pith.Error, match="rank 1 was interrupted"):
                comm.allreduce(values)  # the comm is over


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_interrupted_collective_ends_the_comm_on_all_ranks(transport: str) -> None:
    run(wait_in_allreduce, 2, transport)


def wait_for_request(rank: int, size: int) -> float:
    with pith.Comm(timeout=TIMEOUT) as comm:
        values = np.full(1000, rank + 1, np.float32)
        comm.barrier()
        if rank == 1:
            request = comm.allreduce(values, wait=False)
            with interrupted():
                request.wait()
            comm.send(np.zeros(1, np.float32), 0)
            request.wait()
        else:
            comm.receive(np.zeros(1, np.float32), 1)
            comm.allreduce(values)
        return float(values[0])


def test_an_interrupted_request_can_be_waited_for_again() -> None:
    assert run(wait_for_request, 2) == [3, 3]


def wait_on_after_handler(rank: int, size: int) -> list[float]:
    """When the handler ran, and when the wait was over, as rank 1 saw it."""
    times: list[float] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: times.append(time.monotonic()))
    with pith.Comm(timeout=TIMEOUT) as comm:
        comm.barrier()
        if rank == 1:
            interrupt_soon(signal.SIGUSR1, 0.2)
        else:
            time.sleep(2)
        comm.barrier()
        times.append(time.monotonic())
    return times


def test_a_handler_that_returns_runs_at_once_and_the_wait_goes_on() -> None:
    handled, over = run(wait_on_after_handler, 2)[1]
    assert over - handled > 0.5  # not when the wait was over


@pytest.mark.parametrize("rank", [0, 1])
def test_waiting_for_missing_ranks_can_be_interrupted(rank: int) -> None:
    with interrupted():
        pith.Comm(rank, 2, host="127.0.0.1", port=free_port(), timeout=TIMEOUT)


def wait_in_reducer(rank: int, size: int) -> None:
    with pith.Comm(timeout=TIMEOUT) as comm:
        reducer = pith.Reducer(comm, "q:4")
        layer = reducer.add("weight", (4096,))
        reducer.start(layer, np.ones(4096, np.float32))
        reducer.finish()
        if rank == 1:
            reducer.start(layer, np.ones(4096, np.float32))
            with interrupted():
                reducer.finish()
        else:
            with pytest.raises(pith.Error, match="rank 1"):
                comm.receive(np.zeros(1, np.float32), 1)


def test_an_interrupted_reducer_ends_the_comm_on_all_ranks() -> None:
    run(wait_in_reducer, 2)


def torch_group(rank: int, size: int) -> Any:
    from datetime import timedelta

    import torch.distributed as dist

    import pith.torch  # noqa: F401

    dist.init_process_group("pith", timeout=timedelta(seconds=TIMEOUT))
    return dist


def wait_in_torch(rank: int, size: int, is_async: bool) -> None:
    import torch

    dist = torch_group(rank, size)
    values = torch.ones(1000)
    dist.all_reduce(values)
    if rank == 1:
        with interrupted():
            if is_async:
                dist.all_reduce(values, async_op=True).wait()
            else:
                dist.all_reduce(values)
        os._exit(0)
    with pytest.raises(RuntimeError):
        dist.recv(values, 1)
    os._exit(0)


@pytest.mark.parametrize("is_async", [False, True])
def test_waiting_in_torch_can_be_interrupted(is_async: bool) -> None:
    needs.module("torch", "the torch backend needs torch")
    run(_exits_well, 2, wait_in_torch, is_async)


def _exits_well(rank: int, size: int, function: Callable[..., None], *arguments: Any) -> None:
    """In a child of its own: a group whose peer is gone cannot be ended in order."""
    child = os.fork()
    if child == 0:
        try:
            function(rank, size, *arguments)
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


WAITS = """
import pith, numpy, os, sys, time
comm = pith.Comm(timeout=60)
comm.barrier()
print("ready", flush=True)
if comm.rank == 0:
    time.sleep(60)
comm.allreduce(numpy.ones(4, numpy.float32))
"""


def test_pith_run_ends_on_ctrl_c() -> None:
    pith_command = os.path.join(os.path.dirname(sys.executable), "pith")
    if not os.path.exists(pith_command):
        pytest.skip("there is no pith beside this interpreter")
    job = subprocess.Popen(
        [pith_command, "run", "-n", "2", "--", sys.executable, "-c", WAITS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert job.stdout is not None
    for _ in range(2):
        assert "ready" in job.stdout.readline()
    start = time.monotonic()
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does
    job.communicate(timeout=TIMEOUT)
    assert job.returncode != 0
    assert time.monotonic() - start < SOON
