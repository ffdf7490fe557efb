# SPDX-License-Identifier: Apache-2.0
"""Training without DDP: an optimizer that averages gradients, and the same start on all ranks."""

from __future__ import annotations

import io
from typing import Any

import pytest

import needs
import pith
from ranks import run

torch = needs.module("torch", "the optimizer needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402

STEPS = 5


def groups() -> dict[str, Any]:
    dist.init_process_group("pith")
    return {"pith": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 40), nn.Tanh(), nn.Linear(40, 1)
    )


def loss_of(model: nn.Module, rank: int, step: int, part: int = 0) -> Any:
    seed = torch.Generator().manual_seed(1000 * step + 10 * part + rank)
    x = torch.randn(16, 20, generator=seed)
    return ((model(x) - x[:, :1]) ** 2).mean()


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def bits(model: nn.Module) -> bytes:
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def by_ddp(group: Any, rank: int, spec: str, passes: int = 1) -> bytes:
    model = DistributedDataParallel(net(), process_group=group)
    pith.torch.compress(model, spec)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(passes - 1):
            with model.no_sync():
                loss_of(model, rank, step, part).backward()
        loss_of(model, rank, step, passes - 1).backward()
        optimizer.step()
    return bits(model)


def by_optimizer(group: Any, rank: int, spec: str, passes: int = 1, clip: bool = False) -> bytes:
    model = net()
    optimizer = pith.torch.DistributedOptimizer(
        sgd(model), model, spec, backward_passes_per_step=passes, group=group
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)  # takes it for an optimizer
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(passes):
            loss_of(model, rank, step, part).backward()
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        schedule.step()
    return bits(model)


def like_ddp(rank: int, size: int) -> list[bytes]:
    found = []
    for name, group in groups().items():
        for spec in ("none", "ef/q:4", "0.*=ef/topk:0.05;*=q:2"):
            for passes in (1, 3):
                expected = by_ddp(group, rank, spec, passes)
                assert by_optimizer(group, rank, spec, passes) == expected, (name, spec, passes)
                found.append(expected)
        assert by_optimizer(group, rank, "ef/q:4", clip=True) == by_ddp(group, rank, "ef/q:4")
    dist.destroy_process_group()
    return found


def test_it_trains_as_ddp_with_the_hook_does() -> None:
    found = run(like_ddp, 2)
    assert found[0] == found[1]
    assert len(set(found[0])) == 6  # pith and gloo alike


def same_start(rank: int, size: int) -> list[bytes]:
    found = []
    for group in groups().values():
        model = net(seed=rank)
        optimizer = sgd(model)
        for group_ in optimizer.param_groups:
            group_["lr"] = 0.1 + rank
        if rank == 0:  # only one rank has a past
            loss_of(model, 0, 0).backward()
            optimizer.step()
        pith.torch.broadcast_parameters(model, group=group)
        pith.torch.broadcast_optimizer_state(optimizer, group=group)
        assert optimizer.param_groups[0]["lr"] == 0.1
        momentum = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
        assert any(m.abs().sum() > 0 for m in momentum)
        found.append(bits(model) + b"".join(m.numpy().tobytes() for m in momentum))
    last = net(seed=rank)
    pith.torch.broadcast_parameters(last, root=size - 1)
    assert bits(last) == bits(net(seed=size - 1))
    dist.destroy_process_group()
    return found


def test_everybody_starts_as_the_root_does() -> None:
    found = run(same_start, 3)
    assert found[0] == found[1] == found[2]


def resumed(rank: int, size: int) -> None:
    for name, group in groups().items():
        model = net()
        optimizer = pith.torch.DistributedOptimizer(sgd(model), model, "ef/q:2", group=group)
        losses = [steps(model, optimizer, rank, 0, 3), steps(model, optimizer, rank, 3, 6)]
        again = net()
        other = pith.torch.DistributedOptimizer(sgd(again), again, "ef/q:2", group=group)
        assert steps(again, other, rank, 0, 3) == losses[0]
        file = io.BytesIO()
        torch.save([again.state_dict(), other.state_dict()], file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        fresh = net(seed=5)
        third = pith.torch.DistributedOptimizer(
            sgd(fresh), fresh.named_parameters(), "ef/q:2", group=group
        )
        fresh.load_state_dict(saved[0])
        third.load_state_dict(saved[1])
        assert steps(fresh, third, rank, 3, 6) == losses[1], name
        third.load_state_dict(sgd(fresh).state_dict())  # of an optimizer without Pith
    dist.destroy_process_group()


def steps(model: nn.Module, optimizer: Any, rank: int, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_run_goes_on_from_a_checkpoint() -> None:
    run(resumed, 2)


class Uneven(nn.Module):
    """Ranks use other layers, in another order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(40, 40) for _ in range(3))
        self.embed = nn.Embedding(50, 40, sparse=True)
        self.conv = nn.Conv2d(4, 40, 3).to(memory_format=torch.channels_last)

    def forward(self, rank: int) -> Any:
        y = self.embed(torch.arange(5) + rank)
        y = self.b(self.a(y)) if rank == 0 else self.a(self.c(y))
        image = torch.ones(1, 4, 5, 5).contiguous(memory_format=torch.channels_last)
        return y.pow(2).mean() + self.conv(image).pow(2).mean()


def uneven(rank: int, size: int) -> None:
    for name, group in groups().items():
        model = Uneven()
        expected: dict[str, Any] = {}
        for other in range(size):
            model.zero_grad()
            model(other).backward()
            for key, p in model.named_parameters():
                gradient = torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
                expected[key] = expected.get(key, 0) + gradient / size
        model.zero_grad()
        optimizer = pith.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model, "none", group=group
        )
        model(rank).backward()
        with pytest.raises(pith.StateError, match="on their way"):
            optimizer.zero_grad()
        optimizer.step()
        for key, p in model.named_parameters():
            torch.testing.assert_close(p.grad, expected[key], msg=f"{name} {key}")
        assert pith.torch.stats(optimizer)["conv.weight"].steps == 1
    dist.destroy_process_group()


def test_ranks_may_use_other_layers_in_another_order() -> None:
    run(uneven, 2)


def with_a_scaler(rank: int, size: int) -> list[bytes]:
    found = []
    for group in groups().values():
        weights = []
        for factor in (1.0 + 1e-9, 2.0):  # of growth: powers of two round nothing
            model = net()
            scaler = torch.amp.GradScaler("cpu", 8.0, factor, growth_interval=2)
            optimizer = pith.torch.DistributedOptimizer(
                sgd(model), model, "ef/q:2", scaler=scaler, group=group
            )
            for step in range(7):
                optimizer.zero_grad()
                loss = loss_of(model, rank, step)
                poisoned = factor == 2.0 and step == 6
                scaler.scale(loss * float("nan") if poisoned and rank == 1 else loss).backward()
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                if step == 5:
                    weights.append(bits(model))
            assert all(torch.isfinite(p).all() for p in model.parameters())
        assert scaler.get_scale() == 8.0 * 2**3 / 2  # all ranks left the last step out
        assert weights[0] == weights[1]
        found.append(bits(model))
    dist.destroy_process_group()
    return found


def test_the_loss_scale_is_followed() -> None:
    found = run(with_a_scaler, 2)
    assert found[0] == found[1]


def refused(rank: int, size: int) -> int:
    checks = 0
    for group in groups().values():
        model = net()
        cases: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
            (pith.SpecError, (sgd(model), model, "qq:4"), {}, "qq"),
            (pith.SpecError, (sgd(model), model, "x*=q:4"), {}, "matches none"),
            (pith.ArgumentError, (sgd(model), [], "q:4"), {}, "not among the named"),
            (pith.ArgumentError, (model, model, "q:4"), {}, "not an optimizer"),
            (pith.ArgumentError, (sgd(model), model), {"backward_passes_per_step": 0}, "least 1"),
            (pith.MismatchError, (sgd(model), model, f"q:{4 + rank}"), {}, "on rank 1"),
            (
                pith.MismatchError,
                (sgd(model), model),
                {"backward_passes_per_step": 1 + rank},
                "backward_passes_per_step is 1 on rank 0 and 2 on rank 1",
            ),
        ]
        for error, arguments, options, message in cases:
            with pytest.raises(error, match=message):
                pith.torch.DistributedOptimizer(*arguments, group=group, **options)
            checks += 1
        optimizer = pith.torch.DistributedOptimizer(sgd(model), model, group=group)
        loss_of(model, rank, 0).backward()
        with pytest.raises(pith.StateError, match="2 backward passes"):
            loss_of(model, rank, 1).backward()
        with optimizer.skip_synchronize(), pytest.raises(pith.StateError, match="on their way"):
            optimizer.step()
        optimizer.synchronize()
        with pytest.raises(pith.ArgumentError, match="before DistributedOptimizer"):
            optimizer.add_param_group({"params": []})
    dist.destroy_process_group()
    return checks


def test_wrong_use_is_refused() -> None:
    assert run(refused, 2) == [14, 14]
