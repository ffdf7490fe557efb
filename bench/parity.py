# SPDX-License-Identifier: Apache-2.0
"""Does compressed training end at the same loss, and what did it send? Text and digits, several seeds, every method beside the uncompressed run.

    pith run --no-prefix -n 2 -- .venv/bin/python bench/parity.py                # the four methods that must end within 2%
    pith run --no-prefix -n 2 -- .venv/bin/python bench/parity.py --survey       # the sixteen methods of the survey, one seed
    pith run --no-prefix -n 2 -- .venv/bin/python bench/parity.py --adaptive     # adaptive specs beside the uniform ones whose error they keep
    pith run --no-prefix -n 2 -- .venv/bin/python bench/parity.py --metrics --steps 1500  # lgreco by both metrics, in ten minutes
    pith lab --rate 100mbit --no-prefix -n 2 -- .venv/bin/python bench/parity.py --task text --adamw 0.001 --spec auto --spec auto,budget=q:4

All runs of a seed start from the same weights and see the same batches. The loss is that of held-out samples after the last step; the
ratio is the geometric mean over seeds of loss / uncompressed loss. Bytes are all that a rank sends in training, over the number of steps: gradients, headers, and
what adaptive specs exchange to plan.

Long tables can be made in parts, at the same time or one after the other, and put together without ranks:

    pith run --no-prefix -n 2 -- .venv/bin/python bench/parity.py --adaptive --task text --seed 1 --json text-1.json
    .venv/bin/python bench/parity.py --merge text-1.json text-2.json digits-1.json --html parity.html
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pith.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import digits  # noqa: E402
import gpt  # noqa: E402
from parity_page import page, picture  # noqa: E402

PARITY = ["q:4", "ef/topk:0.01", "ef/powersgd:4", "dgc:0.01"]
ADAPTIVE = [
    "q:4", "lgreco:q:4", "kmeans:q:4", "lgreco:mix,budget=q:4", "q:8", "accordion:q:4,q:8",
    "ef/topk:0.01", "lgreco:ef/topk:0.01", "ef/powersgd:4", "lgreco:ef/powersgd:4", "auto",
]  # fmt: skip
METRICS = [
    spec
    for uniform in ("q:4", "ef/topk:0.01", "ef/powersgd:4")
    for spec in (uniform, f"lgreco:{uniform},metric=l2sq", f"lgreco:{uniform},metric=l2")
]
SURVEY = {
    name: f"ef/{name}" for name in ("topk", "randomk", "threshold", "adaptive", "powersgd")
}  # docs/methods.md: what is left out must come later
POINTS = 100  # of a curve
BEHIND = 1.01  # an adaptive run is to end within 1% of its reference


# ---- Tasks


def sgd(model, spec: str, rate: float) -> torch.optim.Optimizer:
    """A momentum of 0.9, which dgc brings along, makes steps ten times as long; votes are steps of equal size."""
    name = spec.split(":")[0]
    return torch.optim.SGD(
        model.parameters(),
        lr=5e-4 if name in ("signsgd", "signum") else rate / 10 if name == "dgc" else rate,
    )


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


# ---- Runs


@dataclass
class Run:
    """One training, the same on all ranks."""

    task: str
    spec: str
    seed: int
    steps: int
    ranks: int
    before: float  # loss of held-out samples
    after: float
    bytes: float  # that a rank sent in a step, on average: the mean over ranks
    gradient_bytes: float  # of these, those of gradients
    seconds: float
    losses: list[float]  # of training, the means of POINTS intervals

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        return self.task, self.spec, self.seed, self.steps, self.ranks


def train(task, spec: str, seed: int, a: argparse.Namespace) -> Run:
    started, steps = time.perf_counter(), a.steps or task.steps
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.model())
    pith.torch.compress(model, spec, seed=seed)
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=a.adamw)
        if a.adamw
        else task.optimizer(model, spec)
    )
    source = task.batches(torch.Generator().manual_seed(1000 * seed + dist.get_rank()))
    before, losses, sent = held_out_loss(task, model), [], bytes_sent()
    for step, batch in zip(range(steps), source, strict=False):
        for g in optimizer.param_groups:  # a linear end, so that the last steps do not decide
            g.setdefault("start", g["lr"])
            g["lr"] = g["start"] * min(1.0, (steps - step) / (steps / 3))
        optimizer.zero_grad()
        loss = task.loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    sent = bytes_sent() - sent
    size, gradients, *curve = means(
        [sent / steps, pith.torch.stats(model).wire_bytes / steps, *intervals(losses)]
    )
    after, seconds = held_out_loss(task, model), time.perf_counter() - started
    return Run(
        task.name,
        spec,
        seed,
        steps,
        dist.get_world_size(),
        before,
        after,
        size,
        gradients,
        seconds,
        curve,
    )


def held_out_loss(task, model) -> float:
    with torch.no_grad():
        return task.loss_of(model.module, task.samples()).item()


def bytes_sent() -> int:
    return pith.torch.stats().comm.sent_bytes


def intervals(values: list[float]) -> list[float]:
    size = math.ceil(len(values) / POINTS)
    return [
        sum(part) / len(part)
        for part in (values[i : i + size] for i in range(0, len(values), size))
    ]


def means(values: list[float]) -> list[float]:
    """Over all ranks."""
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).tolist()


def train_all(a: argparse.Namespace) -> list[Run]:
    """Rank 0 writes the file after every run, so that an end before the end loses little."""
    torch.set_num_threads(1)
    dist.init_process_group("pith")
    runs: list[Run] = []
    for task in [kind(a) for kind in (Text, Digits) if not a.task or kind.name in a.task]:
        for spec in specs_of(a):
            for seed in a.seed or range(1, 2 if a.survey else 1 + a.seeds):
                runs.append(train(task, spec, seed, a))
                if dist.get_rank() == 0:
                    tell(runs[-1])
                    save(runs, a.json)
    first = dist.get_rank() == 0
    dist.destroy_process_group()
    return runs if first else []


def specs_of(a: argparse.Namespace) -> list[str]:
    specs = a.spec or (
        ADAPTIVE if a.adaptive else METRICS if a.metrics else survey() if a.survey else PARITY
    )
    return list(dict.fromkeys(specs if a.only else ["none", *specs]))


def survey() -> list[str]:
    return [SURVEY.get(m.name, m.name) for m in pith.methods() if m.survey]


def tell(run: Run) -> None:
    print(
        f"{run.task}: {run.spec}, seed {run.seed} in {run.seconds:.0f} s: {run.after:.3f}",
        file=sys.stderr,
        flush=True,
    )


def save(runs: Iterable[Run], path: str | None) -> None:
    if path:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump([asdict(run) for run in runs], file)
        os.replace(f"{path}.new", path)


def merged(paths: list[str]) -> list[Run]:
    """Runs of several files; of a run that comes twice, the later one."""
    found: dict[tuple, Run] = {}
    for path in paths:
        for entry in json.loads(pathlib.Path(path).read_text(encoding="utf-8")):
            run = Run(**entry)
            found[run.key] = run
    return list(found.values())


# ---- Comparing


OPTIONS = (  # of adaptive specs, beside budget
    "period", "warmup", "start", "accumulate", "alpha", "tolerance", "floor", "cap", "metric", "critical", "threshold",
)  # fmt: skip
KINDS = ("lgreco", "kmeans", "accordion", "cgxkmeans", "linear", "best", "bayes", "global")


def reference_of(spec: str) -> str | None:
    """The uniform spec that an adaptive one is compared with; None: it is uniform itself. Accordion is to lose no more than its second spec."""
    if spec.split(",")[0] == "auto":
        return "none"
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        return None
    first, *pieces = rest.split(",")
    if kind == "accordion":
        return next((piece for piece in pieces if "=" not in piece), None)
    budget = [piece.partition("=")[2] for piece in pieces if piece.startswith("budget=")]
    own = [
        piece
        for piece in pieces
        if "=" in piece and piece.partition("=")[0] not in (*OPTIONS, "budget")
    ]
    return budget[0] if budget else ",".join([first, *own])


@dataclass(eq=False)
class Row:
    """The runs of a spec, one for each seed."""

    task: str
    spec: str
    runs: list[Run]
    ratio: float = math.nan  # of losses, to uncompressed runs of the same seeds
    fewer: float = math.nan  # times
    reference: Row | None = None
    behind: float = math.nan  # ratio of losses to those of the reference
    doubt: float = math.nan  # its standard error over seeds; not known of one
    share: float = math.nan  # of the bytes of the reference

    @property
    def bytes(self) -> float:
        return sum(run.bytes for run in self.runs) / len(self.runs)

    @property
    def verdict(self) -> str:
        if not self.reference or self.reference.spec == "none":
            return ""
        loses, more = self.behind > BEHIND, self.share > 1
        return (
            "loses, and sends more"
            if loses and more
            else "loses"
            if loses
            else "sends more"
            if more
            else "good"
        )


def compare(mine: list[Run], others: list[Run]) -> tuple[float, float, float]:
    """Geometric means over seeds that both have: of losses, with its standard error, and of bytes."""
    by_seed = {(run.seed, run.steps, run.ranks): run for run in others}
    pairs = [
        (run, by_seed[key]) for run in mine if (key := (run.seed, run.steps, run.ranks)) in by_seed
    ]
    if not pairs:
        return math.nan, math.nan, math.nan
    losses = [math.log(a.after / b.after) for a, b in pairs]
    loss = sum(losses) / len(pairs)
    doubt = statistics.stdev(losses) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan
    counted = all(a.bytes and b.bytes for a, b in pairs)  # one rank alone sends nothing
    size = sum(math.log(a.bytes / b.bytes) for a, b in pairs) / len(pairs) if counted else math.nan
    return math.exp(loss), doubt, math.exp(size)


def rows_of(runs: list[Run]) -> list[Row]:
    """One for each task and spec, in the order of the runs; tasks stay together."""
    tasks, specs = (
        list(dict.fromkeys(getattr(run, what) for run in runs)) for what in ("task", "spec")
    )
    order = [spec for spec in ["none", *ADAPTIVE] if spec in specs]
    order += [spec for spec in specs if spec not in order]
    rows = {}
    for task in tasks:
        for spec in order:
            own = sorted(
                (run for run in runs if (run.task, run.spec) == (task, spec)),
                key=lambda run: run.seed,
            )
            if own:
                rows[task, spec] = Row(task, spec, own)
    for (task, spec), row in rows.items():
        base, reference = rows.get((task, "none")), reference_of(spec)
        if base:
            row.ratio, _, size = compare(row.runs, base.runs)
            row.fewer = 1 / size
        row.reference = rows.get((task, reference)) if reference else None
        if row.reference:
            row.behind, row.doubt, row.share = compare(row.runs, row.reference.runs)
    return list(rows.values())


def report(rows: list[Row]) -> None:
    ranks = sorted({run.ranks for row in rows for run in row.runs})
    print(
        f"# {', '.join(map(str, ranks))} ranks; losses of held-out samples, one for each seed, ± the standard error; bytes that a rank sends in a step"
    )
    print(
        f"{'task':<8}{'spec':<36}{'ratio':>7}{'bytes':>9}{'fewer':>8}  {'of reference: loss':>18}{'bytes':>7}  {'':<22}{'before':>7}  after"
    )
    for row in rows:
        loss = f"{row.behind:.3f}" + ("" if math.isnan(row.doubt) else f" ± {row.doubt:.3f}")
        beside = f"{loss:>18}{row.share:>7.3f}  {row.verdict:<22}" if row.reference else " " * 49
        losses = " ".join(f"{run.after:.3f}" for run in row.runs)
        print(
            f"{row.task:<8}{row.spec:<36}{row.ratio:>7.3f}{row.bytes:>9.0f}{row.fewer:>7.1f}×  {beside}{row.runs[0].before:>7.3f}  {losses}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, help="default: 4000")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, action="append", help="this one; may be repeated")
    parser.add_argument("--spec", action="append")
    parser.add_argument("--only", action="store_true", help="no uncompressed run beside the specs")
    parser.add_argument("--adamw", type=float, metavar="RATE", help="AdamW instead of plain SGD")
    parser.add_argument("--survey", action="store_true")
    parser.add_argument("--adaptive", action="store_true")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--task", choices=["text", "digits"], action="append")
    parser.add_argument("--data", help="a text file, or a folder of them")
    parser.add_argument("--json", help="where rank 0 writes all runs, after each")
    parser.add_argument(
        "--merge", nargs="+", metavar="FILE", help="train nothing, take the runs of these files"
    )
    parser.add_argument("--html", help="a page with the table and pictures")
    parser.add_argument("--svg", help="a picture of loss against bytes")
    a = parser.parse_args()
    runs = merged(a.merge) if a.merge else train_all(a)
    if not runs:
        return
    if a.merge:
        save(runs, a.json)
    rows = rows_of(runs)
    report(rows)
    if a.html:
        pathlib.Path(a.html).write_text(page(rows), encoding="utf-8")
    if a.svg:
        pathlib.Path(a.svg).write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
