# SPDX-License-Identifier: Apache-2.0
"""Step times and bytes of `pith eval` beside those of bench/training_speed.py and of `pith bench`, in one run.

    python bench/eval_agrees.py                        # the LSTM on words, 2 ranks behind 1 Gbit/s
    python bench/eval_agrees.py --task text --link 100mbit --ranks 4

For each spec: the step of the report (in turns), the step of its training run behind the link, and the step by bench/training_speed.py's own loop on the
same model; and the bytes of a step in the report, counted by the link, beside those that `pith bench allreduce` sends for as many values in one tensor.
Steps agree within the noise of the machine, which the last column shows: the middle half of all steps in turns. Bytes differ by headers of TCP and by how
a model is cut into layers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pith._command import program
from pith.eval import evaluate
from pith.eval.analysis import panels_of
from pith.eval.results import read_all

SPECS = ("none", "bf16", "q:4", "ef/powersgd:4")


def in_lab(a: argparse.Namespace, *command: str) -> Any:
    """Runs a command on all ranks; what it writes as JSON to the file that its last argument names."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        lab = [program(), "lab", "-n", str(a.ranks), "--rate", a.link, "--no-prefix", "--"]
        subprocess.run([*lab, *command, str(answer)], check=True, capture_output=True)
        return json.loads(answer.read_text())


def bytes_of_bench(spec: str, values: int, a: argparse.Namespace) -> float:
    """What a rank sends in an allreduce of as many f32 values."""
    size = str(4 * values)
    command = ["bench", "allreduce", "-b", size, "-e", size, "-n", "5", "--codec", spec, "--json"]
    rows = in_lab(a, program(), *command)
    wanted = (spec, None) if spec == "none" else (spec,)
    return float(next(row["wire_bytes"] for row in rows if row["codec"] in wanted))


def one_rank(task_name: str, answer: str) -> None:
    """The loop of bench/training_speed.py, over the models and batches of a task."""
    import torch
    import torch.distributed as dist
    import training_speed

    import pith.torch
    from pith.eval.tasks import task_of

    torch.set_num_threads(1)
    dist.init_process_group("pith")
    task = task_of(task_name)
    batch = next(task.batches(torch.Generator().manual_seed(dist.get_rank())))

    def compress(spec: str) -> Any:
        return lambda ddp, group: pith.torch.compress(ddp, spec)

    ways = [
        training_speed.Way(spec, dist.group.WORLD, compress(spec), task.model, task.loss)
        for spec in SPECS
    ]
    for turn in range(7):
        for way in ways:
            way.run(batch, 5, timed=turn > 0)
    if dist.get_rank() == 0:
        steps = {way.name: statistics.median(way.times) for way in ways}
        Path(answer).write_text(json.dumps(steps))
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="words")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--link", default="1gbit")
    a = parser.parse_args()
    grid = {
        "title": "agreement",
        "run": [
            {
                "task": a.task,
                "link": [a.link],
                "ranks": [a.ranks],
                "seeds": 1,
                "rates": [0.3],
                "steps": 0.4,
                "spec": [{"spec": spec, "timed": True} for spec in SPECS],
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        evaluate(grid, folder, quiet=True)
        (panel,) = panels_of(list(read_all([folder]).runs.values()))
    loop = in_lab(a, sys.executable, str(Path(__file__).resolve()), "--rank", a.task)
    print(f"# {panel.title}")
    head = ("in turns, ms", "in its run", "by the loop", "in turns, kB", "pith bench")
    print(f"{'spec':<16}" + "".join(f"{name:>14}" for name in head) + f"{'middle half, ms':>18}")
    for entry in panel.entries:
        times = (entry.step or 0.0, entry.mean("step") or 0.0, loop[entry.spec])
        sent = (entry.bytes or 0, bytes_of_bench(entry.spec, int(entry.mean("parameters") or 0), a))
        numbers = [f"{1e3 * seconds:>14.2f}" for seconds in times]
        numbers += [f"{size / 1e3:>14.1f}" for size in sent]
        low, high = (f"{1e3 * entry.speed[key]:.1f}" for key in ("low", "high"))
        print(f"{entry.label:<16}" + "".join(numbers) + f"{low + ' … ' + high:>18}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        one_rank(*sys.argv[2:])
    else:
        main()
