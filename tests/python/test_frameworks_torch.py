# SPDX-License-Identifier: Apache-2.0
"""What libraries on top of PyTorch need from pith.torch: its own hook interface, handles, names, and models inside of wrappers."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import needs
import pith
from ranks import run

torch = needs.module("torch", "the hook needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402
import small_model  # noqa: E402

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias"]
RULES = "2.weight=ef/topk:0.1;*.bias=none;*=ef/q:4"


def groups() -> dict[str, Any]:
    dist.init_process_group("pith")
    return {"pith": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def steps(model: nn.Module, rank: int, which: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in which:
        optimizer.zero_grad()
        small_model.loss_of(model, rank, step).backward()
        optimizer.step()


def bits(model: nn.Module) -> bytes:
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def error_of(call: Any) -> str:
    try:
        call()
    except pith.Error as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# ---- register_comm_hook ----------------------------------------------------------------------------------------------


def with_hooks(rank: int, size: int) -> int:
    checks = 0
    for name, group in groups().items():
        by_line = DistributedDataParallel(small_model.make(), process_group=group)
        pith.torch.compress(by_line, RULES)
        by_hook = DistributedDataParallel(small_model.make(), process_group=group)
        state = pith.torch.HookState(RULES)
        by_hook.register_comm_hook(state, pith.torch.hook)
        early = DistributedDataParallel(small_model.make(), process_group=group)
        early.register_comm_hook(pith.torch.HookState(rules=RULES), pith.torch.hook)
        handle = pith.torch.compressor(early)  # binds layers before the first step
        assert handle.stats()["0.weight"].steps == 0
        for model in (by_line, by_hook, early):
            assert pith.torch.is_compressed(model)
            steps(model, rank, range(4))
            table = pith.torch.stats(model)
            assert [line.name for line in table] == NAMES, name
            assert [table[layer].spec for layer in NAMES[:3]] == ["ef/q:4", "none", "ef/topk:0.1"]
            assert table["0.weight"].steps == 4 and table["0.weight"].ratio > 5
            assert bits(model) == bits(by_line), name
            checks += 1
        assert "Compressor of 6 layers" in repr(state)
        assert pith.torch.compressor(by_hook) is state._compressor
        saved = pith.torch.compressor(by_line).state_dict()
        pith.torch.compressor(by_hook).load_state_dict(saved)  # the two are the same to checkpoints
    dist.destroy_process_group()
    return checks


def test_the_pair_for_ddps_own_interface_trains_as_compress_does() -> None:
    assert run(with_hooks, 2) == [6, 6]


def misused(rank: int, size: int) -> list[str]:
    dist.init_process_group("pith")
    found = [error_of(lambda: pith.torch.HookState("qq"))]
    model = DistributedDataParallel(small_model.make())
    model.register_comm_hook(pith.torch.HookState(f"q:{4 + rank}"), pith.torch.hook)
    found.append(error_of(lambda: small_model.loss_of(model, rank, 0).backward()))
    model = DistributedDataParallel(small_model.make())
    model.register_comm_hook(pith.torch.HookState("q:4"), pith.torch.hook)
    found.append(error_of(lambda: pith.torch.compress(model, "q:4")))
    state = pith.torch.HookState("q:4")
    first, second = (DistributedDataParallel(small_model.make()) for _ in range(2))
    for model in (first, second):
        model.register_comm_hook(state, pith.torch.hook)
    small_model.loss_of(first, rank, 0).backward()
    found.append(error_of(lambda: small_model.loss_of(second, rank, 0).backward()))
    dist.destroy_process_group()
    return found


def test_wrong_use_of_the_pair_is_an_error_that_says_what_to_do() -> None:
    for slip, disagreement, twice, shared in run(misused, 2):
        assert slip.startswith("SpecError") and "qq" in slip
        assert disagreement.startswith("MismatchError") and "q:5 on rank 1" in disagreement
        assert "pith.torch.compressor(model) returns its handle" in twice
        assert "make one for each model" in shared


def wrapped_again(rank: int, size: int, folder: str) -> None:
    """What trainers do: another DDP around the same module; and another process group."""
    module, state = small_model.make(), pickle.loads(pickle.dumps(pith.torch.HookState("ef/q:4")))
    expected = small_model.make()
    dist.init_process_group("gloo", f"file://{folder}/first", rank=rank, world_size=size)
    for which in (range(2), range(2, 4)):
        model = DistributedDataParallel(module)
        model.register_comm_hook(state, pith.torch.hook)
        steps(model, rank, which)
    assert pith.torch.stats(model)["0.weight"].steps == 4
    reference = DistributedDataParallel(expected)
    pith.torch.compress(reference, "ef/q:4")
    steps(reference, rank, range(4))
    assert bits(model) == bits(reference)  # residuals went along
    dist.destroy_process_group()
    dist.init_process_group("gloo", f"file://{folder}/second", rank=rank, world_size=size)
    model = DistributedDataParallel(module)
    model.register_comm_hook(state, pith.torch.hook)
    steps(model, rank, range(2))
    assert (
        pith.torch.stats(model)["0.weight"].steps == 2
    )  # from the beginning: the old group is gone
    dist.destroy_process_group()


def test_a_state_goes_on_when_its_module_is_wrapped_again(tmp_path: Path) -> None:
    run(wrapped_again, 2, str(tmp_path))


# ---- Handles ---------------------------------------------------------------------------------------------------------


def removed(rank: int, size: int, how: str) -> list[str]:
    found = []
    for name, group in groups().items():
        model = DistributedDataParallel(small_model.make(), process_group=group)
        if how == "compress":
            pith.torch.compress(model, "ef/q:4")
        else:
            model.register_comm_hook(pith.torch.HookState("ef/q:4"), pith.torch.hook)
        steps(model, rank, range(2))
        handle = pith.torch.compressor(model)
        handle.remove()
        assert not pith.torch.is_compressed(model)
        plain = DistributedDataParallel(small_model.make(), process_group=group)
        steps(
            plain, rank, range(2)
        )  # DDP orders its buckets after the first step, and sums of gloo depend on them
        plain.load_state_dict(model.state_dict())
        steps(model, rank, range(2, 5))
        steps(plain, rank, range(2, 5))
        assert bits(model) == bits(plain), name  # as if it had never been compressed
        if group is dist.group.WORLD:  # DDP copies no others
            small_model.loss_of(copy.deepcopy(model), rank, 0).backward()
        found += [
            error_of(handle.stats),
            error_of(handle.remove),
            error_of(partial(pith.torch.stats, model)),
        ]
        again = pith.torch.compress(model, "q:2")
        steps(model, rank, range(5, 7))
        assert again.stats()["0.weight"].spec == "q:2" and again.stats()["0.weight"].steps == 2
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("how", ["compress", "hook"])
def test_after_remove_gradients_are_those_of_ddp_and_compress_works_again(how: str) -> None:
    for found in run(
        removed, 3, how
    ):  # a third is no power of two: dividing and multiplying differ
        assert len(found) == 6
        assert all("was removed" in text for text in found[0:2] + found[3:5])
        assert all("not compressed" in text for text in found[2::3])


def removed_from_shards(rank: int, size: int) -> None:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    models = [small_model.make() for _ in range(2)]
    for model in models:
        fully_shard(model)
    handle = pith.torch.compress(models[0], "ef/q:4", all_gather="q:8")
    assert pith.torch.compressor(models[0]) is handle
    handle.remove()
    assert not pith.torch.is_compressed(models[0])
    for model in models:
        steps(model, rank, range(3))
    for mine, plain in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(mine.full_tensor(), plain.full_tensor())
    pith.torch.compress(models[0], "q:4")
    steps(models[0], rank, range(2))
    assert pith.torch.stats(models[0])["0.weight"].steps == 2
    dist.destroy_process_group()


def test_after_remove_shards_are_those_of_fsdp() -> None:
    run(removed_from_shards, 2)


# ---- Names, and models inside of wrappers ----------------------------------------------------------------------------


class Around(nn.Module):
    """A wrapper such as that of Lightning's Fabric: both modules are its children."""

    def __init__(self, outer: nn.Module, inner: nn.Module) -> None:
        super().__init__()
        self._forward_module, self._original_module = outer, inner


def found_inside(rank: int, size: int) -> list[str]:
    dist.init_process_group("pith")
    named = "2.weight=q:2;*=q:4"
    inner = torch.compile(small_model.make(), backend="eager")
    for model in (
        DistributedDataParallel(inner),
        torch.compile(DistributedDataParallel(small_model.make()), backend="eager"),
        Around(DistributedDataParallel(inner), inner),
    ):
        table = pith.torch.compress(model, named).stats()
        assert [line.name for line in table] == NAMES
        assert table["2.weight"].spec == "q:2"
        assert [line.name for line in pith.torch.stats(model)] == NAMES
    module = small_model.make()
    optimizer = pith.torch.DistributedOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1), torch.compile(module, backend="eager"), "q:4"
    )
    assert [line.name for line in pith.torch.stats(optimizer)] == NAMES
    from torch.distributed.fsdp import fully_shard

    sharded = small_model.make()
    fully_shard(sharded)
    compiled = torch.compile(sharded, backend="eager")
    pith.torch.compress(compiled, named)
    assert [line.name for line in pith.torch.stats(compiled)] == NAMES
    two = nn.ModuleList(DistributedDataParallel(small_model.make()) for _ in range(2))
    outside = nn.ModuleList([DistributedDataParallel(small_model.make()), nn.Linear(2, 2)])

    class Trainer:
        model_wrapped = two

    errors = [
        error_of(lambda: pith.torch.compress(what))  # noqa: B023
        for what in (module, nn.DataParallel(module), two, outside, Trainer())
    ]
    dist.destroy_process_group()
    return errors


def test_the_distributed_module_is_found_and_layers_have_plain_names() -> None:
    for plain, parallel, two, outside, trainer in run(found_inside, 2):
        assert "Sequential is neither" in plain and "accelerator.prepare(model)" in plain
        assert "DataParallel reduces gradients inside one process" in parallel
        assert "2 distributed modules" in two
        assert "1.weight, 1.bias" in outside
        assert "pass its model_wrapped" in trainer


def test_import_of_the_package_imports_none_of_the_libraries() -> None:
    import subprocess
    import sys

    code = "import sys, pith.torch; print([m for m in ('transformers', 'accelerate', 'lightning') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
