# SPDX-License-Identifier: Apache-2.0
"""Residuals that follow the learning rate: a schedule loses nothing of what is pending.

The loss is linear, so that gradients do not depend on weights. After the schedule come steps without a gradient, until nothing is pending: all
updates together are then those of the exact gradients.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

import needs
import pith
from ranks import run

torch = needs.module("torch", "learning rates are an optimizer's of torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402

RATES = [0.5] * 6 + [0.05] * 6 + [0.005] * 6
DRAIN = 60  # steps without a gradient
SHAPE = (64, 32)


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SHAPE))

    def forward(self, gradient: Any) -> Any:
        return (self.weight * gradient).sum()


def gradient(rank: int, step: int) -> Any:
    seed = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(SHAPE, generator=seed)


def expected(ranks: int) -> Any:
    """The sum of all updates, exactly."""
    total = torch.zeros(SHAPE, dtype=torch.float64)
    for step, rate in enumerate(RATES):
        for rank in range(ranks):
            total -= rate * gradient(rank, step).double() / ranks
    return total


def train(how: str, backend: str, rank: int, spec: str, follow: bool | None) -> Any:
    group = dist.new_group(backend=backend)
    model = Weights()
    optimizer: Any
    if how == "ddp":
        wrapped: Any = DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        handle: Any = pith.torch.compress(wrapped, spec, optimizer=optimizer, follow_lr=follow)
    elif how == "fsdp":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        wrapped = fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        handle = pith.torch.compress(wrapped, spec, optimizer=optimizer, follow_lr=follow)
    else:
        wrapped = model
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = handle = pith.torch.DistributedOptimizer(
            inner, model, spec, group=group, follow_lr=follow
        )
    for step, rate in [*enumerate(RATES), *[(-1, RATES[-1])] * DRAIN]:
        for entry in optimizer.param_groups:
            entry["lr"] = rate
        optimizer.zero_grad()
        g = gradient(rank, step) if step >= 0 else torch.zeros(SHAPE)
        wrapped(g).backward()
        optimizer.step()
        if step == 10:  # a checkpoint has the rates
            handle.load_state_dict(handle.state_dict())
    weight = model.weight.detach()
    return (weight.full_tensor() if how == "fsdp" else weight).double()


def lost(rank: int, size: int, how: str, backend: str, spec: str, follow: bool | None) -> float:
    dist.init_process_group("gloo" if how == "fsdp" else "pith")
    exact = expected(size)
    found = train(how, backend, rank, spec, follow)
    dist.destroy_process_group()
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("how", "backend", "spec"),
    [
        ("ddp", "pith", "ef/topk:0.05"),
        ("ddp", "gloo", "ef/powersgd:4"),
        ("optimizer", "pith", "ef/powersgd:4"),
        ("optimizer", "gloo", "ef/topk:0.05"),
        ("fsdp", "gloo", "ef/topk:0.05"),
    ],
)
def test_a_schedule_loses_nothing(how: str, backend: str, spec: str) -> None:
    assert max(run(lost, 2, how, backend, spec, None)) < 1e-5
    assert min(run(lost, 2, how, backend, spec, False)) > 1e-2


# ---- Which rates are followed ----------------------------------------------------------------------------------------


class Scales:
    """What residuals were multiplied by."""

    def __init__(self, optimizer: Any, follow: bool | None, layers: list[Any]) -> None:
        from pith.torch._rates import Rates

        self.found: list[tuple[int, float]] = []
        self.rates = Rates(layers, optimizer, follow)

    def step(self) -> list[tuple[int, float]]:
        self.found = []
        self.rates.follow(lambda index, factor: self.found.append((index, factor)))
        return self.found


def two_layers() -> tuple[list[Any], list[Any]]:
    from pith._spec import rules_of
    from pith.torch._layers import layers_of

    parameters = [nn.Parameter(torch.zeros(40, 40)), nn.Parameter(torch.zeros(50, 50))]
    named = [("a", parameters[0]), ("b", parameters[1])]
    return parameters, layers_of(named, rules_of("ef/q:4", None, None))


def test_each_group_has_its_rate_and_zero_waits_for_the_next() -> None:
    (a, b), layers = two_layers()
    optimizer = torch.optim.SGD([{"params": [a], "lr": 0.0}, {"params": [b], "lr": 0.4}])
    scales = Scales(optimizer, None, layers)
    assert scales.step() == []
    optimizer.param_groups[1]["lr"] = 0.1
    assert scales.step() == [(1, 4.0)]
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.2, 0.0
    assert scales.step() == []  # the first rate that is not zero is that of what is pending
    saved = scales.rates.save()
    again = Scales(optimizer, None, layers)
    again.rates.load(saved)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.4)
    optimizer.param_groups[1]["lr"] = 0.2
    for each in (scales, again):
        assert [(i, pytest.approx(f)) for i, f in each.step()] == [(0, 0.5), (1, 0.5)]
    optimizer.param_groups[0]["lr"] = math.inf
    assert scales.step() == []


def test_adam_follows_where_it_is_asked() -> None:
    (a, b), layers = two_layers()
    optimizer = torch.optim.AdamW([a, b], lr=0.1)
    for follow, found in ((None, []), (False, []), (True, [(0, 2.0), (1, 2.0)])):
        optimizer.param_groups[0]["lr"] = 0.1
        scales = Scales(optimizer, follow, layers)
        assert scales.step() == []
        optimizer.param_groups[0]["lr"] = 0.05
        assert scales.step() == found


class Wrapped(torch.optim.Optimizer):
    """What libraries put around an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def test_an_optimizer_may_be_wrapped_and_change() -> None:
    (a, b), layers = two_layers()
    first, second = torch.optim.SGD([a], lr=0.4), torch.optim.SGD([b], lr=0.4)
    scales = Scales([Wrapped(Wrapped(first)), second], None, layers)
    assert scales.step() == []
    second.param_groups[0]["lr"] = 0.2
    assert scales.step() == [(1, 2.0)]
    scales.rates.change(torch.optim.SGD([a, b], lr=0.1), None)
    assert scales.step() == [(0, 4.0), (1, 2.0)]
    scales.rates.change(None, None)
    assert scales.step() == []


def test_following_needs_an_optimizer() -> None:
    _, layers = two_layers()
    with pytest.raises(pith.ArgumentError, match="needs the optimizer"):
        Scales(None, True, layers)
    with pytest.raises(pith.ArgumentError, match="is not an optimizer"):
        Scales(object(), None, layers)
    assert Scales(None, None, layers).step() == []
