# SPDX-License-Identifier: Apache-2.0
"""One rank of a job: trains what the driver hands out, one run after the other.

Runs of a job share its processes, so that starting Python is paid once. Rank 0 asks the driver for a run by a socket and sends back what came of it; the
others read the run from a file. A run that fails in the same way on all ranks, or diverges, has a result too; one that breaks the connection between
ranks ends the job, and the driver notes that and starts another one.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pith.torch

from .grid import SPEED, usual_backend
from .tasks import Task, task_of
from .ways import LOCAL, Groups, distributed, is_rival, prepare

_WARM_STEPS = 5  # that the time of a step leaves out
_NAP = 0.005  # seconds between two looks at whether there is a run to do


class Diverged(Exception):
    """The loss is no number any more, on all ranks."""


# ---- What is measured ------------------------------------------------------------------------------------------------


def _link_bytes() -> int | None:
    """What this host has sent over its network, where it is a host of its own: in the namespaces of a lab."""
    if not os.environ.get("PITH_IFNAME"):
        return None
    total = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo":
            total += int(numbers.split()[8])
    return total


def _forget_peak() -> None:
    """The peak of this process's memory is from now on, and what earlier runs have freed belongs to no run."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def _peak_memory() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _coded(group: Any) -> tuple[float, float]:
    """Seconds that the comm has encoded and decoded, so far."""
    comm = getattr(group, "comm", None)
    if comm is None:
        return 0.0, 0.0
    stats = comm.stats
    return stats.encode, stats.decode


# ---- A run -----------------------------------------------------------------------------------------------------------


class Run:
    """One training."""

    def __init__(self, cell: dict[str, Any], task: Task, group: Any, device: torch.device) -> None:
        self.cell, self.task, self.group, self.device = cell, task, group, device
        self.steps = int(cell["steps"])
        self.rate = float(cell["rate"])
        torch.manual_seed(cell["seed"])
        self.model = distributed(task.model().to(device), cell["spec"], group)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.optimizer = self._optimizer()
        self.handle = prepare(
            self.model, cell["spec"], group, self.optimizer, cell["seed"], self.steps
        )
        self.curve: list[tuple[int, float, float, float]] = []  # step, seconds, loss, metric
        self.seconds = 0.0
        self.times: list[float] = []

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.cell["optimizer"] == "adamw":
            return torch.optim.AdamW(self.model.parameters(), lr=self.rate, betas=(0.9, 0.95))
        return torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=0.9)

    def _set_rate(self, step: int) -> None:
        """Rises for a twentieth of the run, and falls to nothing over its second half."""
        rises = (step + 1) / max(1.0, 0.05 * self.steps)
        falls = (self.steps - step) / (0.5 * self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, rises, falls)

    def _look(self, step: int, loss: float) -> None:
        """Loss and metric now, each rank a part of the held-out samples; the clock of the run stands still meanwhile."""
        sums = [loss, 0.0, 0.0]
        if math.isfinite(loss):
            part = slice(dist.get_rank(), None, dist.get_world_size())
            self.model.eval()
            with torch.no_grad():
                sums[1:] = self.task.score(self.model.module, part)
            self.model.train()
        total = torch.tensor(sums, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=self.group)
        loss, *score = total.tolist()
        loss /= dist.get_world_size()
        metric = self.task.metric_of(*score) if math.isfinite(loss) else math.nan
        self.curve.append((step, round(self.seconds, 4), loss, metric))
        if not math.isfinite(loss) and self.cell["spec"] != LOCAL:
            raise Diverged(f"the loss is {loss} after {step} steps")
        dist.barrier(self.group)

    def _finish_step(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def train(self) -> None:
        source = torch.Generator().manual_seed(1000 * self.cell["seed"] + dist.get_rank())
        batches = self.task.batches(source)
        looks = self.cell["looks"]
        marks = {round(self.steps * i / looks) for i in range(1, looks + 1)}
        last: list[float] = []
        for step in range(self.steps):
            batch = next(batches)
            self._set_rate(step)
            start = time.perf_counter()
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.task.loss(self.model, batch)
            loss.backward()
            self.optimizer.step()
            self._finish_step()
            took = time.perf_counter() - start
            self.seconds += took
            last.append(loss.item())
            if step >= min(_WARM_STEPS, self.steps - 1):
                self.times.append(took)
            if step + 1 in marks:
                self._look(step + 1, sum(last) / len(last))
                last.clear()


def _measured(run: Run, before: dict[str, Any]) -> dict[str, Any]:
    """What a run gave, beyond its curve."""
    steps, ranks = len(run.times) + _WARM_STEPS, dist.get_world_size()
    encode, decode = _coded(run.group)
    link = _link_bytes()
    raw = sum(p.numel() * p.element_size() for p in run.model.parameters())
    found = {
        "step": statistics.median(run.times),
        "late_step": statistics.median(run.times[-max(1, len(run.times) // 4) :]),
        "throughput": run.task.batch * ranks / statistics.median(run.times),
        "encode": (encode - before["coded"][0]) / steps,
        "decode": (decode - before["coded"][1]) / steps,
        "coded_known": hasattr(run.group, "comm") and not is_rival(run.cell["spec"]),
        "raw_bytes": raw,
        "wire_bytes": None,
        "link_bytes": None if link is None else (link - before["link"]) / steps,
        "memory": _peak_memory() - before["memory"],
    }
    if run.handle is not None:
        table = run.handle.stats()
        found["wire_bytes"] = table.wire_bytes / max(1, steps)
        found["specs"] = sorted({layer.spec for layer in table})
    if run.device.type == "cuda":
        found["memory"] = torch.cuda.max_memory_allocated(run.device)
    return found


def carry_out(cell: dict[str, Any], task: Task, group: Any, device: torch.device) -> dict[str, Any]:
    """Trains; what came of it, on this rank."""
    _forget_peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    before = {"coded": _coded(group), "link": _link_bytes() or 0, "memory": _memory()}
    result: dict[str, Any] = {"status": "ok", "error": ""}
    run = None
    try:
        run = Run(cell, task, group, device)
        run.train()
    except Diverged as error:
        result = {"status": "diverged", "error": str(error)}
    except (pith.ArgumentError, pith.SpecError, pith.RangeError, pith.UnsupportedError) as error:
        result = {"status": "failed", "error": str(error)}  # before the first step, on all ranks
    if run is not None:
        result |= _measured(run, before) if run.times else {}
        result |= {
            "parameters": run.parameters,
            "seconds": run.seconds,
            "curve": run.curve,
            "metric": run.curve[-1][3] if run.curve else math.nan,
            "loss": run.curve[-1][2] if run.curve else math.nan,
        }
        if run.handle is not None:
            run.handle.remove()
        del run
    return result


# ---- Speed, in turns -------------------------------------------------------------------------------------------------


class Turns:
    """One method of a run of phase speed."""

    def __init__(self, cell: dict[str, Any], task: Task, group: Any, device: torch.device) -> None:
        self._run = Run(cell, task, group, device)
        self._batches = task.batches(torch.Generator().manual_seed(dist.get_rank()))
        self._task, self._sums = task, [0.0, 0.0, 0.0]
        self.times: list[float] = []

    def take(self, steps: int, warm: bool) -> None:
        """Some steps; all ranks begin at the same time."""
        run = self._run
        run._set_rate(run.steps // 4)
        dist.barrier(run.group)
        before = (*_coded(run.group), float(_link_bytes() or 0))
        for _ in range(steps):
            batch = next(self._batches)
            start = time.perf_counter()
            run.optimizer.zero_grad(set_to_none=True)
            self._task.loss(run.model, batch).backward()
            run.optimizer.step()
            run._finish_step()
            if not warm:
                self.times.append(time.perf_counter() - start)
        after = (*_coded(run.group), float(_link_bytes() or 0))
        if not warm:
            self._sums = [s + b - a for s, a, b in zip(self._sums, before, after, strict=True)]

    def result(self) -> dict[str, Any]:
        run, steps = self._run, len(self.times)
        quarters = statistics.quantiles(self.times, n=4)
        encode, decode, link = (value / steps for value in self._sums)
        found = {
            "step": statistics.median(self.times),
            "low": quarters[0],
            "high": quarters[2],
            "encode": encode,
            "decode": decode,
            "coded_known": hasattr(run.group, "comm") and not is_rival(run.cell["spec"]),
            "link_bytes": None if _link_bytes() is None else link,
            "wire_bytes": None,
        }
        if run.handle is not None:
            table = run.handle.stats()
            found["wire_bytes"] = table.wire_bytes / max(1, table[0].steps)
            run.handle.remove()
        return found


def take_turns(cell: dict[str, Any], task: Task, groups: Groups, device: Any) -> dict[str, Any]:
    """All methods of a cell of phase speed."""
    ways: dict[str, Turns] = {}
    found: dict[str, Any] = {}
    for way in cell["ways"]:
        try:
            ways[way["label"]] = Turns(cell | way, task, groups.get(way["backend"]), device)
        except Exception as broken:  # on all ranks; else their next barrier ends the job
            found[way["label"]] = {"error": str(broken)}
    each = cell["steps"] // cell["turns"]
    for turn in range(cell["turns"] + 1):
        for label, way in list(ways.items()):
            try:
                way.take(each, warm=turn == 0)
            except Exception as broken:  # likewise
                found[label] = {"error": str(broken)}
                del ways[label]
    found |= {label: way.result() for label, way in ways.items()}
    return {"status": "ok", "error": "", "ways": found}


# ---- Log lines in the manner of MLPerf -------------------------------------------------------------------------------


def log_lines(cell: dict[str, Any], result: dict[str, Any], began: float) -> list[str]:
    """One ``:::MLLOG`` line for each event."""

    def line(key: str, value: Any, at: float, kind: str = "POINT_IN_TIME", **more: Any) -> str:
        entry = {
            "namespace": "pith",
            "time_ms": round(1000 * at),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": more,
        }
        return ":::MLLOG " + json.dumps(entry)

    names = ("task", "spec", "backend", "link", "ranks", "seed", "optimizer", "phase")
    lines = [line(f"submission_{name}", cell[name], began) for name in names]
    lines += [
        line("opt_base_learning_rate", cell["rate"], began),
        line("global_batch_size", cell["batch"] * cell["ranks"], began),
        line("run_start", None, began, "INTERVAL_START"),
    ]
    for step, seconds, loss, metric in result.get("curve", ()):
        lines.append(line("train_loss", loss, began + seconds, step_num=step))
        lines.append(line("eval_accuracy", metric, began + seconds, step_num=step))
    end = began + result.get("seconds", 0.0)
    status = "success" if result["status"] == "ok" else "aborted"
    return [*lines, line("run_stop", None, end, "INTERVAL_END", status=status)]


# ---- The job ---------------------------------------------------------------------------------------------------------


def _device(kind: str) -> torch.device:
    if kind != "cuda":
        return torch.device("cpu")
    torch.set_float32_matmul_precision("high")
    local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _take_cores(rank: int, ranks: int, timed: bool) -> int:
    """Gives how many of the job's cores there are for each rank; where runs are timed, this one takes its own."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // ranks
    if each and timed:
        os.sched_setaffinity(0, cores[rank * each : (rank + 1) * each])
    return max(1, each)


class Errand:
    """What there is to do: rank 0 asks the driver, and writes it down for the others."""

    def __init__(self, job: dict[str, Any], folder: Path, rank: int) -> None:
        self._folder, self._rank, self._count = folder, rank, 0
        self._link: Any = None
        if rank == 0:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(job["socket"])
            self._link = connection.makefile("rw", encoding="utf-8")
            self.say({"job": job["number"]})

    def say(self, message: dict[str, Any]) -> None:
        self._link.write(json.dumps(message) + "\n")
        self._link.flush()

    def cells(self) -> Iterator[dict[str, Any]]:
        while True:
            path = self._folder / f"cell-{self._count}.json"
            if self._rank == 0:
                line = self._link.readline()  # empty: the driver is gone
                draft = path.with_suffix(".draft")
                draft.write_text(line if line else "null")
                draft.rename(path)
            while not path.exists():
                time.sleep(_NAP)
            cell = json.loads(path.read_text())
            self._count += 1
            if not cell:
                return
            yield cell


def _log(folder: Path, cell: dict[str, Any], result: dict[str, Any]) -> None:
    lines = log_lines(cell, result, result["began"])
    (folder / f"{cell['id']}.log").write_text("\n".join(lines) + "\n")


def main(path: str) -> None:
    job = json.loads(Path(path).read_text())
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    threads = _take_cores(rank, ranks, job["timed"])
    torch.set_num_threads(threads)
    pith.import_methods(",".join(job["import"]))
    if job["device"] == "cuda" and torch.cuda.device_count() < ranks:
        os.environ["NCCL_HOSTID"] = (
            f"host{rank}"  # ranks that share a GPU: NCCL takes them for hosts
        )
        os.environ.setdefault("NCCL_SOCKET_IFNAME", os.environ.get("PITH_IFNAME", "lo"))
    device = _device(job["device"])
    world = usual_backend(LOCAL, job["device"])
    dist.init_process_group(world)
    groups = Groups(world)
    tasks: dict[tuple[str, str, str | None], Task] = {}
    warm: set[tuple[Any, str]] = set()
    errand = Errand(job, Path(path).parent, rank)
    for cell in errand.cells():
        key = (cell["task"], cell["size"], cell["data"])
        if key not in tasks:
            tasks[key] = task_of(*key)
            tasks[key].to(device)
        group = groups.get(cell["backend"] or world)
        if (key, cell["backend"]) not in warm:  # what libraries load at first use belongs to no run
            warm.add((key, cell["backend"]))
            first = cell | {"spec": LOCAL, "steps": _WARM_STEPS, "looks": 1}
            carry_out(first, tasks[key], group, device)
        began, busy = time.time(), time.process_time()
        if cell["phase"] == SPEED:
            result = take_turns(cell, tasks[key], groups, device)
        else:
            result = carry_out(cell, tasks[key], group, device)
        if rank == 0:
            result |= {"threads": threads, "wall": time.time() - began, "began": began}
            result["cpu"] = time.process_time() - busy
            _log(Path(job["logs"]), cell, result)
            errand.say({"cell": cell, "result": result})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
