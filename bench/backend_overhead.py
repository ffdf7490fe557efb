# SPDX-License-Identifier: Apache-2.0
"""What the torch backend costs beside the C library below it: the same allreduce through both, in turn, in one run.

    pith run -n 2 -- python bench/backend_overhead.py [--sizes 4M,16M] [--spec q:4] [--async]

Each round times a few calls of torch.distributed.all_reduce, of the process group below it (the backend), and of pith_allreduce on the same
comm, one after another as collective benchmarks do. Between the first two is torch's own Python, which all backends share. Lower quartiles over
all rounds are printed, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import pith.torch
from pith import _library as c
from pith._comm import make_call

UNITS = {"K": 1 << 10, "M": 1 << 20}
WARM = 5  # rounds that do not count
CALLS = 5  # in a round, of each kind


def size_of(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def timed(call: Callable[[], None]) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def measure(size: int, spec: str | None, is_async: bool, rounds: int) -> list[float]:
    """Seconds through torch, through the backend, and through C."""
    comm = dist.group.WORLD.comm
    x = torch.ones(size // 4)
    span = c.Span(x.data_ptr(), x.numel(), 0)
    codec = pith.Codec(spec) if spec else None

    def through_torch() -> None:
        work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=is_async)
        if work is not None:
            work.wait()

    group, opts = dist.group.WORLD, dist.AllreduceOptions()
    opts.reduceOp, opts.asyncOp = dist.ReduceOp.AVG, is_async

    def through_backend() -> None:
        group.allreduce([x], opts).wait()

    def through_c() -> None:
        call = make_call(codec)
        if is_async:
            request = ctypes.c_void_p()
            c.check(c.lib.pith_allreduce(comm.pointer, span, span, 4, call, ctypes.byref(request)))
            c.check(c.lib.pith_wait(request))
        else:
            c.check(c.lib.pith_allreduce(comm.pointer, span, span, 4, call, None))

    calls = (through_torch, through_backend, through_c)
    times: list[list[float]] = [[] for _ in calls]
    with pith.torch.compression(spec):
        for turn in range(rounds + WARM):
            for k in range(len(calls)):
                which = (turn + k) % len(calls)
                times[which].append(timed(calls[which]))
    return [statistics.quantiles(found[WARM:], n=4)[0] for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="64K,1M,4M,16M", help="bytes, with K or M")
    parser.add_argument("--spec", default=None, help="a codec; none if not given")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument(
        "--async", dest="is_async", action="store_true", help="async_op=True, then wait"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("pith")
    first = dist.get_rank() == 0
    if first:
        transport = dist.group.WORLD.comm.transport(1)
        print(
            f"allreduce, {dist.get_world_size()} ranks over {transport}, spec {options.spec or 'none'}"
        )
        print(
            f"{'bytes':>10} {'torch, ms':>10} {'backend, ms':>12} {'C, ms':>10} {'torch':>8} {'backend':>8}"
        )
    for text in options.sizes.split(","):
        size = size_of(text)
        torch_s, backend_s, c_s = measure(size, options.spec, options.is_async, options.rounds)
        if first:
            print(
                f"{size:>10} {1e3 * torch_s:>10.3f} {1e3 * backend_s:>12.3f} {1e3 * c_s:>10.3f} "
                f"{100 * (torch_s / c_s - 1):>+7.1f}% {100 * (backend_s / c_s - 1):>+7.1f}%",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
