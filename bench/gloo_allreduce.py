# SPDX-License-Identifier: Apache-2.0
"""Allreduce of floats by gloo (torch.distributed on CPUs), with the columns of `pith bench allreduce`, to set the two side by side.

Usage: gloo_allreduce.py [from to factor repetitions warmup], sizes in bytes, as one rank among several: RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT say which (pith run, torchrun). Ends with status 77 where torch is missing.
"""

import os
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"gloo cannot be measured: {error}", file=sys.stderr)
    sys.exit(77)


def seconds_of(values: torch.Tensor, repetitions: int, warmup: int) -> float:
    """The median over repetitions, each its slowest rank's."""
    for _ in range(warmup):
        dist.all_reduce(values)
    dist.barrier()
    laps, before = [], time.perf_counter()
    for _ in range(repetitions):
        dist.all_reduce(values)
        after = time.perf_counter()
        laps.append(after - before)
        before = after
    slowest = torch.tensor(laps, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.median().item()


def main() -> None:
    numbers = [int(a) for a in sys.argv[1:]] + [1 << 20, 64 << 20, 4, 10, 5][len(sys.argv) - 1 :]
    size, last, factor, repetitions, warmup = numbers
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    while size <= last:
        count = size // 4
        values = torch.zeros(count)
        seconds = seconds_of(values, repetitions, warmup)
        values.fill_(rank + 1.0)
        dist.all_reduce(values)
        wrong = int((values != ranks * (ranks + 1) / 2).sum())
        if rank == 0:
            algbw = size / seconds * 1e-9
            print(
                f"{size:10d}  {count:10d}  f32   -      {seconds * 1e6:10.2f}  {algbw:10.3f}  "
                f"{algbw * 2 * (ranks - 1) / ranks:10.3f}  {wrong:6d}",
                flush=True,
            )
        size *= factor
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
