"""Does compressed training end at the same loss? Text and digits, several seeds, every method beside the uncompressed run.

    pith run --no-prefix -n 2 -- .venv/bin/python bench/parity.py                # the four methods that must end within 2%
    pith run --no-prefix -n 2 -- .venv/bin/python bench/parity.py --survey       # the sixteen methods of the survey, one seed

All runs of a seed start from the same weights and see the same batches. The loss is that of held-out samples after the last step; the
ratio is the geometric mean over seeds of loss / uncompressed loss.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pith.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import digits  # noqa: E402
import gpt  # noqa: E402

PARITY = ["q:4", "ef/topk:0.01", "ef/powersgd:4", "dgc:0.01"]


def sgd(model, spec: str, rate: float) -> torch.optim.Optimizer:
    """A momentum of 0.9, which dgc brings along, makes steps ten times as long; votes are steps of equal size."""
    name = spec.split(":")[0]
    return torch.optim.SGD(model.parameters(), lr=5e-4 if name in ("signsgd", "signum") else rate / 10 if name == "dgc" else rate)


class Text:
    """Characters of a text, with a small GPT and SGD. Error feedback delays gradients; what momentum and the second moments of Adam make of
    that is in docs/methods.md."""

    name, steps = "text", 4000

    def __init__(self, a: argparse.Namespace) -> None:
        text = gpt.read_text(a.data)
        symbols = {c: i for i, c in enumerate(sorted(set(text)))}
        encoded = torch.tensor([symbols[c] for c in text])
        self.train, self.held_out = encoded[: -len(encoded) // 10], encoded[-len(encoded) // 10 :]
        self.symbols, self.loss_of = len(symbols), gpt.loss_of

    def model(self) -> torch.nn.Module:
        return gpt.GPT(self.symbols, 64, 1, 1, 32)

    def optimizer(self, model, spec: str) -> torch.optim.Optimizer:
        return sgd(model, spec, 0.5)

    def batches(self, generator):
        return gpt.batches(self.train, 8, 32, generator)

    def samples(self):
        return next(gpt.batches(self.held_out, 128, 32, torch.Generator().manual_seed(7)))


class Digits:
    """Handwritten digits, with a CNN and SGD."""

    name, steps = "digits", 4000

    def __init__(self, a: argparse.Namespace) -> None:
        x, y = digits.read_digits()
        held_out = len(x) // 5
        self.train, self.held_out = (x[held_out:], y[held_out:]), (x[:held_out], y[:held_out])

    @staticmethod
    def loss_of(model, batch) -> torch.Tensor:
        """Smoothed labels: a loss near zero would make a ratio of nothing but noise."""
        x, y = batch
        return torch.nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)

    def model(self) -> torch.nn.Module:
        return digits.make_model(128)

    def optimizer(self, model, spec: str) -> torch.optim.Optimizer:
        return sgd(model, spec, 0.2)

    def batches(self, generator):
        return digits.batches(*self.train, 16, generator)

    def samples(self):
        return self.held_out


def run(task, spec: str, seed: int, steps: int, group) -> tuple[float, float]:
    """Loss on held-out samples before and after, the same on all ranks."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.model(), process_group=group)
    pith.torch.compress(model, spec, seed=seed)
    optimizer = task.optimizer(model, spec)
    source = task.batches(torch.Generator().manual_seed(1000 * seed + dist.get_rank()))
    with torch.no_grad():
        before = task.loss_of(model.module, task.samples()).item()
    for step, batch in zip(range(steps), source, strict=False):
        for g in optimizer.param_groups:  # a linear end, so that the last steps do not decide
            g.setdefault("start", g["lr"])
            g["lr"] = g["start"] * min(1.0, (steps - step) / (steps / 3))
        optimizer.zero_grad()
        task.loss_of(model, batch).backward()
        optimizer.step()
    with torch.no_grad():
        return before, task.loss_of(model.module, task.samples()).item()


SURVEY = {name: f"ef/{name}" for name in ("topk", "randomk", "threshold", "adaptive", "powersgd")}  # docs/methods.md: what is left out must come later


def survey() -> list[str]:
    return [SURVEY.get(m.name, m.name) for m in pith.methods() if m.survey]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="default: 4000")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--spec", action="append")
    parser.add_argument("--survey", action="store_true")
    parser.add_argument("--task", choices=["text", "digits"], action="append")
    parser.add_argument("--data", help="a text file, or a folder of them")
    parser.add_argument("--json")
    a = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("pith")
    tasks = [kind(a) for kind in (Text, Digits) if not a.task or kind.name in a.task]
    specs = a.spec or (survey() if a.survey else PARITY)
    seeds = range(1, 2 if a.survey else 1 + a.seeds)
    results = [(task.name, spec, *measure(task, spec, seeds, a.steps or task.steps)) for task in tasks for spec in ["none", *specs]]
    if dist.get_rank() == 0:
        report(results, a)
    dist.destroy_process_group()


def measure(task, spec: str, seeds, steps: int) -> tuple[list[float], list[float]]:
    started = time.perf_counter()
    losses = [run(task, spec, seed, steps, dist.group.WORLD) for seed in seeds]
    if dist.get_rank() == 0:
        print(f"{task.name}: {spec} in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return [before for before, _ in losses], [after for _, after in losses]


def report(results, a: argparse.Namespace) -> None:
    print(f"# {dist.get_world_size()} ranks; losses of held-out samples, one for each seed")
    print(f"{'task':<8}{'spec':<24}{'ratio':>7}{'before':>9}  after")
    base = {task: after for task, spec, _, after in results if spec == "none"}
    rows = []
    for task, spec, before, after in results:
        ratio = math.exp(sum(math.log(x / y) for x, y in zip(after, base[task], strict=True)) / len(after))
        rows.append({"task": task, "spec": spec, "ratio": ratio, "before": before, "after": after})
        print(f"{task:<8}{spec:<24}{ratio:>7.3f}{before[0]:>9.3f}  " + " ".join(f"{x:.3f}" for x in after))
    if a.json:
        with open(a.json, "w", encoding="utf-8") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
