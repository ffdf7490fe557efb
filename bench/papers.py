# SPDX-License-Identifier: Apache-2.0
"""Methods and schedules as their papers have them, in f64 and numpy alone: what bench/error_table.py compares Pith with.

A method is what values become once they are encoded and decoded; a few (`gq`, `powersgd`, `randomk`, votes) are only defined for the values of
all ranks together. Where a paper has a scale for each layer and Pith one for each bucket, the bucket is taken for the layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Random = np.random.Generator
Encode = Callable[[Array, Random], Array]
Mean = Callable[[Sequence[Array], Random], Array]


@dataclass(frozen=True)
class Paper:
    origin: str
    encode: Encode | None = None  # one rank's values, there and back
    mean: Mean | None = None  # of all ranks, where that is no mean of what was encoded
    result: Encode | None = None  # of that, where it is encoded again
    granule: int = 0  # pieces of so many values are encoded independently; 0: the whole tensor


def by_bucket(size: int, each: Callable[[Array, Random], Array]) -> Encode:
    """`each` takes rows of `size` values; the last bucket may be shorter."""

    def encode(x: Array, random: Random) -> Array:
        full = len(x) // size * size
        pieces = [each(x[:full].reshape(-1, size), random).ravel()] if full else []
        if full < len(x):
            pieces.append(each(x[full:].reshape(1, -1), random).ravel())
        return np.concatenate(pieces)

    return encode


def safe(x: Array) -> Array:
    return np.where(x > 0, x, 1.0)


# ---- Quantization --------------------------------------------------------------------------------------------------


def exact(x: Array, random: Random) -> Array:
    return x


def fp16(x: Array, random: Random) -> Array:
    return x.astype(np.float16).astype(np.float64)


def bf16(x: Array, random: Random) -> Array:
    """To the nearest of 8 bits of precision, ties to even."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent)


def max_min(bits: int, stochastic: bool = False) -> Callable[[Array, Random], Array]:
    """CGX: levels from the least to the greatest value."""

    def each(x: Array, random: Random) -> Array:
        least = x.min(axis=1, keepdims=True)
        unit = safe((x.max(axis=1, keepdims=True) - least) / (2**bits - 1))
        offset = random.random(x.shape) if stochastic else 0.5
        return least + unit * np.floor((x - least) / unit + offset)

    return each


def qsgd(levels: int) -> Callable[[Array, Random], Array]:
    def each(x: Array, random: Random) -> Array:
        norm = safe(np.sqrt((x**2).sum(axis=1, keepdims=True)))
        return (
            norm
            * np.sign(x)
            * np.floor(levels * np.abs(x) / norm + random.random(x.shape))
            / levels
        )

    return each


def terngrad(clip: float) -> Callable[[Array, Random], Array]:
    def each(x: Array, random: Random) -> Array:
        if clip:
            limit = clip * x.std(axis=1, keepdims=True)
            x = np.clip(x, -limit, limit)
        scale = safe(np.abs(x).max(axis=1, keepdims=True))
        return scale * np.sign(x) * (random.random(x.shape) < np.abs(x) / scale)

    return each


def powers(bits: int) -> Callable[[Array, Random], Array]:
    """0 or a power of two between 0 and the largest value, drawn without bias."""
    levels = np.concatenate([[0.0], 2.0 ** -np.arange(2 ** (bits - 1) - 2, -1, -1.0)])

    def each(x: Array, random: Random) -> Array:
        norm = safe(np.abs(x).max(axis=1, keepdims=True))
        share = np.abs(x) / norm
        above = np.clip(np.searchsorted(levels, share), 1, len(levels) - 1)
        low, high = levels[above - 1], levels[above]
        up = random.random(x.shape) < (share - low) / (high - low)
        return norm * np.sign(x) * np.where(up, high, low)

    return each


def natural(x: Array, random: Random) -> Array:
    """The power of two below, or that above with the probability that has no bias."""
    mantissa, exponent = np.frexp(np.abs(x))  # |x| = m·2^e, m in [1/2, 1)
    above = random.random(x.shape) < 2 * mantissa - 1
    return np.sign(x) * np.ldexp(0.5, exponent + above)


def majority(xs: Sequence[Array], random: Random) -> Array:
    """The sign of the sum of signs; that of a tie is 0."""
    return np.sign(np.sum([np.sign(x) for x in xs], axis=0))


def either_way(votes: Array, random: Random) -> Array:
    """One bit has no room for a tie."""
    return np.where(votes == 0, random.choice([-1.0, 1.0], votes.shape), votes)


def scaled_sign(x: Array, random: Random) -> Array:
    return np.where(x < 0, -1.0, 1.0) * np.abs(x).mean(axis=1, keepdims=True)


def one_bit(x: Array, random: Random) -> Array:
    """The mean of the negative values, and that of the others."""
    low = x < 0
    below = np.where(low, x, 0).sum(axis=1, keepdims=True) / np.maximum(
        low.sum(axis=1, keepdims=True), 1
    )
    above = np.where(low, 0, x).sum(axis=1, keepdims=True) / np.maximum(
        (~low).sum(axis=1, keepdims=True), 1
    )
    return np.where(low, below, above)


def tree_values() -> Array:
    """Sign, unary exponent of ten, and what is left of seven bits as a linear fraction of (0.1, 1]."""
    positive = [
        10.0**-zeros * (0.1 + 0.9 * (fraction + 1) / 2 ** (6 - zeros))
        for zeros in range(7)
        for fraction in range(2 ** (6 - zeros))
    ]
    return np.array(sorted([0.0, *positive, *(-v for v in positive)]))


def nearest(values: Array, x: Array) -> Array:
    return values[np.searchsorted((values[1:] + values[:-1]) / 2, x)]


def small_float(y: Array, mantissa: int, bias: int, largest: float) -> Array:
    """To the nearest float with so many bits of mantissa, ties to even, at most the largest."""
    exponent = np.maximum(np.floor(np.log2(safe(np.abs(y)))), 1 - bias)
    step = np.exp2(exponent - mantissa)
    return np.clip(np.round(y / step) * step, -largest, largest)


def microscaling(mantissa: int, bias: int, largest: float) -> Callable[[Array, Random], Array]:
    """Rows of 32 values that share a power of two: the exponent of their largest becomes that of the largest code."""

    def encode(x: Array, random: Random) -> Array:
        found = np.empty_like(x)
        for first in range(0, x.shape[1], 32):
            row = x[:, first : first + 32]
            most = safe(np.abs(row).max(axis=1, keepdims=True))
            scale = np.exp2(np.floor(np.log2(most)) - math.floor(math.log2(largest)))
            found[:, first : first + 32] = small_float(row / scale, mantissa, bias, largest) * scale
        return found

    return encode


def eight_bits(mantissa: int, bias: int, largest: float) -> Callable[[Array, Random], Array]:
    """Small floats of which the largest stands for the largest value of a bucket."""

    def encode(x: Array, random: Random) -> Array:
        scale = safe(np.abs(x).max(axis=1, keepdims=True)) / largest
        return small_float(x / scale, mantissa, bias, largest) * scale

    return encode


def nvfp4(x: Array, random: Random) -> Array:
    """Rows of 16 values in E2M1 that share a scale in E4M3, and all of them one more."""
    found = np.empty_like(x)
    whole = safe(np.abs(x).max(axis=1, keepdims=True)) / (6 * 448)
    for first in range(0, x.shape[1], 16):
        row = x[:, first : first + 16]
        own = small_float(np.abs(row).max(axis=1, keepdims=True) / 6 / whole, 3, 7, 448)
        scale = own * whole
        found[:, first : first + 16] = small_float(row / safe(scale), 1, 1, 6) * scale
    return found


def dynamic_tree(x: Array, random: Random) -> Array:
    scale = safe(np.abs(x).max(axis=1, keepdims=True))
    return scale * nearest(tree_values(), x / scale)


def bounded(bound: float) -> Encode:
    """Multiples of twice the bound, which 16 bits can hold; else the value itself."""

    def encode(x: Array, random: Random) -> Array:
        number = np.rint(x / (2 * bound))
        return np.where(np.abs(number) <= 32767, 2 * bound * number, x)

    return encode


def global_qsgd(bits: int) -> Mean:
    """One scale for all values of all ranks, and so few levels that a sum of all ranks fits the bits."""

    def mean(xs: Sequence[Array], random: Random) -> Array:
        levels = (2 ** (bits - 1) - 1) // len(xs)
        scale = max(float(np.abs(x).max()) for x in xs)
        total = np.sum([np.floor(x * levels / scale + random.random(x.shape)) for x in xs], axis=0)
        return np.asarray(total * scale / (levels * len(xs)))

    return mean


def hadamard(x: Array) -> Array:
    """Rows, by a normalized Walsh–Hadamard transform."""
    x, step = x.copy(), 1
    while step < x.shape[1]:
        pairs = x.reshape(x.shape[0], -1, 2, step)
        x = np.stack(
            [pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2
        ).reshape(x.shape)
        step *= 2
    return x / math.sqrt(x.shape[1])


def rotated(each: Callable[[Array, Random], Array]) -> Callable[[Array, Random], Array]:
    def through(x: Array, random: Random) -> Array:
        signs = random.choice([-1.0, 1.0], x.shape)
        return signs * hadamard(each(hadamard(signs * x), random))

    return through


def drive(y: Array, random: Random) -> Array:
    scale = (y**2).sum(axis=1, keepdims=True) / safe(np.abs(y).sum(axis=1, keepdims=True))
    return np.where(y < 0, -1.0, 1.0) * scale


def lloyd_max(bits: int) -> Array:
    """The best levels for a normal distribution, by Lloyd's iteration on a fine grid."""
    grid = np.linspace(-8, 8, 200001)
    density = np.exp(-(grid**2) / 2)
    levels = np.linspace(-2, 2, 2**bits)
    for _ in range(500):
        owner = np.searchsorted((levels[1:] + levels[:-1]) / 2, grid)
        levels = np.bincount(owner, density * grid) / np.bincount(owner, density)
    return levels


def eden(bits: int) -> Callable[[Array, Random], Array]:
    levels = lloyd_max(bits)

    def each(y: Array, random: Random) -> Array:
        square = (y**2).sum(axis=1, keepdims=True)
        q = nearest(levels, y * math.sqrt(y.shape[1]) / np.sqrt(safe(square)))
        return q * square / safe((q * y).sum(axis=1, keepdims=True))

    return each


# ---- Sparsification and low rank -----------------------------------------------------------------------------------


def kept(x: Array, places: NDArray[np.intp]) -> Array:
    y = np.zeros_like(x)
    y[places] = x[places]
    return y


def top(ratio: float) -> Encode:
    def encode(x: Array, random: Random) -> Array:
        k = math.ceil(ratio * len(x))
        return kept(x, np.argpartition(np.abs(x), len(x) - k)[len(x) - k :])

    return encode


def threshold(least: float) -> Encode:
    return lambda x, random: np.where(np.abs(x) >= least, x, 0.0)


def random_places(ratio: float) -> Mean:
    """The same places on every rank."""

    def mean(xs: Sequence[Array], random: Random) -> Array:
        places = random.choice(len(xs[0]), math.ceil(ratio * len(xs[0])), replace=False)
        return kept(np.mean(xs, axis=0), places)

    return mean


def adaptive(ratio: float) -> Encode:
    """The largest of either side, each as the mean of its side."""

    def encode(x: Array, random: Random) -> Array:
        y = np.zeros_like(x)
        for side in (x, -x):
            places = np.flatnonzero(side > 0)
            largest = places[np.argsort(-side[places])[: math.ceil(ratio * len(places))]]
            y[largest] = x[largest].mean() if len(largest) else 0.0
        return y

    return encode


def quantiles(count: int) -> Encode:
    """SketchML: equally full buckets, each as its mean."""

    def encode(x: Array, random: Random) -> Array:
        bucket = np.empty(len(x), np.intp)
        bucket[np.argsort(x)] = np.arange(len(x)) * count // len(x)
        return (np.bincount(bucket, x) / np.maximum(np.bincount(bucket), 1))[bucket]

    return encode


def powersgd(rank: int, rows: int) -> Mean:
    """One step of power iteration from random columns."""

    def mean(xs: Sequence[Array], random: Random) -> Array:
        matrix = np.mean(xs, axis=0).reshape(rows, -1)
        p, _ = np.linalg.qr(matrix @ random.standard_normal((matrix.shape[1], rank)))
        return np.ravel(p @ (matrix.T @ p).T)

    return mean


# ---- Schedules -----------------------------------------------------------------------------------------------------


def cut(n: int, granule: int, parts: int) -> list[slice]:
    borders = np.linspace(0, -(-n // granule), parts + 1).astype(int) * granule
    return [slice(a, min(b, n)) for a, b in zip(borders, borders[1:], strict=False)]


def gather(xs: Sequence[Array], paper: Paper, random: Random, ranks: int = 0) -> Array:
    """Every rank's values encoded once: GRACE, TernGrad."""
    assert paper.encode
    return np.sum([paper.encode(x, random) for x in xs], axis=0) / (ranks or len(xs))


def scatter_reduce_gather(
    xs: Sequence[Array], paper: Paper, random: Random, ranks: int = 0
) -> Array:
    """CGX: the owner of a part adds its own values as they are, and encodes the mean."""
    assert paper.encode
    result = np.empty_like(xs[0])
    for owner, part in enumerate(cut(len(result), paper.granule, len(xs))):
        shares = [
            x[part] if r == owner else paper.encode(x[part], random) for r, x in enumerate(xs)
        ]
        result[part] = paper.encode(np.sum(shares, axis=0) / (ranks or len(xs)), random)
    return result


def ring(xs: Sequence[Array], paper: Paper, random: Random) -> Array:
    """A sum that every rank on the way encodes again."""
    assert paper.encode
    result = np.empty_like(xs[0])
    for owner, part in enumerate(cut(len(result), paper.granule, len(xs))):
        total = xs[(owner + 1) % len(xs)][part]
        for step in range(2, len(xs) + 1):
            total = paper.encode(total, random) + xs[(owner + step) % len(xs)][part]
        result[part] = paper.encode(total / len(xs), random)
    return result


def tree(xs: Sequence[Array], paper: Paper, random: Random) -> Array:
    """Sums climb a binomial tree, each encoded by its rank."""
    assert paper.encode
    total, reach = list(xs), 1
    while reach < len(xs):
        for rank in range(0, len(xs) - reach, 2 * reach):
            total[rank] = total[rank] + paper.encode(total[rank + reach], random)
        reach *= 2
    return paper.encode(total[0] / len(xs), random)


def hierarchical(xs: Sequence[Array], paper: Paper, random: Random) -> Array:
    """Hosts of two ranks: their sums are what the values of ranks are otherwise."""
    hosts = [xs[i] + xs[i + 1] for i in range(0, len(xs), 2)]
    schedule = scatter_reduce_gather if paper.granule else gather
    return schedule(hosts, paper, random, len(xs))


def rack_of(hosts: int) -> int:
    """Hosts of a group: the smallest divisor whose square is four times their number, or the largest there is."""
    divisors = [d for d in range(2, hosts) if hosts % d == 0]
    return next((d for d in divisors if d * d >= 4 * hosts), max(divisors, default=0))


def grid(xs: Sequence[Array], paper: Paper, random: Random) -> Array:
    """Hosts of two ranks, in groups: their sums go to the owners of their group, encoded, and from there as they are."""
    if not paper.granule:
        return gather(xs, paper, random)
    assert paper.encode
    hosts = [xs[i] + xs[i + 1] for i in range(0, len(xs), 2)]
    rack, result = rack_of(len(hosts)), np.empty_like(xs[0])
    for owner, part in enumerate(cut(len(result), paper.granule, len(hosts))):
        shares = [
            x[part] if h % rack == owner % rack else paper.encode(x[part], random)
            for h, x in enumerate(hosts)
        ]
        result[part] = paper.encode(np.sum(shares, axis=0) / len(xs), random)
    return result


SCHEDULES: dict[str, Callable[[Sequence[Array], Paper, Random], Array]] = {
    "sra": scatter_reduce_gather,
    "hierarchical": hierarchical,
    "ring": ring,
    "tree": tree,
    "gather": gather,
    "ranges": gather,
    "linear": gather,
    "grid": grid,
}


def expected(paper: Paper, algorithm: str, xs: Sequence[Array], random: Random) -> Array:
    """The mean over ranks as the paper's method gives it by that schedule."""
    if not paper.mean:
        return SCHEDULES[algorithm](xs, paper, random)
    mean = paper.mean(xs, random)
    return paper.result(mean, random) if paper.result and algorithm != "gather" else mean
