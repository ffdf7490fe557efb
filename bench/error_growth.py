# SPDX-License-Identifier: Apache-2.0
"""How does the error of the mean grow with the number of ranks? Measured by every algorithm, beside a formula.

    python bench/error_growth.py [--ranks 2 4 8 16 32 64 128 256] [--spec q:4 ...]

Ranks are threads of one process, two on a host. Their gradients have a common part and one of their own, both of variance 1.
An error is |result - mean| / |mean|, of one step. The formula (docs/scale.md) needs the error of one encoding alone, which is
measured too, and so predicts what more ranks than these lose. Ends with 1 where it is off by more than `--limit` percent; by
`ring` it is a bound from above where errors are large, and may be off by more.
"""

from __future__ import annotations

import argparse
import sys

import error_table
import numpy as np
import papers

import pith

SPECS = ["q:4", "q:8", "terngrad", "ef/topk:0.01"]
RANKS = [2, 4, 8, 16, 32, 64, 128, 256]
PER_HOST = 2


def sum_variance(ranks: int) -> int:
    """Of the sum of so many ranks: the common part adds up, the others add their variances."""
    return ranks * ranks + ranks


def subtrees(ranks: int) -> list[int]:
    """How many ranks are in the sum that each rank but the root of a binomial tree sends."""
    return [min(rank & -rank, ranks - rank) for rank in range(1, ranks)]


def encoded_sums(algorithm: str, ranks: int) -> list[int]:
    """How many ranks are in each sum that is encoded before the result is."""
    hosts = ranks // PER_HOST
    if algorithm == "sra":
        return [1] * (ranks - 1)
    if algorithm == "hierarchical":
        return [PER_HOST] * (hosts - 1)
    if algorithm == "grid":
        rack = papers.rack_of(hosts)
        return [PER_HOST] * (hosts - hosts // rack)
    if algorithm == "ring":
        return list(range(1, ranks))
    if algorithm == "tree":
        return subtrees(ranks)
    return [1] * ranks  # gather


def of_blocks(one: float, algorithm: str, ranks: int) -> float:
    """Errors of encodings are independent, and in proportion to what is encoded."""
    mean = 1 + 1 / ranks
    lost = sum(sum_variance(k) for k in encoded_sums(algorithm, ranks)) / ranks**2 / mean
    return one * float(np.sqrt(lost + (algorithm != "gather")))


def of_largest(ratio: float, payloads: int, own: float) -> float:
    """What all leave out is in part the same: the common part of small values. `own` is the variance of the rest."""
    c = np.linspace(-8, 8, 2001)
    o = np.linspace(-8, 8, 2001)
    weight_c, weight_o = np.exp(-c * c / 2), np.exp(-o * o / 2)
    weight_c, weight_o = weight_c / weight_c.sum(), weight_o / weight_o.sum()
    x = c[:, None] + np.sqrt(own) * o[None, :]
    weight = weight_c[:, None] * weight_o[None, :]
    order = np.argsort(-np.abs(x), axis=None)
    kept = np.zeros(x.size, bool)
    kept[order[: np.searchsorted(np.cumsum(weight.ravel()[order]), ratio)]] = True
    left = np.where(kept.reshape(x.shape), 0, x)
    alone = float((weight * left * left).sum())
    together = float((weight_c * ((weight_o * left).sum(axis=1)) ** 2).sum())
    return float(np.sqrt((alone / payloads + (1 - 1 / payloads) * together) / (1 + own / payloads)))


def predicted(spec: str, one: float, algorithm: str, ranks: int) -> float:
    if "topk" not in spec:
        return of_blocks(one, algorithm, ranks)
    ratio = float(spec.split(":")[1])
    if algorithm == "hierarchical":
        return of_largest(ratio, ranks // PER_HOST, 1 / PER_HOST)
    return of_largest(ratio, ranks, 1)


def one_encoding(spec: str) -> float:
    codec = pith.Codec(spec)
    x = np.random.default_rng(7).standard_normal(1 << 18).astype(np.float32)
    state = codec.state(len(x))
    y = codec.decode(codec.encode(x, state=state), np.empty_like(x))
    return float(np.linalg.norm(y - x) / np.linalg.norm(x))


def measured(spec: str, ranks: int) -> dict[str, float]:
    random = np.random.default_rng([2027, ranks])
    drawn = error_table.gradients(ranks, random)
    algorithms = error_table.algorithms_of(spec, ranks)
    ours = error_table.reduced(spec, algorithms, [drawn])
    return {a: error_table.error_of(y[0], drawn) for a, y in ours.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--spec", nargs="+", default=SPECS)
    parser.add_argument("--limit", type=float, default=15)
    given = parser.parse_args()
    off = 0.0
    print(f"{'method':14}{'algorithm':14}" + "".join(f"{f'{n} ranks':>18}" for n in given.ranks))
    for spec in given.spec:
        one = one_encoding(spec)
        cells: dict[str, dict[int, tuple[float, float]]] = {}
        for ranks in given.ranks:
            for algorithm, error in measured(spec, ranks).items():
                formula = predicted(spec, one, algorithm, ranks)
                cells.setdefault(algorithm, {})[ranks] = (error, formula)
                if algorithm != "ring":
                    off = max(off, abs(error / formula - 1))
        for algorithm, row in cells.items():
            texts = [f"{row[n][0]:.4f} ({row[n][1]:.4f})" if n in row else "-" for n in given.ranks]
            print(f"{spec:14}{algorithm:14}" + "".join(f"{text:>18}" for text in texts))
        print(f"{spec}: one encoding loses {one:.4f}", flush=True)
    print(f"the formula is off by {100 * off:.1f}% at most, but by ring")
    return int(100 * off > given.limit)


if __name__ == "__main__":
    sys.exit(main())
