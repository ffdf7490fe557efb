# SPDX-License-Identifier: Apache-2.0
"""Does `pith sim` tell the truth? The same allreduces in the lab and simulated, and the ratio of their times.

    python bench/sim_lab.py [--pith build/pith] [--ranks 2 4 8 16] [--rate 1gbit] [--bytes 16M] [--per-host 1]

Every spec by every algorithm that suits. The lab's hosts are namespaces of this machine, whose cores all ranks share; the
simulation is told so, and measures the codecs itself. How fast a core moves bytes through the lab is measured once, over a
link that is never full. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

ALGORITHMS = {
    "none": ["sra"],
    "q:4": ["sra", "ring", "tree", "gather"],
    "ef/topk:0.01": ["gather", "ranges"],
    "ef/powersgd:4": ["sra"],
}


def copy_speed(given: argparse.Namespace, folder: Path, cores: int) -> float:
    """GB/s at which a core moves bytes through TCP and the lab's devices: one rank for each core, a link that is never full."""
    fast = argparse.Namespace(**{**vars(given), "rate": "100gbit", "per_host": 1})
    seconds = in_lab(folder, fast, cores, ["none"])["none", "sra"]
    sent = 2 * size_of(given.bytes) * (cores - 1) / cores
    return 2 * sent / seconds / 1e9  # each byte is sent and received


def size_of(text: str) -> int:
    return (
        int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]] if text[-1] in "KMG" else int(text)
    )


def topology(folder: Path, given: argparse.Namespace) -> Path:
    cores = len(os.sched_getaffinity(0))
    path = folder / "lab.topology"
    lines = [
        f"rate = {given.rate}",
        f"per_host = {given.per_host}",
        f"latency = {given.latency}",
        f"cores = {cores}",
    ]
    lines += ["shared_cores = true"]
    if cores > 1:
        lines += [f"copy = {copy_speed(given, folder, cores):.3f}"]
    lines += given.set
    path.write_text("".join(f"{line}\n" for line in lines))
    print("# " + "; ".join(lines))
    return path


def in_lab(
    folder: Path, given: argparse.Namespace, ranks: int, specs: list[str]
) -> dict[tuple[str, str], float]:
    """Seconds by spec and algorithm. The bench measures uncompressed values beside every spec; those of the first count."""
    out = folder / "lab.json"
    seconds: dict[tuple[str, str], float] = {}
    for spec in specs:
        command = [
            given.pith,
            "lab",
            "-n",
            str(ranks),
            "--per-host",
            str(given.per_host),
            "--rate",
            given.rate,
            "--",
        ]
        command += [
            given.pith,
            "bench",
            "allreduce",
            "-b",
            given.bytes,
            "-e",
            given.bytes,
            "-n",
            str(given.repetitions),
        ]
        command += ["-w", "2", "-c", "0", "--json", str(out)] + (
            [] if spec == "none" else ["--codec", spec]
        )
        crowded = ["hierarchical"] if 1 < given.per_host < ranks else []
        for algorithm in ALGORITHMS[spec] + crowded:
            command += ["--algo", algorithm]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        rows = json.loads(out.read_text())
        for row in rows["results"] if isinstance(rows, dict) else rows:
            seconds.setdefault((row["codec"] or "none", row["algorithm"] or "sra"), row["seconds"])
    return {key: found for key, found in seconds.items() if key[0] in specs}


def simulated(
    given: argparse.Namespace, file: Path, ranks: int, specs: list[str]
) -> dict[tuple[str, str], float]:
    command = [
        given.pith,
        "sim",
        "allreduce",
        "-n",
        str(ranks),
        "-b",
        given.bytes,
        "--topology",
        str(file),
    ]
    command += ["--algo", "all", "--json", "-"]
    for spec in specs:
        command += ["--codec", spec]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[
        "results"
    ]
    return {(row["codec"], row["algorithm"]): row["seconds"] for row in rows if "seconds" in row}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pith", default="build/pith")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--bytes", default="16M")
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--latency", default="40us", help="of the lab, which adds none of its own")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--spec", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument(
        "--set", nargs="*", default=[], help="further lines of the topology, as 'message = 3us'"
    )
    given = parser.parse_args()
    ratios = []
    print(f"{'ranks':>5}  {'codec':14} {'algorithm':13} {'lab ms':>9} {'sim ms':>9} {'sim/lab':>8}")
    with tempfile.TemporaryDirectory() as name:
        file = topology(Path(name), given)
        for ranks in given.ranks:
            lab = in_lab(Path(name), given, ranks, given.spec)
            sim = simulated(given, file, ranks, given.spec)
            for key in sorted(
                lab.keys() & sim.keys(), key=lambda k: (given.spec.index(k[0]), k[1])
            ):
                ratios.append(sim[key] / lab[key])
                spec, algorithm = key
                print(
                    f"{ranks:5}  {spec:14} {algorithm:13} {1e3 * lab[key]:9.2f} {1e3 * sim[key]:9.2f} {ratios[-1]:8.2f}",
                    flush=True,
                )
    near = sum(1 / 1.15 <= r <= 1.15 for r in ratios)
    print(f"{near} of {len(ratios)} within 15%; from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
