# SPDX-License-Identifier: Apache-2.0
"""Results: a file with one line of JSON for each finished run, and a first line that says what the machine is.

Lines are appended in one write and forced to the disk, so that a grid that is killed loses the run under way and nothing else. A last line without its
end is such a run; any other line that cannot be read is an error with file and line.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 2
_MOST_BYTES = 1 << 30


class ResultsError(Exception):
    """A file of results cannot be read."""


@dataclass
class Results:
    """What is in one or several files."""

    machines: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # by id: cell, result, machine
    last: dict[str, Any] = field(default_factory=dict)  # the machine of what is appended


def append_line(path: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Appends a line as a whole, or not at all; gives the entry as it will be read."""
    entry = _plain(entry)
    data = (json.dumps(entry, separators=(",", ":"), allow_nan=False) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, data)
        os.fsync(file)
    finally:
        os.close(file)
    return entry


def _plain(value: Any) -> Any:
    """NaN and infinite numbers are no JSON; None stands for them."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value


def drop_unfinished(path: Path) -> bool:
    """Cuts off a last line without an end, which a killed process has left. Gives whether there was one."""
    if not path.exists():
        return False
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole == len(data):
        return False
    with path.open("r+b") as file:
        file.truncate(whole)
    return True


def _check_line(entry: Any, place: str) -> None:
    if not isinstance(entry, dict):
        raise ResultsError(f"{place}: not an object")
    if "machine" in entry:
        if entry.get("format") != FORMAT:
            raise ResultsError(
                f"{place}: results of format {entry.get('format')}; this program reads {FORMAT}"
            )
        return
    cell, result = entry.get("cell"), entry.get("result")
    if not isinstance(cell, dict) or not isinstance(result, dict):
        raise ResultsError(f"{place}: neither a run nor a machine")
    missing = [k for k in ("id", "task", "spec", "link", "ranks", "seed", "phase") if k not in cell]
    if missing or "status" not in result:
        raise ResultsError(f"{place}: a run without {missing[0] if missing else 'status'}")


def read_file(path: Path, results: Results) -> None:
    """Adds what is in a file. A run that is there twice counts once: the first."""
    if path.is_dir():
        path = path / "results.jsonl"
    if not path.is_file():
        raise ResultsError(f"there is no {path}")
    if path.stat().st_size > _MOST_BYTES:
        raise ResultsError(f"{path} has more than {_MOST_BYTES >> 20} MiB")
    machine: dict[str, Any] = {}
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):  # what is behind the last end is unfinished
        place = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ResultsError(f"{place}: this is no JSON: {error}") from None
        _check_line(entry, place)
        if "machine" in entry:
            machine = results.last = entry["machine"]
            if machine not in results.machines:
                results.machines.append(machine)
        else:
            results.runs.setdefault(entry["cell"]["id"], entry | {"machine": machine})


def read_all(paths: Iterable[str | Path]) -> Results:
    results = Results()
    for path in paths:
        read_file(Path(path), results)
    return results


def write_all(results: Results, path: Path) -> None:
    """Writes merged results to a new file."""
    if path.exists():
        raise ResultsError(f"{path} is there already")
    for machine in results.machines or [{}]:
        append_line(path, {"format": FORMAT, "machine": machine})
        for run in results.runs.values():
            if run["machine"] == machine:
                append_line(path, {"cell": run["cell"], "result": run["result"]})


# ---- The machine -----------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What this machine is, for the report."""
    import torch

    import pith

    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory": memory,
        "gpus": gpus,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pith": pith.__version__,
        "instructions": pith.doctor()["cpu"],
    }
