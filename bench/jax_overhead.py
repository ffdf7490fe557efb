# SPDX-License-Identifier: Apache-2.0
"""What the foreign call of pith.jax costs beside the C library below it: the same allreduce through both, in turn, in one run.

    pith run -n 2 -- python bench/jax_overhead.py [--sizes 4M,16M] [--spec q:4]

Each round times a few steps of a jitted program that is nothing but an allreduce, with its arrays donated; the same steps in a lax.scan,
which is the foreign call without JAX's Python; and pith_allreduce on the same comm. Lower quartiles over all rounds are printed, which other
work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import pith.jax
from pith import _library as c
from pith._comm import make_call

UNITS = {"K": 1 << 10, "M": 1 << 20}
WARM = 5  # rounds that do not count
CALLS = 5  # in a round, of each kind


def size_of(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def measure(comm: pith.Comm, size: int, spec: str, rounds: int) -> list[float]:
    """Seconds through jit, through scan, and through C."""
    values = np.ones((size // 1024, 256), np.float32)
    span = c.Span(values.ctypes.data, values.size, 0)
    codec = None if spec == "none" else pith.Codec(spec)
    array, state = jnp.asarray(values), pith.jax.init(values, spec)

    def step(array: jax.Array, state: pith.jax.State) -> tuple[jax.Array, pith.jax.State]:
        return pith.jax.allreduce(array, state, spec)

    def steps(array: jax.Array, state: pith.jax.State) -> tuple[jax.Array, pith.jax.State]:
        return jax.lax.scan(lambda c, _: (step(*c), None), (array, state), length=CALLS)[0]

    one, many = (jax.jit(function, donate_argnums=(0, 1)) for function in (step, steps))

    def through_jit() -> None:
        nonlocal array, state
        for _ in range(CALLS):
            array, state = one(array, state)
            array.block_until_ready()

    def through_scan() -> None:
        nonlocal array, state
        array, state = many(array, state)
        array.block_until_ready()

    def through_c() -> None:
        for _ in range(CALLS):
            c.check(c.lib.pith_allreduce(comm.pointer, span, span, 4, make_call(codec), None))

    calls: tuple[Callable[[], None], ...] = (through_jit, through_scan, through_c)
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + WARM):
        for k in range(len(calls)):
            which = (turn + k) % len(calls)
            comm.barrier()
            start = time.perf_counter()
            calls[which]()
            times[which].append((time.perf_counter() - start) / CALLS)
    return [statistics.quantiles(found[WARM:], n=4)[0] for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="4M,16M", help="of the array, in bytes (%(default)s)")
    parser.add_argument("--spec", default="none,q:4", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=60)
    a = parser.parse_args()
    comm = pith.Comm()
    pith.jax.initialize(comm)
    if comm.rank == 0:
        print(f"{'bytes':>10} {'spec':>8} {'C':>10} {'scan':>10} {'jit':>10}")
    for spec in a.spec.split(","):
        for text in a.sizes.split(","):
            jit, scan, below = measure(comm, size_of(text), spec, a.rounds)
            if comm.rank == 0:
                more = [f"{100 * (found / below - 1):+9.1f}%" for found in (scan, jit)]
                print(f"{text:>10} {spec:>8} {1e3 * below:>7.3f} ms {' '.join(more)}", flush=True)


if __name__ == "__main__":
    main()
