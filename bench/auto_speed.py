# SPDX-License-Identifier: Apache-2.0
"""Does `auto` find the fastest way? Its samples per second beside those of six uniform specs, in one run.

    pith lab --no-prefix -n 4 --rate 100mbit -- python bench/auto_speed.py             # also 1gbit, 5gbit
    pith run --no-prefix -n 4 -- python bench/auto_speed.py                            # shared memory
    …  --batch 32                                                                      # more to compute for each gradient

`auto` trains until its trials are over, and specs with a memory for as many steps: selecting the largest values takes less time once the residual has
filled up. Then all ways take turns, a few steps each, another one first in every round. A figure is the median time of a step on rank 0.

The fastest of six is partly the luckiest of six: where they differ by less than the machine does from one moment to the next, the same spec twice would lose against itself
and five others. The last line is free of that: one half of the rounds says which spec is the fastest, the other half how it and `auto` compare, and then the halves change places.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pith.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import gpt  # noqa: E402

UNIFORM = ["none", "bf16", "q:8", "q:4", "ef/topk:0.01", "ef/powersgd:4"]


class Way:
    """One model in training, and how long its steps took."""

    def __init__(self, spec: str, text: torch.Tensor, symbols: int, a: argparse.Namespace) -> None:
        torch.manual_seed(1)
        self.spec, self.rounds = spec, []
        model = gpt.GPT(symbols, a.width, a.layers, max(1, a.width // 64), a.context)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        pith.torch.compress(self.model, spec)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.source = gpt.batches(
            text, a.batch, a.context, torch.Generator().manual_seed(1000 + dist.get_rank())
        )

    def run(self, steps: int) -> list[float]:
        """How long each of them took."""
        times = []
        for _ in range(steps):
            batch = next(self.source)
            dist.barrier()
            start = time.perf_counter()
            self.optimizer.zero_grad()
            gpt.loss_of(self.model, batch).backward()
            self.optimizer.step()
            times.append(time.perf_counter() - start)
        return times

    def seconds(self, first: int = 0, step: int = 1) -> float:
        """The median, of every step-th round."""
        return statistics.median(seconds for times in self.rounds[first::step] for seconds in times)

    def reason(self) -> str:
        """Of its largest layer."""
        return max(pith.torch.stats(self.model), key=lambda layer: layer.n).reason


def settle(way: Way, steps: int) -> None:
    """Trains until the trials are over, and says what was tried."""
    before, started, done = "", time.perf_counter(), 0
    while done < steps or "trial" in way.reason():
        way.run(4)
        done += 4
        if dist.get_rank() == 0 and way.reason() != before:
            before = way.reason()
            print(
                f"step {done:4d}, {time.perf_counter() - started:5.1f} s: {before}",
                file=sys.stderr,
                flush=True,
            )


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2, help="samples on each rank")
    parser.add_argument("--data", help="a text file, or a folder of them")


def make_ways(specs: list[str], a: argparse.Namespace) -> list[Way]:
    """Joins the other ranks, and makes a model for each spec."""
    torch.set_num_threads(1)
    dist.init_process_group("pith")
    text = gpt.read_text(a.data)
    symbols = {c: i for i, c in enumerate(sorted(set(text)))}
    encoded = torch.tensor([symbols[c] for c in text])
    return [Way(spec, encoded, len(symbols), a) for spec in specs]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model(parser)
    parser.add_argument(
        "--settle", type=int, default=160, help="steps before anything is timed, at least"
    )
    parser.add_argument("--rounds", type=int, default=8, help="at least 2")
    parser.add_argument("--steps", type=int, default=4, help="in each round")
    a = parser.parse_args()
    ways = make_ways(["auto", *UNIFORM], a)
    settle(ways[0], a.settle)
    for way in ways[1:]:
        way.run(a.settle if way.spec.startswith("ef/") else 0)
    for turn in range(a.rounds):
        first = turn % len(ways)
        for way in ways[first:] + ways[:first]:
            way.run(1)
            way.rounds.append(way.run(a.steps))
    if dist.get_rank() == 0:
        report(ways, a)
    dist.destroy_process_group()


def without_luck(auto: Way, uniform: list[Way]) -> float:
    """How `auto` compares with the fastest, which is found in the rounds that do not count."""
    ratios = []
    for half in (0, 1):
        best = min(uniform, key=lambda way: way.seconds(1 - half, 2))
        ratios.append(best.seconds(half, 2) / auto.seconds(half, 2))
    return statistics.geometric_mean(ratios)


def report(ways: list[Way], a: argparse.Namespace) -> None:
    auto, *uniform = ways
    best = min(way.seconds() for way in uniform)
    print(
        f"# {auto.parameters / 1e6:.1f} million parameters, {dist.get_world_size()} ranks, {a.batch} × {a.context} tokens on each; auto: {auto.reason()}"
    )
    print(f"{'spec':<16}{'ms a step':>11}{'× best uniform':>16}")
    for way in ways:
        print(f"{way.spec:<16}{1e3 * way.seconds():>11.1f}{best / way.seconds():>16.2f}")
    print(
        f"auto × best uniform, one half of the rounds for finding it and one for comparing: {without_luck(auto, uniform):.2f}"
    )


if __name__ == "__main__":
    main()
