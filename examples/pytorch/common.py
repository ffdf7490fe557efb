# SPDX-License-Identifier: Apache-2.0
"""What the examples share: joining the other ranks, the training loop with its progress line, and what was saved in the end."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pith
import pith.torch


def add_arguments(parser: argparse.ArgumentParser, steps: int, batch: int, rate: float) -> None:
    parser.add_argument(
        "--spec",
        default="q:4",
        help='how gradients travel: a spec, rules, or "none" (default: %(default)s)',
    )
    parser.add_argument(
        "--backend", default="pith", help="pith, or gloo to compare with (default: %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=int(os.environ.get("EXAMPLE_STEPS", steps)),
        help="default: %(default)s, or EXAMPLE_STEPS in the environment",
    )
    parser.add_argument(
        "--batch", type=int, default=batch, help="samples on each rank (default: %(default)s)"
    )
    parser.add_argument("--lr", type=float, default=rate)
    parser.add_argument(
        "--schedule",
        choices=("constant", "linear"),
        default="constant",
        help="of the learning rate; linear: up, then down to zero",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seeds", type=int, default=1, help="train with so many seeds, one after another"
    )
    parser.add_argument(
        "--evaluate", type=int, default=0, help="steps between two looks at held-out data; 0: none"
    )
    parser.add_argument(
        "--warmup", type=int, default=5, help="steps that the time per step leaves out"
    )
    parser.add_argument(
        "--threads",
        type=int,
        help="of a rank (default: the cores, divided by the ranks of this host)",
    )
    parser.add_argument(
        "--json", help="where rank 0 writes the losses and times, a line for a seed"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress line")


@dataclass
class Outcome:
    """What a run gave, for the table and the picture of the demo."""

    name: str
    spec: str
    backend: str
    ranks: int
    parameters: int
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # since the start, after each step
    held_out: list[float] = field(default_factory=list)  # losses of held-out data
    held_out_steps: list[int] = field(default_factory=list)  # after which they were taken
    step_seconds: float = 0.0
    samples_per_second: float = 0.0
    raw_bytes: int = 0  # gradients of all steps, on one rank
    wire_bytes: int = 0  # what that rank sent
    final_loss: float = 0.0
    quality: str = ""


def start(arguments: argparse.Namespace) -> tuple[int, int]:
    """Rank and size, with a process group if this was started by torchrun, pith run, mpirun or srun; alone otherwise."""
    torch.manual_seed(arguments.seed)
    try:
        launch = pith.launch()
    except pith.ArgumentError:
        return 0, 1
    if launch.ranks > 1:
        torch.set_num_threads(
            arguments.threads
            or max(1, (os.cpu_count() or 1) // (launch.local_ranks or launch.ranks))
        )
        dist.init_process_group(arguments.backend)
    return launch.rank, launch.ranks


def distribute(
    model: torch.nn.Module, arguments: argparse.Namespace, ranks: int
) -> torch.nn.Module:
    """The model as it is on one rank; else DDP, with compression by one line."""
    if ranks == 1:
        return model
    ddp = DistributedDataParallel(model)
    if arguments.spec != "none" or arguments.backend == "pith":
        pith.torch.compress(ddp, arguments.spec, seed=arguments.seed)
    return ddp


class Progress:
    """One line that is written over; a line every now and then where the output is no terminal."""

    def __init__(self, total: int, label: str, quiet: bool) -> None:
        self.total, self.label, self.quiet = total, label, quiet
        self.terminal = sys.stderr.isatty()
        self.started = self.shown = time.perf_counter()

    def __call__(self, done: int, loss: float) -> None:
        now = time.perf_counter()
        if self.quiet or (done < self.total and now - self.shown < (0.1 if self.terminal else 5)):
            return
        self.shown = now
        left = (now - self.started) / done * (self.total - done)
        bar = "█" * (24 * done // self.total)
        text = f"{self.label}  {bar:<24} {done}/{self.total}  loss {loss:.3f}  {left:3.0f} s left"
        end = "\n" if not self.terminal or done == self.total else ""
        print(("\r" if self.terminal else "") + text, end=end, file=sys.stderr, flush=True)


def schedule(optimizer, arguments: argparse.Namespace):
    """The learning rate: constant, or up over a tenth of the steps and then down to zero, which makes short runs comparable."""
    top = max(1, arguments.steps // 10)

    def factor(step: int) -> float:
        if arguments.schedule == "constant":
            return 1.0
        return min((step + 1) / top, (arguments.steps - step) / (arguments.steps - top))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def train(
    model, optimizer, batches, loss_of, arguments, name, rank, ranks, held_out=None
) -> Outcome:
    """`batches` yields what `loss_of(model, batch)` takes. Losses are means over all ranks. `held_out` are batches that are
    evaluated now and then; the time for that does not count."""
    parameters = sum(p.numel() for p in model.parameters())
    outcome = Outcome(name, arguments.spec, arguments.backend, ranks, parameters)
    rate = schedule(optimizer, arguments)
    show = Progress(arguments.steps, f"{arguments.spec:>16}", arguments.quiet or rank != 0)
    begun = started = time.perf_counter()
    for step, batch in zip(range(arguments.steps), batches, strict=False):
        if held_out and arguments.evaluate and step % arguments.evaluate == 0:
            begun, started = evaluate(model, held_out, loss_of, outcome, begun, started)
        if step == arguments.warmup:
            started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        rate.step()
        outcome.losses.append(loss.item())
        outcome.seconds.append(time.perf_counter() - begun)
        show(step + 1, outcome.losses[-1])
    timed = max(1, arguments.steps - arguments.warmup)
    outcome.step_seconds = (time.perf_counter() - started) / timed
    outcome.samples_per_second = arguments.batch * ranks / outcome.step_seconds
    if held_out and arguments.evaluate:
        evaluate(model, held_out, loss_of, outcome, begun, started)
    return finish(outcome, model, ranks)


def evaluate(model, held_out, loss_of, outcome, begun: float, started: float):
    """Adds a loss of held-out data. Returns both times, later by what this took."""
    before = time.perf_counter()
    with torch.no_grad():
        losses = [loss_of(getattr(model, "module", model), batch).item() for batch in held_out]
    outcome.held_out.append(sum(losses) / len(losses))
    outcome.held_out_steps.append(len(outcome.losses))
    took = time.perf_counter() - before
    return begun + took, started + took


def finish(outcome: Outcome, model: torch.nn.Module, ranks: int) -> Outcome:
    tail = outcome.losses[-max(1, len(outcome.losses) // 10) :]
    outcome.final_loss = sum(tail) / len(tail)
    if ranks > 1:
        numbers = [outcome.final_loss, *outcome.losses, *outcome.held_out]
        mean = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(mean)
        first, *rest = (mean / ranks).tolist()
        steps = len(outcome.losses)
        outcome.final_loss, outcome.losses, outcome.held_out = first, rest[:steps], rest[steps:]
        outcome.raw_bytes, outcome.wire_bytes = traffic(model, len(outcome.losses), ranks)
    if not math.isfinite(outcome.final_loss):
        raise SystemExit(
            f"{outcome.spec}: the loss is {outcome.final_loss}; a smaller --lr may help"
        )
    return outcome


def traffic(model: torch.nn.Module, steps: int, ranks: int) -> tuple[int, int]:
    """Bytes of gradients, and those that this rank sent for them."""
    raw = sum(p.numel() * p.element_size() for p in model.parameters()) * steps
    try:
        table = pith.torch.stats(model)
    except pith.Error:  # DDP without a hook: a plain allreduce sends this
        return raw, 2 * raw * (ranks - 1) // ranks
    return raw, sum(layer.wire_bytes for layer in table)


def report(outcome: Outcome, arguments: argparse.Namespace, rank: int) -> None:
    if rank != 0:
        return
    print(
        f"\n{outcome.name}: {outcome.parameters:,} parameters on {outcome.ranks} ranks, {len(outcome.losses)} steps"
    )
    print(f"  loss {outcome.losses[0]:.3f} → {outcome.final_loss:.3f}{outcome.quality}")
    print(
        f"  {1e3 * outcome.step_seconds:.1f} ms a step, {outcome.samples_per_second:.0f} samples a second"
    )
    if outcome.wire_bytes:
        plain = 2 * outcome.raw_bytes * (outcome.ranks - 1) / outcome.ranks
        print(
            f"  {outcome.wire_bytes / 1e6:.1f} MB sent by each rank instead of {plain / 1e6:.1f}: {plain / outcome.wire_bytes:.1f} times less"
        )
    if arguments.json:
        with open(arguments.json, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


def end() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
