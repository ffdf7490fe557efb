# SPDX-License-Identifier: Apache-2.0
"""Carries out a grid: hands its runs out to jobs, several at a time, watches them, and goes on behind what fails.

What is timed comes first: methods in turns, in as few jobs at a time as have a core for each rank, and nothing else meanwhile. Then runs whose time does
not matter, on all cores, a final run as soon as its learning rate is tuned. At last runs of specs that adapt, alone again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .analysis import chosen_rate, method_of
from .grid import FINAL, SPEED, TUNE, Grid, GridError, disk_of, is_timed, jobs_of, seconds_of
from .jobs import Job, Jobs, Kind, lab_problem
from .results import FORMAT, Results, append_line, drop_unfinished, machine, read_file

_MEMORY_OF_A_RANK = 1 << 30


def spoken(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def usual_jobs(ranks: int) -> int:
    """As many as there are cores, if memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = memory // 2 // (ranks * _MEMORY_OF_A_RANK)
    return max(1, min(len(os.sched_getaffinity(0)), most))


class Progress:
    """One line that is written over; a line every now and then where the output is no terminal."""

    def __init__(self, grid: Grid, left: list[dict[str, Any]], jobs: int) -> None:
        self._all = len(left)
        cores = len(os.sched_getaffinity(0))
        self._left = {cell["id"]: seconds_of([cell], cores, jobs) for cell in left}
        self._estimated, self._began = 0.0, time.monotonic()
        self._terminal, self._shown = sys.stderr.isatty(), 0.0

    def finish(self, cell: str) -> None:
        self._estimated += self._left.pop(cell, 0.0)

    @property
    def left(self) -> float:
        """Seconds, by the estimate and by how far it was off so far."""
        off = (time.monotonic() - self._began) / self._estimated if self._estimated > 5 else 1.0
        return sum(self._left.values()) * off

    def show(self, what: str) -> None:
        now = time.monotonic()
        if now - self._shown < (0.2 if self._terminal else 20):
            return
        self._shown = now
        done = self._all - len(self._left)
        bar = "█" * (20 * done // max(1, self._all))
        text = f"{bar:<20} {done}/{self._all}  {spoken(self.left)} left  {what}"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print("\r\033[K" + text[:width], end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# ---- What there is to do ---------------------------------------------------------------------------------------------


class Plan:
    """The runs of one kind that are left, in order; a final run waits for the tuning of its method."""

    def __init__(self, cells: Iterable[dict[str, Any]]) -> None:
        self._left = sorted(cells, key=lambda cell: (cell["phase"] != TUNE, cell["seed"]))

    def __bool__(self) -> bool:
        return bool(self._left)

    def next(self, results: Results, tuning: set[str]) -> dict[str, Any] | None:
        """The first that can be done now, a final one at the rate that was best; ``tuning``: methods whose rate is not known yet."""
        for index, cell in enumerate(self._left):
            if cell["phase"] == FINAL and method_of(cell) in tuning:
                continue
            del self._left[index]
            if cell["phase"] != FINAL:
                return cell
            rate, multiplier = chosen_rate(cell, list(results.runs.values()))
            return cell | {"rate": rate, "multiplier": multiplier}
        return None


def _stages(cells: list[dict[str, Any]]) -> list[tuple[Kind, list[dict[str, Any]]]]:
    """What runs at a time: kinds of runs in their order."""
    found: dict[tuple[int, Kind], list[dict[str, Any]]] = {}
    for cell in cells:
        stage = 0 if cell["phase"] == SPEED else 2 if is_timed(cell) else 1
        kind = Kind(cell["link"], cell["ranks"], is_timed(cell))
        found.setdefault((stage, kind), []).append(cell)
    return [(kind, found[stage, kind]) for stage, kind in sorted(found, key=lambda key: key[0])]


# ---- The driver ------------------------------------------------------------------------------------------------------


class Driver:
    def __init__(
        self,
        grid: Grid,
        out: Path,
        seconds: float | None = None,
        jobs: int | None = None,
        untimed: bool = False,
    ) -> None:
        self.grid, self.out, self.path = grid, out, out / "results.jsonl"
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._untimed = untimed
        self._cores = sorted(os.sched_getaffinity(0))
        usual = 1 if grid.device == "cuda" else usual_jobs(max(c["ranks"] for c in grid.cells))
        self._at_a_time = jobs or usual
        (out / "logs").mkdir(parents=True, exist_ok=True)
        self._lock = (out / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise GridError(f"another pith eval works in {out}") from None
        if drop_unfinished(self.path):
            print("pith eval: a run was cut short; it is done again", file=sys.stderr)
        self._results = Results()
        if self.path.exists():
            read_file(self.path, self._results)
        here = machine()
        if here not in self._results.machines or self._results.last != here:
            append_line(self.path, {"format": FORMAT, "machine": here})
        self._tuning: dict[str, set[str]] = {}  # by method: runs that are left

    def pending(self) -> list[dict[str, Any]]:
        """What is left."""
        return [cell for cell in self.grid.cells if cell["id"] not in self._results.runs]

    def _wanted(self) -> list[dict[str, Any]]:
        """What is left and is to be done."""
        return [cell for cell in self.pending() if not (self._untimed and is_timed(cell))]

    def announce(self) -> None:
        left = self._wanted()
        seconds = seconds_of(left, len(self._cores), self._at_a_time)
        done = len(self.grid.cells) - len(self.pending())
        print(
            f"{self.grid.title}: {len(self.grid.cells)} runs, {done} of them done; about {spoken(seconds)} and "
            f"{disk_of(self.grid.cells) / 1e6:.1f} MB in {self.out}",
            file=sys.stderr,
            flush=True,
        )

    def run(self) -> bool:
        """Everything that is not done yet. Gives whether all of it was."""
        self.announce()
        left = self._wanted()
        if any(cell["link"] not in ("none", "any") for cell in left) and (problem := lab_problem()):
            raise GridError(
                f"this machine cannot have links of a given rate: {problem}; --no-lab runs without them"
            )
        for cell in self.pending():
            if cell["phase"] == TUNE:
                self._tuning.setdefault(method_of(cell), set()).add(cell["id"])
        self._progress = Progress(self.grid, left, self._at_a_time)
        setup = {
            "import": self.grid.imports,
            "device": self.grid.device,
            "logs": str(self.out / "logs"),
        }
        self._jobs = Jobs(self._cores, setup)
        stages = _stages(left)
        try:
            for index, (kind, cells) in enumerate(stages):
                self._carry_out(kind, cells)
                if all(kind != later for later, _ in stages[index + 1 :]):
                    self._jobs.end(self._jobs.of(kind))
        finally:
            self._jobs.close()
            self._progress.close()
        return not self.pending()

    def _is_time(self) -> bool:
        return self._deadline is None or time.monotonic() < self._deadline

    def _carry_out(self, kind: Kind, cells: list[dict[str, Any]]) -> None:
        """One stage, in as many jobs as it can have; a run that ends its job is written down as failed."""
        plan = Plan(cells)
        count = min(len(cells), jobs_of(cells[0], len(self._cores), self._at_a_time))
        while (plan or any(job.cell for job in self._jobs.of(kind))) and self._is_time():
            if plan:
                self._jobs.start(kind, count)
            for job in self._jobs.of(kind):
                if job.waits and (cell := plan.next(self._results, set(self._tuning))):
                    job.give(cell)
            for job, message in self._jobs.messages(0.2):
                self._note(message["cell"], message["result"])
                job.cell, job.waits = None, True
            for job in self._jobs.of(kind):
                self._watch(job)
            at = [job.cell for job in self._jobs.of(kind) if job.cell]
            if at:
                cell = at[0]
                self._progress.show(
                    f"{cell['task']}, {cell['label']}, {cell['link']}, {cell['phase']}"
                )

    def _watch(self, job: Job) -> None:
        problem = job.stuck
        if not job.ended and not problem:
            return
        for other, message in self._jobs.messages(0):  # what it said before it ended
            self._note(message["cell"], message["result"])
            other.cell, other.waits = None, True
        cell, said = job.cell, problem or job.said()
        self._jobs.end([job])
        if cell is None:
            raise GridError(f"a job ended without a run: {said}")
        self._note(cell, {"status": "failed", "error": said, "began": time.time()})

    def _note(self, cell: dict[str, Any], result: dict[str, Any]) -> None:
        """What came of a run."""
        entry = {"cell": cell, "result": result}
        self._results.runs.setdefault(cell["id"], append_line(self.path, entry))
        self._progress.finish(cell["id"])
        method = method_of(cell)
        if cell["phase"] == TUNE and method in self._tuning:
            self._tuning[method].discard(cell["id"])
            if not self._tuning[method]:
                del self._tuning[method]
