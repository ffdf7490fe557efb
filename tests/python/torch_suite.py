# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own distributed tests, as the installed wheel holds them, with a backend of choice on three ranks.

    python tests/python/torch_suite.py --backend pith [--tests test_all_reduce_sum,…] [--json results.json]

torch starts new processes for each test, which takes most of the time. Here three ranks stay and run one test after another, each in a
process group of its own. A test that takes longer than its limit, or leaves a rank in doubt, ends the ranks, and new ones go on. The file is also
what a rank runs.

Tests for GPUs run with CPU tensors: whatever names a CUDA device means the CPU here. Which tests are for gloo is decided as torch does, when the
module is imported; what a test then asks for by BACKEND is the backend of choice.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import tempfile
import time
import traceback
import unittest
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

RANKS = 3
LIMIT = 60.0  # seconds for a test
_SLOW = {"test_ddp_uneven_inputs": 180.0, "test_ddp_compile_static_graph": 180.0}
_AS_GLOO = "test_accumulate_gradients_no_sync"  # tests whose bodies make their model for gloo, MPI or NCCL by name


@dataclass
class Result:
    """What became of a test: "passed", "skipped", "failed" or "hangs"; and why."""

    name: str
    outcome: str
    seconds: float
    why: str = ""


# ---- A rank ------------------------------------------------------------------------------------------------------------


def _patch_cuda() -> None:
    """CUDA devices mean the CPU."""
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.testing._internal import common_distributed as common

    def as_is(self: Any, *_: Any, **__: Any) -> Any:
        return self

    torch.Tensor.cuda = as_is  # type: ignore[method-assign]
    torch.nn.Module.cuda = as_is  # type: ignore[method-assign]
    torch.cuda.device_count = lambda: RANKS
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = lambda *_: contextlib.nullcontext()
    for name in ("set_device", "synchronize", "manual_seed", "empty_cache", "_lazy_init"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    original = DistributedDataParallel.__init__

    def on_cpu(self: Any, *args: Any, **options: Any) -> None:
        options |= {name: None for name in ("device_ids", "output_device") if name in options}
        original(self, args[0] if args else options.pop("module"), **options)

    DistributedDataParallel.__init__ = on_cpu  # type: ignore[method-assign]
    common.skip_if_small_worldsize = lambda test: (
        test
    )  # torch skips below 8 ranks, for want of GPUs
    common.skip_if_no_gpu = lambda test: test
    common.skip_if_lt_x_gpu = lambda *_, **__: lambda test: test
    common.nccl_skip_if_lt_x_gpu = lambda *_, **__: lambda test: test
    common.require_n_gpus_for_nccl_backend = lambda *_, **__: lambda test: test


def _device_mode() -> Any:
    """A mode in which arguments that name a CUDA device name the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    def is_cuda(value: Any) -> bool:
        return (isinstance(value, torch.device) and value.type == "cuda") or (
            isinstance(value, str) and value.split(":")[0] == "cuda"
        )

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            name = getattr(function, "__name__", "")
            device = kwargs.get("device")
            if is_cuda(device) or (isinstance(device, int) and not isinstance(device, bool)):
                kwargs["device"] = torch.device("cpu")
            at = {"to": 1, "_parse_to": 0}.get(name)  # where the device is
            if at is not None and len(args) > at and (is_cuda(args[at]) or type(args[at]) is int):
                args = (*args[:at], torch.device("cpu"), *args[at + 1 :])
            return function(*args, **kwargs)

    return OnCpu()


def _load(backend: str) -> Any:
    """The suite's module, as for gloo, then with our backend; and its class of tests."""
    os.environ["BACKEND"] = "gloo"
    _patch_cuda()
    from torch.testing._internal.distributed import distributed_test as suite

    if backend != "gloo":
        __import__(f"{backend}.torch")
        suite.BACKEND = backend
        for names in suite.DistTestCases.backend_feature.values():
            if "gloo" in names:
                names.add(backend)

    class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        pass

    return suite, Suite


def _run_one(suite: Any, kind: Any, backend: str, rank: int, name: str, file: str) -> Result:
    import torch.distributed as dist
    from torch.testing._internal import common_utils

    started = time.monotonic()

    def result(outcome: str, why: str = "") -> Result:
        return Result(name, outcome, time.monotonic() - started, why)

    test = kind(name)
    test.rank, test.file_name = rank, file
    seconds = suite.CUSTOM_PG_TIMEOUT.get(name, suite.default_pg_timeout)
    try:
        dist.init_process_group(
            init_method=f"file://{file}",
            backend=backend,
            world_size=RANKS,
            rank=rank,
            timeout=timedelta(seconds=seconds),
        )
        common_utils.set_rng_seed(1234)
        suite.BACKEND = "gloo" if name.startswith(_AS_GLOO) else backend
        with _device_mode():
            getattr(test, name)()
    except unittest.SkipTest as skip:
        return result("skipped", str(skip))
    except SystemExit as end:
        reasons = {s.exit_code: s.message for s in suite.TEST_SKIPS.values()}
        return (
            result("skipped", reasons[end.code])
            if end.code in reasons
            else result("failed", str(end))
        )
    except BaseException:
        return result("failed", traceback.format_exc())
    finally:
        if os.environ.get("PITH_SUITE_VERBOSE"):
            print(name, rank, f"{time.monotonic() - started:.1f}", file=sys.stderr, flush=True)
    return result("passed")


def _rank_main(pipe: Any, backend: str, rank: int, folder: str, port: str) -> None:
    import torch
    import torch.distributed as dist

    os.environ |= {"WORLD_SIZE": str(RANKS), "RANK": str(rank), "TEMP_DIR": folder}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
    torch.set_num_threads(1)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        suite, kind = _load(backend)
        pipe.send("ready")
        while (task := pipe.recv()) is not None:
            name, file = task
            result = _run_one(suite, kind, backend, rank, name, file)
            pipe.send(result)
            if pipe.recv() == "go on":  # all ranks are done with the test
                if dist.is_initialized():
                    dist.destroy_process_group()
                pipe.send("ready")


# ---- All ranks ---------------------------------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Team:
    """Three processes that run tests together."""

    def __init__(self, backend: str) -> None:
        port = str(_free_port())
        self._folder = tempfile.TemporaryDirectory(prefix="torch-suite-")
        for name in ("barrier", "test_dir", "init_dir"):
            os.mkdir(Path(self._folder.name, name))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch._dynamo"])
        self._ranks = []
        self._count = 0
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_rank_main,
                args=(theirs, backend, rank, self._folder.name, port),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
        self._all(120)

    def _all(self, seconds: float) -> list[Any]:
        """What each rank says next; None for those that end or say nothing."""
        end = time.monotonic() + seconds
        said: list[Any] = []
        for _, pipe in self._ranks:
            try:
                said.append(pipe.recv() if pipe.poll(max(0.0, end - time.monotonic())) else None)
            except (EOFError, ConnectionError):
                said.append(None)
        return said

    def run(self, name: str) -> Result:
        """Runs one test. After anything but a pass or a skip on all ranks the team is of no use any more."""
        self._count += 1
        for folder in ("test_dir", "init_dir"):
            for file in Path(self._folder.name, folder).iterdir():
                file.unlink()
        file = str(Path(self._folder.name, f"store-{self._count}"))
        for _, pipe in self._ranks:
            pipe.send((name, file))
        limit = _SLOW.get(name, LIMIT)
        found = self._all(limit)
        if None in found:
            silent = [rank for rank, result in enumerate(found) if result is None]
            others = "".join(result.why for result in found if result is not None)
            return Result(
                name, "hangs", limit, f"ranks {silent} said nothing in {limit:g} s\n{others}"
            )
        seconds = max(result.seconds for result in found)
        for outcome in ("failed", "skipped"):
            those = [
                (rank, result) for rank, result in enumerate(found) if result.outcome == outcome
            ]
            if those:
                why = "\n".join(f"rank {rank}: {result.why}" for rank, result in those)
                if outcome == "skipped":
                    why = those[0][1].why
                    self._go_on()
                return Result(name, outcome, seconds, why)
        self._go_on()
        return Result(name, "passed", seconds)

    def _go_on(self) -> None:
        for _, pipe in self._ranks:
            pipe.send("go on")
        if None in self._all(LIMIT):
            self.close()

    @property
    def is_alive(self) -> bool:
        return all(process.is_alive() for process, _ in self._ranks)

    def close(self) -> None:
        for process, _ in self._ranks:
            process.kill()
            process.join()
        self._folder.cleanup()


def names() -> list[str]:
    """All tests of the suite."""
    os.environ.setdefault("BACKEND", "gloo")
    os.environ.setdefault("WORLD_SIZE", str(RANKS))
    from torch.testing._internal.distributed.distributed_test import DistributedTest

    return sorted(name for name in dir(DistributedTest._DistTestBase) if name.startswith("test_"))


def run(backend: str, tests: list[str], report: Any = None) -> list[Result]:
    """Runs the tests in turn."""
    team: Team | None = None
    results = []
    try:
        for name in tests:
            team = team or Team(backend)
            results.append(team.run(name))
            if report:
                report(results[-1])
            if results[-1].outcome in ("failed", "hangs") or not team.is_alive:
                team.close()
                team = None
    finally:
        if team:
            team.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="pith")
    parser.add_argument("--tests", help="names, with commas; all, if not given")
    parser.add_argument("--json", help="a file for all results")
    options = parser.parse_args()
    started = time.monotonic()
    results = run(
        options.backend,
        options.tests.split(",") if options.tests else names(),
        lambda r: print(f"{r.outcome:8} {r.seconds:6.1f} {r.name}", flush=True),
    )
    for result in results:
        if result.outcome in ("failed", "hangs"):
            print(f"\n{result.name} {result.outcome}: {result.why}")
    counts = {
        kind: sum(r.outcome == kind for r in results)
        for kind in ("passed", "skipped", "failed", "hangs")
    }
    print(f"{options.backend}: {counts}, {time.monotonic() - started:.0f} s")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(r) for r in results], indent=1))


if __name__ == "__main__":
    main()
