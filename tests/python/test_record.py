# SPDX-License-Identifier: Apache-2.0
"""pith.torch.record: statistics of any training, and the plans that `pith plan make` makes of the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import needs
import pith
from ranks import run

torch = needs.module("torch", "training needs torch")

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pith.torch
from small_model import loss_of, make

CANDIDATES = ["none", "q:2", "q:4", "q:8", "ef/topk:0.01", "ef/powersgd:4"]


def train(model: nn.Module, rank: int, steps: range, passes: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in steps:
        optimizer.zero_grad()
        for part in range(passes):
            loss_of(model, rank, passes * step + part).backward()
        optimizer.step()


def by_hand(rank: int, steps: int, every: int, passes: int = 1) -> pith.Profile:
    """The same training, its gradients measured between backward pass and step."""
    model = make()
    profile = pith.Profile([(n, p.shape) for n, p in model.named_parameters()], CANDIDATES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            loss_of(model, rank, passes * step + part).backward()
        number = passes * (step + 1)
        for name, p in model.named_parameters():
            if number % every == 0:
                profile.update(name, p.grad, step=number)
        optimizer.step()
    return profile


# ---- One rank, without DDP


def test_what_is_recorded_is_what_gradients_were(tmp_path: Path) -> None:
    model = make()
    recorder = pith.torch.record(model, tmp_path / "s.json", CANDIDATES, every=3, steps=2)
    train(model, 0, range(5))
    assert recorder.samples == 1 and not (tmp_path / "s.json").exists()
    train(model, 0, range(5, 12))
    assert recorder.samples == 2
    found = pith.Profile.load(tmp_path / "s.json")
    assert list(found.values) == list(by_hand(0, 6, 3).values)
    assert [layer.samples for layer in found.layers] == [2, 0, 2, 0, 2, 0]
    assert model[0].weight._backward_hooks == {}, "the hooks are still there"


def test_recording_changes_no_bit(tmp_path: Path) -> None:
    plain, recorded = make(), make()
    with pith.torch.record(recorded, tmp_path / "s.json", "q:4", every=1, steps=None):
        train(recorded, 0, range(6))
    train(plain, 0, range(6))
    for mine, other in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_accumulated_gradients_are_measured_whole(tmp_path: Path) -> None:
    model = make()
    pith.torch.record(model, tmp_path / "s.json", CANDIDATES, every=4, steps=3)
    train(model, 0, range(6), passes=2)
    found = pith.Profile.load(tmp_path / "s.json")
    assert list(found.values) == list(by_hand(0, 6, 4, passes=2).values)


def test_the_command_makes_a_plan_of_the_file(tmp_path: Path) -> None:
    """Also where a layer never had a gradient: it stays exact."""
    model = make()
    model.unused = nn.Linear(64, 64)
    model.forward = lambda x: model[3](model[2](model[1](model[0](x))))
    stats, plan = tmp_path / "s.json", tmp_path / "plan.json"
    with pith.torch.record(model, stats, every=2, steps=None):
        train(model, 0, range(4))
    command = [sys.executable, "-m", "pith", "plan", "make", str(stats), "--budget"]
    for budget in (["q:4"], ["q:4", "--mix"], ["ef/topk:0.01"], ["ef/powersgd:4"]):
        made = subprocess.run([*command, *budget, "-o", str(plan)], capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        specs = {layer.name: layer.spec for layer in pith.Plan.load(plan).layers}
        assert "unused.weight" not in specs and specs["0.bias"] == "none"
        assert specs["2.weight"] != "none", specs


def test_save_writes_what_there_is_and_goes_on(tmp_path: Path) -> None:
    model = make()
    recorder = pith.torch.record(model, tmp_path / "s.json", CANDIDATES, every=1, steps=None)
    with pytest.raises(pith.StateError, match="no gradient has been measured in 0 backward passes"):
        recorder.save()
    train(model, 0, range(2))
    recorder.save(tmp_path / "early.json")
    train(model, 0, range(2, 4))
    recorder.close()
    recorder.close()  # says nothing
    train(model, 0, range(4, 5))
    early, late = (pith.Profile.load(tmp_path / name) for name in ("early.json", "s.json"))
    assert list(early.values) == list(by_hand(0, 2, 1).values)
    assert list(late.values) == list(by_hand(0, 4, 1).values)


def test_infinite_gradients_are_left_out_and_counted(tmp_path: Path) -> None:
    model = make()
    with pith.torch.record(model, tmp_path / "s.json", CANDIDATES, every=1, steps=None) as recorder:
        (loss_of(model, 0, 0) * float("inf")).backward()
        model.zero_grad()
        loss_of(model, 0, 1).backward()
        layer = recorder.profile().layers[0]
    assert (layer.samples, layer.skipped) == (1, 1)


def test_a_pass_that_failed_does_not_confuse_the_next(tmp_path: Path) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, x: Any) -> Any:
            raise ValueError("in the middle of a pass")

    model = make()
    recorder = pith.torch.record(model, tmp_path / "s.json", CANDIDATES, every=2, steps=None)
    with pytest.raises(ValueError, match="in the middle"):
        model[3](Fails.apply(model[2](model[1](model[0](torch.randn(8, 40)))))).sum().backward()
    model.zero_grad()
    loss_of(model, 0, 0).backward()
    assert recorder.samples == 1, "the failed pass was the first, this one the second"
    recorder.close()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"every": 0}, "every=0"),
        ({"steps": 0}, "steps=0"),
        ({"path": "no/such/folder/s.json"}, "no folder"),
        ({"candidates": "q:99"}, "out of range"),
        ({"candidates": ["q:4", "nonsense"]}, "nonsense"),
        ({"model": nn.Linear(8, 8)}, "nothing to plan"),
        ({"model": nn.ReLU()}, "no parameter"),
        ({"model": nn.Linear(64, 64).double()}, "f32, f16 or bf16"),
    ],
)
def test_mistakes_are_told_at_once(tmp_path: Path, wrong: dict[str, Any], says: str) -> None:
    given = {"model": make(), "path": tmp_path / "s.json"} | wrong
    with pytest.raises(pith.Error, match=says):
        pith.torch.record(**given)
    assert not any(p._backward_hooks for p in given["model"].parameters())


def test_after_an_error_nothing_is_written(tmp_path: Path) -> None:
    model = make()
    with pytest.raises(ZeroDivisionError):
        with pith.torch.record(model, tmp_path / "s.json", CANDIDATES, every=1, steps=None):
            train(model, 0, range(2))
            raise ZeroDivisionError
    assert not (tmp_path / "s.json").exists()


ENDS = """
import torch, pith.torch
model = torch.nn.Linear(64, 64)
pith.torch.record(model, {path!r}, "q:4", every=2, steps=100)
for _ in range({passes}):
    model(torch.ones(64)).sum().backward()
"""


def test_a_program_that_ends_early_writes_or_says_so(tmp_path: Path) -> None:
    for passes in (1, 5):
        path = tmp_path / f"{passes}.json"
        code = ENDS.format(path=str(path), passes=passes)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if passes == 5:
            assert json.loads(path.read_text())["layers"][0]["samples"] == 2
        else:
            assert not path.exists() and "was not written" in done.stderr


# ---- Several ranks


def groups() -> dict[str, Any]:
    dist.init_process_group("pith")
    return {"pith": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def record_everywhere(rank: int, size: int, folder: str) -> list[str]:
    """Plain DDP, compressed DDP, and the optimizer, which sends gradients as soon as they are there."""
    files = []
    for name, group in groups().items():
        for how in ("plain", "compressed", "optimizer"):
            path = f"{folder}/{name}-{how}.json"
            inner = make()
            model: Any = inner
            if how != "optimizer":
                model = DistributedDataParallel(inner, process_group=group)
            if how == "compressed":
                pith.torch.compress(model, "q:4")
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.0)
            if how == "optimizer":
                optimizer = pith.torch.DistributedOptimizer(optimizer, model, "none", group=group)
            mine = path if rank == 0 else f"/no/such/folder/{rank}"  # on another host, say
            pith.torch.record(model, mine, CANDIDATES, every=2, steps=3, group=group)
            for step in range(7):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                optimizer.step()
            files.append(path)
    dist.destroy_process_group()
    return files


def expected_sums(size: int) -> list[float]:
    """Weights stay as they are in that training."""
    model = make()
    profile = pith.Profile([(n, p.shape) for n, p in model.named_parameters()], CANDIDATES)
    for rank in range(size):
        for step in (1, 3, 5):
            model.zero_grad()
            loss_of(model, rank, step).backward()
            for name, p in model.named_parameters():
                profile.update(name, p.grad, step=step + 1, rank=rank, ranks=size)
    return list(profile.values)


def test_rank_0_writes_the_sums_over_all_ranks(tmp_path: Path) -> None:
    files = run(record_everywhere, 2, str(tmp_path))[0]
    expected = expected_sums(2)
    lowrank = CANDIDATES.index("ef/powersgd:4")
    assert len(files) == 6
    for file in files:
        found = pith.Profile.load(file)
        assert [layer.samples for layer in found.layers] == [6, 0, 6, 0, 6, 0], file
        stride = len(expected) // 6
        for place, (a, b) in enumerate(zip(found.values, expected, strict=True)):
            if place % stride == 4 + len(CANDIDATES) + lowrank:
                continue  # each rank has its own warm start
            assert a == pytest.approx(b, rel=1e-6), (file, divmod(place, stride))


def disagree(rank: int, size: int, folder: str) -> None:
    model = DistributedDataParallel(make(), process_group=groups()["pith"])
    with pytest.raises(pith.MismatchError, match="every is 2 on rank 0 and 3 on rank 1"):
        pith.torch.record(model, f"{folder}/s.json", "q:4", every=2 + rank)
    with pytest.raises(pith.Error, match="no folder"):
        pith.torch.record(model, f"{folder}/none/s.json", "q:4")
    recorder = pith.torch.record(model, f"{folder}/s.json", "q:4", every=4)
    with pytest.raises(pith.StateError, match="train longer"):
        recorder.close()
    dist.destroy_process_group()


def test_ranks_that_disagree_are_told_so(tmp_path: Path) -> None:
    run(disagree, 2, str(tmp_path))
