# SPDX-License-Identifier: Apache-2.0
"""A reducer whose bytes MPI moves: a carrier by mpi4py, and a small regression that is trained over it.

mpirun -n 3 python examples/python/mpi4py_carrier.py                   # q:4
mpirun -n 3 python examples/python/mpi4py_carrier.py ef/topk:0.05      # or another spec
"""

from __future__ import annotations

import hashlib
import sys

import numpy
from mpi4py import MPI

import pith

TYPES = {
    "f32": MPI.FLOAT, "f64": MPI.DOUBLE, "i8": MPI.INT8_T, "i16": MPI.INT16_T, "i32": MPI.INT32_T, "i64": MPI.INT64_T,
}  # fmt: skip
OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


class MpiCarrier(pith.Carrier):
    """Every method begins a collective of MPI and returns its request."""

    name = "mpi4py"

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm.Dup()  # nobody else's collectives come between ours
        self.rank, self.ranks = comm.rank, comm.size
        # With threads, the reducer sends while the caller computes; the caller may then be in MPI at the same time.
        self.threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def all_to_all(self, send, recv, send_bytes, recv_bytes):
        return self.comm.Ialltoallv([send, send_bytes, MPI.BYTE], [recv, recv_bytes, MPI.BYTE])

    def all_gather(self, send, recv):
        return self.comm.Iallgather([send, MPI.BYTE], [recv, MPI.BYTE])

    def allreduce(self, values, dtype, op):
        return self.comm.Iallreduce(MPI.IN_PLACE, [values, TYPES[dtype]], OPS[op])

    def wait(self, handle):
        handle.Wait()


def train(reducer: pith.Reducer, rank: int, steps: int) -> tuple[dict, list[float]]:
    """Two layers learn a linear map from data that every rank has its own of. Parameters, and the loss of every step."""
    start, data = numpy.random.default_rng(0), numpy.random.default_rng(1 + rank)
    goal = (0.2 * start.standard_normal((48, 32))).astype("f4")
    parameters = {
        "hidden": (0.1 * start.standard_normal((48, 64))).astype("f4"),
        "out": (0.1 * start.standard_normal((64, 32))).astype("f4"),
    }
    for name, values in parameters.items():
        reducer.add(name, values.shape)
    losses = []
    for _ in range(steps):
        x = data.standard_normal((64, 48)).astype("f4")
        hidden = x @ parameters["hidden"]
        wrong = (hidden @ parameters["out"] - x @ goal) / len(x)
        gradients = {"out": hidden.T @ wrong}
        reducer.start("out", gradients["out"])  # travels while the next one is computed
        gradients["hidden"] = x.T @ (wrong @ parameters["out"].T)
        reducer.start("hidden", gradients["hidden"])
        reducer.finish()
        for name, values in parameters.items():
            values -= 0.05 * gradients[name]
        losses.append(float(numpy.square(wrong).sum() * len(x) / wrong.shape[1]))
    return parameters, losses


def main() -> None:
    spec = sys.argv[1] if len(sys.argv) > 1 else "q:4"
    world = MPI.COMM_WORLD
    reducer = pith.Reducer(MpiCarrier(world), spec)
    parameters, losses = train(reducer, world.rank, steps=80)
    digest = hashlib.sha256(b"".join(p.tobytes() for p in parameters.values())).hexdigest()
    if len(set(world.allgather(digest))) != 1:
        raise SystemExit("ranks have different parameters")
    if world.rank == 0:
        print(f"{spec} on {world.size} ranks: loss {losses[0]:.2f}, in the end {losses[-1]:.2f}")
        print(f"all ranks have the same parameters: {digest[:16]}")


if __name__ == "__main__":
    main()
