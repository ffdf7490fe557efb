# SPDX-License-Identifier: Apache-2.0
"""Trains a small model on GPUs with DDP over NCCL and pith.torch.compress(model, "q:4"), from an installed package (wheel.sh).

Ends with 1 unless the loss falls, all ranks hold the same bits, and the layers were really sent by q:4.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pith
import pith.torch

STEPS, BATCH, WIDTH = 60, 256, 512


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )


def batch_of(step: int, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each rank draws its own inputs; a fixed linear teacher gives the classes."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(BATCH, 64, generator=generator)
    return inputs.cuda(), (inputs @ teacher).argmax(1).cuda()


def differing_ranks(model: nn.Module) -> list[int]:
    mine = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).view(torch.int32)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [rank for rank, theirs in enumerate(everyone) if not torch.equal(theirs, everyone[0])]


def train() -> list[str]:
    model = DistributedDataParallel(make_model().cuda())
    pith.torch.compress(model, "q:4")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    teacher = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))
    losses = []
    for step in range(STEPS):
        inputs, classes = batch_of(step, teacher)
        loss = nn.functional.cross_entropy(model(inputs), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    first, last = losses[0], sum(losses[-5:]) / 5
    stats = pith.torch.stats(model)
    if dist.get_rank() == 0:
        print(f"loss {first:.3f} in step 1, {last:.3f} in the last five of {STEPS}\n{stats}")
    found = []
    if not last < 0.6 * first:
        found.append(f"the loss did not fall: {first:.3f}, {last:.3f}")
    if ranks := differing_ranks(model):
        found.append(f"ranks {ranks} do not hold the bits of rank 0")
    if not str(stats["2.weight"].spec).startswith("q:4"):
        found.append(f"2.weight was sent by {stats['2.weight'].spec}, not by q:4")
    return found


def main() -> None:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    if dist.get_rank() == 0:
        print(f"pith {pith.__file__}\ntorch {torch.__version__}, {torch.cuda.get_device_name()}")
    problems = train()
    for problem in problems:
        print(f"FAIL rank {dist.get_rank()}: {problem}", flush=True)
    if not problems and dist.get_rank() == 0:
        print("ok   trained with q:4 over NCCL", flush=True)
    dist.destroy_process_group()
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
