# SPDX-License-Identifier: Apache-2.0
"""Where the loss of a sharded model (fully_shard) ends with compressed gradients and parameters.

    pith run --no-prefix -n 2 -- python bench/sharded_loss.py

A small GPT on characters with AdamW and a cosine schedule, from the same weights and with the same batches for every way. The loss is that
of held-out samples with the parameters that the optimizer has, which are exact in all ways, after the last step; its ratio to the way
without compression is that of the means over seeds.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pith.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import gpt  # noqa: E402

# Name → (spec of gradients, spec of parameters).
WAYS: dict[str, tuple[str, str | None]] = {
    "none": ("none", None),
    "q:4": ("q:4", None),
    "q:4, parameters q:8": ("q:4", "q:8"),
    "q:4, parameters q:4": ("q:4", "q:4"),
    "q:4, parameters delta/q:4": ("q:4", "delta/q:4"),
    "q:4, parameters delta,store=bf16/q:4": ("q:4", "delta,store=bf16/q:4"),
}


def train(way: str, seed: int, text: torch.Tensor, symbols: int, a: argparse.Namespace) -> float:
    gradients, parameters = WAYS[way]
    torch.manual_seed(seed)
    model = gpt.GPT(symbols, a.width, a.layers, max(1, a.width // 32), a.context)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compressor = pith.torch.compress(model, gradients, all_gather=parameters, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1, (step + 1) / 50) * (1 + math.cos(math.pi * step / a.steps)) / 2,
    )
    cut = len(text) - len(text) // 10
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    source = gpt.batches(text[:cut], a.batch, a.context, generator)
    for _ in range(a.steps):
        optimizer.zero_grad()
        gpt.loss_of(model, next(source)).backward()
        optimizer.step()
        schedule.step()
    compressor.remove()  # the loss is that of exact parameters
    held_out = gpt.batches(text[cut:], 32, a.context, torch.Generator().manual_seed(7))
    with torch.no_grad():
        return sum(gpt.loss_of(model, next(held_out)).item() for _ in range(8)) / 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4, help="samples on each rank")
    parser.add_argument("--data", help="a text file, or a folder of them")
    a = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("pith")
    letters = gpt.read_text(a.data)
    numbers = {c: i for i, c in enumerate(sorted(set(letters)))}
    text = torch.tensor([numbers[c] for c in letters])
    base = 0.0
    for way in WAYS:
        begin = time.perf_counter()
        losses = [train(way, seed, text, len(numbers), a) for seed in range(1, a.seeds + 1)]
        mean = statistics.mean(losses)
        base = base or mean
        if dist.get_rank() == 0:
            each = " ".join(f"{loss:.4f}" for loss in losses)
            seconds = time.perf_counter() - begin
            print(
                f"{way:<40}{mean:>8.4f}{mean / base:>8.4f}   {each}   {seconds:.0f} s", flush=True
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
