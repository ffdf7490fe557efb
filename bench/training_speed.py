# SPDX-License-Identifier: Apache-2.0
"""Samples per second of DDP training: gloo, gloo with PyTorch's own hooks, and Pith, side by side in one run.

    pith lab --no-prefix -n 4 --rate 1gbit -- python bench/training_speed.py                # a small GPT
    pith lab --no-prefix -n 4 --rate 1gbit -- python bench/training_speed.py --model mlp    # wide layers with little to compute, as those that end VGG

All ways train the same model on the same data; they take turns, a few steps each, so that a machine that is slow for a while is slow for
all of them. The figure is the median time of a step. The last column is what the processors of all ranks do for it: where ranks share
processors, as in a lab, it bounds the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import pith.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import gpt  # noqa: E402


def bf16(group, bucket):
    """PyTorch's hook, under a name for which DDP does not ask for a GPU."""
    return default_hooks.bf16_compress_hook(group, bucket)


def powersgd(ddp: DistributedDataParallel, group: dist.ProcessGroup, rank: int) -> None:
    state = powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=rank, start_powerSGD_iter=2
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def nothing(group, bucket):
    """Gradients stay where they are: what computing alone takes."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def ways(rank: int) -> dict:
    """Name → (backend, what is done to the DDP model)."""
    return {
        "gloo fp32": ("gloo", lambda ddp, group: None),
        "no exchange": ("gloo", lambda ddp, group: ddp.register_comm_hook(group, nothing)),
        "gloo bf16 hook": ("gloo", lambda ddp, group: ddp.register_comm_hook(group, bf16)),
        f"gloo PowerSGD hook {rank}": ("gloo", lambda ddp, group: powersgd(ddp, group, rank)),
        "pith none": ("pith", lambda ddp, group: pith.torch.compress(ddp, "none")),
        "pith q:4": ("pith", lambda ddp, group: pith.torch.compress(ddp, "q:4")),
        f"pith ef/powersgd:{rank}": (
            "pith",
            lambda ddp, group: pith.torch.compress(ddp, f"ef/powersgd:{rank}"),
        ),
        "pith ef/topk:0.01": ("pith", lambda ddp, group: pith.torch.compress(ddp, "ef/topk:0.01")),
        "pith q:4 over gloo": ("gloo", lambda ddp, group: pith.torch.compress(ddp, "q:4")),
    }


def mlp(a: argparse.Namespace) -> torch.nn.Module:
    """Fully connected layers, all of a width: a product for each parameter and sample."""
    layers: list[torch.nn.Module] = [torch.nn.Linear(64, a.width)]
    for _ in range(a.layers - 1):
        layers += [torch.nn.ReLU(), torch.nn.Linear(a.width, a.width)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(a.width, 10))


def classify(model: torch.nn.Module, batch) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def task(a: argparse.Namespace) -> tuple:
    """How a model is made, its loss, and a batch."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    if a.model == "mlp":
        batch = (
            torch.randn(a.batch, 64, generator=generator),
            torch.randint(10, (a.batch,), generator=generator),
        )
        return lambda: mlp(a), classify, batch
    window = torch.randint(96, (a.batch, a.context + 1), generator=generator)
    return (
        lambda: gpt.GPT(96, a.width, a.layers, a.width // 64, a.context),
        gpt.loss_of,
        (window[:, :-1], window[:, 1:]),
    )


def cpu_seconds() -> float:
    """Of all threads of this process, in programs and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Way:
    """One model in training, and how long its steps took."""

    def __init__(self, name: str, group: dist.ProcessGroup, prepare, make, loss_of) -> None:
        torch.manual_seed(1)
        model = make()
        self.name, self.times, self.cpu, self.loss_of = name, [], 0.0, loss_of
        self.parameters = sum(p.numel() for p in model.parameters())
        # PyTorch's PowerSGD starts later exchanges from callbacks, in an order that differs between ranks where there are several
        # buckets; gloo cannot tell them apart and ends the program. One bucket for all gradients has one order.
        single = {"bucket_cap_mb": 4096} if "PowerSGD" in name else {}
        self.model = DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True, **single
        )
        prepare(self.model, group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def run(self, batch, steps: int, timed: bool) -> None:
        for _ in range(steps):
            dist.barrier()
            start, used = time.perf_counter(), cpu_seconds()
            self.optimizer.zero_grad()
            self.loss_of(self.model, batch).backward()
            self.optimizer.step()
            if timed:
                self.times.append(time.perf_counter() - start)
                self.cpu += cpu_seconds() - used


def over_ranks(seconds: float, op) -> float:
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=op)
    return value.item()


def figures(way: Way) -> tuple[str, float, float]:
    """Its name, seconds of a step on the slowest rank, and seconds that processors work for a step, on all ranks."""
    step = over_ranks(statistics.median(way.times), dist.ReduceOp.MAX)
    return way.name, step, over_ranks(way.cpu / len(way.times), dist.ReduceOp.SUM)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["gpt", "mlp"], default="gpt")
    parser.add_argument("--width", type=int, help="512 for gpt, 2048 for mlp")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1, help="samples on each rank")
    parser.add_argument("--rank", type=int, default=4, help="of the low-rank methods")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="in each round")
    parser.add_argument(
        "--only",
        action="append",
        help="the ways whose names contain this; gloo fp32 is always there",
    )
    parser.add_argument("--json")
    a = parser.parse_args()
    a.width = a.width or (2048 if a.model == "mlp" else 512)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    chosen = {
        name: way
        for name, way in ways(a.rank).items()
        if not a.only or name == "gloo fp32" or any(part in name for part in a.only)
    }
    make, loss_of, batch = task(a)
    running = [  # each in a group of its own: none has memory, or connections, in the state that another left them in
        Way(name, dist.new_group(backend=backend), prepare, make, loss_of)
        for name, (backend, prepare) in chosen.items()
    ]
    for turn in range(a.rounds + 1):
        for way in running:
            way.run(batch, a.steps, timed=turn > 0)
        if dist.get_rank() == 0:
            print(f"\rround {turn}/{a.rounds}", end="", file=sys.stderr, flush=True)
    rows = [figures(way) for way in running]
    if dist.get_rank() == 0:
        report(rows, running[0].parameters, a)
    dist.barrier()
    os._exit(0)  # gloo's threads may outlive what they need


def report(rows: list[tuple[str, float, float]], parameters: int, a: argparse.Namespace) -> None:
    base, samples = rows[0][1], a.batch * dist.get_world_size()
    each = (
        f"{a.batch} × {a.context} tokens"
        if a.model == "gpt"
        else f"{a.batch} sample{'s' * (a.batch > 1)}"
    )
    print(
        f"\r# {a.model} of {parameters / 1e6:.1f} million parameters, {dist.get_world_size()} ranks, {each} on each"
    )
    print(f"{'way':<24}{'ms a step':>11}{'samples/s':>11}{'× gloo fp32':>13}{'CPU ms':>9}")
    for name, seconds, cpu in rows:
        print(
            f"{name:<24}{1e3 * seconds:>11.1f}{samples / seconds:>11.1f}{base / seconds:>13.2f}{1e3 * cpu:>9.0f}"
        )
    if a.json:
        with open(a.json, "w", encoding="utf-8") as file:
            json.dump(
                {"parameters": parameters, "seconds": {name: seconds for name, seconds, _ in rows}},
                file,
            )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
