# SPDX-License-Identifier: Apache-2.0
"""What do statistics and plans cost in training? Adaptive specs over two periods, in the time of steps and of the processor.

    pith run --no-prefix -n 2 -- python bench/plan_cost.py
    pith lab --no-prefix -n 2 --rate 1gbit -- python bench/plan_cost.py --spec auto

A cycle is what happens from the first sample for a plan to the step in which the plan is there: sampling, error tables, the exchange of sums, planning.
Its cost is what its steps take beyond others of the same period, over the whole period: once in the time of steps, as the training sees it (with all the
noise of the machine), once in the processor time of the process, which is quieter, and of that in the planner's thread. Trials of `auto` are counted apart: what they
take more than the steps of the plan that was chosen. All of rank 0.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from dataclasses import dataclass

import auto_speed
import torch.distributed as dist
from auto_speed import Way

PERIOD, WARMUP = 256, 20  # of adaptive specs, by default
AFTER = 2  # steps after a change that are neither this nor that


@dataclass
class Step:
    seconds: float  # of the step
    cpu: float  # of the process
    planner: float  # of the planner's thread
    trial: bool
    settled: bool  # specs have not just changed
    cycle: bool = False


def planner_seconds(known: set[str]) -> float:
    """Processor time of the planner's threads that are not known, by name; threads come with their first work."""
    total = 0.0
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            mine = task.name not in known and (task / "comm").read_text().strip() == "pith-planner"
            total += int((task / "schedstat").read_text().split()[0]) * 1e-9 if mine else 0
        except OSError:
            continue  # a thread that has ended meanwhile
    return total


def take(way: Way, steps: int) -> list[Step]:
    known = {task.name for task in pathlib.Path("/proc/self/task").iterdir()}
    done: list[Step] = []
    reason, since = way.reason(), 0
    for _ in range(steps):
        cpu, planner, wall = time.process_time(), planner_seconds(known), time.perf_counter()
        way.run(1, timed=False)
        wall = time.perf_counter() - wall
        planner = planner_seconds(known) - planner
        done.append(
            Step(wall, time.process_time() - cpu, planner, "trial" in reason, since >= AFTER)
        )
        since = since + 1 if way.reason() == reason else 0
        reason = way.reason()
    return done


def mark_cycles(steps: list[Step]) -> int:
    """From the first step in which the planner works to the last, with a step behind it; how many cycles."""
    busy = [i for i, step in enumerate(steps) if step.planner > 1e-4]
    cycles = 0
    for n, i in enumerate(busy):
        if n == 0 or i - busy[n - 1] > 16:
            cycles += 1
            start = i
        for step in steps[start : i + 2]:
            step.cycle = True
    return cycles


@dataclass
class Cost:
    cycles: int
    seconds: float  # shares of the whole
    cpu: float
    planner: float
    trial_steps: int
    trials: float
    each: float  # seconds of a quiet step
    planner_each: float  # seconds of a cycle


def excess(steps: list[Step], quiet: list[Step], field: str) -> float:
    usual = statistics.fmean(getattr(s, field) for s in quiet)
    return sum(getattr(s, field) - usual for s in steps)


def cost_of(steps: list[Step]) -> Cost:
    """Without the warm-up and its cycle: two periods, from plan to plan."""
    mark_cycles(steps)
    steps = steps[WARMUP + 1 : WARMUP + 1 + 2 * PERIOD]
    cycles = mark_cycles(steps)
    cycle = [s for s in steps if s.cycle and not s.trial]
    trial = [s for s in steps if s.trial]
    quiet = [s for s in steps if s.settled and not s.cycle and not s.trial]
    seconds, cpu = sum(s.seconds for s in steps), sum(s.cpu for s in steps)
    return Cost(
        cycles,
        excess(cycle, quiet, "seconds") / seconds,
        excess(cycle, quiet, "cpu") / cpu,
        sum(s.planner for s in steps) / cpu,
        len(trial),
        excess(trial, quiet, "seconds") / seconds,
        statistics.median(s.seconds for s in quiet),
        sum(s.planner for s in steps) / max(1, cycles),
    )


def report(spec: str, c: Cost, first: bool) -> None:
    if first:
        print(
            f"{'spec':<20}{'ms a step':>11}{'cycles':>8}{'of the time':>13}{'of the cpu':>12}{'planner, of it':>16}{'s a cycle':>11}{'trials':>8}{'their cost':>12}"
        )
    print(
        f"{spec:<20}{1e3 * c.each:>11.1f}{c.cycles:>8}{c.seconds:>13.2%}{c.cpu:>12.2%}{c.planner:>16.2%}{c.planner_each:>11.3f}{c.trial_steps:>8}{c.trials:>12.2%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    auto_speed.add_model(parser)
    parser.add_argument("--spec", action="append", help="adaptive specs; lgreco:q:4 and auto")
    a = parser.parse_args()
    specs = a.spec or ["lgreco:q:4", "auto"]
    ways = auto_speed.make_ways(specs, a)
    for i, way in enumerate(ways):
        cost = cost_of(take(way, WARMUP + 2 * PERIOD + 1))
        if dist.get_rank() == 0:
            report(way.spec, cost, i == 0)
            print(way.reason(), file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
