# SPDX-License-Identifier: Apache-2.0
"""Does a schedule that divides the learning rate by 10, twice, lose what error feedback has pending?

    pith run --no-prefix -n 2 -- .venv/bin/python bench/schedule.py
    pith run --no-prefix -n 2 -- .venv/bin/python bench/schedule.py --task text --steps 3000 --seeds 3

Plain SGD on the tasks of bench/parity.py. Losses of training samples before the first drop, before the second, and at the end, over those of
the uncompressed run with the same seeds (geometric means): without and with residuals that follow the rate.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from parity import Digits, Text
from torch.nn.parallel import DistributedDataParallel

import pith.torch

SPECS = ["none", "ef/topk:0.01", "ef/powersgd:4"]


@dataclass
class Setting:
    spec: str
    follows: bool


def samples_of(task: Digits | Text) -> list:
    """Training samples, the same for all."""
    source = task.batches(torch.Generator().manual_seed(77))
    return [batch for _, batch in zip(range(32), source, strict=False)]


def loss_of(task: Digits | Text, model: torch.nn.Module, samples: list) -> float:
    with torch.no_grad():
        return sum(task.loss_of(model, batch).item() for batch in samples) / len(samples)


def train(task: Digits | Text, setting: Setting, seed: int, steps: int) -> list[float]:
    """Losses before the first drop of the rate, before the second, and at the end."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.model())
    optimizer = task.optimizer(model, setting.spec)
    pith.torch.compress(
        model, setting.spec, seed=seed, optimizer=optimizer, follow_lr=setting.follows
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps // 3, 2 * steps // 3])
    source = task.batches(torch.Generator().manual_seed(1000 * seed + dist.get_rank()))
    losses, samples = [], samples_of(task)
    for step, batch in zip(range(1, steps + 1), source, strict=False):
        optimizer.zero_grad()
        task.loss_of(model, batch).backward()
        optimizer.step()
        schedule.step()
        if step in (steps // 3, 2 * steps // 3, steps):
            losses.append(loss_of(task, model.module, samples))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--spec", action="append")
    parser.add_argument("--task", choices=["text", "digits"], default="digits")
    parser.add_argument("--data", help="a text file, or a folder of them")
    a = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("pith")
    task = (Text if a.task == "text" else Digits)(a)
    exact: list[list[float]] = []
    if dist.get_rank() == 0:
        print(f"{'spec':<18}{'follows':>8}{'first drop':>12}{'second drop':>13}{'end':>8}")
    for spec in ["none", *(a.spec or SPECS[1:])]:
        for follows in (False,) if spec == "none" else (False, True):
            runs = [
                train(task, Setting(spec, follows), seed, a.steps) for seed in range(1, a.seeds + 1)
            ]
            exact = exact or runs
            ratios = [
                math.exp(
                    sum(math.log(r[i] / e[i]) for r, e in zip(runs, exact, strict=True)) / len(runs)
                )
                for i in range(3)
            ]
            if dist.get_rank() == 0:
                text = "" if spec == "none" else "yes" if follows else "no"
                print(
                    f"{spec:<18}{text:>8}{ratios[0]:>12.4f}{ratios[1]:>13.4f}{ratios[2]:>8.4f}",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
