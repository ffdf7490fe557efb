# SPDX-License-Identifier: Apache-2.0
"""Does `auto` choose well? Simulates every algorithm that the library may take, and prints what its choice misses.

    python bench/sim_choice.py [--quick] [--ranks 2 8 64 ...] [--codec q:4 ...] [--limit 5] [--jobs 2]

A cell is a codec, a rate, a number of ranks of a host, of ranks, and a size. Speeds of codecs are fixed, so every run gives
the same figures. `--limit` is the percentage above which a cell is printed by itself, and counts as missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

SIZES = ["8", "1K", "16K", "256K", "1M", "16M", "256M"]
LARGE_RANKS = (
    1024  # from here on, flat ways of long tensors take minutes to simulate and are never the best
)


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
    seconds: dict[str, float]


def size_of(text: str) -> int:
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def candidates(cell: Cell) -> list[str]:
    """Nothing that is left out could be the best: gathering sends N payloads, and flat ways N squared messages."""
    names = ["sra", "hierarchical", "gather", "ranges", "linear", "grid"]
    bytes_of_all = cell.ranks * size_of(cell.size)
    if cell.ranks > 128 and bytes_of_all > 64 << 20:
        names.remove("gather")
    if cell.ranks >= LARGE_RANKS and size_of(cell.size) > 16 << 10 and cell.codec != "none":
        names.remove("sra")
        names.remove("ranges")
    return names


def run(pith: str, cell: Cell) -> Choice | None:
    command = [pith, "sim", "allreduce", "-n", str(cell.ranks), "--per-host", str(cell.per_host)]
    command += ["--rate", cell.rate, "-b", cell.size, "--codec", cell.codec, "--json", "-"]
    command += ["--encode", "8", "--decode", "10"]
    for name in [*candidates(cell), "auto"]:
        command += ["--algo", name]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    rows = [row for row in json.loads(done.stdout)["results"] if "seconds" in row]
    seconds = {row["algorithm"]: row["seconds"] for row in rows}
    taken = [row["algorithm"] for row in rows if row["auto"]]
    may = {row["algorithm"]: row["seconds"] for row in rows if row["may_be_chosen"]}
    if not taken or not may:
        return None
    best = min(may, key=may.__getitem__)
    return Choice(taken[0], best, may[taken[0]] / may[best] - 1, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pith", default="build/pith")
    parser.add_argument("--quick", action="store_true", help="up to 64 ranks and 1 MiB")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 64, 256, 1024, 4096])
    parser.add_argument("--per-host", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rate", nargs="+", default=["1gbit", "10gbit", "100gbit"])
    parser.add_argument("--size", nargs="+", default=SIZES)
    parser.add_argument(
        "--codec", nargs="+", default=["none", "q:4", "ef/topk:0.01", "ef/powersgd:4"]
    )
    parser.add_argument("--limit", type=float, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    if given.quick:
        given.ranks = [r for r in given.ranks if r <= 64]
        given.size = [s for s in given.size if size_of(s) <= 1 << 20]
    cells = [
        Cell(*cell)
        for cell in itertools.product(
            given.codec, given.rate, given.per_host, given.ranks, given.size
        )
        if cell[3] > cell[2] or cell[2] == 1
    ]
    print(
        f"{'codec':14} {'rate':8} {'per host':>8} {'ranks':>5} {'size':>5}  {'auto':13} {'best':13} {'worse by':>8}"
    )
    worst: list[float] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for cell, choice in zip(cells, pool.map(lambda c: run(given.pith, c), cells), strict=True):
            if choice is None:
                continue
            worst.append(100 * choice.worse)
            if worst[-1] > given.limit:
                print(
                    f"{cell.codec:14} {cell.rate:8} {cell.per_host:8} {cell.ranks:5} {cell.size:>5}  {choice.taken:13} "
                    f"{choice.best:13} {worst[-1]:7.1f}%",
                    flush=True,
                )
    missed = sum(w > given.limit for w in worst)
    print(
        f"{len(worst)} cells: {missed} worse by more than {given.limit:g}%, the worst by {max(worst):.1f}%"
    )
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
