# SPDX-License-Identifier: Apache-2.0
"""Does `pith sim` tell the truth? The same allreduces in the lab and simulated, and the ratio of their times.

    python bench/sim_lab.py [--build build] [--ranks 2 4 8 16] [--rate 1gbit] [--bytes 16M] [--per-host 1] [--rounds 3]

Every spec by every algorithm that suits. The lab's hosts are namespaces of this machine, whose cores all ranks share; the
simulation is told so. It measures the codecs itself, with values like those in the lab (sim_lab.c). How fast a core moves
bytes through TCP (`copy`) is measured with uncompressed values by `sra`, with as many ranks.
The lab's token buckets let 1 ms of bytes pass at once (`burst`), and an empty look at a connection takes a system call
(`look`). Times of the lab are medians; a ratio is the median over rounds, each of which measures both sides. As root all of it runs with real-time priority, so that other programs disturb little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ALGORITHMS = {
    "none": ["sra", "grid"],
    "q:4": ["sra", "ring", "tree", "gather", "grid"],
    "ef/topk:0.01": ["gather", "ranges", "grid"],
    "ef/powersgd:4": ["sra", "grid"],
}
FAST = "100gbit"  # no core fills it
COPY = 1.0, 16.0  # GB/s that are possible
PRIORITY = ["chrt", "-f", "10"] if os.geteuid() == 0 else []

Times = dict[tuple[str, str], float]


def size_of(text: str) -> int:
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def rate_of(text: str) -> float:
    """Bytes per second."""
    return float(text.removesuffix("bit")[:-1]) * {"k": 125.0, "m": 1.25e5, "g": 1.25e8}[text[-4]]


def output_of(command: list[str]) -> str:
    done = subprocess.run([*PRIORITY, *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def suit(spec: str, ranks: int, per_host: int) -> list[str]:
    hosts, crowded = ranks // per_host, 1 < per_host < ranks
    names = [name for name in ALGORITHMS[spec] if name != "grid" or hosts >= 4]
    return names + (["hierarchical"] if crowded else [])


def in_lab(
    given: argparse.Namespace,
    ranks: int,
    per_host: int,
    rate: str,
    spec: str,
    algorithms: list[str],
) -> dict[tuple[str, str], tuple[float, float]]:
    """Seconds, and those of a rank's processor, by spec and algorithm."""
    command = [given.pith, "lab", "-n", str(ranks), "--per-host", str(per_host), "--rate", rate]
    command += ["--no-prefix", "--", given.program, spec, str(size_of(given.bytes) // 4)]
    lines = output_of([*command, str(given.repetitions), *algorithms]).splitlines()
    found = [line.split() for line in lines if line.split()[0] in algorithms]
    return {(spec, name): (float(seconds), float(spent)) for name, seconds, spent in found}


def simulated(given: argparse.Namespace, ranks: int, topology: list[str], *more: str) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lab.topology"
        file.write_text("".join(f"{line}\n" for line in topology))
        command = [given.pith, "sim", "allreduce", "-n", str(ranks), "-b", given.bytes]
        command += ["--topology", str(file), "--dist", "uniform", "--json", "-", *more]
        rows = json.loads(output_of(command))["results"]
    return {(row["codec"], row["algorithm"]): row["seconds"] for row in rows if "seconds" in row}


def topology_of(given: argparse.Namespace, per_host: int, rate: str, copy: float) -> list[str]:
    lines = [f"rate = {rate}", f"per_host = {per_host}", f"latency = {given.latency}"]
    lines += [f"cores = {len(os.sched_getaffinity(0))}", "shared_cores = true"]
    lines += [f"burst = {max(32768, int(rate_of(rate) / 1000))}", f"copy = {copy:.3f}"]
    return [*lines, f"look = {given.look}", *given.set]


def copy_speed(given: argparse.Namespace, ranks: int) -> float:
    """GB/s at which a core moves bytes through TCP and the lab's devices.

    Where ranks share cores: by the processor time of uncompressed values, at the same rate. Else what makes the simulation
    right on links that are never full: a rank that has its core to itself looks for messages all the time.
    """
    cores = len(os.sched_getaffinity(0))
    rate = given.rate if ranks > cores else FAST
    wanted, spent = in_lab(given, ranks, 1, rate, "none", ["sra"])["none", "sra"]
    if ranks > cores:
        moved = 4 * size_of(given.bytes) * (ranks - 1) / ranks  # sent, and as much received
        return moved / spent / 1e9
    low, high = COPY
    for _ in range(8):
        middle = (low * high) ** 0.5
        topology = topology_of(given, 1, FAST, middle)
        speed = ["--algo", "sra", "--encode", "1", "--decode", "1"]
        is_slow = simulated(given, ranks, topology, *speed)["none", "sra"] > wanted
        low, high = (middle, high) if is_slow else (low, middle)
    return (low * high) ** 0.5


def run_round(given: argparse.Namespace, ranks: int, per_host: int) -> dict[tuple[str, str], tuple]:
    copy = copy_speed(given, ranks)
    topology = topology_of(given, per_host, given.rate, copy)
    found = {}
    for spec in given.spec:
        lab = in_lab(given, ranks, per_host, given.rate, spec, suit(spec, ranks, per_host))
        sim = simulated(given, ranks, topology, "--algo", "all", "--codec", spec)
        found |= {key: (lab[key][0], sim[key], copy) for key in lab if key in sim}
    return found


def compare(given: argparse.Namespace) -> None:
    ratios = []
    print(
        f"{'ranks':>5} {'per host':>8}  {'codec':14} {'algorithm':13} {'lab ms':>9} {'sim ms':>9} {'sim/lab':>8}  rounds"
    )
    for per_host in given.per_host:
        for ranks in (r for r in given.ranks if r > per_host or per_host == 1):
            rounds = [run_round(given, ranks, per_host) for _ in range(given.rounds)]
            copies = ", ".join(f"{next(iter(r.values()))[2]:.2f}" for r in rounds)
            print(f"# {ranks} ranks: copy = {copies} GB/s")
            for key in rounds[0]:
                each = sorted(r[key][1] / r[key][0] for r in rounds)
                ratios.append(statistics.median(each))
                lab, sim = (1e3 * statistics.median(r[key][i] for r in rounds) for i in (0, 1))
                spec, algorithm = key
                print(
                    f"{ranks:5} {per_host:8}  {spec:14} {algorithm:13} {lab:9.2f} {sim:9.2f} {ratios[-1]:8.2f}  "
                    f"{each[0]:.2f} to {each[-1]:.2f}",
                    flush=True,
                )
    near = sum(1 / 1.15 <= r <= 1.15 for r in ratios)
    print(f"{near} of {len(ratios)} within 15%; from {min(ratios):.2f} to {max(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--bytes", default="16M")
    parser.add_argument("--per-host", type=int, nargs="+", default=[1])
    parser.add_argument("--latency", default="40us", help="of the lab, which adds none of its own")
    parser.add_argument("--look", default="0.5us", help="an empty receive from one peer")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spec", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument(
        "--set", nargs="*", default=[], help="further lines of the topology, as 'message = 3us'"
    )
    given = parser.parse_args()
    subprocess.run(["cmake", "--build", given.build, "--target", "pith", "sim_lab"], check=True)
    given.pith, given.program = f"{given.build}/pith", f"{given.build}/tests/sim_lab"
    compare(given)


if __name__ == "__main__":
    main()
