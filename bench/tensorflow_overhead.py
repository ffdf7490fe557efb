# SPDX-License-Identifier: Apache-2.0
"""What calling Python from TensorFlow costs beside the C library below it: the same allreduce through both, in turn, in one run.

    pith run -n 2 -- python bench/tensorflow_overhead.py [--sizes 4M,16M] [--spec q:4] [--layers 1,100]

Each round times a few allreduces in the loop of a tf.function, as between the operations of a training step; the same in eager mode; and
the same layers through a pith.Reducer, in place. Gradients of one size are split into so many layers. Lower quartiles over all rounds are
printed, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import pith.tensorflow

UNITS = {"K": 1 << 10, "M": 1 << 20}
WARM = 5  # rounds that do not count
CALLS = 5  # in a round, of each kind


def size_of(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def measure(comm: pith.Comm, size: int, layers: int, spec: str, rounds: int) -> list[float]:
    """Seconds through a function, in eager mode, and through C."""
    shape = (max(1, size // 1024 // layers), 256)
    arrays = [np.ones(shape, np.float32) for _ in range(layers)]
    gradients = [tf.constant(array) for array in arrays]
    variables = [tf.Variable(array, name=f"layer{i}") for i, array in enumerate(arrays)]
    reducer = pith.Reducer(comm, spec)
    for i in range(layers):
        reducer.add(f"layer{i}", shape)

    @tf.function
    def steps(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        for _ in tf.range(CALLS):
            gradients = pith.tensorflow.allreduce(gradients, variables, spec)
        return gradients

    def through_function() -> None:
        steps(gradients)

    def eagerly() -> None:
        for _ in range(CALLS):
            pith.tensorflow.allreduce(gradients, variables, spec)

    def through_c() -> None:
        for _ in range(CALLS):
            for i, array in enumerate(arrays):
                reducer.start_at(i, array.ctypes.data)
            reducer.finish()

    calls: tuple[Callable[[], None], ...] = (through_function, eagerly, through_c)
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
    parser.add_argument("--sizes", default="4M,16M", help="of all gradients (%(default)s)")
    parser.add_argument("--layers", default="1,100", help="default: %(default)s")
    parser.add_argument("--spec", default="none,q:4", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=40)
    a = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(1)
    comm = pith.Comm()
    pith.tensorflow.initialize(comm)
    if comm.rank == 0:
        print(f"{'bytes':>6} {'layers':>6} {'spec':>6} {'C':>10} {'tf.function':>12} {'eager':>12}")
    for spec in a.spec.split(","):
        for text in a.sizes.split(","):
            for layers in map(int, a.layers.split(",")):
                graph, eager, below = measure(comm, size_of(text), layers, spec, a.rounds)
                if comm.rank == 0:
                    more = [f"{1e3 * (found - below):+9.3f} ms" for found in (graph, eager)]
                    print(
                        f"{text:>6} {layers:>6} {spec:>6} {1e3 * below:>7.3f} ms {' '.join(more)}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
