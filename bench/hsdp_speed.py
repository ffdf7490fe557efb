"""Steps of HSDP (fully_shard on a mesh of replicas × shards) over gloo, and with Pith, side by side in one run.

    pith lab --no-prefix -n 4 --per-host 2 --rate 1gbit -- python bench/hsdp_speed.py      # two hosts of two ranks
    pith lab --no-prefix -n 4 --rate 1gbit -- python bench/hsdp_speed.py --shards 4        # FSDP2: one replica on four hosts

A replica is sharded over the ranks of a host, so that its reduce-scatter and all-gather stay inside, and the allreduce between replicas
is all that the links carry. With one replica they carry parameters and gradients instead, and other ways are compared. All ways train the same model on the same data, and take turns of a few steps. The figure is the median
time of a step on the slowest rank. "gloo, replicas alone" leaves out the allreduce between replicas. The last column is the loss after all
steps, of which every way makes as many.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import pith.torch

# Name → (backend, spec inside a shard group, spec between replicas); no spec: as FSDP2 does it.
HSDP = {
    "gloo fp32": ("gloo", None, None),
    "gloo, replicas alone": ("gloo", None, None),
    "gloo bf16": ("gloo", None, None),
    "pith q:4": ("pith", "none", "q:4"),
    "pith q:4, q:4 inside": ("pith", "q:4", "q:4"),
    "pith ef/q:2, q:4 inside": ("pith", "q:4", "ef/q:2"),
    "pith q:4 over gloo": ("gloo", "none", "q:4"),
}

# Name → (backend, spec of gradients, spec of parameters).
FSDP = {
    "gloo fp32": ("gloo", None, None),
    "gloo bf16": ("gloo", None, None),
    "pith q:4, parameters exact": ("pith", "q:4", None),
    "pith q:4, q:8": ("pith", "q:4", "q:8"),
    "pith q:4, q:4": ("pith", "q:4", "q:4"),
    "pith q:4, delta/q:4": ("pith", "q:4", "delta/q:4"),
}


def mesh_of(backend: str, shards: int) -> DeviceMesh:
    """Groups of its own for each way: none has connections in the state that another left them in."""
    every = torch.arange(dist.get_world_size()).view(-1, shards)
    groups = []
    for rows in (every.T.tolist(), every.tolist()):
        made = [dist.new_group(ranks, backend=backend) for ranks in rows]
        groups.append(next(g for g, r in zip(made, rows, strict=True) if dist.get_rank() in r))
    if len(every) == 1:
        return DeviceMesh.from_group(groups[1], "cpu")
    return DeviceMesh.from_group(groups, "cpu", mesh=every, mesh_dim_names=("replicate", "shard"))


class Way:
    """One model in training, and how long its steps took."""

    def __init__(self, name: str, a: argparse.Namespace) -> None:
        is_flat = a.shards == dist.get_world_size()
        backend, inside, other = (FSDP if is_flat else HSDP)[name]
        self.name, self.times = name, []
        torch.manual_seed(1)
        layers: list[torch.nn.Module] = [torch.nn.Linear(64, a.width)]
        for _ in range(a.layers - 1):
            layers += [torch.nn.ReLU(), torch.nn.Linear(a.width, a.width)]
        self.model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(a.width, 10))
        self.parameters = sum(p.numel() for p in self.model.parameters())
        mesh = mesh_of(backend, a.shards)
        half = torch.bfloat16 if "bf16" in name else None
        policy = MixedPrecisionPolicy(param_dtype=half if is_flat else None, reduce_dtype=half)
        for module in self.model:
            if isinstance(module, torch.nn.Linear):
                fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        if inside is not None:
            pith.torch.compress(
                self.model, inside, **{"all_gather" if is_flat else "replicas": other}
            )
        if name == "gloo, replicas alone":
            self.model.set_requires_all_reduce(False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.x = torch.randn(a.batch, 64, generator=generator)
        self.y = torch.randint(10, (a.batch,), generator=generator)
        self.loss = 0.0

    def run(self, steps: int, timed: bool) -> None:
        for _ in range(steps):
            dist.barrier()
            start = time.perf_counter()
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.model(self.x), self.y)
            loss.backward()
            self.optimizer.step()
            if timed:
                self.times.append(time.perf_counter() - start)
            self.loss = loss.item()


def over_ranks(number: float, op: dist.ReduceOp.RedOpType) -> float:
    value = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(value, op=op)
    return value.item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1, help="samples on each rank")
    parser.add_argument("--shards", type=int, default=2, help="ranks of a shard group")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="in each round")
    parser.add_argument(
        "--only", action="append", help="ways whose names contain this, beside gloo fp32"
    )
    a = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    names = [
        name
        for name in (FSDP if a.shards == dist.get_world_size() else HSDP)
        if not a.only or name == "gloo fp32" or any(part in name for part in a.only)
    ]
    running = [Way(name, a) for name in names]
    for turn in range(a.rounds + 1):
        for way in running:
            way.run(a.steps, timed=turn > 0)
        if dist.get_rank() == 0:
            print(f"\rround {turn}/{a.rounds}", end="", file=sys.stderr, flush=True)
    rows = []
    for way in running:
        step = over_ranks(statistics.median(way.times), dist.ReduceOp.MAX)
        loss = over_ranks(way.loss, dist.ReduceOp.SUM) / dist.get_world_size()
        rows.append((way.name, step, loss))
    if dist.get_rank() == 0:
        ranks = dist.get_world_size()
        millions = running[0].parameters / 1e6
        print(
            f"\r# MLP of {millions:.1f} million parameters, {ranks // a.shards} replicas × {a.shards} shards"
        )
        print(f"{'way':<30}{'ms a step':>11}{'× gloo fp32':>13}{'loss':>9}")
        for name, seconds, loss in rows:
            print(f"{name:<30}{1e3 * seconds:>11.1f}{rows[0][1] / seconds:>13.2f}{loss:>9.4f}")
        sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # gloo's threads may outlive what they need


if __name__ == "__main__":
    main()
