# SPDX-License-Identifier: Apache-2.0
"""Does `auto` choose well? Simulates every algorithm that the library may take, and prints what its choice misses.

    python bench/sim_choice.py [--quick] [--ranks 2 8 64 ...] [--codec q:4 ...] [--limit 5] [--jobs 2] [--keep FILE]

A cell is a codec, a rate, a number of ranks of a host, of ranks, and a size. Speeds of codecs are fixed, so every run gives
the same figures. `--limit` is the percentage above which a cell is printed by itself, and counts as missed. An algorithm is
not simulated where its messages or bytes alone take longer than another one does, unless it is what the library takes.
`--keep` writes times to a file and takes those that it has: then only choices are new. Times follow from the schedules and
the simulator, so delete the file when these have changed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

SIZES = ["8", "4K", "64K", "1M", "16M", "256M"]
ALGORITHMS = ["grid", "hierarchical", "ranges", "gather", "sra"]  # cheap ones to simulate first
MESSAGE, INSIDE_MESSAGE = 2e-6, 0.5e-6  # of a processor, as PITH_SIM_TOPOLOGY_INIT has them
SPARSE_BYTES = 0.04  # of ef/topk:0.01, for each value at least


class Cell(NamedTuple):
    codec: str
    rate: str
    per_host: int
    ranks: int
    size: str


class Choice(NamedTuple):
    taken: str
    best: str
    worse: float
    left_out: int


def size_of(text: str) -> int:
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def least_seconds(cell: Cell, algorithm: str) -> float:
    """What a flat algorithm takes at least: the owner of a value handles a message from and to every other rank, and if all
    are owners, each of them does so twice. Short sums are passed on instead (Bruck): for these the bound is 0."""
    others, inside = cell.ranks - 1, cell.per_host - 1
    each = 2 * ((others - inside) * MESSAGE + inside * INSIDE_MESSAGE)
    n = size_of(cell.size) // 4
    if cell.codec == "ef/powersgd:4" and 16 * math.isqrt(n) <= n:
        n = 4 * math.isqrt(n)  # of a round
    all_are_owners = n >= cell.ranks
    if algorithm == "gather":
        link = float(cell.rate.removesuffix("gbit")) * 1.25e8
        return max(each, SPARSE_BYTES * n * cell.per_host * (others - inside) / link)
    if algorithm == "ranges":
        return 2 * each if all_are_owners else each
    if algorithm == "sra" and cell.codec == "q:4":
        return each
    if algorithm == "sra" and 4 * n * others > 64 << 10:
        return 2 * each if all_are_owners else each
    return 0


class Times:
    """Simulated seconds by cell and algorithm; None where it does not suit, or would not be taken."""

    def __init__(self, pith: str, path: Path | None) -> None:
        self._pith, self._path, self._lock = pith, path, threading.Lock()
        self._known: dict[tuple[str, ...], float | None] = {}
        if path and path.exists():
            for line in path.read_text().splitlines():
                *key, seconds = json.loads(line)
                self._known[tuple(key)] = seconds

    def _run(self, cell: Cell, *more: str) -> list[dict]:
        command = [self._pith, "sim", "allreduce", "-n", str(cell.ranks), "--per-host"]
        command += [str(cell.per_host), "--rate", cell.rate, "-b", cell.size, "--codec", cell.codec]
        command += ["--encode", "8", "--decode", "10", "--json", "-", *more]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout)["results"]

    def of(self, cell: Cell, algorithm: str) -> float | None:
        key = (*map(str, cell), algorithm)
        if key not in self._known:
            (row,) = self._run(cell, "--algo", algorithm)
            seconds = row["seconds"] if row.get("may_be_chosen") else None
            with self._lock:
                self._known[key] = seconds
                if self._path:
                    with self._path.open("a") as file:
                        file.write(json.dumps([*key, seconds]) + "\n")
        return self._known[key]

    def taken(self, cell: Cell) -> str:
        return self._run(cell, "--estimate")[0]["algorithm"]


def judge(times: Times, cell: Cell) -> Choice | None:
    taken, found, left_out = times.taken(cell), {}, 0
    for algorithm in [taken, *(a for a in ALGORITHMS if a != taken)]:
        if found and least_seconds(cell, algorithm) > min(found.values()):
            left_out += 1
            continue
        seconds = times.of(cell, algorithm)
        if seconds is not None:
            found[algorithm] = seconds
    if taken not in found:
        return None
    best = min(found, key=found.__getitem__)
    return Choice(taken, best, found[taken] / found[best] - 1, left_out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pith", default="build/pith")
    parser.add_argument("--quick", action="store_true", help="up to 64 ranks and 1 MiB")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 512, 4096])
    parser.add_argument("--per-host", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rate", nargs="+", default=["1gbit", "10gbit", "100gbit"])
    parser.add_argument("--size", nargs="+", default=SIZES)
    parser.add_argument(
        "--codec", nargs="+", default=["none", "q:4", "ef/topk:0.01", "ef/powersgd:4"]
    )
    parser.add_argument("--limit", type=float, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.quick:
        given.ranks = [r for r in given.ranks if r <= 64]
        given.size = [s for s in given.size if size_of(s) <= 1 << 20]
    cells = [
        Cell(codec, rate, per_host, ranks, size)
        for ranks, size, codec, rate, per_host in itertools.product(
            given.ranks, given.size, given.codec, given.rate, given.per_host
        )
        if ranks > per_host or per_host == 1
    ]
    print(
        f"{'codec':14} {'rate':8} {'per host':>8} {'ranks':>5} {'size':>5}  {'auto':13} {'best':13} {'worse by':>8}"
    )
    worst: list[float] = []
    missed: Counter[int] = Counter()
    left_out = 0
    times = Times(given.pith, given.keep)
    with ThreadPoolExecutor(given.jobs) as pool:
        for cell, choice in zip(cells, pool.map(lambda c: judge(times, c), cells), strict=True):
            if choice is None:
                print(f"{cell}: what is taken cannot be simulated")
                continue
            worst.append(100 * choice.worse)
            left_out += choice.left_out
            if worst[-1] > given.limit:
                missed[cell.ranks] += 1
                print(
                    f"{cell.codec:14} {cell.rate:8} {cell.per_host:8} {cell.ranks:5} {cell.size:>5}  {choice.taken:13} "
                    f"{choice.best:13} {worst[-1]:7.1f}%",
                    flush=True,
                )
    print(
        f"{len(worst)} cells: {missed.total()} worse by more than {given.limit:g}%, the worst by {max(worst):.1f}%; "
        f"by ranks {dict(missed)}; {left_out} algorithms left out, whose bound is above the best"
    )
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
