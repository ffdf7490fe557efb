# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes: runs a function on each, and gathers what it returned, raised, or that it hung.

Processes are forked from a server that has imported torch once, so that a group of five starts in a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from dataclasses import dataclass
from typing import Any

import pytest

_SECONDS = 90  # for all ranks together; a hang is a failure with a name
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["ranks_preload"])


@dataclass
class Outcome:
    """What became of a rank."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    ended: int | None = None  # exit status, if it said nothing


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _portable(error: BaseException) -> BaseException:
    """The exception itself if it survives the way between processes."""
    try:
        import pickle

        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _child(
    pipe: Any, function: Any, rank: int, size: int, arguments: tuple[Any, ...], env: dict[str, str]
) -> None:
    os.environ.update(env)
    try:
        pipe.send(Outcome(value=function(rank, size, *arguments)))
    except BaseException as error:
        pipe.send(Outcome(error=_portable(error), trace=traceback.format_exc()))
    pipe.close()


def outcomes(
    function: Any,
    size: int,
    *arguments: Any,
    env: dict[str, str] | None = None,
    seconds: float = _SECONDS,
) -> list[Outcome]:
    """Runs function(rank, size, *arguments) on every rank; what became of each."""
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
    } | (env or {})
    started = []
    for rank in range(size):
        ours, theirs = _server.Pipe(duplex=False)
        process = _server.Process(
            target=_child,
            args=(theirs, function, rank, size, arguments, environment | {"RANK": str(rank)}),
            daemon=True,
        )
        process.start()
        theirs.close()
        started.append((process, ours))
    end = time.monotonic() + seconds
    try:
        return [_await(process, pipe, rank, end) for rank, (process, pipe) in enumerate(started)]
    finally:
        for process, _ in started:
            if process.is_alive():
                process.kill()
            process.join()


def _await(process: Any, pipe: Any, rank: int, end: float) -> Outcome:
    try:
        if pipe.poll(max(0.0, end - time.monotonic())):
            outcome = pipe.recv()
            process.join(max(0.0, end - time.monotonic()))
            return outcome
    except EOFError:
        process.join(5)
        return Outcome(ended=process.exitcode)
    pytest.fail(f"rank {rank} hangs")


def run(function: Any, size: int, *arguments: Any, **options: Any) -> list[Any]:
    """The same, where all must succeed: what each returned."""
    found = outcomes(function, size, *arguments, **options)
    for rank, outcome in enumerate(found):
        if outcome.error is not None:
            pytest.fail(f"rank {rank} of {size}: {outcome.trace}")
        if outcome.ended is not None:
            pytest.fail(f"rank {rank} of {size} ended with status {outcome.ended}")
    return [outcome.value for outcome in found]
