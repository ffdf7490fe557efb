# SPDX-License-Identifier: Apache-2.0
"""The backend and the package start under torchrun, pith run and mpirun, and without any of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import needs
from ranks import free_port, run

torch = needs.module("torch", "the backend needs torch")

import torch.distributed as dist  # noqa: E402

import pith._library  # noqa: E402
import pith.torch  # noqa: E402  registers the backend

SCRIPT = """
import torch, pith.torch
torch.distributed.init_process_group("pith")
x = torch.ones(5) * torch.distributed.get_rank()
torch.distributed.all_reduce(x)
group = torch.distributed.new_group()
torch.distributed.barrier(group)
text = f"rank {torch.distributed.get_rank()} of {torch.distributed.get_world_size()}: {x[0].item():g}"
torch.distributed.destroy_process_group()
print(text, flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def launch(*command: str) -> list[str]:
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "TORCHELASTIC")
    env = {key: value for key, value in os.environ.items() if not key.startswith(launchers)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.findall(r"rank \d of \d: \d", done.stdout))  # ranks may write into one line


EXPECTED = ["rank 0 of 3: 3", "rank 1 of 3: 3", "rank 2 of 3: 3"]


def test_torchrun(script: str) -> None:
    standalone = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    assert launch(sys.executable, *standalone, script) == EXPECTED


def test_torchrun_whose_store_is_on_the_master_port(script: str) -> None:
    given = ["-m", "torch.distributed.run", f"--master-port={free_port()}", "--nproc-per-node=3"]
    assert launch(sys.executable, *given, script) == EXPECTED


def command() -> str:
    beside = Path(pith._library.path).resolve().parent / "pith"
    found = os.environ.get("PITH_COMMAND") or (
        str(beside) if beside.exists() else shutil.which("pith")
    )
    if found is None:
        pytest.skip(f"there is no command pith beside {pith._library.path}")
    return found


def test_pith_run(script: str) -> None:
    assert launch(command(), "run", "-n", "3", "--", sys.executable, script) == EXPECTED


def test_mpirun(script: str) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        needs.lacks("mpi", "there is no mpirun")
    version = subprocess.run(
        [mpirun, "--version"], capture_output=True, text=True, check=False
    ).stdout
    as_root = (
        ["--allow-run-as-root", "--oversubscribe"]
        if "Open MPI" in version or "OpenRTE" in version
        else []
    )
    assert launch(mpirun, *as_root, "-n", "3", sys.executable, script) == EXPECTED


def file_store(rank: int, size: int, path: str) -> float:
    dist.init_process_group(
        "pith",
        init_method=f"file://{path}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=30),
    )
    x = torch.ones(1)
    dist.all_reduce(x)
    dist.destroy_process_group()
    return x.item()


def test_a_file_as_the_store(tmp_path: Path) -> None:
    assert run(file_store, 2, str(tmp_path / "store")) == [2, 2]


def again_and_again(rank: int, size: int, ports: list[int]) -> float:
    total = 0.0
    for port in ports:  # torch's own store needs a moment before a port can be used again
        dist.init_process_group(
            "pith", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
        )
        x = torch.ones(1)
        dist.all_reduce(x)
        total += x.item()
        dist.destroy_process_group()
    return total


def test_groups_can_be_made_again() -> None:
    assert run(again_and_again, 2, [free_port() for _ in range(5)]) == [10, 10]


def over_tcp(rank: int, size: int) -> str:
    dist.init_process_group("pith")
    x = torch.ones(100_000)
    dist.all_reduce(x)
    assert x[0] == size
    reached = dist.group.WORLD.comm.transport(1 - rank)
    dist.destroy_process_group()
    return reached


def test_settings_of_the_environment_reach_the_library() -> None:
    assert run(over_tcp, 2, env={"PITH_TRANSPORT": "tcp"}) == ["tcp", "tcp"]
    assert run(over_tcp, 2, env={"PITH_SECRET": "secret"}) == ["shm", "shm"]


def test_the_command_of_the_package_is_the_program() -> None:
    program = command()
    done = subprocess.run(
        [sys.executable, "-m", "pith", "codecs"],
        capture_output=True,
        text=True,
        env=os.environ | {"PITH_COMMAND": program},
        timeout=60,
        check=True,
    )
    assert "powersgd" in done.stdout
