# SPDX-License-Identifier: Apache-2.0
"""Does strong compression keep the loss of AdamW? A GPT on bytes, an LSTM on words and a CNN on digits, several seeds, beside exact AdamW.

    pith run --no-prefix -n 4 -- python bench/adam.py --task digits                      # on CPUs, in minutes
    pith run --no-prefix -n 4 -- python bench/adam.py --small                            # all three tasks, with small models
    bench/gpu_lab.sh 4 none bench/adam.py --data shared/data                             # four ranks that share a GPU
    bench/gpu_lab.sh 4 none bench/adam.py --task gpt124 --steps 1500 --data texts        # a GPT of 124 million parameters
    python bench/adam.py --merge gpt.json lstm.json                                      # runs of several files in one table

First exact AdamW is trained at several learning rates (seed 1); all methods then have its best one. All runs of a seed start from the
same weights and see the same batches. Exact runs need no exchange: each is made by one rank, with the batches of all of them, and ranks share
the runs out. Rates rise for a tenth of the steps and fall with a cosine to a tenth. The loss is that of held-out samples
after the last step, and the ratio the geometric mean over seeds of loss / exact loss. Bytes are those of gradients or momentum that a rank
sends in a step, as bits for each value of an allreduce; those of the warm-up count. "frozen" is the step from which the variance is.
"""

from __future__ import annotations

import argparse
import collections
import json
import lzma
import math
import os
import pathlib
import re
import statistics
import sys
import time
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import pith.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import digits  # noqa: E402
import gpt  # noqa: E402

SPECS = [
    "moment,freeze=F/onebit",
    "moment:4,freeze=F/onebit",
    "moment,freeze=F/topk:0.05",
    "moment:8,freeze=F/onebit",
    "moment,freeze=F/powersgd:16",
    "onebit",
    "ef/topk:0.05",
]


# ---- Tasks


def read(path: str | None) -> str:
    """Text files of a folder, packed ones too; Python's manual pages without a folder."""
    folder = pathlib.Path(path) if path else None
    if folder is None or not folder.is_dir():
        return gpt.read_text(path)
    packed = [
        lzma.open(file, "rt", encoding="utf-8").read() for file in sorted(folder.rglob("*.xz"))
    ]
    return "\n".join([gpt.read_text(path), *packed])


class Bytes:
    """A GPT of 10.7 million parameters on bytes."""

    name, betas, rates = "gpt", (0.9, 0.95), (5e-4, 1e-3, 2e-3)

    def __init__(self, a: argparse.Namespace) -> None:
        encoded = torch.tensor(list(read(a.data).encode()))
        cut = len(encoded) - len(encoded) // 20
        self.small, self.text, self.held_out = a.small, encoded[:cut], encoded[cut:]
        self.width, self.layers, self.context = (64, 2, 64) if a.small else (384, 6, 128)

    def model(self) -> torch.nn.Module:
        return gpt.GPT(256, self.width, self.layers, max(1, self.width // 64), self.context)

    def batches(self, generator: torch.Generator):
        return gpt.batches(self.text, 8, self.context, generator)

    def samples(self):
        count, context = 8192 // self.context, self.context
        source = gpt.batches(self.held_out, count, context, torch.Generator().manual_seed(7))
        return [next(source) for _ in range(8)]

    loss_of = staticmethod(gpt.loss_of)


class LargeBytes(Bytes):
    """A GPT of 124 million parameters, as in bench/gpu_training.py; only if it is asked for."""

    name, rates = "gpt124", (6e-4,)

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__(a)
        self.width, self.layers, self.context = 768, 12, 512

    def model(self) -> torch.nn.Module:
        model = gpt.GPT(50304, self.width, self.layers, self.width // 64, self.context)
        model.head.weight = model.token.weight
        return model

    @staticmethod
    def loss_of(model: torch.nn.Module, batch) -> torch.Tensor:
        with torch.autocast(batch[0].device.type, torch.bfloat16):
            return gpt.loss_of(model, batch)


class Words(torch.nn.Module):
    def __init__(self, words: int, width: int, hidden: int) -> None:
        super().__init__()
        self.word = torch.nn.Embedding(words, width)
        self.lstm = torch.nn.LSTM(width, hidden, 2, batch_first=True)
        self.out = torch.nn.Linear(hidden, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.word(x))[0])


class Sentences(Bytes):
    """An LSTM of two layers on the words that are most frequent."""

    name, betas, rates = "lstm", (0.9, 0.99), (2e-3, 4e-3, 8e-3, 16e-3)

    def __init__(self, a: argparse.Namespace) -> None:
        words = re.findall(r"\w+|[^\w\s]", read(a.data).lower())
        self.words, self.width, self.hidden = (8000, 64, 64) if a.small else (8000, 256, 512)
        known = [w for w, _ in collections.Counter(words).most_common(self.words - 1)]
        number = {word: i + 1 for i, word in enumerate(known)}
        encoded = torch.tensor([number.get(word, 0) for word in words])
        cut = len(encoded) - len(encoded) // 20
        self.text, self.held_out, self.context = encoded[:cut], encoded[cut:], 32

    def model(self) -> torch.nn.Module:
        return Words(self.words, self.width, self.hidden)


class Digits:
    """A CNN on handwritten digits. Smoothed labels: a loss near zero would make a ratio of nothing but noise."""

    name, betas, rates = "digits", (0.9, 0.99), (1e-3, 2e-3, 4e-3, 8e-3)

    def __init__(self, a: argparse.Namespace) -> None:
        x, y = digits.read_digits()
        held_out = len(x) // 5
        self.train, self.held_out = (x[held_out:], y[held_out:]), (x[:held_out], y[:held_out])
        self.width = 128 if a.small else 512

    def model(self) -> torch.nn.Module:
        return digits.make_model(self.width)

    def batches(self, generator: torch.Generator):
        return digits.batches(*self.train, 16, generator)

    def samples(self):
        return [self.held_out]

    @staticmethod
    def loss_of(model: torch.nn.Module, batch) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(model(x), y, label_smoothing=0.1)


# ---- Runs


@dataclass
class Run:
    """One training, the same on all ranks."""

    task: str
    spec: str
    rate: float
    seed: int
    steps: int
    ranks: int
    loss: float  # of held-out samples
    bits: float  # for each value of an allreduce, in a step
    frozen: str
    seconds: float


def train(task, spec: str, rate: float, seed: int, a: argparse.Namespace) -> Run:
    """By all ranks together."""
    started, ranks = time.perf_counter(), dist.get_world_size()
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.model().to(a.device), init_sync=False)
    optimizer = adamw(task, model, rate, a)
    handle = pith.torch.compress(model, spec, optimizer=optimizer, seed=seed, steps=a.steps)
    fit(task, model, optimizer, source_of(task, seed, dist.get_rank()), spec, a)
    table = handle.stats()
    values = sum(layer.n for layer in table)
    bits = 8 * table.wire_bytes / (a.steps * values * 2 * (ranks - 1) / ranks)
    loss, frozen = held_out_loss(task, model.module, a), ""
    if table.moments is not None:
        frozen = table.moments.phase
    mean = torch.tensor([loss], dtype=torch.float64, device=a.device)
    dist.all_reduce(mean)  # they may be between two common steps
    loss = mean.item() / ranks
    return Run(
        *(task.name, spec, rate, seed, a.steps, ranks, loss, bits, frozen),
        time.perf_counter() - started,
    )


def train_exactly(task, rate: float, seed: int, a: argparse.Namespace) -> Run:
    """By this rank alone."""
    started, ranks = time.perf_counter(), dist.get_world_size()
    torch.manual_seed(seed)
    model = task.model().to(a.device)
    sources = [source_of(task, seed, rank) for rank in range(ranks)]
    batches = (
        tuple(torch.cat(parts) for parts in zip(*each, strict=True))
        for each in zip(*sources, strict=True)
    )
    fit(task, model, adamw(task, model, rate, a), batches, "exact", a)
    return Run(
        *(task.name, "none", rate, seed, a.steps, ranks, held_out_loss(task, model, a), 32.0, ""),
        time.perf_counter() - started,
    )


def adamw(task, model: torch.nn.Module, rate: float, a: argparse.Namespace) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=task.betas, fused=a.fused)


def source_of(task, seed: int, rank: int):
    return task.batches(torch.Generator().manual_seed(1000 * seed + rank))


def fit(task, model: torch.nn.Module, optimizer, source, name: str, a: argparse.Namespace) -> None:
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_at((step + 1) / a.steps)
    )
    for step, batch in zip(range(a.steps), source, strict=False):
        optimizer.zero_grad()
        task.loss_of(model, tuple(part.to(a.device) for part in batch)).backward()
        if a.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), a.clip)
        optimizer.step()
        schedule.step()
        if dist.get_rank() == 0 and (step + 1) % 100 == 0:
            print(f"\r{task.name} {name} {step + 1}/{a.steps} ", end="", file=sys.stderr)


def rate_at(share: float) -> float:
    """Of the run's highest rate."""
    return share / 0.1 if share < 0.1 else 0.55 + 0.45 * math.cos(math.pi * (share - 0.1) / 0.9)


def held_out_loss(task, model: torch.nn.Module, a: argparse.Namespace) -> float:
    with torch.no_grad():
        losses = [
            task.loss_of(model, tuple(part.to(a.device) for part in batch))
            for batch in task.samples()
        ]
    return torch.stack(losses).mean().item()


def found_in(
    runs: list[Run], task, spec: str, rate: float, seed: int, a: argparse.Namespace
) -> list[Run]:
    """The run, if it is there already."""
    wanted = (task.name, spec, rate, seed, a.steps)
    return [r for r in runs if (r.task, r.spec, r.rate, r.seed, r.steps) == wanted]


def exact_runs(
    task, pairs: list[tuple[float, int]], runs: list[Run], a: argparse.Namespace
) -> list[Run]:
    """Rates and seeds of exact AdamW, shared out between the ranks."""
    there = [run for pair in pairs for run in found_in(runs, task, "none", *pair, a)]
    wanted = [pair for pair in pairs if pair not in {(run.rate, run.seed) for run in there}]
    mine = wanted[dist.get_rank() :: dist.get_world_size()]
    made = [train_exactly(task, rate, seed, a) for rate, seed in mine]
    found: list[list[Run]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, made, group=a.waiting)
    fresh = sorted(
        (run for part in found for run in part), key=lambda run: wanted.index((run.rate, run.seed))
    )
    for run in fresh:
        note(runs, run, a)
    return there + fresh


def best_rate(task, runs: list[Run], a: argparse.Namespace) -> float:
    """Exact AdamW at several rates; the one that ends lowest. Then with all seeds at that."""
    seeds, rates = a.seed or [1, 2, 3], [a.rate] if a.rate else list(task.rates)
    tried = exact_runs(task, [(rate, seeds[0]) for rate in rates], runs, a)
    best = min(tried, key=lambda run: run.loss).rate
    exact_runs(task, [(best, seed) for seed in seeds[1:]], runs, a)
    return best


def note(runs: list[Run], run: Run, a: argparse.Namespace) -> Run:
    """Rank 0 writes the file after every run, so that an end before the end loses little."""
    runs.append(run)
    if dist.get_rank() == 0:
        print(
            f"\r{run.task}: {run.spec}, rate {run.rate:g}, seed {run.seed}: {run.loss:.4f}, {run.bits:.3f} bits, {run.frozen}, {run.seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        if a.json:
            with open(f"{a.json}.new", "w", encoding="utf-8") as file:
                json.dump([asdict(each) for each in runs], file)
            os.replace(f"{a.json}.new", a.json)
    return run


def train_all(a: argparse.Namespace) -> list[Run]:
    file = pathlib.Path(a.json or "")
    runs = [Run(**run) for run in json.loads(file.read_text())] if file.is_file() else []
    dist.barrier(group=a.waiting)  # before rank 0 writes it
    usual = [Bytes, Sentences, Digits]
    for kind in [kind for kind in [*usual, LargeBytes] if kind.name in (a.task or [k.name for k in usual])]:  # fmt: skip
        task = kind(a)
        rate = best_rate(task, runs, a)
        for spec in [] if a.exact else a.spec or SPECS:
            for seed in a.seed or [1, 2, 3]:
                text = spec.replace("freeze=F", f"freeze={a.freeze}")
                if not found_in(runs, task, text, rate, seed, a):
                    note(runs, train(task, text, rate, seed, a), a)
    return runs


def report(runs: list[Run]) -> None:
    """A table for each task; exact runs at other rates than the best below it."""
    for task in dict.fromkeys(run.task for run in runs):
        mine = [run for run in runs if run.task == task]
        rate = min((run for run in mine if run.spec == "none"), key=lambda run: run.loss).rate
        exact = {run.seed: run.loss for run in mine if run.spec == "none" and run.rate == rate}
        print(f"\n{task}: {mine[0].steps} steps, {mine[0].ranks} ranks, AdamW at {rate:g}")
        print(f"{'spec':<44}{'bits':>8}{'× exact':>9}  losses; the variance")
        for spec in dict.fromkeys(run.spec for run in mine):
            found = [
                run for run in mine if run.spec == spec and run.rate == rate and run.seed in exact
            ]
            if not found:
                continue
            ratio = math.exp(statistics.mean(math.log(run.loss / exact[run.seed]) for run in found))
            losses = " ".join(f"{run.loss:.4f}" for run in found)
            bits = statistics.mean(run.bits for run in found)
            print(f"{spec:<44}{bits:>8.3f}{ratio:>9.4f}  {losses}; {found[0].frozen}")
        others = [run for run in mine if run.spec == "none" and run.rate != rate]
        print(
            "exact at other rates: "
            + ", ".join(f"{run.loss:.4f} at {run.rate:g}" for run in others)
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", action="append", choices=["gpt", "lstm", "digits", "gpt124"])
    parser.add_argument(
        "--spec",
        action="append",
        help="in place of those that are usually compared; freeze=F is that of --freeze",
    )
    parser.add_argument("--exact", action="store_true", help="only exact runs: which rate is best?")
    parser.add_argument("--freeze", default="0.25", help="auto, a share of the run, or a step")
    parser.add_argument(
        "--rate", type=float, help="the learning rate, in place of the best of some"
    )
    parser.add_argument("--clip", type=float, default=0.0, help="clip_grad_norm_ with this norm")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, action="append", help="1, 2 and 3 if none is given")
    parser.add_argument("--small", action="store_true", help="small models, for CPUs")
    parser.add_argument("--fused", action="store_true", help="torch's fused AdamW")
    parser.add_argument("--data", help="a text file, or a folder of them")
    parser.add_argument("--json", help="a file for the runs; those in it are not made again")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="only print runs of these files")
    a = parser.parse_args()
    if a.merge:
        texts = [pathlib.Path(path).read_text(encoding="utf-8") for path in a.merge]
        return report([Run(**entry) for text in texts for entry in json.loads(text)])
    a.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    if a.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("nccl" if a.device == "cuda" else "pith")
    a.waiting = dist.new_group(backend="pith")  # does not keep the GPU busy
    runs = train_all(a)
    if dist.get_rank() == 0:
        report(runs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
