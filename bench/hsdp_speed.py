# SPDX-License-Identifier: Apache-2.0
"""Steps of HSDP (fully_shard on a mesh of replicas × shards) over gloo or NCCL, and with Pith, side by side in one run.

    pith lab --no-prefix -n 4 --per-host 2 --rate 1gbit -- python bench/hsdp_speed.py      # two hosts of two ranks
    pith lab --no-prefix -n 4 --rate 1gbit -- python bench/hsdp_speed.py --shards 4        # FSDP2: one replica on four hosts
    PER_HOST=2 bench/gpu_lab.sh 4 10gbit bench/hsdp_speed.py --gpt                         # the same on ranks that share a GPU
    bench/gpu_lab.sh 4 10gbit bench/hsdp_speed.py --gpt --shards 4

A replica is sharded over the ranks of a host, so that its reduce-scatter and all-gather stay inside, and the allreduce between replicas
is all that the links carry. With one replica they carry parameters and gradients instead, and other ways are compared. All ways train the same model on the same data, and take turns of a few steps. The figure is the median
time of a step on the slowest rank. "replicas alone" leaves out the allreduce between replicas. The last column is the loss after all
steps, of which every way makes as many. With --gpt the model is a GPT of 124 million parameters on CUDA devices, in bf16 autocast.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import pith.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import gpt  # noqa: E402

# Name → (backend, spec inside a shard group, spec between replicas, spec of parameters); no spec: as FSDP2 does it. LIB is gloo or NCCL.
Specs = tuple[str, str | None, str | None, str | None]
HSDP: dict[str, Specs] = {
    "LIB fp32": ("LIB", None, None, None),
    "LIB, replicas alone": ("LIB", None, None, None),
    "LIB bf16": ("LIB", None, None, None),
    "pith q:4": ("pith", "none", "q:4", None),
    "pith q:4, q:4 inside": ("pith", "q:4", "q:4", None),
    "pith ef/q:2, q:4 inside": ("pith", "q:4", "ef/q:2", None),
    "pith q:4, q:4 inside, delta/q:4": ("pith", "q:4", "q:4", "delta/q:4"),
    "pith ef/q:2, q:4 inside, delta/q:4": ("pith", "q:4", "ef/q:2", "delta/q:4"),
    "pith q:4 over LIB": ("LIB", "none", "q:4", None),
}

FSDP: dict[str, Specs] = {
    "LIB fp32": ("LIB", None, None, None),
    "LIB bf16": ("LIB", None, None, None),
    "pith q:4, parameters exact": ("pith", "q:4", None, None),
    "pith q:4, q:8": ("pith", "q:4", None, "q:8"),
    "pith q:4, q:4": ("pith", "q:4", None, "q:4"),
    "pith q:4, delta/q:4": ("pith", "q:4", None, "delta/q:4"),
    "pith q:4, q:4 over LIB": ("LIB", "q:4", None, "q:4"),
    "pith q:4, delta/q:4 over LIB": ("LIB", "q:4", None, "delta/q:4"),
    "pith default, delta/q:4": ("pith", "auto,budget=q:4", None, "delta/q:4"),
}


def mesh_of(backend: str, device: str, shards: int) -> DeviceMesh:
    """Groups of its own for each way: none has connections in the state that another left them in."""
    every = torch.arange(dist.get_world_size()).view(-1, shards)
    groups = []
    for rows in (every.T.tolist(), every.tolist()):
        made = [dist.new_group(ranks, backend=backend) for ranks in rows]
        groups.append(next(g for g, r in zip(made, rows, strict=True) if dist.get_rank() in r))
    if len(every) == 1:
        return DeviceMesh.from_group(groups[1], device)
    return DeviceMesh.from_group(groups, device, mesh=every, mesh_dim_names=("replicate", "shard"))


class MlpTask:
    """On CPUs."""

    def __init__(self, a: argparse.Namespace) -> None:
        layers: list[torch.nn.Module] = [torch.nn.Linear(64, a.width)]
        for _ in range(a.layers - 1):
            layers += [torch.nn.ReLU(), torch.nn.Linear(a.width, a.width)]
        self.model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(a.width, 10))
        self.parts = [module for module in self.model if isinstance(module, torch.nn.Linear)]
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._x = torch.randn(a.batch, 64, generator=generator)
        self._y = torch.randint(10, (a.batch,), generator=generator)

    def loss(self) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.model(self._x), self._y)


class GptTask:
    """On CUDA devices."""

    SYMBOLS, CONTEXT = 50304, 512

    def __init__(self, a: argparse.Namespace) -> None:
        self.model = gpt.GPT(self.SYMBOLS, 768, 12, 12, self.CONTEXT).cuda()
        self.model.head.weight = self.model.token.weight
        self.parts = list(self.model.blocks)
        generator = torch.Generator().manual_seed(dist.get_rank())
        shape = (a.batch, self.CONTEXT + 1)
        window = torch.randint(self.SYMBOLS, shape, generator=generator).cuda()
        self._batch = window[:, :-1], window[:, 1:]

    def loss(self) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return gpt.loss_of(self.model, self._batch)


class Way:
    """One model in training, and how long its steps took."""

    def __init__(self, name: str, specs: Specs, a: argparse.Namespace) -> None:
        backend, inside, between, parameters = specs
        self.name, self.times, self.device = name, [], "cuda" if a.gpt else "cpu"
        is_flat = a.shards == dist.get_world_size()
        torch.manual_seed(1)
        self.task = GptTask(a) if a.gpt else MlpTask(a)
        self.model = self.task.model
        self.parameters = sum(p.numel() for p in self.model.parameters())
        mesh = mesh_of(backend, self.device, a.shards)
        half = torch.bfloat16 if "bf16" in name else None
        policy = MixedPrecisionPolicy(param_dtype=half if is_flat else None, reduce_dtype=half)
        for module in self.task.parts:
            fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.compressor = None
        if inside is not None:
            more = {} if is_flat else {"replicas": between}
            self.compressor = pith.torch.compress(self.model, inside, all_gather=parameters, **more)
        if "replicas alone" in name:
            self.model.set_requires_all_reduce(False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.loss = 0.0

    def run(self, steps: int, timed: bool) -> None:
        for _ in range(steps):
            dist.barrier()
            self.synchronize()
            start = time.perf_counter()
            self.optimizer.zero_grad()
            loss = self.task.loss()
            loss.backward()
            self.optimizer.step()
            self.synchronize()
            if timed:
                self.times.append(time.perf_counter() - start)
            self.loss = loss.item()

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def is_settling(self) -> bool:
        """While plans of an adaptive spec are tried. All ranks see the same reasons."""
        layers = self.compressor.layers if self.compressor is not None else []
        return any("warm-up" in layer.reason or "trial" in layer.reason for layer in layers)


def over_ranks(number: float, op: dist.ReduceOp.RedOpType) -> float:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    value = torch.tensor([number], dtype=torch.float64, device=device)
    dist.all_reduce(value, op=op)
    return value.item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1, help="samples on each rank")
    parser.add_argument(
        "--gpt", action="store_true", help="a GPT of 124 million parameters on CUDA devices"
    )
    parser.add_argument("--shards", type=int, default=2, help="ranks of a shard group")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="in each round")
    parser.add_argument(
        "--settle",
        type=int,
        default=0,
        metavar="STEPS",
        help="most steps that an adaptive spec trains first; 0: it has no way",
    )
    parser.add_argument(
        "--only", action="append", help="ways whose names contain this, beside the first"
    )
    a = parser.parse_args()
    torch.set_num_threads(1)
    library = "nccl" if a.gpt else "gloo"
    if a.gpt:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group(library)
    known = FSDP if a.shards == dist.get_world_size() else HSDP
    named = {
        name.replace("LIB", library): (library if specs[0] == "LIB" else specs[0], *specs[1:])
        for name, specs in known.items()
    }
    first = f"{library} fp32"
    running = [
        Way(name, specs, a)
        for name, specs in named.items()
        if (not a.only or name == first or any(part in name for part in a.only))
        and (a.settle or "auto" not in str(specs[1]))
    ]
    for way in running:
        settled = 0
        while (
            a.settle
            and way.compressor is not None
            and settled < a.settle
            and (settled == 0 or way.is_settling())
        ):
            way.run(1, timed=False)
            settled += 1
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
        ranks, model = dist.get_world_size(), "GPT" if a.gpt else "MLP"
        millions = running[0].parameters / 1e6
        print(
            f"\r# {model} of {millions:.1f} million parameters, {ranks // a.shards} replicas × {a.shards} shards"
        )
        print(f"{'way':<40}{'ms a step':>11}{'× the first':>13}{'loss':>9}")
        for name, seconds, loss in rows:
            print(f"{name:<40}{1e3 * seconds:>11.1f}{rows[0][1] / seconds:>13.2f}{loss:>9.4f}")
        sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # gloo's threads may outlive what they need


if __name__ == "__main__":
    main()
