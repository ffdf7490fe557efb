# SPDX-License-Identifier: Apache-2.0
"""Local steps: ranks train by themselves, and average what they have moved."""

from __future__ import annotations

import io
from typing import Any

import pytest

import needs
import pith
from ranks import run
from small_model import loss_of, make

torch = needs.module("torch", "local steps are steps of an optimizer of torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402
from pith.torch._local import fragments_of  # noqa: E402


def groups() -> dict[str, Any]:
    dist.init_process_group("pith")
    return {"pith": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def sgd(model: nn.Module, lr: float = 0.1) -> Any:
    return torch.optim.SGD(model.parameters(), lr=lr)


def adam(model: nn.Module) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def bits(model: nn.Module) -> bytes:
    return b"".join(p.detach().float().numpy().tobytes() for p in model.parameters())


def train(model: nn.Module, optimizer: Any, rank: int, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# ---- What is averaged


def like_ddp(rank: int, size: int) -> None:
    for group in groups().values():
        ddp = DistributedDataParallel(make(), process_group=group)
        train(ddp, sgd(ddp), rank, 0, 6)
        model = make()
        optimizer = sgd(model)
        pith.torch.LocalSteps(model, optimizer, every=1, spec="none", group=group)
        train(model, optimizer, rank, 0, 6)
        for mine, theirs in zip(model.parameters(), ddp.module.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    dist.destroy_process_group()


def test_averages_of_every_step_of_sgd_are_those_of_ddp() -> None:
    run(like_ddp, 3)


def by_hand(rank: int, size: int) -> None:
    """Two rounds of DiLoCo, whose outer step is written out."""
    dist.init_process_group("gloo")
    models = [make() for _ in range(size)]
    inner = [adam(model) for model in models]
    x = [p.detach().clone() for p in models[0].parameters()]
    momentum = [torch.zeros_like(p) for p in x]
    for first in (0, 4):
        for other in range(size):
            train(models[other], inner[other], other, first, first + 4)
        for i, local in enumerate(zip(*(m.parameters() for m in models), strict=True)):
            mean = sum(x[i] - p.detach() for p in local) / size
            momentum[i] = 0.8 * momentum[i] + mean if first else mean
            x[i] = x[i] - 0.5 * (mean + 0.8 * momentum[i])
            for p in local:
                p.data.copy_(x[i])
    for outer in (
        "nesterov,lr=0.5,momentum=0.8",
        lambda start: torch.optim.SGD(start, lr=0.5, momentum=0.8, nesterov=True),
    ):
        model = make()
        optimizer = adam(model)
        pith.torch.LocalSteps(model, optimizer, every=4, spec="none", outer=outer)
        train(model, optimizer, rank, 0, 8)
        for mine, theirs in zip(model.parameters(), x, strict=True):
            torch.testing.assert_close(mine.detach(), theirs, rtol=1e-4, atol=1e-6)
    dist.destroy_process_group()


def test_the_outer_step_is_that_of_diloco() -> None:
    run(by_hand, 2)


def identical(rank: int, size: int) -> list[Any]:
    found: list[Any] = []
    for group in groups().values():
        for spec in ("none", "q:4", "ef/q:2", "ef/topk:0.05", "ef/powersgd:2"):
            torch.manual_seed(rank)
            model = nn.Sequential(nn.Linear(40, 60), nn.BatchNorm1d(60), nn.Linear(60, 20))
            optimizer = adam(model)
            local = pith.torch.LocalSteps(
                model, optimizer, every=3, spec=spec, outer="nesterov", group=group
            )
            start = bits(model) + b"".join(b.numpy().tobytes() for b in model.buffers())
            states = []
            for step in range(7):
                train(model, optimizer, rank, step, step + 1)
                states.append(bits(model))
            local.synchronize()
            local.synchronize()  # nothing has moved since: nothing happens
            assert local.stats()["0.weight"].steps == 3
            assert pith.torch.stats(local)["0.weight"].spec == spec
            found.append((start, states[2], states[5], bits(model)))
            found.append(states[4])  # a rank's own
    dist.destroy_process_group()
    return found


def test_replicas_are_identical_after_a_synchronisation() -> None:
    found = run(identical, 3)
    assert len(found[0]) == 20
    for together in found[0][::2], found[1][::2], found[2][::2]:
        assert together == found[0][::2]
    for one, other in zip(found[0][1::2], found[1][1::2], strict=True):
        assert one != other
    assert found[0][:8] == found[0][10:18]  # pith and gloo, but for the sums of low rank


class Weights(nn.Module):
    """A linear loss: gradients do not depend on weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 32))

    def forward(self, gradient: Any) -> Any:
        return (self.weight * gradient).sum()


def halves(rank: int, size: int) -> None:
    """Each round moves a weight by one unit of bf16, of which the outer step takes 1/64."""
    dist.init_process_group("pith")
    unit = 2.0**-7
    model = Weights().bfloat16()
    nn.init.ones_(model.weight)
    optimizer = sgd(model, lr=unit)
    pith.torch.LocalSteps(
        model,
        optimizer,
        every=1,
        spec="none",
        outer=lambda start: torch.optim.SGD(start, lr=1 / 64),
    )
    for step in range(64):
        assert model.weight.unique().tolist() == [1.0 if step <= 32 else 1.0 + unit]
        optimizer.zero_grad()
        model(-torch.ones_like(model.weight)).backward()
        optimizer.step()
    dist.destroy_process_group()


def test_small_outer_steps_of_halves_are_not_lost() -> None:
    run(halves, 2)


def conserved(rank: int, size: int) -> int:
    checks = 0
    for group in groups().values():
        for spec in ("ef/topk:0.05", "ef/q:2"):
            for overlap in (0, 1, 2):
                model = Weights()
                optimizer = sgd(model, lr=0.5)
                local = pith.torch.LocalSteps(
                    model, optimizer, every=2, spec=spec, overlap=overlap, group=group
                )
                total = torch.zeros(64, 32, dtype=torch.float64)
                for step in range(10 + 120):  # at first with gradients, then what is pending comes
                    each = [
                        torch.randn(64, 32, generator=torch.Generator().manual_seed(100 * step + r))
                        if step < 10
                        else torch.zeros(64, 32)
                        for r in range(size)
                    ]
                    total -= 0.5 * sum(g.double() for g in each) / size
                    optimizer.zero_grad()
                    model(each[rank]).backward()
                    optimizer.step()
                    if step == 9:
                        local.synchronize()
                        early = (model.weight.detach().double() - total).norm() / total.norm()
                        assert early > 1e-2, spec  # something is pending
                late = (model.weight.detach().double() - total).norm() / total.norm()
                assert late < 1e-5, (spec, overlap, late)
                checks += 1
    dist.destroy_process_group()
    return checks


def test_nothing_of_what_ranks_have_moved_is_lost() -> None:
    assert run(conserved, 2) == [12, 12]


# ---- Fragments and overlap


def test_fragments_are_in_order_and_of_about_the_same_size() -> None:
    assert fragments_of([10, 1, 1, 1, 1, 10], 3) == [range(1), range(1, 5), range(5, 6)]
    assert fragments_of([5] * 8, 1) == [range(8)]
    assert fragments_of([0, 0, 0], 3) == [range(1), range(1, 2), range(2, 3)]
    assert fragments_of([100, 1, 1], 3) == [range(1), range(1, 2), range(2, 3)]


def streamed(rank: int, size: int) -> list[Any]:
    found: list[Any] = []
    for group in groups().values():
        for overlap, mix in ((0, None), (2, None), (2, 0.5), (True, 0.0)):
            model = make()
            optimizer = adam(model)
            local = pith.torch.LocalSteps(
                model, optimizer, every=6, spec="ef/q:2", fragments=3, overlap=overlap, mix=mix,
                outer="nesterov", group=group,
            )  # fmt: skip
            order, starts = [], []
            names = [name for name, _ in model.named_parameters()]
            for step in range(14):
                train(model, optimizer, rank, step, step + 1)
                table = local.stats()
                order.append([table[name].steps for name in names])
                starts.append(b"".join(s.detach().numpy().tobytes() for s in local._start))
            found.append((order, starts))
            local.synchronize()
            found.append(bits(model))
    dist.destroy_process_group()
    return found


def test_fragments_take_turns_at_the_same_steps_everywhere() -> None:
    found = run(streamed, 3)
    assert found[0] == found[1] == found[2]
    assert found[0][:8] == found[0][8:]  # pith and gloo
    order, starts = found[0][0]
    parts = fragments_of([40 * 120, 120, 120 * 80, 80, 80 * 20, 20], 3)
    for step in range(1, 15):
        sent = [(step + 6 - turn) // 6 for turn in (2, 4, 6)]
        assert order[step - 1] == [sent[i] for i, part in enumerate(parts) for _ in part], step
    assert [s for s in range(1, 14) if starts[s] != starts[s - 1]] == [1, 3, 5, 7, 9, 11, 13]
    late = found[0][2][1]  # two steps later
    assert [s for s in range(1, 14) if late[s] != late[s - 1]] == [3, 5, 7, 9, 11, 13]


def kept(rank: int, size: int) -> None:
    """With a linear loss, steps made during an exchange are all there: the mean of replicas is what it would be without overlap."""
    dist.init_process_group("pith")
    for mix, share in ((None, 1.0), (0.5, 0.5), (0.0, 0.0)):
        model = Weights()
        optimizer = sgd(model, lr=1.0)
        pith.torch.LocalSteps(model, optimizer, every=4, spec="none", overlap=2, mix=mix)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.full((64, 32), -1.0 - rank)).backward()
            optimizer.step()
        mean, mine = 4 * (1 + (size - 1) / 2), 1.0 + rank
        expected = mean + 2 * mine if mix is None else share * 6 * mine + (1 - share) * mean
        assert model.weight.min().item() == pytest.approx(expected)
        assert model.weight.max().item() == pytest.approx(expected)
    dist.destroy_process_group()


def test_steps_made_during_an_exchange_are_kept_as_mix_says() -> None:
    run(kept, 2)


# ---- Checkpoints


def resumed(rank: int, size: int) -> int:
    checks = 0
    for group in groups().values():
        for fragments, overlap, mix in ((1, 0, None), (2, 2, None), (2, 2, 0.5)):
            options: Any = {
                "every": 4, "spec": "ef/q:2", "outer": "nesterov", "fragments": fragments,
                "overlap": overlap, "mix": mix, "group": group,
            }  # fmt: skip
            model = make()
            optimizer = adam(model)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
            local = pith.torch.LocalSteps(model, optimizer, **options)
            saved = io.BytesIO()
            losses = []
            for step in range(20):
                if step == 9:  # in a round, and with overlap while an exchange is under way
                    assert (local._exchange is not None) == bool(overlap)
                    torch.save([o.state_dict() for o in (model, optimizer, schedule, local)], saved)
                losses += train(model, optimizer, rank, step, step + 1)
                schedule.step()
            saved.seek(0)
            states = torch.load(saved, weights_only=True)
            again = make()
            other = adam(again)
            following = torch.optim.lr_scheduler.CosineAnnealingLR(other, 20)
            third = pith.torch.LocalSteps(again, other, **options)
            with pytest.raises(pith.StateError, match="other weights"):
                third.load_state_dict(states[3])
            for what, state in zip((again, other, following, third), states, strict=True):
                what.load_state_dict(state)
            assert third.steps == 9
            for step in range(9, 20):
                assert train(again, other, rank, step, step + 1) == losses[step : step + 1]
                following.step()
            assert bits(again) == bits(model)
            checks += 1
    dist.destroy_process_group()
    return checks


def test_a_run_goes_on_from_a_checkpoint_with_the_same_losses() -> None:
    assert run(resumed, 2) == [6, 6]


# ---- With what training loops do


def loops(rank: int, size: int) -> None:
    dist.init_process_group("pith")
    model = make()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", 8.0)
    local = pith.torch.LocalSteps(model, optimizer, every=4, spec="q:4", hook=False)
    skipped = 0
    for step in range(12):
        optimizer.zero_grad()
        for part in range(2):  # gradients are accumulated
            loss = loss_of(model, rank, 2 * step + part)
            bad = rank == 1 and step == 5
            scaler.scale(loss * float("inf") if bad else loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = bits(model)
        scaler.step(optimizer)
        skipped += bits(model) == before
        scaler.update()
        local.step()
    assert skipped == (rank == 1)
    assert local.steps == 12
    local.remove()
    optimizer.step()
    assert local.steps == 12
    pith.torch.LocalSteps(model, optimizer, every=4)  # may be made again
    dist.destroy_process_group()


def test_scalers_clipping_and_accumulation_go_on_as_before() -> None:
    run(loops, 2)


def two_optimizers(rank: int, size: int) -> list[bytes]:
    dist.init_process_group("pith")
    found = []
    for shared in (False, True):
        model = make()
        weights, biases = (
            [p for p in model.parameters() if (p.dim() > 1) == wanted] for wanted in (True, False)
        )
        optimizers = (
            [torch.optim.SGD(part, lr=0.1) for part in (weights, biases)]
            if shared
            else [sgd(model)]
        )
        local = pith.torch.LocalSteps(model, optimizers, every=3, spec="ef/q:4")
        for step in range(6):
            model.zero_grad()
            loss_of(model, rank, step).backward()
            for optimizer in optimizers:
                optimizer.step()
        assert local.steps == 6
        found.append(bits(model))
    dist.destroy_process_group()
    return found


def test_several_optimizers_may_share_a_model() -> None:
    found = run(two_optimizers, 2)
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]


# ---- Mistakes


def refused(rank: int, size: int) -> int:
    checks = 0
    dist.init_process_group("pith")
    model, other = make(), make()
    some = torch.optim.SGD(list(model.parameters())[:-1], lr=0.1)
    sparse = nn.Sequential(nn.Embedding(10, 4, sparse=True))
    averaging = pith.torch.DistributedOptimizer(sgd(other), other, "q:4")
    ddp = DistributedDataParallel(make())
    used = make()
    taken = sgd(used)
    pith.torch.LocalSteps(used, taken, every=4)

    def broken(start: Any) -> Any:
        raise ValueError("no way")

    cases: list[tuple[Any, tuple[Any, Any], dict[str, Any], str]] = [
        (pith.ArgumentError, (model, sgd(other)), {}, "not among the named"),
        (pith.ArgumentError, (model, some), {}, r"does not have 1 parameters .*3.bias"),
        (pith.ArgumentError, (ddp, sgd(ddp)), {}, "DistributedDataParallel exchanges in every"),
        (pith.ArgumentError, (other, averaging), {}, "averages gradients in every step"),
        (pith.ArgumentError, (used, taken), {}, "already"),
        (pith.ArgumentError, (model, model), {}, "not an optimizer"),
        (pith.ArgumentError, (model, []), {}, "needs an optimizer"),
        (pith.ArgumentError, (sparse, sgd(sparse)), {}, "0.weight has sparse gradients"),
        (pith.ArgumentError, (model, sgd(model)), {"every": 0}, "every=0"),
        (pith.ArgumentError, (model, sgd(model)), {"every": 2.5}, "every=2.5"),
        (pith.ArgumentError, (model, sgd(model)), {"fragments": 7}, "fragments=7 is too many"),
        (pith.ArgumentError, (model, sgd(model)), {"fragments": 2, "overlap": 5}, "most .* = 4"),
        (pith.ArgumentError, (model, sgd(model)), {"mix": 0.5}, "mix is for overlap"),
        (pith.ArgumentError, (model, sgd(model)), {"mix": 1.0, "overlap": 1}, "share"),
        (pith.ArgumentError, (model, sgd(model)), {"outer": "nesterow"}, "nesterow"),
        (pith.ArgumentError, (model, sgd(model)), {"outer": "nesterov,rate=1"}, "no option 'rate'"),
        (pith.ArgumentError, (model, sgd(model)), {"outer": "nesterov,lr=x"}, "no number"),
        (pith.ArgumentError, (model, sgd(model)), {"outer": broken}, "ValueError: no way"),
        (pith.ArgumentError, (model, sgd(model)), {"outer": lambda p: p}, "made list"),
        (pith.ArgumentError, (model, sgd(model)), {"outer": lambda p: sgd(model)}, "other parame"),
        (pith.SpecError, (model, sgd(model)), {"spec": "qq:4"}, "qq"),
        (pith.SpecError, (model, sgd(model)), {"spec": "x*=q:4"}, "matches none"),
        (pith.UnsupportedError, (model, sgd(model)), {"spec": "auto,budget=q:4"}, "name a spec"),
        (pith.MismatchError, (model, sgd(model)), {"every": 8 + rank}, "every is 8 on rank 0"),
        (pith.MismatchError, (model, sgd(model)), {"outer": f"nesterov,lr=0.{1 + rank}"}, "outer"),
    ]  # fmt: skip
    for error, arguments, options, message in cases:
        with pytest.raises(error, match=message):
            pith.torch.LocalSteps(*arguments, **({"every": 8} | options))
        checks += 1
    optimizer = sgd(model)
    local = pith.torch.LocalSteps(model, optimizer, every=8)
    with pytest.raises(pith.StateError, match="no state of pith.torch.LocalSteps"):
        local.load_state_dict(optimizer.state_dict())
    saved = local.state_dict()
    with pytest.raises(pith.StateError, match="every=4, and now it is 8"):
        local.load_state_dict(saved | {"settings": saved["settings"] | {"every": 4}})
    with pytest.raises(pith.StateError, match=f"saved by rank {1 - rank}"):
        other_rank = saved["reduction"] | {"rank": 1 - rank}
        local.load_state_dict(saved | {"reduction": other_rank})
    dist.destroy_process_group()
    return checks + 3


def test_wrong_use_is_refused_before_the_first_step() -> None:
    assert run(refused, 2) == [28, 28]
