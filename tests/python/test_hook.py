# SPDX-License-Identifier: Apache-2.0
"""Compressed data-parallel training: pith.torch.compress() over pith and over gloo, in every way that DDP can be used."""

from __future__ import annotations

import copy
import io
import os
from typing import Any

import pytest

import needs
import pith
from ranks import outcomes, run

torch = needs.module("torch", "the hook needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402

BACKENDS = ("pith", "gloo")


def groups() -> dict[str, Any]:
    dist.init_process_group("pith")
    return {"pith": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


class Net(nn.Module):
    """With layers of several kinds: one that is not always used, a convolution in another order of memory, two types."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 32, sparse=sparse)
        self.conv = nn.Conv2d(2, 40, 4, padding=1).to(memory_format=torch.channels_last)
        self.hidden = nn.Linear(120, 80)
        self.unused = nn.Linear(40, 40)
        self.narrow = nn.Linear(80, 40, dtype=torch.bfloat16)
        self.out = nn.Linear(40, 30, dtype=torch.float64)

    def forward(self, x: Any, use_all: bool = True) -> Any:
        y = self.embed(x).view(-1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
        y = self.conv(y).relu().mean(3).flatten(1)
        y = self.hidden(y).relu().bfloat16()
        y = self.out(self.narrow(y).relu().double()).pow(2).mean()
        return y + self.unused(torch.ones(40)).pow(2).sum() if use_all else y


def train(
    group: Any,
    rank: int,
    spec: str | None,
    *,
    accumulate: bool = False,
    sparse: bool = False,
    steps: int = 4,
    **options: Any,
) -> Any:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(sparse), process_group=group, bucket_cap_mb=0.01, **options)
    if spec is not None:
        pith.torch.compress(model, spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    for step in range(steps):
        batches = [torch.randint(0, 60, (8,)) for _ in range(2)]
        optimizer.zero_grad()
        use_all = not options.get("find_unused_parameters") or step % 2 == 0
        if accumulate:
            with model.no_sync():
                model(batches[0], use_all).backward()
        model(batches[1], use_all).backward()
        optimizer.step()
    return model


def bits(model: nn.Module) -> bytes:
    return b"".join(
        p.detach().contiguous().view(torch.uint8).numpy().tobytes() for p in model.parameters()
    )


WAYS: list[dict[str, Any]] = [
    {},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"gradient_as_bucket_view": True},
    {"accumulate": True},
    {"sparse": True},
    {"find_unused_parameters": True, "accumulate": True, "gradient_as_bucket_view": True},
]


def in_every_way(rank: int, size: int) -> list[bytes]:
    found = []
    by_name = groups()
    for way in WAYS:
        plain = bits(train(by_name["gloo"], rank, None, **way))
        exact = [bits(train(by_name[name], rank, "none", **way)) for name in BACKENDS]
        assert exact == [plain, plain], way  # two ranks: there is one order of addition only
        lossy = [bits(train(by_name[name], rank, "ef/q:4", **way)) for name in BACKENDS]
        assert lossy[0] == lossy[1] != plain, way
        found.append(lossy[0])
    dist.destroy_process_group()
    return found


def test_every_way_of_ddp_gives_the_same_bits_over_pith_and_gloo() -> None:
    found = run(in_every_way, 2)
    assert found[0] == found[1]
    assert len(set(found[0])) >= len(WAYS) - 2  # the ways do differ


def with_a_lonely_bias(rank: int, size: int) -> bool:
    """An exact layer so small that one rank owns all of it, and that travels alone: the other layer is sent another way."""
    by_name, found = groups(), []
    for name in BACKENDS:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(40, 300), process_group=by_name[name])
        pith.torch.compress(model, "topk:0.1")
        torch.manual_seed(rank)
        model(torch.randn(4, 40)).pow(2).mean().backward()
        found.append(b"".join(p.grad.numpy().tobytes() for p in model.parameters()))
    dist.destroy_process_group()
    return found[0] == found[1]


def test_a_rank_may_have_no_part_of_a_small_layer() -> None:
    assert run(with_a_lonely_bias, 2) == [True, True]


def joined(rank: int, size: int) -> None:
    found = {}
    by_name = groups()
    for name, spec in (("gloo", None), ("gloo", "none"), ("pith", "none")):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(40, 40), process_group=by_name[name])
        if spec is not None:
            pith.torch.compress(model, spec)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        with model.join():  # ranks with fewer batches send zeros
            for _ in range(2 + rank):
                optimizer.zero_grad()
                model(torch.randn(4, 40)).pow(2).mean().backward()
                optimizer.step()
        found[name, spec] = bits(model)
    assert len(set(found.values())) == 1
    dist.destroy_process_group()


def test_ranks_with_fewer_batches_may_join() -> None:
    run(joined, 2)


def test_other_devices_are_refused_with_the_reason() -> None:
    from pith.torch._engine import check_device

    check_device(torch.device("cpu"))
    with pytest.raises(pith.UnsupportedError, match="meta.*models on CPUs and CUDA devices"):
        check_device(torch.device("meta"))
    if not torch.cuda.is_available():
        with pytest.raises(pith.UnsupportedError, match="CUDA"):
            check_device(torch.device("cuda"))


# ---- Methods ---------------------------------------------------------------------------------------------------------

SETTINGS = {  # where the defaults are not for a model as small as this one: a spec and a learning rate
    "signsgd": ("signsgd", 0.001),
    "signum": ("signum", 0.001),
    "topk": ("ef/topk:0.05", 0.05),
    "randomk": ("ef/randomk:0.1", 0.05),
    "threshold": ("ef/threshold:0.001", 0.05),
    "adaptive": ("ef/adaptive:0.05", 0.05),
    "dgc": ("dgc:0.05", 0.01),
    "powersgd": ("ef/powersgd:2", 0.05),
    "sketchml": ("ef/sketchml", 0.05),
}


def regression(
    group: Any, rank: int, spec: Any, steps: int, lr: float = 0.05, **options: Any
) -> tuple[Any, Any, list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 30), nn.Linear(30, 1))
    parallel = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.01)
    compressor = pith.torch.compress(parallel, spec, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return parallel, compressor, go_on(parallel, optimizer, rank, 0, steps)


def go_on(model: Any, optimizer: Any, rank: int, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        x = torch.randn(32, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = ((model(x) - x[:, :1]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def all_methods(rank: int, size: int) -> dict[tuple[str, str], tuple[list[float], bytes]]:
    found = {}
    by_name = groups()
    for method in [m for m in pith.methods() if m.survey]:
        spec, lr = SETTINGS.get(method.name, (method.name, 0.05))
        for name in BACKENDS:
            model, _, losses = regression(by_name[name], rank, spec, 30, lr)
            found[method.name, name] = losses, bits(model)
            lines = [line for line in pith.torch.stats(model) if line.spec != "none"]
            assert {line.name for line in lines} == {"0.weight", "2.weight"}, spec
            assert all(line.wire_bytes > 0 and line.error is not None for line in lines), spec
    dist.destroy_process_group()
    return found


def test_all_sixteen_survey_methods_train_and_keep_replicas_the_same() -> None:
    found = run(all_methods, 3)
    assert len(found[0]) == 2 * 16
    for key in found[0]:
        assert len({rank[key][1] for rank in found}) == 1, key
        losses = [sum(rank[key][0][i] for rank in found) for i in range(30)]
        assert sum(losses[-3:]) < 0.5 * sum(losses[:3]), (key, losses)


def parity(rank: int, size: int) -> dict[str, float]:
    by_name = groups()
    found = {}
    for spec in ("none", "q:4", "ef/topk:0.1", "ef/powersgd:4", "ef/q:2"):
        for name in BACKENDS:
            losses = regression(by_name[name], rank, spec, 80)[2]
            found[f"{spec} over {name}"] = sum(losses[-20:])
    dist.destroy_process_group()
    return found


def test_compressed_training_ends_at_the_same_loss() -> None:
    ranks = run(parity, 2)
    total = {key: sum(rank[key] for rank in ranks) for key in ranks[0]}
    for key, loss in total.items():
        assert loss < 1.05 * total["none over pith"], (key, total)


# ---- Checkpoints -----------------------------------------------------------------------------------------------------

RESUMED = ("ef/q:2", "0.*=ef/powersgd:2;*=dgc:0.05", "0.*=qsgd;*=ef/topk:0.02")


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(rank: int, size: int) -> int:
    checks = 0
    by_name = groups()
    for name in BACKENDS:
        for spec in RESUMED:
            model, compressor, _ = regression(by_name[name], rank, spec, 4)
            saved = through_a_file([model.module.state_dict(), compressor.state_dict()])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            expected = go_on(model, optimizer, rank, 4, 8)
            # A fresh model starts with other buckets than the old one has by now.
            again, fresh, _ = regression(by_name[name], rank, spec, 0)
            again.module.load_state_dict(saved[0])
            fresh.load_state_dict(saved[1])
            optimizer = torch.optim.SGD(again.parameters(), lr=0.05)
            assert go_on(again, optimizer, rank, 4, 8) == expected, (name, spec)
            assert bits(again) == bits(model), (name, spec)
            forgetful, _, _ = regression(by_name[name], rank, spec, 0)
            forgetful.module.load_state_dict(saved[0])
            optimizer = torch.optim.SGD(forgetful.parameters(), lr=0.05)
            assert go_on(forgetful, optimizer, rank, 4, 8) != expected, (name, spec)
            refuse_other_states(by_name[name], rank, saved[1])
            checks += 1
    dist.destroy_process_group()
    return checks


def refuse_other_states(group: Any, rank: int, saved: Any) -> None:
    _, other, _ = regression(group, rank, "q:4", 0)
    with pytest.raises(pith.StateError, match="0.weight .* where the model has 0.weight"):
        other.load_state_dict(saved)
    with pytest.raises(pith.StateError, match="saved with 9 ranks, and now there are 3"):
        other.load_state_dict(other.state_dict() | {"ranks": 9})
    with pytest.raises(pith.StateError, match="version 7 of its format"):
        other.load_state_dict(other.state_dict() | {"version": 7})
    with pytest.raises(pith.StateError, match="no state"):
        other.load_state_dict({})


def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits() -> None:
    assert run(resumed, 3) == [6, 6, 6]


# ---- The loss scale --------------------------------------------------------------------------------------------------


def scaled(group: Any, rank: int, scaler: Any, told: bool, poison: int = -1) -> tuple[Any, list]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 1))
    parallel = DistributedDataParallel(model, process_group=group)
    pith.torch.compress(parallel, "ef/q:2", scaler=scaler if told else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scales = []
    for step in range(8):
        x = torch.randn(32, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = ((parallel(x) - x[:, :1]) ** 2).mean()
        if step == poison and rank == 1:
            loss = loss * float("inf")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if step == poison:
            assert not torch.isfinite(model[0].weight.grad).any()  # on every rank
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return parallel, scales


def with_a_scaler(rank: int, size: int) -> None:
    def scaler(**options: Any) -> Any:
        return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2, **options)

    for name, group in groups().items():
        steady = bits(scaled(group, rank, scaler(growth_factor=1.0 + 1e-9), True)[0])
        model, scales = scaled(group, rank, scaler(), True)
        assert scales[-1] == 8.0 * 2**4
        assert bits(model) == steady, name  # powers of two: nothing is rounded
        assert bits(scaled(group, rank, scaler(), False)[0]) != steady, name
        model, scales = scaled(group, rank, scaler(), True, poison=3)
        assert scales[3] == 0.5 * scales[2]
        assert all(torch.isfinite(p).all() for p in model.parameters()), name
    dist.destroy_process_group()


def test_memories_follow_the_loss_scale_and_infinite_gradients_reach_all_ranks() -> None:
    run(with_a_scaler, 2)


# ---- Errors ----------------------------------------------------------------------------------------------------------


def wrapped(group: Any) -> Any:
    return DistributedDataParallel(nn.Linear(40, 40), process_group=group)


def refused(rank: int, size: int) -> int:
    checks = 0
    for name, group in groups().items():
        cases: list[tuple[Any, dict[str, Any], str]] = [
            (pith.SpecError, {"spec": "qq:4"}, "qq"),
            (pith.SpecError, {"spec": "wight=q:4;*=q:8"}, '"wight=q:4" matches none'),
            (pith.SpecError, {"plan": pith.Plan([pith.PlanLayer("other", "q:4")])}, "other"),
            (pith.ArgumentError, {"rules": "q:4", "plan": pith.Plan()}, "one of them"),
            (pith.ArgumentError, {"spec": 4}, "no spec"),
            (pith.ArgumentError, {"all_gather": "q:8"}, "fully_shard"),
            (pith.MismatchError, {"spec": f"q:{4 + rank}"}, "spec is .*q:4.* on rank 0"),
            (pith.MismatchError, {"seed": rank}, "seed is 0 on rank 0 and 1 on rank 1"),
        ]
        for error, arguments, message in cases:
            with pytest.raises(error, match=message):
                pith.torch.compress(wrapped(group), **arguments)
            checks += 1
        expected = pith.SpecError if rank == 1 else pith.MismatchError
        with pytest.raises(expected, match="qq" if rank == 1 else "rank 1 cannot go on.*qq"):
            pith.torch.compress(wrapped(group), "qq" if rank == 1 else "q:4")
        model = wrapped(group)
        with pytest.raises(pith.ArgumentError, match="not compressed"):
            pith.torch.stats(model)
        pith.torch.compress(model)
        with pytest.raises(pith.ArgumentError, match="already"):
            pith.torch.compress(model)
        with pytest.raises(pith.ArgumentError, match="neither"):
            pith.torch.compress(model.module)
        hooked = wrapped(group)
        hooked.register_comm_hook(None, lambda state, bucket: None)
        with pytest.raises(pith.ArgumentError, match="hook already"):
            pith.torch.compress(hooked)
        model(torch.ones(1, 40)).sum().backward()  # and all is well
        assert pith.torch.stats(model)["weight"].steps == 1, name
    dist.destroy_process_group()
    return checks


def test_wrong_use_is_refused_before_the_first_step() -> None:
    assert run(refused, 2) == [16, 16]


def dying(rank: int, size: int, name: str) -> None:
    group = groups()[name]
    model, _, _ = regression(group, rank, "ef/q:4", 2)
    if rank == 1:
        os._exit(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    go_on(model, optimizer, rank, 2, 4)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_rank_that_dies_is_an_exception_of_backward(name: str) -> None:
    found = outcomes(dying, 3, name)
    assert found[1].ended == 3
    for rank in (0, 2):
        assert found[rank].error is not None
        assert "backward" in found[rank].trace
        if name == "pith":
            assert "rank 1" in str(found[rank].error)


# ---- Rules, plans, statistics ----------------------------------------------------------------------------------------


def planned(rank: int, size: int) -> list[str]:
    tables = []
    for group in groups().values():
        plan = pith.Plan([pith.PlanLayer("0.weight", "q:2"), pith.PlanLayer("0.bias", "q:8")])
        model, compressor, _ = regression(group, rank, plan, 3)
        second, _, _ = regression(group, rank, "*.bias=fp16;*=ef/topk:0.01", 1)  # beside the first
        table = pith.torch.stats(model)
        assert [line.spec for line in table] == ["q:2", "q:8"] + ["none"] * 4
        assert table["0.bias"].reason == "rule 0.bias"
        assert table["0.weight"].n == 2000 and table["0.weight"].raw_bytes == 3 * 8000
        assert 9 < table["0.weight"].ratio < 16, str(table)  # headers count, too
        assert 0.9 < table["2.weight"].ratio <= 1.0
        assert table["2.weight"].error == 0 and 0.1 < table["0.weight"].error < 3
        assert table.wire_bytes == sum(line.wire_bytes for line in table)
        assert str(compressor.stats()).splitlines()[0].split()[:3] == ["layer", "spec", "why"]
        assert pith.torch.stats(second)["2.bias"].spec == "fp16"
        tables.append(str(table))
    assert pith.torch.stats().comm.operations > 0  # of the process group
    dist.destroy_process_group()
    return tables


def test_plans_decide_and_statistics_tell() -> None:
    found = run(planned, 2)
    assert all(line in found[0][0] for line in ("0.weight", "rule 0.weight", "q:2"))


def alone(rank: int, size: int) -> None:
    for name, group in groups().items():
        _, _, losses = regression(group, rank, "ef/q:2", 20)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 30), nn.Linear(30, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        assert go_on(model, optimizer, rank, 0, 20) == losses, name
    dist.destroy_process_group()


def test_one_rank_loses_nothing() -> None:
    run(alone, 1)


def large(rank: int, size: int) -> int:
    """Several groups of layers, more than one collective under way, and parts of unequal size."""
    found = {}
    for name, group in groups().items():
        torch.manual_seed(0)
        layers = [nn.Linear(700, 701) if i % 2 == 0 else nn.Linear(701, 700) for i in range(6)]
        model = DistributedDataParallel(
            nn.Sequential(*layers), process_group=group, bucket_cap_mb=2
        )
        pith.torch.compress(model, "1.*=ef/topk:0.01;*=ef/q:4")
        torch.manual_seed(rank)
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(4, 700)).pow(2).mean().backward()
        found[name] = b"".join(p.grad.numpy().tobytes() for p in model.parameters())
    assert found["pith"] == found["gloo"]
    dist.destroy_process_group()
    return len(found)


def test_large_models_give_the_same_bits_over_pith_and_gloo() -> None:
    assert run(large, 3) == [2, 2, 2]


# ---- Copies ----------------------------------------------------------------------------------------------------------


def a_step(model: nn.Module, rank: int, step: int) -> None:
    torch.manual_seed(100 * step + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    model(torch.randint(0, 60, (8,))).backward()
    optimizer.step()


def copied(rank: int, size: int, how: str) -> dict[str, Any]:
    dist.init_process_group("pith")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    compressor = pith.torch.compress(model, "ef/q:4")
    for step in range(3):
        a_step(model, rank, step)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    x = torch.arange(8)
    with torch.no_grad():
        same = torch.equal(other(x), model(x))
    refused = outcome(lambda: other(x))
    second = pith.torch.compress(other, "ef/q:4")
    second.load_state_dict(compressor.state_dict())
    for step in range(3, 6):
        a_step(model, rank, step)
        a_step(other, rank, step)
    found = {
        "evaluated": same,
        "refused": refused,
        "compressed": pith.torch.stats(other)["hidden.weight"].ratio > 4,
        "same bits": bits(model) == bits(other),
        "bits": bits(model),
    }
    dist.destroy_process_group()
    return found


def outcome(call: Any) -> str:
    try:
        call()
    except pith.Error as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize("how", ["deepcopy", "file"])
def test_a_copy_is_evaluated_or_compressed_again_but_never_trained_uncompressed_unnoticed(
    how: str,
) -> None:
    found = run(copied, 2, how)
    for one in found:
        assert one["evaluated"] and one["compressed"] and one["same bits"]
        assert one["refused"].startswith("StateError") and "compress()" in one["refused"]
    assert found[0]["bits"] == found[1]["bits"]


# ---- Buckets ---------------------------------------------------------------------------------------------------------


def bucket_sizes(rank: int, size: int, cap: float | None, options: dict[str, Any]) -> Any:
    """How many buckets DDP hands over in the third step, and what training makes of it."""
    dist.init_process_group("pith")
    torch.manual_seed(0)
    layers = [nn.Linear(700, 700) for _ in range(6)]  # of 1.9 MiB each
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=cap, **options)
    compressor = pith.torch.compress(model, "ef/q:4")
    calls: list[int] = []
    reduce = compressor._reduce

    def counted(bucket: Any) -> Any:
        calls.append(bucket.index())
        return reduce(bucket)

    compressor._reduce = counted
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        calls.clear()
        optimizer.zero_grad()
        model(torch.randn(2, 700)).pow(2).mean().backward()
        optimizer.step()
    found = len(calls), bits(model)
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
    ],
    ids=str,
)
def test_buckets_are_small_unless_chosen_and_change_no_bit(options: dict[str, Any]) -> None:
    by_default, chosen = (run(bucket_sizes, 2, cap, options) for cap in (None, 100.0))
    assert all(calls >= 3 for calls, _ in by_default)  # 11 MiB in buckets of about 4
    assert all(calls == 1 for calls, _ in chosen)
    assert len({result for _, result in by_default + chosen}) == 1
