# SPDX-License-Identifier: Apache-2.0
"""Does `auto` follow a link that changes? Steps and times before the change, just after it, and with the new plan.

    pith lab --no-prefix -n 4 --rate 1gbit --control build/link -- python bench/auto_link.py --control build/link --to 100mbit
    pith lab --no-prefix -n 4 --rate 100mbit --control build/link -- python bench/auto_link.py --control build/link --to 1gbit

`auto` trains until its trials are over and a few dozen steps more. Then rank 0 changes the rate of all links between two steps, and training goes on
until new trials are over, or for as many steps as --limit says. After that, `auto` and some uniform specs take turns, a few steps each. Times are
medians on rank 0.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import auto_speed
import torch
import torch.distributed as dist
from auto_speed import Way

UNIFORM = ["none", "q:8", "q:4", "ef/topk:0.01", "ef/powersgd:4"]
JUST_AFTER = 16  # steps


def milliseconds(times: list[float]) -> str:
    return f"{1e3 * statistics.median(times):.1f} ms" if times else "-"


def change_link(path: str, rate: str) -> None:
    """Between two steps of all ranks; the lab needs a moment."""
    dist.barrier()
    if dist.get_rank() == 0:
        with open(path, "w") as pipe:
            pipe.write(f"{rate}\n")
    time.sleep(1)
    dist.barrier()


class Watch:
    """Steps of `auto`, and what it says about them."""

    def __init__(self, way: Way) -> None:
        self.way, self.reasons, self.before, self.times = way, [], way.reason(), []

    def step(self) -> None:
        self.times += self.way.run(1)
        self.reasons.append(self.way.reason())
        if dist.get_rank() == 0 and self.reasons[-1] != self.before:
            print(
                f"{len(self.reasons):4d} steps after: {self.reasons[-1]}",
                file=sys.stderr,
                flush=True,
            )
        self.before = self.reasons[-1]

    def first(self, trial: bool, since: int = 0) -> int | None:
        """The first step from there on that is a trial, or none."""
        places = (i for i, r in enumerate(self.reasons) if i >= since and ("trial" in r) == trial)
        return next(places, None)

    def followed(self) -> int | None:
        """Steps until the plan of the new trials was in force."""
        begun = self.first(trial=True)
        return None if begun is None else self.first(trial=False, since=begun)


def take_turns(ways: list[Way], a: argparse.Namespace) -> list[Way]:
    """Times all ways at the new rate; without those that take far longer than auto."""
    for way in ways:
        way.run(1)
        way.rounds = [way.run(1)]
    mine = torch.tensor([way.seconds() for way in ways])
    dist.broadcast(mine, 0)
    kept = [way for way, seconds in zip(ways, mine, strict=True) if seconds <= 4 * mine[0]]
    for way in kept:
        way.rounds = []
    for _ in range(a.rounds):
        for way in kept:
            way.run(1)
            way.rounds.append(way.run(a.steps))
    return kept


def report(
    watch: Watch,
    quiet: list[float],
    after: list[float],
    ways: list[Way],
    kept: list[Way],
    was: str,
    a: argparse.Namespace,
) -> None:
    begun, followed = watch.first(trial=True), watch.followed()
    settled = after[followed:] if followed is not None else []
    best = min(way.seconds() for way in kept[1:])
    print(f"# links of {a.to} from step 0 on; before: {was}; now: {watch.way.reason()}")
    print(f"before                        {milliseconds(quiet)} a step")
    print(f"just after ({JUST_AFTER} steps)         {milliseconds(after[:JUST_AFTER])}")
    print(
        f"first trial after             {begun if begun is not None else f'none in {len(after)}'} steps"
    )
    print(
        f"new plan in force after       {followed if followed is not None else f'not within {len(after)}'} steps"
    )
    print(f"with it                       {milliseconds(settled)}")
    print("in turns, at the new rate:")
    for way in ways:
        seconds = way.seconds()
        note = (
            f"{best / seconds:16.2f} × the best uniform" if way in kept else "   one step; left out"
        )
        print(f"  {way.spec:<16}{1e3 * seconds:>11.1f} ms{note}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    auto_speed.add_model(parser)
    parser.add_argument("--control", required=True, help="what pith lab was given")
    parser.add_argument("--to", required=True, help="the new rate")
    parser.add_argument("--settle", type=int, default=200, help="steps before the change, at least")
    parser.add_argument("--limit", type=int, default=500, help="steps after it, at most")
    parser.add_argument(
        "--more", type=int, default=24, help="steps with the new plan, before the others take turns"
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4, help="in each round")
    a = parser.parse_args()
    ways = auto_speed.make_ways(["auto", *UNIFORM], a)
    auto = ways[0]
    auto_speed.settle(auto, a.settle)
    quiet = auto.run(24)
    was = auto.reason()
    change_link(a.control, a.to)
    watch = Watch(auto)
    while len(watch.reasons) < a.limit and watch.followed() is None:
        watch.step()
    for _ in range(a.more):
        watch.step()
    kept = take_turns(ways, a)
    if dist.get_rank() == 0:
        report(watch, quiet, watch.times, ways, kept, was, a)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
