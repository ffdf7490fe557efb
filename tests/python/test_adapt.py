# SPDX-License-Identifier: Apache-2.0
"""Adaptive specs: plans made in training, over pith and over gloo, and the bindings of profiles, plans and adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import needs
import pith
from pith._adapt import AdaptiveRules, rules_from
from ranks import run

numpy = needs.module("numpy", "gradients are made with numpy")

# ---- Without torch


LAYERS = [("one", (64, 64)), ("two", (96, 64)), ("bias", (96,))]


def gradients(step: int = 0) -> dict[str, Any]:
    noise = numpy.random.default_rng(step)
    return {
        name: (10.0**place * noise.normal(size=shape)).astype("float32")
        for place, (name, shape) in enumerate(LAYERS)
    }


def test_a_profile_gives_a_plan_that_keeps_the_budget(tmp_path: Path) -> None:
    profile = pith.Profile(LAYERS, pith.candidates("q:4"))
    for name, gradient in gradients().items():
        profile.update(name, gradient)
    plan = profile.plan("q:4")
    assert (plan.method, plan.reference) == ("lgreco", "q:4")
    assert [layer.name for layer in plan.layers] == profile.names == ["one", "two", "bias"]
    assert plan.layers[2].spec == "none"
    chosen = [profile.mean(layer.name, layer.spec) for layer in plan.layers[:2]]
    uniform = [profile.mean(layer.name, "q:4") for layer in plan.layers[:2]]
    assert sum(error for _, error in chosen) <= sum(error for _, error in uniform)
    assert sum(size for size, _ in chosen) < sum(size for size, _ in uniform)
    profile.save(tmp_path / "stats.json")
    again = pith.Profile.load(tmp_path / "stats.json")
    assert again.plan("q:4").to_json() == plan.to_json()
    assert again.candidates == profile.candidates
    profile.reset()
    with pytest.raises(pith.StateError, match="no statistics"):
        profile.plan("q:4")
    with pytest.raises(pith.ArgumentError, match="no method"):
        profile.plan("q:4", method="greedy")
    with pytest.raises(pith.ArgumentError, match="no layer"):
        profile.update("three", gradients()["one"])


@pytest.mark.parametrize("metric", ["l2sq", "l2"])
def test_every_method_keeps_the_budget_by_its_metric(metric: str, tmp_path: Path) -> None:
    profile = pith.Profile(LAYERS, [*pith.candidates("q:4"), "none"])
    for name, gradient in gradients().items():
        profile.update(name, gradient)

    def error(layer: str, spec: str) -> float:
        squared = profile.mean(layer, spec)[1]
        return squared**0.5 if metric == "l2" else squared

    allowed = sum(error(name, "q:4") for name in profile.names[:2])
    for method in ("lgreco", "kmeans", "cgxkmeans", "linear", "best", "bayes"):
        plan = profile.plan("q:4", method=method, metric=metric, cap=1.5)
        assert (plan.method, plan.metric or "l2sq") == (method, metric)
        assert sum(error(x.name, x.spec) for x in plan.layers[:2]) <= allowed * (1 + 1e-9)
        assert all(int(x.spec.split(":")[1].split(",")[0]) <= 6 for x in plan.layers[:2])
        plan.save(tmp_path / "plan.json")
        assert pith.Plan.load(tmp_path / "plan.json") == plan
    with pytest.raises(pith.ArgumentError, match="no metric"):
        profile.plan("q:4", metric="l1")
    with pytest.raises(pith.ArgumentError, match="give one of them"):
        profile.plan("q:4", alpha=2, tolerance=0.1)


def test_fast_links_want_other_plans_than_slow_ones() -> None:
    profile = pith.Profile(LAYERS)
    for name, gradient in gradients().items():
        profile.update(name, gradient)
    slow, fast = (
        profile.plan("q:2", objective="time", families="mix", bandwidth=rate, compute=0.01)
        for rate in (1e5, 1e12)
    )
    assert sum(layer.bytes or 0 for layer in slow.layers) < sum(
        layer.bytes or 0 for layer in fast.layers
    )


def take_steps(adapters: list[pith.Adapter], steps: int) -> list[bool]:
    """Ranks in one process: their numbers are added up here."""
    found = []
    for _ in range(steps):
        for adapter in adapters:
            for place, gradient in enumerate(gradients(adapter.step).values()):
                if adapter.wants(place):
                    adapter.observe(place, gradient)
        numbers = [adapter.finish(0.1, 0.05, 0.01) for adapter in adapters]
        if numbers[0] is not None:
            views = [numpy.frombuffer(each) for each in numbers]
            views[0][:] = views[1][:] = views[0] + views[1]
        changed = [adapter.advance(1e-4) for adapter in adapters]
        assert changed[0] == changed[1]
        found.append(changed[0])
    return found


def test_adapters_change_together_and_can_be_saved(tmp_path: Path) -> None:
    spec = "lgreco:q:4,warmup=8,period=32"
    adapters = [pith.Adapter(spec, LAYERS, rank, 2) for rank in range(2)]
    assert (adapters[0].step, adapters[0].next_plan) == (0, 8)
    assert {"none", "q:1", "q:4", "q:8,bucket=128"} <= set(adapters[0].candidates)
    assert take_steps(adapters, 8) == [False] * 7 + [True]
    specs = [adapters[0].spec(place) for place in range(3)]
    assert specs == [adapters[1].spec(place) for place in range(3)]
    assert specs[0].startswith("q:") and specs[2] == "none"
    assert "plan of step 8" in adapters[0].reason(0)
    assert adapters[0].reason(2) == "one dimension"
    adapters[0].write_profile(tmp_path / "stats.json")
    assert pith.Profile.load(tmp_path / "stats.json").names == ["one", "two", "bias"]
    others = [pith.Adapter(spec, LAYERS, rank, 2) for rank in range(2)]
    for adapter, other in zip(adapters, others, strict=True):
        other.load(adapter.save())
    assert [others[0].spec(place) for place in range(3)] == specs
    assert take_steps(adapters, 40) == take_steps(others, 40)
    with pytest.raises(pith.StateError, match="another spec"):
        pith.Adapter("lgreco:q:3", LAYERS, 0, 2).load(adapters[0].save())


def test_rules_may_end_with_an_adaptive_spec() -> None:
    rules = rules_from("embed*=none; *=lgreco:q:4,period=64")
    assert isinstance(rules, AdaptiveRules)
    assert rules.text == "embed*=none;*=lgreco:q:4,period=64"
    assert rules.adapts("fc", (100, 100))
    assert not rules.adapts("embed.weight", (100, 100)) and not rules.adapts("bias", (100,))
    assert not isinstance(rules_from("embed*=none;*=q:4"), AdaptiveRules)
    for wrong, says in (
        ("auto;q:4", "patterns"),
        ("fc*=auto", "no other rule"),
        ("*=auto;fc*=q:4", "last"),
        ("lgreco:q:99", "out of range"),
        ("auto,period=1", "period"),
        ("*=lgreco:mix", "budget"),
    ):
        with pytest.raises(pith.Error, match=says):
            rules_from(wrong)


# ---- In training

torch = needs.module("torch", "training needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402
from small_model import loss_of, make  # noqa: E402

BACKENDS = ("pith", "gloo")


def groups() -> dict[str, Any]:
    dist.init_process_group("pith")
    return {"pith": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def step(model: nn.Module, optimizer: Any, rank: int, number: int) -> None:
    optimizer.zero_grad()
    loss_of(model, rank, number).backward()
    optimizer.step()


def bits(model: nn.Module) -> bytes:
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def train_with(group: Any, rank: int, spec: str | None, steps: int) -> tuple[Any, list[Any]]:
    """Parameters and specs after each step."""
    model = DistributedDataParallel(make(), process_group=group)
    pith.torch.compress(model, spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for number in range(steps):
        step(model, optimizer, rank, number)
        table = pith.torch.stats(model)
        found.append((bits(model), [(layer.spec, layer.reason) for layer in table]))
    return model, found


PLANNED = (
    "lgreco:q:4,warmup=4,period=32",
    "lgreco:ef/topk:0.05,warmup=4,period=32",
    "0.*=q:8;*=lgreco:mix,budget=q:4,warmup=4,period=32",
    "kmeans:q:4,warmup=4,period=32",
)


def plan_in_training(rank: int, size: int) -> list[Any]:
    by_name, found = groups(), []
    for spec in PLANNED:
        for name in BACKENDS:
            _, history = train_with(by_name[name], rank, spec, 42)
            specs = [[spec for spec, _ in table] for _, table in history]
            assert specs[2][2] == ("ef/topk:0.05" if "topk" in spec else "q:4"), (
                spec,
                name,
                specs[:6],
            )
            assert "warm-up" in history[2][1][2][1]
            assert "plan of step 4" in history[4][1][2][1]
            assert history[-1][1][3] == ("none", "one dimension")
            found.append(history)
    dist.destroy_process_group()
    return found


def test_ranks_plan_alike_over_pith_and_gloo() -> None:
    first, second = run(plan_in_training, 2)
    assert first == second
    for over_pith, over_gloo in zip(first[::2], first[1::2], strict=True):
        assert [table for _, table in over_pith] == [table for _, table in over_gloo]


def choose_by_trial(rank: int, size: int) -> list[Any]:
    """What is fastest here is not for a test to say; that all ranks take it is."""
    by_name, found = groups(), []
    for name in BACKENDS:
        model, history = train_with(by_name[name], rank, "auto,warmup=12,period=32", 110)
        assert any("trial" in table[2][1] for _, table in history)
        found.append(history)
    model = DistributedDataParallel(make(), process_group=by_name["pith"])
    pith.torch.compress(model)
    found.append([(layer.spec, layer.reason) for layer in pith.torch.stats(model)])
    dist.destroy_process_group()
    return found


def test_auto_is_the_default_and_ranks_choose_alike() -> None:
    first, second = run(choose_by_trial, 2)
    assert first == second
    assert first[2][2] == ("none", "auto,budget=q:4, warm-up")


def resume(rank: int, size: int) -> None:
    for name, group in groups().items():
        for at in (3, 6, 34):
            spec = "lgreco:ef/topk:0.05,warmup=4,period=32"
            models = [DistributedDataParallel(make(), process_group=group) for _ in range(2)]
            made = [pith.torch.compress(model, spec) for model in models]
            optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
            for number in range(at):
                step(models[0], optimizers[0], rank, number)
            models[1].load_state_dict(models[0].state_dict())
            made[1].load_state_dict(made[0].state_dict())
            for number in range(at, at + 36):
                for model, optimizer in zip(models, optimizers, strict=True):
                    step(model, optimizer, rank, number)
                assert bits(models[0]) == bits(models[1]), (name, at, number)
                tables = [pith.torch.stats(model) for model in models]
                assert [row.spec for row in tables[0]] == [row.spec for row in tables[1]]
            other = DistributedDataParallel(make(), process_group=group)
            with pytest.raises(pith.StateError):
                pith.torch.compress(other, "ef/topk:0.05").load_state_dict(made[0].state_dict())
    dist.destroy_process_group()


def test_a_checkpoint_in_the_middle_of_a_period_goes_on_bit_by_bit() -> None:
    run(resume, 2)


def use_optimizer(rank: int, size: int) -> list[str]:
    by_name, found = groups(), []
    for name in BACKENDS:
        model = make()
        plain = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer = pith.torch.DistributedOptimizer(
            plain, model, "lgreco:q:4,warmup=4,period=32", group=by_name[name]
        )
        for number in range(8):
            step(model, optimizer, rank, number)
        found.append(pith.torch.stats(optimizer)[2].spec)
    dist.destroy_process_group()
    return found


def test_the_optimizer_takes_adaptive_specs() -> None:
    first, second = run(use_optimizer, 2)
    assert first == second and "none" not in first


def refuse(rank: int, size: int) -> None:
    for group in groups().values():
        for wrong, error in (
            ("lgreco:q:99", pith.RangeError),
            ("auto,period=2", pith.SpecError),
            ("0*=auto", pith.SpecError),
            ("lgreco:q:4" if rank else "lgreco:q:3", pith.MismatchError),
        ):
            model = DistributedDataParallel(make(), process_group=group)
            with pytest.raises(error):
                pith.torch.compress(model, wrong)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            step(model, optimizer, rank, 0)  # the model is as it was
    dist.destroy_process_group()


def test_mistakes_are_told_before_the_first_step() -> None:
    run(refuse, 2)


def alone(rank: int, size: int) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = DistributedDataParallel(make())
    pith.torch.compress(model, "auto,warmup=4,period=32")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(40):
        step(model, optimizer, 0, number)
    assert {layer.spec for layer in pith.torch.stats(model)} == {"none"}
    dist.destroy_process_group()


def test_one_rank_does_nothing() -> None:
    run(alone, 1)
