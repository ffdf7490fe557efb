# SPDX-License-Identifier: Apache-2.0
"""Local steps beside DDP, behind slow links: how long a step takes, and where the loss ends.

    pith lab --no-prefix -n 4 --rate 100mbit -- python bench/local_steps.py
    pith lab --no-prefix -n 2 --rate 100mbit -- python bench/local_steps.py --width 64 --steps 200   # in a few minutes

A small GPT on characters with AdamW and a cosine schedule. All ways start from the same weights and see the same batches. They take turns of
64 steps, so that a machine that is slow for a while is slow for all of them; at the end of a turn they wait for what is under way. "no
exchange" is each rank by itself, which is what a step costs at least; its loss is that of rank 0. The loss is that of held-out samples
after the last step, behind which local steps synchronise. The time of a step is the mean of all turns but the first, exchanges included.
Speed is the time without exchange, to it. Bytes are all that a rank sends for a step.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pith.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import gpt  # noqa: E402

TURN = 64  # steps


@dataclass
class Way:
    """How ranks exchange: not at all, in every step with a spec, or after ``every`` steps with these settings of LocalSteps."""

    name: str
    spec: str = ""
    every: int = 0
    fragments: int = 1
    overlap: bool = False


def ways_of(a: argparse.Namespace) -> list[Way]:
    found = [Way("no exchange"), Way("DDP none", "none"), Way("DDP q:4", "q:4")]
    for every in a.every:
        found.append(Way(f"every {every}", a.spec, every))
        parts = min(a.fragments, every)
        found.append(Way(f"every {every}, {parts} fragments, overlap", a.spec, every, parts, True))
    return [way for way in found if not a.only or any(part in way.name for part in a.only)]


class Task:
    """Characters, of which a tenth is held out."""

    def __init__(self, a: argparse.Namespace) -> None:
        text = gpt.read_text(a.data)
        symbols = {c: i for i, c in enumerate(sorted(set(text)))}
        encoded = torch.tensor([symbols[c] for c in text])
        cut = len(encoded) - len(encoded) // 10
        self.text, self.held_out, self.symbols, self.a = (
            encoded[:cut],
            encoded[cut:],
            len(symbols),
            a,
        )

    def model(self) -> torch.nn.Module:
        a = self.a
        torch.manual_seed(a.seed)
        return gpt.GPT(self.symbols, a.width, a.layers, max(1, a.width // 64), a.context)

    def batches(self):
        seed = 1000 * self.a.seed + dist.get_rank()
        generator = torch.Generator().manual_seed(seed)
        return gpt.batches(self.text, self.a.batch, self.a.context, generator)

    def loss(self, model: torch.nn.Module) -> float:
        source = gpt.batches(self.held_out, 32, self.a.context, torch.Generator().manual_seed(7))
        with torch.no_grad():
            return sum(gpt.loss_of(model, next(source)).item() for _ in range(8)) / 8


class Run:
    """A model in training, the time of its steps and the bytes sent for them."""

    def __init__(self, task: Task, way: Way, a: argparse.Namespace) -> None:
        self.way, self.task, self.steps = way, task, 0
        self.seconds, self.timed, self.bytes = 0.0, 0, 0
        self.model = self.trained = task.model()
        if way.spec and not way.every:
            self.trained = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
            pith.torch.compress(self.trained, way.spec)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=a.lr, betas=(0.9, 0.95))
        self.local = None
        if way.every:
            self.local = pith.torch.LocalSteps(
                self.model,
                self.optimizer,
                every=way.every,
                spec=way.spec,
                outer=a.outer,
                fragments=way.fragments,
                overlap=way.overlap,
            )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: min(1, (step + 1) / 50) * (1 + math.cos(math.pi * step / a.steps)) / 2,
        )
        self.batches = task.batches()

    def turn(self, steps: int, last: bool) -> None:
        dist.barrier()
        sent, begin = sent_bytes(), time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            gpt.loss_of(self.trained, next(self.batches)).backward()
            self.optimizer.step()
            self.schedule.step()
        if self.local is not None:
            self.local.synchronize() if last else self.local.wait()
        if self.steps > 0:
            self.seconds += time.perf_counter() - begin
            self.timed += steps
        self.bytes += sent_bytes() - sent
        self.steps += steps


def sent_bytes() -> int:
    return pith.torch.stats().comm.sent_bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--spec", default="ef/q:2", help="of the pseudo-gradients")
    parser.add_argument("--outer", default="average", help="average, nesterov, nesterov,lr=0.7,…")
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="samples on each rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", help="a text file, or a folder of them")
    parser.add_argument("--only", action="append", help="the ways whose names contain this")
    a = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("pith")
    task = Task(a)
    parameters = sum(p.numel() for p in task.model().parameters())
    rank = dist.get_rank()
    if rank == 0:
        print(
            f"# GPT of {parameters / 1e6:.2f} million parameters, {dist.get_world_size()} ranks, {a.steps} steps, local steps with "
            f"{a.spec} and {a.outer}"
        )
        print(f"{'way':<36}{'ms a step':>10}{'speed':>7}{'kB a step':>11}{'loss':>9}{'× DDP':>8}")
    runs = [Run(task, way, a) for way in ways_of(a)]
    while runs[0].steps < a.steps:
        steps = min(TURN, a.steps - runs[0].steps)
        for run in runs:
            run.turn(steps, last=run.steps + steps == a.steps)
    if rank == 0:
        report(runs)
    dist.barrier()
    dist.destroy_process_group()


def report(runs: list[Run]) -> None:
    alone = exact = math.nan
    for run in runs:
        step = run.seconds / run.timed if run.timed else math.nan
        loss = run.task.loss(run.model)
        alone = step if not run.way.spec else alone
        exact = loss if run.way.name == "DDP none" else exact
        speed, ratio = cell(alone / step, ".0%"), cell(loss / exact, ".3f")
        print(
            f"{run.way.name:<36}{cell(1e3 * step, '.1f'):>10}{speed:>7}{run.bytes / run.steps / 1e3:>11.1f}{loss:>9.4f}{ratio:>8}"
        )


def cell(value: float, form: str) -> str:
    """With ``--only`` there may be nothing to compare with."""
    return "-" if math.isnan(value) else format(value, form)


if __name__ == "__main__":
    main()
