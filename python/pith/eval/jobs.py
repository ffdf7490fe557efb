# SPDX-License-Identifier: Apache-2.0
"""Jobs: the processes in which runs are made, several of each kind at a time, and kept from run to run.

A job is ``pith lab`` with a link, ``pith run`` without, on cores of its own; its rank 0 asks for runs over a socket and sends back what came of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._command import program
from .grid import ANY

_QUIET_SECONDS = 600  # without a finished run, beyond ten times its estimate, a job counts as stuck
_TAIL = 2000  # characters of what a job said last


def lab_problem() -> str:
    """Why this machine cannot have a lab; empty if it can."""
    command = [program(), "lab", "-n", "2", "--rate", "1gbit", "--no-prefix", "--", "true"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "pith lab does not answer"
    return "" if found.returncode == 0 else (found.stderr.strip() or "pith lab failed")


def share_of(cores: list[int], index: int, count: int) -> list[int]:
    """The cores of one of several jobs: as many for each, and one for each where there are fewer cores than jobs."""
    each = len(cores) // count
    if not each:
        return [cores[index % len(cores)]]
    return cores[index * each : (index + 1) * each]


@dataclass(frozen=True)
class Kind:
    """What runs must have in common to share a job."""

    link: str
    ranks: int
    timed: bool


class Job:
    """The processes of one job, and the run that they are at."""

    def __init__(self, kind: Kind, number: int, cores: list[int], setup: dict[str, Any]) -> None:
        self.kind, self.number = kind, number
        self.cell: dict[str, Any] | None = None
        self.waits = False  # for a run
        self.heard = time.monotonic()
        self.connection: socket.socket | None = None
        self._received = b""
        self._folder = Path(tempfile.mkdtemp(prefix="pith-eval-"))
        self._said = self._folder / "said"
        (self._folder / "job.json").write_text(
            json.dumps(setup | {"number": number, "timed": kind.timed})
        )
        start = ["run"] if kind.link in ("none", ANY) else ["lab", "--rate", kind.link]
        command = [program(), start[0], "-n", str(kind.ranks), *start[1:], "--no-prefix", "--"]
        command += [sys.executable, "-m", "pith.eval.worker", str(self._folder / "job.json")]

        def prepare() -> (
            None
        ):  # in the new process: it ends when the driver dies, however that happens
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
            os.sched_setaffinity(0, cores)

        environment = dict(os.environ)
        if setup["device"] == "cpu":  # PyTorch's PowerSGD takes a GPU that it sees for the model's
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
                preexec_fn=prepare,
            )

    def give(self, cell: dict[str, Any] | None) -> None:
        """Hands out a run; None: there is nothing left to do."""
        self.cell, self.waits, self.heard = cell, False, time.monotonic()
        if self.connection is not None:
            try:
                self.connection.sendall(json.dumps(cell).encode() + b"\n")
            except OSError:
                pass  # it has ended, which is seen elsewhere

    def receive(self) -> list[dict[str, Any]]:
        """Messages that have come."""
        assert self.connection is not None
        try:
            data = self.connection.recv(1 << 20)
        except OSError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def stuck(self) -> str:
        """What is wrong with a job that has not been heard of for long."""
        estimate = self.cell["estimate"] if self.cell else 0.0
        limit = _QUIET_SECONDS + 10 * estimate
        late = not self.waits and time.monotonic() - self.heard > limit
        return f"no result within {limit:.0f} s" if late else ""

    def said(self) -> str:
        """What it said last, an error if there is one."""
        text = self._said.read_bytes().decode("utf-8", "replace").strip()
        lines = [line for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if "Error" in line] or lines
        return (telling[-1] if telling else "it said nothing")[-_TAIL:]

    def hang_up(self) -> None:
        """Rank 0 reads that there is nothing left to do."""
        if self.connection is not None:
            self.connection.close()

    def end(self) -> None:
        """Ends the launcher, which ends its ranks. One whose run is over is left some time to end by itself."""
        self.hang_up()
        patience = 5.0 if self.waits else 0.0
        for number, seconds in ((0, patience), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(seconds)
                break
            except ProcessLookupError:
                self._process.poll()
                break
            except subprocess.TimeoutExpired:
                continue
        shutil.rmtree(self._folder, ignore_errors=True)


class Jobs:
    """All jobs that there are."""

    def __init__(self, cores: list[int], setup: dict[str, Any]) -> None:
        self._cores, self._count = cores, 0
        self._folder = Path(tempfile.mkdtemp(prefix="pith-eval-"))
        self._setup = setup | {"socket": str(self._folder / "driver")}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._setup["socket"])
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._running: dict[int, tuple[Job, list[int]]] = {}  # by number; the cores

    def start(self, kind: Kind, count: int) -> None:
        """As many jobs of a kind as are wanted, those included that run already."""
        taken = [tuple(cores) for job, cores in self._running.values() if job.kind == kind]
        for index in range(count):
            share = share_of(self._cores, index, count)
            if tuple(share) in taken:
                taken.remove(tuple(share))
                continue
            self._count += 1
            self._running[self._count] = (Job(kind, self._count, share, self._setup), share)

    def of(self, kind: Kind) -> list[Job]:
        return [job for job, _ in self._running.values() if job.kind == kind]

    def messages(self, seconds: float) -> Iterator[tuple[Job, dict[str, Any]]]:
        """What jobs say within some time."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._greet()
                continue
            job = key.data
            received = job.receive()
            if not received and job.ended:
                self._selector.unregister(key.fileobj)
            for message in received:
                job.heard = time.monotonic()
                yield job, message

    def _greet(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(10)
        first = b""
        while not first.endswith(b"\n") and (byte := connection.recv(1)):
            first += byte
        connection.settimeout(None)
        number = json.loads(first)["job"] if first else 0
        if number not in self._running:
            connection.close()
            return
        job = self._running[number][0]
        job.connection, job.waits, job.heard = connection, True, time.monotonic()
        self._selector.register(connection, selectors.EVENT_READ, job)

    def end(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.connection is not None and job.connection.fileno() in self._selector.get_map():
                self._selector.unregister(job.connection)
            job.hang_up()
        for job in jobs:
            job.end()
            self._running.pop(job.number, None)

    def close(self) -> None:
        self.end([job for job, _ in self._running.values()])
        self._selector.close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)
