"""Carries out a grid: starts jobs of several runs each, watches them, and goes on behind what fails.

Cells are taken in two rounds, tuning before what depends on it. Those with the same link and number of ranks are one job, ``pith lab`` with a link,
``pith run`` without. Where this machine cannot have a lab, all of them are without a link, and the results say so.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .._command import program
from .analysis import chosen_rate
from .grid import FINAL, Grid, GridError, disk_of
from .results import FORMAT, Results, append_line, drop_unfinished, machine, read_file

_QUIET_SECONDS = 180  # without a finished run, beyond ten times its estimate, a job counts as stuck
_TAIL = 2000  # characters of what a job said last


def spoken(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Progress:
    """One line that is written over; a line every now and then where the output is no terminal."""

    def __init__(self, cells: list[dict[str, Any]], done: int) -> None:
        self._all, self._done = len(cells) + done, done
        self._left = {cell["id"]: cell["estimate"] for cell in cells}
        self._estimated, self._took = 0.0, 0.0
        self._terminal, self._shown = sys.stderr.isatty(), 0.0

    def finish(self, cell: str, seconds: float) -> None:
        self._done += 1
        self._estimated += self._left.pop(cell, 0.0)
        self._took += seconds

    @property
    def left(self) -> float:
        """Seconds, by the estimate and by how far it was off so far."""
        off = self._took / self._estimated if self._estimated > 5 else 1.0
        return sum(self._left.values()) * off

    def show(self, what: str, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._shown < (0.2 if self._terminal else 20):
            return
        self._shown = now
        bar = "█" * (20 * self._done // max(1, self._all))
        text = f"{bar:<20} {self._done}/{self._all}  {spoken(self.left)} left  {what}"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print("\r\033[K" + text[:width], end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# ---- The lab ---------------------------------------------------------------------------------------------------------


def lab_problem() -> str:
    """Why this machine cannot have a lab; empty if it can."""
    command = [program(), "lab", "-n", "2", "--rate", "1gbit", "--no-prefix", "--", "true"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "pith lab does not answer"
    return "" if found.returncode == 0 else (found.stderr.strip() or "pith lab failed")


def _end_with_parent() -> None:
    """In a new process: it is told to end when the driver dies, however that happens."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _launcher(link: str, ranks: int) -> list[str]:
    start = ["run"] if link == "none" else ["lab", "--rate", link]
    return [program(), start[0], "-n", str(ranks), *start[1:], "--no-prefix", "--"]


# ---- A job -----------------------------------------------------------------------------------------------------------


class Job:
    """Runs of one link and number of ranks in one set of processes."""

    def __init__(self, driver: Driver, cells: list[dict[str, Any]]) -> None:
        self._driver, self._cells = driver, cells
        self._folder = Path(tempfile.mkdtemp(prefix="pith-eval-"))
        self._current = self._folder / "current"
        self._said = self._folder / "said"

    def __enter__(self) -> Job:
        job = {
            "cells": self._cells,
            "import": self._driver.grid.imports,
            "device": self._driver.grid.device,
            "results": str(self._driver.path),
            "logs": str(self._driver.out / "logs"),
            "current": str(self._current),
        }
        (self._folder / "job.json").write_text(json.dumps(job))
        first = self._cells[0]
        command = _launcher(first["link"], first["ranks"])
        command += [sys.executable, "-m", "pith.eval.worker", str(self._folder / "job.json")]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                command,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """Ends the launcher, which ends its ranks."""
        for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(seconds)
                return
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def current(self) -> str:
        try:
            return self._current.read_text().strip()
        except OSError:
            return self._cells[0]["id"]

    def said(self) -> str:
        text = self._said.read_bytes().decode("utf-8", "replace").strip()
        lines = [line for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if "Error" in line] or lines
        return (telling[-1] if telling else "it said nothing")[-_TAIL:]


# ---- The driver ------------------------------------------------------------------------------------------------------


class Driver:
    def __init__(self, grid: Grid, out: Path, seconds: float | None = None) -> None:
        self.grid, self.out, self.path = grid, out, out / "results.jsonl"
        self._deadline = None if seconds is None else time.monotonic() + seconds
        (out / "logs").mkdir(parents=True, exist_ok=True)
        self._lock = (out / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise GridError(f"another pith eval works in {out}") from None
        if drop_unfinished(self.path):
            print("pith eval: a run was cut short; it is done again", file=sys.stderr)
        if not self.path.exists():
            append_line(self.path, {"format": FORMAT, "machine": machine()})
        self._wanted = {cell["id"]: cell for cell in grid.cells}

    def finished(self) -> Results:
        results = Results()
        read_file(self.path, results)
        return results

    def pending(self) -> list[dict[str, Any]]:
        done = self.finished().runs
        return [cell for cell in self.grid.cells if cell["id"] not in done]

    def announce(self) -> None:
        left = self.pending()
        seconds = sum(cell["estimate"] for cell in left)
        done = len(self.grid.cells) - len(left)
        print(
            f"{self.grid.title}: {len(self.grid.cells)} runs, {done} of them done; about {spoken(seconds)} and "
            f"{disk_of(self.grid.cells) / 1e6:.1f} MB in {self.out}",
            file=sys.stderr,
            flush=True,
        )

    def run(self) -> bool:
        """Everything that is not done yet. Gives whether all of it was."""
        self.announce()
        if any(cell["link"] != "none" for cell in self.pending()) and (problem := lab_problem()):
            raise GridError(
                f"this machine cannot have links of a given rate: {problem}; --no-lab runs without them"
            )
        left = self.pending()
        self._progress = Progress(left, len(self.grid.cells) - len(left))
        try:
            for of_final in (False, True):
                part = [cell for cell in left if _comes_last(cell) == of_final]
                while part and self._is_time():
                    jobs: dict[tuple[str, int], list[dict[str, Any]]] = {}
                    for cell in part:
                        jobs.setdefault((cell["link"], cell["ranks"]), []).append(cell)
                    for cells in jobs.values():
                        self._carry_out(cells)
                    done = self.finished().runs
                    part = [cell for cell in part if cell["id"] not in done]
        finally:
            self._progress.close()
        return not self.pending()

    def _is_time(self) -> bool:
        return self._deadline is None or time.monotonic() < self._deadline

    def _with_rates(self, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Final runs get the rate that was best in tuning."""
        runs = list(self.finished().runs.values())
        made = []
        for cell in cells:
            if cell["phase"] == FINAL:
                rate, multiplier = chosen_rate(cell, runs)
                cell = cell | {"rate": rate, "multiplier": multiplier}
            made.append(cell)
        return made

    def _carry_out(self, cells: list[dict[str, Any]]) -> None:
        """One job; a run that ends it is written down as failed."""
        seen = set(self.finished().runs)
        cells = self._with_rates(cells)
        by_id = {cell["id"]: cell for cell in cells}
        heard, size = time.monotonic(), -1
        with Job(self, cells) as job:
            while True:
                ended = job.process.poll() is not None
                if self.path.stat().st_size != size:
                    size = self.path.stat().st_size
                    for key in [k for k in self.finished().runs if k not in seen]:
                        seen.add(key)
                        self._progress.finish(key, time.monotonic() - heard)
                        heard = time.monotonic()
                current = by_id.get(job.current(), cells[0])
                self._progress.show(
                    f"{current['task']}, {current['label']}, {current['link']}, {current['phase']}"
                )
                if ended or not self._is_time():
                    break
                limit = _QUIET_SECONDS + 10 * current["estimate"]
                if time.monotonic() - heard > limit:
                    job.end()
                    self._note(current, f"no result within {limit:.0f} s", seen)
                    return
                time.sleep(0.1)
            if ended and job.process.returncode != 0:
                self._note(by_id.get(job.current(), cells[0]), job.said(), seen)

    def _note(self, cell: dict[str, Any], error: str, seen: set[str]) -> None:
        """A run that has broken its job."""
        if cell["id"] in seen:
            raise GridError(f"a job ended behind its last run: {error}")
        result = {"status": "failed", "error": error, "began": time.time()}
        append_line(self.path, {"cell": cell, "result": result})
        self._progress.finish(cell["id"], 0.0)


def _comes_last(cell: dict[str, Any]) -> bool:
    """Behind a link, or with a rate that has to be tuned first."""
    is_tuned = cell["phase"] == FINAL and len(cell["rates"]) > 1
    return bool(is_tuned or cell["link"] != "none")


def without_links(grid: Grid) -> Grid:
    """The same runs with no link between ranks, for machines that cannot have a lab."""
    from .grid import _identified

    cells: dict[str, dict[str, Any]] = {}
    for cell in grid.cells:
        plain = {k: v for k, v in cell.items() if k != "id"} | {"link": "none"}
        made = _identified(plain)
        cells.setdefault(made["id"], made)
    return Grid(grid.title, list(cells.values()), grid.imports, grid.device)
