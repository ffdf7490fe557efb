# SPDX-License-Identifier: Apache-2.0
"""A script that uses every part of pith.torch, over Pith's backend and over gloo. test_install.py runs it where there is no numpy."""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pith.torch
import small_model


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def step(model: Any, number: int) -> None:
    model.zero_grad()
    small_model.loss_of(model, dist.get_rank(), number).backward()


def train_in_ddp(group: Any, spec: str | None) -> None:
    model = DistributedDataParallel(small_model.make(), process_group=group)
    compressor = pith.torch.compress(model, spec)
    for number in range(3):
        step(model, number)
    compressor.load_state_dict(through_a_file(compressor.state_dict()))
    step(model, 3)
    assert "2.weight" in str(pith.torch.stats(model))


def train_sharded(group: Any) -> None:
    model = fully_shard(small_model.make(), mesh=DeviceMesh.from_group(group, "cpu"))
    compressor = pith.torch.compress(model, "ef/q:4", all_gather="q:8")
    step(model, 0)
    compressor.load_state_dict(through_a_file(compressor.state_dict()))
    step(model, 1)


def train_by_optimizer(group: Any) -> None:
    model = small_model.make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = pith.torch.DistributedOptimizer(optimizer, model, "ef/q:4", group=group)
    pith.torch.broadcast_parameters(model, group=group)
    step(model, 0)
    optimizer.step()
    pith.torch.broadcast_optimizer_state(optimizer, group=group)


def record_and_plan(group: Any, folder: Path) -> None:
    model = DistributedDataParallel(small_model.make(), process_group=group)
    with pith.torch.record(model, folder / "stats.json", "q:4", every=1, steps=1):
        step(model, 0)
    if dist.get_rank() == 0:
        assert pith.Profile.load(folder / "stats.json").plan("q:4").layers


def main() -> None:
    dist.init_process_group("pith")
    with tempfile.TemporaryDirectory() as folder, pith.torch.compression("q:4"):
        for backend in ("pith", "gloo"):
            group = dist.new_group(backend=backend)
            for spec in (None, "q:4", "ef/topk:0.05", "ef/powersgd:2", "lgreco:q:4"):
                train_in_ddp(group, spec)
            train_sharded(group)
            train_by_optimizer(group)
            record_and_plan(group, Path(folder))
    dist.destroy_process_group()
    assert "numpy" not in sys.modules
    print("all of it works")


if __name__ == "__main__":
    main()
