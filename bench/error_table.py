# SPDX-License-Identifier: Apache-2.0
"""What does the mean over ranks lose? Every method by every algorithm it allows, on 2, 4 and 8 ranks, beside the paper.

    python bench/error_table.py                  # every method
    python bench/error_table.py q:4 qsgd:127     # some of them
    python bench/error_table.py --json FILE

Ranks are threads of one process. Their gradients have a common part and one of their own, both normally distributed. An error is
‖result − mean‖ / ‖mean‖, over some draws of random numbers. Behind it in brackets: that of the method and the schedule as the papers have them, in f64
(bench/papers.py). For methods with a memory it is the first step. Ends with 1 where Pith's error is more than 3% above the paper's.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import pith
from pith import _library as c

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import papers  # noqa: E402
from papers import Paper, by_bucket  # noqa: E402

ROWS = 256
VALUES = ROWS * 256
RANKS = (2, 4, 8)
DRAWS = 3
WORSE = 1.03  # sampling, and roundings to f32

METHODS: dict[str, Paper] = {
    "none": Paper("the values themselves", papers.exact, granule=1),
    "fp16": Paper("IEEE 754", papers.fp16, granule=1),
    "bf16": Paper("IEEE 754", papers.bf16, granule=1),
    "q:2": Paper("CGX", by_bucket(512, papers.max_min(2)), granule=512),
    "q:4": Paper("CGX", by_bucket(512, papers.max_min(4)), granule=512),
    "q:8": Paper("CGX", by_bucket(512, papers.max_min(8)), granule=512),
    "q:4,round=stochastic": Paper("CGX", by_bucket(512, papers.max_min(4, True)), granule=512),
    "hadamard:512/q:4": Paper(
        "CGX, rotated", by_bucket(512, papers.rotated(papers.max_min(4))), granule=512
    ),
    "qsgd:127": Paper("Alistarh 2017", by_bucket(512, papers.qsgd(127)), granule=512),
    "terngrad": Paper("Wen 2017", by_bucket(1280, papers.terngrad(2.5)), granule=1280),
    "terngrad,clip=0": Paper("Wen 2017", by_bucket(1280, papers.terngrad(0)), granule=1280),
    "nuq:4": Paper("Ramezani-Kebrya 2021", by_bucket(512, papers.powers(4)), granule=512),
    "natural": Paper("Horváth 2019", papers.natural, granule=512),
    "sign,scale=mean": Paper("Karimireddy 2019", by_bucket(4096, papers.scaled_sign), granule=4096),
    "signmean": Paper("Seide 2014", by_bucket(512, papers.one_bit), granule=512),
    "lossless": Paper("the values themselves", papers.exact, granule=1),
    "fp8": Paper("OCP 2023", by_bucket(512, papers.eight_bits(3, 7, 448)), granule=512),
    "fp8:e5m2": Paper("OCP 2023", by_bucket(512, papers.eight_bits(2, 15, 57344)), granule=512),
    "mx": Paper("OCP 2023", by_bucket(512, papers.microscaling(3, 7, 448)), granule=512),
    "mxfp8:e5m2": Paper("OCP 2023", by_bucket(512, papers.microscaling(2, 15, 57344)), granule=512),
    "mxfp6": Paper("OCP 2023", by_bucket(512, papers.microscaling(3, 1, 7.5)), granule=512),
    "mxfp6:e3m2": Paper("OCP 2023", by_bucket(512, papers.microscaling(2, 3, 28)), granule=512),
    "mxfp4": Paper("OCP 2023", by_bucket(512, papers.microscaling(1, 1, 6)), granule=512),
    "nvfp4": Paper("NVIDIA 2024", by_bucket(512, papers.nvfp4), granule=512),
    "tree8": Paper("Dettmers 2015", by_bucket(512, papers.dynamic_tree), granule=512),
    "signsgd": Paper("Bernstein 2018", mean=papers.majority, result=papers.either_way),
    "signum": Paper("Bernstein 2018", mean=papers.majority, result=papers.either_way),
    "efsignsgd": Paper("Karimireddy 2019", by_bucket(4096, papers.scaled_sign), granule=4096),
    "onebit": Paper("Seide 2014", by_bucket(512, papers.one_bit), granule=512),
    "u8": Paper("Dettmers 2015", by_bucket(512, papers.dynamic_tree), granule=512),
    "inceptionn:0.01": Paper("Li 2018", papers.bounded(0.01), granule=512),
    "gq:8": Paper("Xin 2023", mean=papers.global_qsgd(8)),
    "drive": Paper("Vargaftik 2021", by_bucket(4096, papers.rotated(papers.drive)), granule=4096),
    "eden:2": Paper(
        "Vargaftik 2022", by_bucket(4096, papers.rotated(papers.eden(2))), granule=4096
    ),
    "lloyd:2": Paper("Vargaftik 2022", by_bucket(4096, papers.eden(2)), granule=4096),
    "topk:0.01": Paper("Aji 2017", papers.top(0.01)),
    "dgc:0.01,clip=0": Paper("Lin 2018", papers.top(0.01)),
    "randomk:0.01": Paper("Stich 2018", mean=papers.random_places(0.01)),
    "threshold:2": Paper("Aji 2017", papers.threshold(2)),
    "adaptive:0.01": Paper("Dryden 2016", papers.adaptive(0.01)),
    "adaq:0.01": Paper("Dryden 2016", papers.adaptive(0.01)),
    "grace:topk": Paper("GRACE", papers.top(0.01)),
    "cgx:4": Paper("CGX", by_bucket(512, papers.max_min(4, True)), granule=512),
    "sketchml:64": Paper("Jiang 2018", papers.quantiles(64)),
    "powersgd:4": Paper("Vogels 2019", mean=papers.powersgd(4, ROWS)),
}


def missing_methods() -> list[str]:
    """Those that Pith has and this table has not. Plug-ins have no paper here."""
    names = {spec.split("/")[-1].split(":")[0].split(",")[0] for spec in METHODS}
    return [m.name for m in pith.methods() if m.kind in ("codec", "preset") and m.name not in names]


# ---- Pith ----------------------------------------------------------------------------------------------------------


def on_all_ranks(ranks: int, run: Callable[[pith.Comm], Any]) -> list[Any]:
    """Runs on threads, two of them on what they take for a host."""
    identity, results, errors = pith.unique_id(), [None] * ranks, []

    def work(rank: int) -> None:
        try:
            host = f"host{rank // 2}"
            with pith.Comm(rank, ranks, id=identity, transport="inproc", host_id=host) as comm:
                results[rank] = run(comm)
        except Exception as error:  # all ranks raise the same
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def algorithms_of(spec: str, ranks: int) -> list[str]:
    names, index, codec = [], 1, pith.Codec(spec)  # 0 is auto
    while name := c.lib.pith_algorithm_get(index):
        suits = c.lib.pith_algorithm_suits(name, codec._pointer) == 0
        has_hosts = ranks > 2 or name != b"hierarchical"
        has_grid = papers.rack_of(ranks // 2) > 0 or name != b"grid"
        if suits and has_hosts and has_grid:
            names.append(name.decode())
        index += 1
    return names


def reduced(
    spec: str, algorithms: Sequence[str], draws: Sequence[Sequence[papers.Array]]
) -> dict[str, list[papers.Array]]:
    """Pith's means of every draw, by each algorithm; all ranks must have the same bits."""
    codec = pith.Codec(spec)

    def reduce(comm: pith.Comm, algorithm: str, step: int) -> Any:
        x = draws[step][comm.rank].astype(np.float32)
        state = codec.state(len(x), rows=ROWS)
        where = {"seed": 7, "step": step, "rows": ROWS, "algorithm": algorithm}
        return comm.allreduce(x, "mean", codec=codec, state=state, **where)

    def run(comm: pith.Comm) -> Any:
        return {a: [reduce(comm, a, step) for step in range(len(draws))] for a in algorithms}

    all_ranks = on_all_ranks(len(draws[0]), run)
    for algorithm in algorithms:
        for step, first in enumerate(all_ranks[0][algorithm]):
            if any(r[algorithm][step].tobytes() != first.tobytes() for r in all_ranks):
                raise SystemExit(f"{spec} by {algorithm}: ranks have different results")
    return {a: [y.astype(np.float64) for y in ys] for a, ys in all_ranks[0].items()}


# ---- Errors --------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    spec: str
    algorithm: str
    ranks: int
    error: float
    paper: float

    def is_worse(self) -> bool:
        return self.error > self.paper * WORSE + 1e-6


def gradients(ranks: int, random: papers.Random) -> list[papers.Array]:
    """As Pith will see them: f32."""
    common = random.standard_normal(VALUES)
    own = [common + random.standard_normal(VALUES) for _ in range(ranks)]
    return [x.astype(np.float32).astype(np.float64) for x in own]


def error_of(y: papers.Array, xs: Sequence[papers.Array]) -> float:
    mean = np.mean(xs, axis=0)
    return float(np.linalg.norm(y - mean) / np.linalg.norm(mean))


def measure(spec: str, ranks: int, draws: int = DRAWS) -> list[Row]:
    """Pith and the paper get the same gradients and draw their own random numbers."""
    random, algorithms = np.random.default_rng([2026, ranks]), algorithms_of(spec, ranks)
    drawn = [gradients(ranks, random) for _ in range(draws)]
    ours = reduced(spec, algorithms, drawn)
    rows = []
    for algorithm in algorithms:
        errors = [error_of(y, xs) for y, xs in zip(ours[algorithm], drawn, strict=True)]
        theirs = [papers.expected(METHODS[spec], algorithm, xs, random) for xs in drawn]
        paper = [error_of(y, xs) for y, xs in zip(theirs, drawn, strict=True)]
        rows.append(Row(spec, algorithm, ranks, float(np.mean(errors)), float(np.mean(paper))))
    return rows


def print_table(rows: Sequence[Row]) -> None:
    head = "".join(f"{f'{ranks} ranks':>20}" for ranks in RANKS)
    print(f"{'method':22}{'algorithm':14}{head}")
    for key in dict.fromkeys((row.spec, row.algorithm) for row in rows):
        cells = {row.ranks: row for row in rows if (row.spec, row.algorithm) == key}
        line = f"{key[0]:22}{key[1]:14}"
        for ranks in RANKS:
            row = cells.get(ranks)
            mark = "!" if row and row.is_worse() else " "
            text = f"{row.error:.4f} ({row.paper:.4f}){mark}" if row else "- "
            line += f"{text:>20}"
        print(line.rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("specs", nargs="*", metavar="SPEC", help="some of: " + ", ".join(METHODS))
    parser.add_argument("--json", metavar="FILE", help="write the numbers too")
    arguments = parser.parse_args()
    unknown = [spec for spec in arguments.specs if spec not in METHODS]
    if unknown:
        parser.error(f"there is no paper for {', '.join(unknown)}; known are {', '.join(METHODS)}")
    rows = []
    for spec in arguments.specs or METHODS:
        rows += [row for ranks in reversed(RANKS) for row in measure(spec, ranks)]
    print_table(rows)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))
    worse = [row for row in rows if row.is_worse()]
    absent = missing_methods() if not arguments.specs else []
    if absent:
        print(f"without a paper: {', '.join(absent)}", file=sys.stderr)
    return 1 if worse or absent else 0


if __name__ == "__main__":
    sys.exit(main())
