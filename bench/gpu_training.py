# SPDX-License-Identifier: Apache-2.0
"""DDP training of a GPT of 124 million parameters on GPUs: NCCL, NCCL with PyTorch's own hooks, and Pith over NCCL, side by side in one run.

    torchrun --nproc-per-node 8 bench/gpu_training.py                       # ranks with a GPU each
    bench/gpu_lab.sh 4 10gbit bench/gpu_training.py                         # ranks that share one GPU, each behind a link of its own

All ways train the same model on the same data and take turns, a few steps each. The figure is the time of a step on the slowest rank: the median
over rounds of their means, so that steps with and without an exchange both count. Update is what optimizer.step() takes of it on the device. Buffers are what Pith's own tensors take in a step at most, in % of the gradients' size; kept is what stays between steps (residuals, factors);
outside is what the device has less after the first step that torch does not know of, as the communicator of a second group of NCCL. With --data, batches are
of a text. With --settle STEPS, ways whose specs adapt train first, until their trials are over or for as many steps. With --excess STEPS, they
and all other ways of Pith then train for as many steps in a row: what these take beyond as many of the median, of all their time, is what steps cost that
are not like the others, as those in which gradients are measured, plans made and tried; that of specs that stay is the machine's own. A line says what
share of it is in the first two steps after a change of specs, in further steps of trials, and in others; --trace FILE has every step, and with
PITH_DEBUG=INFO what the planner did in it. With --loss STEPS, each way then trains from the same start for as
many steps on a text, and the losses at the end are compared. With --check as well, the means of every tenth step are compared with exact ones, and with
what the other ranks have. Specs with "over pith" go by Pith's own transport, through pinned memory; other words behind a spec only tell two ways apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import pith.torch
from pith.torch import _engine
from pith.torch._carrier import Side

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
import gpt  # noqa: E402

SYMBOLS = 50304
CHECK_PERIOD = 10  # exact means take longer than all the rest


def nothing(state, bucket):
    """Gradients stay where they are: what computing alone takes."""
    future = torch.futures.Future(devices=[bucket.buffer().device])
    future.set_result(bucket.buffer())
    return future


def powersgd(ddp: DistributedDataParallel, rank: int) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def ways(specs: list[str]) -> dict:
    """Name → what is done to the DDP model; gives what compresses it, if that is Pith."""
    found = {
        "NCCL fp32": lambda ddp, optimizer: None,
        "no exchange": lambda ddp, optimizer: ddp.register_comm_hook(None, nothing),
        "NCCL bf16 hook": lambda ddp, optimizer: ddp.register_comm_hook(
            None, default_hooks.bf16_compress_hook
        ),
        "NCCL PowerSGD hook 4": lambda ddp, optimizer: powersgd(ddp, 4),
    }
    for spec in specs:
        found[f"pith {spec}"] = lambda ddp, optimizer, spec=spec: pith.torch.compress(
            ddp, spec.split()[0], optimizer=optimizer
        )
    return found


def kept(saved) -> int:
    """Bytes of all tensors in a checkpoint: what Pith keeps between steps."""
    if isinstance(saved, torch.Tensor):
        return saved.numel() * saved.itemsize
    values = (
        saved.values()
        if isinstance(saved, dict)
        else saved
        if isinstance(saved, (list, tuple))
        else ()
    )
    return sum(kept(value) for value in values)


class WatchedSide(Side):
    """One that knows how much memory its reducer has taken: buffers, and what is kept between steps."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.taken: dict[int, int] = {}
        self._memory = self.cuda
        self.cuda = dataclasses.replace(self.cuda, allocate=self._allocate, release=self._release)

    def _allocate(self, size: int) -> int:
        memory = self._memory.allocate(size)
        self.taken[memory] = size
        return memory

    def _release(self, memory: int) -> None:
        self.taken.pop(memory)
        self._memory.release(memory)


_engine.Side = WatchedSide


def group_for(name: str):
    """The group of NCCL, or one of Pith's."""
    if not name.endswith("over pith"):
        return dist.group.WORLD
    if "pith" not in _groups:
        _groups["pith"] = dist.new_group(backend="pith")
    return _groups["pith"]


_groups: dict = {}


class Check:
    """The means that a hook makes, beside exact ones."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._errors: list[torch.Tensor] = []
        self._sums: list[torch.Tensor] = []
        self._step = 0
        self._register = model.register_comm_hook
        model.register_comm_hook = self._wrap

    def _wrap(self, state, hook) -> None:
        def checked(state, bucket):
            step = self._step
            self._step += bucket.is_last()
            if step % CHECK_PERIOD:
                return hook(state, bucket)
            own = bucket.buffer().clone()
            return hook(state, bucket).then(lambda future: self._compare(own, future.value()))

        self._register(state, checked)

    def _compare(self, exact: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        """When all means are under way: exchanges of two groups of NCCL at a time could wait for each other."""
        exact.record_stream(torch.cuda.current_stream())
        dist.all_reduce(exact, op=dist.ReduceOp.AVG)
        self._errors.append((mean - exact).norm() / exact.norm())
        self._sums.append(mean.view(torch.int32).sum(dtype=torch.int64))
        return mean

    def report(self, name: str) -> None:
        """All ranks call it; the first one prints."""
        errors, sums = torch.stack(self._errors).sort().values, torch.stack(self._sums)
        others = torch.stack([sums, -sums])
        dist.all_reduce(others, op=dist.ReduceOp.MAX)
        differ = int((others[0] != -others[1]).sum())
        least, middle, most = (errors[int(at * (errors.numel() - 1))].item() for at in (0, 0.5, 1))
        if dist.get_rank() == 0:
            print(
                f"{name}: relative errors of {errors.numel()} buckets from {least:.4f} to {most:.4f}, median {middle:.4f}; "
                f"{differ} of them differ between ranks",
                file=sys.stderr,
            )


def make_model(a: argparse.Namespace) -> gpt.GPT:
    torch.manual_seed(1)
    model = gpt.GPT(SYMBOLS, a.width, a.layers, a.width // 64, a.context)
    model.head.weight = model.token.weight
    return model.cuda()


def source_of(a: argparse.Namespace):
    """Batches: of a text, or one of random symbols again and again."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    if a.data:
        text = torch.tensor(list(gpt.read_text(a.data).encode()))
        for x, y in gpt.batches(text, a.batch, a.context, generator):
            yield x.cuda(), y.cuda()
    window = torch.randint(SYMBOLS, (a.batch, a.context + 1), generator=generator).cuda()
    while True:
        yield window[:, :-1], window[:, 1:]


class Way:
    """One model in training, and how long its steps took."""

    def __init__(self, name: str, prepare, a: argparse.Namespace) -> None:
        self.name, self.times, self.loss, self.seconds = name, [], float("nan"), 0.0
        self.updates: list[float] = []
        self.settled, self.settling, self.excess = 0, 0.0, math.nan
        self.trace: list[tuple[float, str, str]] = []  # seconds, kind and reason of every step
        self.source = source_of(a)
        model = make_model(a)
        self.parameters, self.memory, self.kept, self.outside = (
            sum(p.numel() for p in model.parameters()),
            0,
            0,
            0.0,
        )
        # All ranks have the same seed: there is nothing to send at the start.
        self.model = DistributedDataParallel(
            model, process_group=group_for(name), gradient_as_bucket_view=True, init_sync=False
        )
        self.check = Check(self.model) if a.check else None
        self.before, self.after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.accumulate, kind = (
            a.accumulate,
            torch.optim.AdamW if a.optimizer == "adamw" else torch.optim.SGD,
        )
        self.optimizer = kind(
            self.model.parameters(),
            lr=a.lr or (3e-4 if a.optimizer == "adamw" else 0.05),
            fused=True,
        )
        self.compressor = prepare(self.model, self.optimizer)

    def backward(self, batch) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = gpt.loss_of(self.model, batch)
        loss.backward()
        return loss.detach()

    def step(self, batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        with self.model.no_sync():
            for _ in range(self.accumulate - 1):
                self.backward(batch)
        loss = self.backward(batch)
        self.before.record()
        self.optimizer.step()
        self.after.record()
        return loss

    def measure_memory(self) -> None:
        """What has been taken so far is what steps need: buffers stay for the next one."""
        if self.compressor is None:
            return
        self.kept = kept(self.compressor.state_dict())
        taken = self.compressor._reduction.engine._side.taken
        self.memory = sum(taken.values()) - self.kept

    def run(self, steps: int, timed: bool) -> list[float]:
        times = []
        for _ in range(steps):
            batch = next(self.source)
            dist.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            self.step(batch)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            if timed:
                self.updates.append(self.before.elapsed_time(self.after))
        if timed:
            self.times.append(statistics.mean(times))
        return times

    def reason(self) -> str:
        """Why the largest layer has its spec, if specs adapt. (The table of stats() would have the next step measure errors.)"""
        if self.compressor is None:
            return ""
        layer = max(self.compressor.layers, key=lambda layer: layer.n)
        adapts = (
            "since step" in layer.reason or "warm-up" in layer.reason or "trial" in layer.reason
        )
        return layer.reason if adapts else ""

    def settle(self, most: int) -> None:
        """Until the trials of an adaptive spec are over. All ranks see the same reasons."""
        while self.settled < most and self.reason() and "since step" not in self.reason():
            self.settling += sum(self.run(1, timed=False))
            self.settled += 1

    def measure_excess(self, steps: int) -> None:
        """What steps in a row take beyond their median, and which of them."""
        since = 2
        for _ in range(steps):
            reason = self.reason()
            (seconds,) = self.run(1, timed=False)
            kind = "change" if since < 2 else "trial" if "trial" in reason else "other"
            self.trace.append((seconds, kind, reason))
            since = since + 1 if self.reason() == reason else 0
        self.excess = sum(self.shares().values())

    def shares(self) -> dict[str, float]:
        """Of each kind of steps: what they take beyond the median of all, of the time of all."""
        times = [seconds for seconds, _, _ in self.trace]
        median, total = statistics.median(times), sum(times)
        return {
            kind: sum(seconds - median for seconds, k, _ in self.trace if k == kind) / total
            for kind in ("change", "trial", "other")
        }

    def tell_excess(self) -> None:
        median = 1e3 * statistics.median(seconds for seconds, _, _ in self.trace)
        counts = {kind: sum(k == kind for _, k, _ in self.trace) for kind in self.shares()}
        parts = ", ".join(
            f"{100 * share:.2f}% in {counts[kind]} steps ({kind})"
            for kind, share in self.shares().items()
        )
        print(
            f"# {self.name}: {len(self.trace)} steps, median {median:.1f} ms, {100 * self.excess:.2f}% of their time beyond it: {parts}"
        )
        if self.settled:
            print(
                f"# before that {self.settled} steps of warm-up and trials in {self.settling:.1f} s"
            )


def slowest(seconds: float) -> float:
    value = torch.tensor([seconds], dtype=torch.float64, device="cuda")
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def train(way: Way, text: torch.Tensor, a: argparse.Namespace) -> None:
    """From the start, on a text; the mean loss of the last tenth of the steps, over ranks. The rate rises for a tenth of the steps and then falls to
    nothing: with a constant one, when a run leaves the first plateau is a matter of luck, and losses differ by more than methods do."""
    source = gpt.batches(text, a.batch, a.context, torch.Generator().manual_seed(dist.get_rank()))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        way.optimizer,
        lambda step: min((step + 1) / (0.1 * a.loss), (a.loss - step) / (0.9 * a.loss)),
    )
    losses = []
    for _, (x, y) in zip(range(a.loss), source, strict=False):
        losses.append(way.step((x.cuda(), y.cuda())))
        schedule.step()
    means = torch.stack([tenth.mean() for tenth in torch.stack(losses).tensor_split(10)])
    dist.all_reduce(means, op=dist.ReduceOp.AVG)
    way.loss = means[-1].item()
    if dist.get_rank() == 0:
        print(
            f"{way.name}: losses of tenths {' '.join(f'{loss:.3f}' for loss in means.tolist())}",
            file=sys.stderr,
        )
    if way.check is not None and way.compressor is not None:
        way.check.report(way.name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8, help="samples on each rank")
    parser.add_argument("--accumulate", type=int, default=1, help="as many batches to a step")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--lr", type=float, help="0.05 for sgd, 0.0003 for adamw")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="in each round")
    parser.add_argument(
        "--spec",
        action="append",
        help='q:4, ef/powersgd:4 and ef/topk:0.01 if none is given; also as "q:4 over pith"',
    )
    parser.add_argument(
        "--only",
        action="append",
        help="the ways whose names contain this; NCCL fp32 is always there",
    )
    parser.add_argument(
        "--no-baseline",
        action="store_true",
        help="NCCL fp32 is not there, as on links where its steps take seconds: the first of --only or --spec is in its place",
    )
    parser.add_argument("--settle", type=int, default=0, metavar="STEPS")
    parser.add_argument("--excess", type=int, default=0, metavar="STEPS")
    parser.add_argument("--trace", metavar="FILE", help="the steps of --excess, a line for each")
    parser.add_argument("--loss", type=int, default=0, metavar="STEPS")
    parser.add_argument(
        "--check", action="store_true", help="compare means of the steps of --loss with exact ones"
    )
    parser.add_argument("--data", help="a text file, or a folder of them")
    a = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    if a.no_baseline and not a.only:
        a.only = ["pith"]
    chosen = {
        name: prepare
        for name, prepare in ways(a.spec or ["q:4", "ef/powersgd:4", "ef/topk:0.01"]).items()
        if any(part in name for part in a.only or [""])
        or (name == "NCCL fp32" and not a.no_baseline)
    }
    running = [made(name, prepare, a) for name, prepare in chosen.items()]
    for way in running:
        way.settle(a.settle)
        if dist.get_rank() == 0 and way.reason():
            print(f"{way.name}: {way.reason()}", file=sys.stderr, flush=True)
    for turn in range(a.rounds + 1):
        for way in running:
            way.run(a.steps, timed=turn > 0)
            if dist.get_rank() == 0:
                print(
                    f"\rround {turn}/{a.rounds} {way.name:<24}", end="", file=sys.stderr, flush=True
                )
    for way in running:
        way.measure_memory()
        if a.excess and way.compressor is not None:
            way.measure_excess(a.excess)
            if dist.get_rank() == 0:
                way.tell_excess()
                write_trace(way, a.trace)
    if a.loss:
        text = torch.tensor(list(gpt.read_text(a.data).encode()))
        names = [way for way in running if way.name != "no exchange"]
        running = [
            train_afresh(way, chosen[way.name], text, a) if way in names else way for way in running
        ]
    for way in running:
        way.seconds = slowest(statistics.median(way.times)) if way.times else float("nan")
    if dist.get_rank() == 0:
        report(running, a)
    dist.destroy_process_group()


def write_trace(way: Way, path: str | None) -> None:
    if path:
        with open(path, "a") as file:
            for number, (seconds, kind, reason) in enumerate(way.trace):
                file.write(f"{way.name}\t{number}\t{1e3 * seconds:.2f}\t{kind}\t{reason}\n")


def made(name: str, prepare, a: argparse.Namespace) -> Way:
    """A way after its first step, and what that took of the device's memory besides torch's own."""
    before = outside()
    way = Way(name, prepare, a)
    way.run(1, timed=False)
    way.outside = outside() - before
    return way


def outside() -> float:
    """Bytes in use on the device that torch has not reserved, a rank's share of them."""
    torch.cuda.synchronize()
    dist.barrier()
    free, total = torch.cuda.mem_get_info()
    reserved = torch.tensor([float(torch.cuda.memory_reserved())], device="cuda")
    dist.all_reduce(reserved)
    return (total - free - reserved.item()) / dist.get_world_size()


def train_afresh(old: Way, prepare, text: torch.Tensor, a: argparse.Namespace) -> Way:
    way = Way(old.name, prepare, a)
    way.times, way.updates = old.times, old.updates
    way.memory, way.kept, way.outside = old.memory, old.kept, old.outside
    way.excess, way.trace = old.excess, old.trace
    begun = time.perf_counter()
    train(way, text, a)
    if dist.get_rank() == 0:
        print(
            f"{way.name}: a loss of {way.loss:.4f} after {a.loss} steps, {time.perf_counter() - begun:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return way


def report(running: list[Way], a: argparse.Namespace) -> None:
    base, gradients = running[0], 4 * running[0].parameters
    print(
        f"\r# {base.parameters / 1e6:.1f} million parameters, {dist.get_world_size()} ranks, {a.accumulate} × {a.batch} × {a.context} tokens on each"
    )
    print(
        f"{'way':<36}{'ms a step':>11}{'× the first':>13}{'update':>9}{'buffers':>9}{'kept':>9}{'outside':>9}{'excess':>9}{'loss':>9}{'× first':>9}"
    )
    for way in running:
        buffers, kept_, more = (
            100 * size / gradients for size in (way.memory, way.kept, way.outside)
        )
        print(
            f"{way.name:<36}{1e3 * way.seconds:>11.1f}{base.seconds / way.seconds:>13.2f}{statistics.median(way.updates or [math.nan]):>9.2f}{buffers:>8.1f}%{kept_:>8.1f}%{more:>8.1f}%{100 * way.excess:>8.1f}%"
            f"{way.loss:>9.4f}{way.loss / base.loss:>9.4f}"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
