# SPDX-License-Identifier: Apache-2.0
"""`pith sim` beside SimGrid: the same schedules on the same network, and the ratio of their times.

    python bench/simgrid/compare.py [--ranks 8 64 512] [--bytes 4M] [--rate 10gbit] [--segment 1500]

SimGrid's flows share a link fairly from their first byte. So a link of `pith sim` turns to the next connection after every
packet here, not after 32 KiB as it does by default; `--segment 32768` compares that.
Needs SimGrid and a C++ compiler (Debian: libsimgrid-dev, g++); without them it says so. Nothing of Pith depends on it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CASES = [  # codec, algorithm, ranks of a host, further options
    ("none", "sra", 1, []),
    ("none", "grid", 1, []),
    ("q:4", "sra", 1, []),
    ("q:4", "grid", 1, []),
    ("q:4", "ring", 1, []),
    ("q:4", "tree", 1, []),
    ("none", "hierarchical", 8, []),
    ("q:4", "hierarchical", 8, []),
    ("q:4", "grid", 8, []),
    ("ef/topk:0.01", "ranges", 1, []),
    ("ef/topk:0.01", "grid", 1, []),
    ("ef/powersgd:4", "grid", 1, []),
    ("q:4", "grid", 1, ["--rack-hosts", "16", "--rack-oversubscription", "4"]),
    ("q:4", "sra", 1, ["--oversubscription", "2"]),
]


def build(folder: Path) -> Path:
    program = folder / "replay"
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise SystemExit("there is no C++ compiler")
    command = [
        compiler,
        "-std=c++17",
        "-O2",
        str(HERE / "replay.cpp"),
        "-lsimgrid",
        "-o",
        str(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            "SimGrid is not there (Debian: libsimgrid-dev), or is another:\n" + done.stderr[-2000:]
        )
    return program


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pith", default="build/pith")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 64, 128, 256, 512])
    parser.add_argument("--bytes", default="4M")
    parser.add_argument("--rate", default="10gbit")
    parser.add_argument(
        "--algorithm", nargs="+", help="only these: flat ones take long on many ranks"
    )
    parser.add_argument("--segment", type=int, default=1500)
    parser.add_argument("--limit", type=float, default=10, help="percent")
    given = parser.parse_args()
    ratios = []
    print(
        f"{'ranks':>5} {'per host':>8}  {'codec':14} {'algorithm':13} {'pith ms':>9} {'SimGrid ms':>10} {'ratio':>6}"
    )
    with tempfile.TemporaryDirectory() as name:
        program, file = build(Path(name)), Path(name) / "schedules"
        topology = Path(name) / "topology"
        topology.write_text(f"segment = {given.segment}\n")
        for ranks in given.ranks:
            for codec, algorithm, per_host, more in CASES:
                if per_host > 1 and ranks < 4 * per_host or (more and ranks < 64):
                    continue
                if given.algorithm and algorithm not in given.algorithm:
                    continue
                command = [
                    given.pith,
                    "sim",
                    "allreduce",
                    "-n",
                    str(ranks),
                    "--per-host",
                    str(per_host),
                    "--topology",
                    str(topology),
                    *more,
                ]
                command += [
                    "-b",
                    given.bytes,
                    "--rate",
                    given.rate,
                    "--codec",
                    codec,
                    "--algo",
                    algorithm,
                ]
                command += ["--encode", "8", "--decode", "10"]
                found = subprocess.run(
                    [*command, "--json", "-"], capture_output=True, text=True, check=True
                )
                subprocess.run([*command, "--export", str(file)], check=True)
                ours = json.loads(found.stdout)["results"][0]["seconds"]
                done = subprocess.run(
                    [str(program), str(file)], capture_output=True, text=True, check=True
                )
                theirs = float(done.stdout)
                ratios.append(ours / theirs)
                print(
                    f"{ranks:5} {per_host:8}  {codec:14} {algorithm:13} {1e3 * ours:9.3f} {1e3 * theirs:10.3f} "
                    f"{ratios[-1]:6.3f}",
                    flush=True,
                )
    near = sum(1 / (1 + given.limit / 100) <= r <= 1 + given.limit / 100 for r in ratios)
    print(
        f"{near} of {len(ratios)} within {given.limit:g}%; from {min(ratios):.2f} to {max(ratios):.2f}"
    )
    sys.exit(near < len(ratios))


if __name__ == "__main__":
    main()
