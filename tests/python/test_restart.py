# SPDX-License-Identifier: Apache-2.0
"""A rank dies under torchrun: the others are told at once which one, torchrun starts all of them again, and the run goes on from its
checkpoints as if nothing had been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import needs
from ranks import run

torch = needs.module("torch", "training needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith  # noqa: E402
import pith.torch  # noqa: E402

RANKS, STEPS, DIES_IN, VICTIM = 3, 8, 4, 1


class Training:
    """A model in compressed training, whose residuals and momentum a checkpoint must have. A rank's files are its own."""

    def __init__(self, folder: Path) -> None:
        self.rank = dist.get_rank()
        self.checkpoint = folder / f"checkpoint-{self.rank}.pt"
        self.losses = folder / f"losses-{self.rank}.txt"
        torch.manual_seed(0)
        self.model = DistributedDataParallel(
            nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 64))
        )
        self.compressor = pith.torch.compress(self.model, "ef/q:2")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        self.step = 0

    def load(self) -> None:
        if not self.checkpoint.exists():
            return
        saved = torch.load(self.checkpoint)
        self.model.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.compressor.load_state_dict(saved["pith"])
        self.step = saved["step"]

    def save(self) -> None:
        state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        state |= {"pith": self.compressor.state_dict(), "step": self.step}
        torch.save(state, self.checkpoint.with_suffix(".new"))
        self.checkpoint.with_suffix(".new").rename(self.checkpoint)

    def one_step(self, dies: bool) -> None:
        torch.manual_seed(1000 * self.step + self.rank)
        x = torch.randn(16, 64)
        loss = (self.model(x) - x.roll(1, 1)).pow(2).mean()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with self.losses.open("a") as file:
            file.write(f"{self.step} {loss.item().hex()}\n")
        self.step += 1
        self.save()


def train(folder: Path, dies_in: int | None) -> None:
    dist.init_process_group("pith", timeout=timedelta(seconds=60))
    training = Training(folder)
    training.load()
    while training.step < STEPS:
        training.one_step(training.step == dies_in and training.rank == VICTIM)
    dist.destroy_process_group()


def under_torchrun(folder: Path) -> None:
    """Dies in its first life only; who survives says what it heard."""
    life = os.environ["TORCHELASTIC_RESTART_COUNT"]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others: not before they know
    try:
        train(folder, DIES_IN if life == "0" else None)
    except pith.Error as error:
        rank = os.environ["RANK"]
        (folder / f"heard-{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(1)


def undisturbed(rank: int, size: int, folder: str) -> None:
    train(Path(folder), None)


def losses(folder: Path) -> list[list[str]]:
    return [(folder / f"losses-{rank}.txt").read_text().splitlines() for rank in range(RANKS)]


def test_a_killed_rank_is_named_and_the_restarted_run_has_the_losses_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    calm.mkdir()
    disturbed.mkdir()
    run(undisturbed, RANKS, str(calm))
    script = tmp_path / "script.py"
    script.write_text(
        f"import pathlib, test_restart\ntest_restart.under_torchrun(pathlib.Path({str(disturbed)!r}))\n"
    )
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "TORCHELASTIC")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        + [f"--nproc-per-node={RANKS}", "--max-restarts=1", "--monitor-interval=0.1", str(script)],
        env={key: value for key, value in os.environ.items() if not key.startswith(launchers)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in set(range(RANKS)) - {VICTIM}:
        heard = (disturbed / f"heard-{rank}.txt").read_text()
        assert f"rank {VICTIM}" in heard and "Timeout" not in heard, heard
    assert not (disturbed / f"heard-{VICTIM}.txt").exists()
    assert losses(disturbed) == losses(calm)
    assert all(len(of_rank) == STEPS for of_rank in losses(calm))
