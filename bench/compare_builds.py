#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether one build of Pith is slower than another: allreduce over shm and tcp, in pairs of adjacent runs whose order alternates.

    bench/compare_builds.py OLD NEW [--pairs 40]

OLD and NEW are commands (build/pith) of two builds. Each row is the median of the ratios NEW/OLD of all pairs, with a 95% interval
by resampling: a machine that is slow for a while is so for both sides of a pair. As root the ranks run with real-time priority.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess

RUNS = [
    "-b 1K -e 256K -f 4 -n 1500 -w 100 --transport shm",
    "-b 4K -e 256K -f 8 -n 500 -w 60 --transport shm --codec q:4",
    "-b 1M -e 16M -f 16 -n 10 -w 3 --transport shm --codec q:4",
    "-b 4K -e 256K -f 64 -n 500 -w 60 --transport tcp --codec q:4",
    "-b 16M -e 16M -f 2 -n 6 -w 2 --transport tcp --codec q:4",
]


def times(pith: str, options: str) -> dict[tuple[str, str], float]:
    """Microseconds by size and codec."""
    priority = ["chrt", "-f", "10"] if os.geteuid() == 0 else []
    command = [pith, "run", "--no-prefix", "-n", "2", "--", pith, "bench", "allreduce"]
    said = subprocess.run(
        priority + command + options.split(), capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in said.stdout.splitlines()]
    return {(row[0], row[1]): float(row[2]) for row in rows if row and row[0][0].isdigit()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--pairs", type=int, default=40)
    arguments = parser.parse_args()
    print("transport   size codec  new/old  95% interval    pairs")
    for options in RUNS:
        ratios: dict[tuple[str, str], list[float]] = {}
        for pair in range(arguments.pairs):
            order = [arguments.old, arguments.new][:: 1 if pair % 2 else -1]
            found = {pith: times(pith, options) for pith in order}
            for key, old in found[arguments.old].items():
                ratios.setdefault(key, []).append(found[arguments.new][key] / old)
        for (size, codec), values in ratios.items():
            medians = sorted(
                statistics.median(random.choices(values, k=len(values))) for _ in range(1000)
            )
            print(
                f"{options.split('--transport ')[1][:3]:9} {size:>6} {codec:5} {statistics.median(values):8.3f}"
                f"  {medians[25]:.3f} to {medians[974]:.3f} {len(values):6}",
                flush=True,
            )


if __name__ == "__main__":
    main()
