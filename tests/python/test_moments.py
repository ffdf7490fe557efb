# SPDX-License-Identifier: Apache-2.0
"""Momentum that travels: phases, steps and checkpoints of compress(model, "moment/…", optimizer=optimizer)."""

from __future__ import annotations

import functools
import io
import math
import warnings
from typing import Any

import pytest

import needs
import pith
from ranks import run

torch = needs.module("torch", "the tests here use it")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402
from pith.torch._freeze import (  # noqa: E402
    PERIOD,
    Size,
    Watch,
    earliest_again,
    first_frozen,
    is_settled,
    span_of,
)
from pith.torch._moment_adam import Round  # noqa: E402

BACKENDS = ("pith", "gloo")


def groups() -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("pith")
    return {"pith": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def make(dtype: Any = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(24, 96), nn.Tanh(), nn.Linear(96, 48), nn.Tanh(), nn.Linear(48, 32)
    ).to(dtype)


def batch(rank: int, step: int, n: int = 16) -> tuple[Any, Any]:
    """Inputs and what a fixed network of the same kind makes of them, in every step another part."""
    teacher = torch.Generator().manual_seed(77)
    first, second = torch.randn(24, 48, generator=teacher), torch.randn(48, 32, generator=teacher)
    x = torch.randn(n, 24, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, (x @ first / 3).tanh() @ second / 4


def loss_of(model: Any, rank: int, step: int) -> Any:
    x, y = batch(rank, step)
    dtype = next(model.parameters()).dtype
    return (model(x.to(dtype)) - y.to(dtype)).pow(2).mean()


def adamw(model: Any, **options: Any) -> Any:
    return torch.optim.AdamW(
        model.parameters(), **{"lr": 3e-3, "betas": (0.9, 0.95), "weight_decay": 0.1} | options
    )


class Run:
    """A model, its optimizer and its compressor."""

    def __init__(
        self,
        group: Any,
        rank: int,
        spec: Any,
        make_optimizer: Any = adamw,
        *,
        dtype: Any = torch.float32,
        ddp: Any = None,
        **options: Any,
    ) -> None:
        self.rank, self.step = rank, 0
        self.scale = 1.0  # of the loss
        self.model = DistributedDataParallel(make(dtype), process_group=group, **(ddp or {}))
        self.optimizer = make_optimizer(self.model)
        self.scheduler: Any = None
        self.compressor = pith.torch.compress(self.model, spec, optimizer=self.optimizer, **options)
        self.losses: list[float] = []
        self.norms: list[float] = []

    def go(self, steps: int) -> Run:
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.scale * loss_of(self.model, self.rank, self.step)
            loss.backward()
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            self.losses.append(loss.item())
            self.step += 1
        return self

    @property
    def phase(self) -> str:
        return self.compressor.stats().moments.phase

    @property
    def bits(self) -> bytes:
        return b"".join(
            p.detach().contiguous().view(torch.uint8).numpy().tobytes()
            for p in self.model.parameters()
        )


# ---- The rules -------------------------------------------------------------------------------------------------------


def test_a_variance_is_settled_when_it_changes_by_less_than_four_percent_in_a_span() -> None:
    assert span_of(0.999) == 1000 and span_of(0.95) == 20 and span_of(0.0) == 1
    assert is_settled([100.0, 103.9], 400, 100) and is_settled([100.0, 96.1], 400, 100)
    assert not is_settled([100.0, 104.1], 400, 100) and not is_settled([100.0, 95.9], 400, 100)
    assert not is_settled([100.0, 100.0], 399, 100)
    assert not is_settled([100.0], 4000, 100) and not is_settled([], 4000, 100)
    assert not is_settled([100.0, math.nan], 400, 100) and not is_settled([0.0, 0.0], 400, 100)


def test_the_variance_of_equal_gradients_settles_after_four_spans() -> None:
    """So the four spans of the rule are those that the rule would wait for anyway."""
    norms = [1 - math.exp(-k) for k in range(1, 9)]
    assert [is_settled(norms[: k + 1], 100 * (k + 1), 100) for k in range(8)] == [False] * 3 + [
        True
    ] * 5


def test_freeze_names_a_step_a_share_or_nothing() -> None:
    assert first_frozen(0, None) is None and first_frozen(300, None) == 300
    assert first_frozen(0.15, 1000) == 150 and first_frozen(0.0001, 10) == 1
    with pytest.raises(pith.ArgumentError, match="steps="):
        first_frozen(0.15, None)
    assert earliest_again(70, 20) == 150


def test_momentum_stops_where_residual_or_loss_run_away() -> None:
    watch = Watch()
    nothing = [(0.0, 0)]
    assert watch.why_not([3.0, 29.0], nothing) == ""
    assert "101 times" in watch.why_not([3.0, 101.0], nothing)
    assert "not finite" in watch.why_not([3.0, math.nan], nothing)
    assert "not finite" in watch.why_not([math.inf, 1.0], nothing)
    watch.start([(20.0, 10), (40.0, 10)])  # a mean of 3
    assert watch.why_not([1.0], [(20.0, 10)]) == ""  # the best is 2 now
    assert watch.why_not([1.0], [(29.0, 10)]) == ""
    assert "rose from 2 to 3.1" in watch.why_not([1.0], [(31.0, 10)])
    assert "loss is not finite" in watch.why_not([1.0], [(math.nan, 10)])


def test_a_frozen_variance_shrinks_with_the_gradients_and_does_not_grow() -> None:
    size = Size()
    assert size.factor == 1
    for seen, factor in ((4.0, 1.0), (4.0, 1.0), (2.0, 0.75), (math.nan, 0.75), (90.0, 1.0)):
        size.look(seen)
        assert size.factor == factor
    assert Size(*size.save()).save() == size.save()
    for _ in range(60):
        size.look(0.0)
    assert size.factor == 1e-4


def test_reported_losses_are_summed_between_two_looks() -> None:
    watch = Watch()
    for loss in (1.0, torch.tensor(2.0, requires_grad=True), 3):
        watch.report(loss)
    assert Watch.save(watch)["sum"] == 6.0
    assert watch.take() == (6.0, 3) and watch.take() == (0.0, 0)


def test_a_round_sums_up_local_steps_in_units_of_the_last_rate() -> None:
    """Simulated with one number a step: the sum of rate times momentum is what the exchange brings."""
    round_, beta, moment, residual, sum_ = Round(0, 4, 0), 0.9, 0.5, 0.0, 0.0
    rates = [0.1, 0.0, 0.3, 0.2, 0.05, 0.4, 0.2, 0.1]
    for number, (rate, gradient) in enumerate(zip(rates, range(1, 9), strict=True), start=1):
        f = round_.step(rate, rate, 0.5, beta, number)
        if number % 4:
            moment = f.keep * moment + f.take * gradient
            residual = f.pass_ * residual + f.fold * moment
            sum_ += rate * moment
            assert (f.decay, f.rate) == (1 - rate * 0.5, rate)
            continue
        sent = residual + (1 - beta) * gradient
        last = rates[number - 2]  # stands for the rate of the exchange's own step
        whole = sum_ + last * (beta * moment + (1 - beta) * gradient)
        moment = f.keep * moment + f.take * sent
        assert f.rate * moment == pytest.approx(whole)
        assert moment == pytest.approx(whole / (sum(rates[number - 4 : number - 1]) + last))
        assert f.decay == pytest.approx(math.prod(1 - r * 0.5 for r in rates[number - 4 : number]))
        assert f.fold == 0
        residual, sum_ = 0.0, 0.0  # an exact codec


def test_without_local_steps_a_round_is_a_step() -> None:
    round_ = Round(0, 1, 0)
    for number in range(1, 5):
        f = round_.step(0.1, 0.2, 0.5, 0.9, number)
        assert (f.keep, f.take, f.decay, f.rate, f.pass_, f.fold) == (0, 1, 0.95, 0.2, 1, 0.9)


# ---- Against formulas ------------------------------------------------------------------------------------------------


def with_floor(variance: Any) -> Any:
    """As it is frozen: no value is below a tenth of the mean."""
    return variance.clamp(min=0.1 * variance.mean())


def frozen_adamw(
    size: int, freeze: int, steps: int, sign: float, options: dict[str, Any]
) -> list[Any]:
    """AdamW whose variance stays what it was after step ``freeze``, with mean gradients, in f64; layers of one dimension are AdamW's."""
    model = make(torch.float64)
    lr, (beta, second), decay = options["lr"], options["betas"], options["weight_decay"]
    state = [[torch.zeros_like(p), torch.zeros_like(p), 0] for p in model.parameters()]
    for step in range(steps):
        model.zero_grad()
        sum(loss_of(model, r, step) for r in range(size)).backward()
        for parameter, entry in zip(model.parameters(), state, strict=True):
            gradient = sign * parameter.grad / size
            entry[0] = beta * entry[0] + (1 - beta) * gradient
            if parameter.dim() == 1 or step < freeze:
                entry[1] = second * entry[1] + (1 - second) * gradient**2
                entry[2] = step + 1
            rate = lr * schedule(step)
            below = (entry[1] / (1 - second ** entry[2])).sqrt() + 1e-8
            with torch.no_grad():
                parameter.mul_(1 - rate * decay)
                parameter.sub_(rate / (1 - beta ** (step + 1)) * entry[0] / below)
            if parameter.dim() > 1 and step + 1 == freeze:
                entry[1] = with_floor(entry[1])
    return [p.detach() for p in model.parameters()]


WAYS: list[dict[str, Any]] = [
    {},
    {"foreach": True},
    {"foreach": False},
    {"fused": True},
    {"maximize": True, "lr": 1e-4},
    {"lr": torch.tensor(3e-3)},
    {"betas": (0.8, 0.99), "weight_decay": 0.0},
]


def schedule(step: int) -> float:
    return min(1.0, (step + 1) / 4) * (1 - step / 40)


def in_all_ways(rank: int, size: int) -> int:
    checks = 0
    group = groups()["gloo"]
    for way in WAYS:
        rate = float(way.get("lr", 3e-3))
        settings = {"lr": 3e-3, "betas": (0.9, 0.95), "weight_decay": 0.1} | way
        made = Run(group, rank, "moment,freeze=6/none", functools.partial(adamw, **settings))
        made.scheduler = torch.optim.lr_scheduler.LambdaLR(made.optimizer, schedule)
        made.go(24)
        assert made.phase == "frozen at step 6", way
        sign = -1.0 if way.get("maximize") else 1.0
        expected = frozen_adamw(size, 6, 24, sign, settings | {"lr": rate})
        for mine, wanted in zip(made.model.parameters(), expected, strict=True):
            assert torch.allclose(mine.double(), wanted, rtol=1e-4, atol=2e-6), (
                str(way),
                (mine - wanted).abs().max().item(),
            )
        counts = {float(made.optimizer.state[p]["step"]) for p in made.model.parameters()}
        assert counts == {24.0}
        checks += 1
    dist.destroy_process_group()
    return checks


def test_an_exact_codec_gives_adamw_with_a_frozen_variance() -> None:
    assert run(in_all_ways, 2) == [len(WAYS)] * 2


def local_adamw(size: int, freeze: int, every: int, steps: int, lr: float) -> list[Any]:
    """Local steps as docs/optimizers.md has them, of all ranks, in f64."""
    models = [make(torch.float64) for _ in range(size)]
    beta, second, decay = 0.9, 0.95, 0.1
    names = [name for name, _ in models[0].named_parameters()]
    m = [{n: torch.zeros_like(p) for n, p in model.named_parameters()} for model in models]
    v = {n: torch.zeros_like(p) for n, p in models[0].named_parameters()}
    start: dict[str, Any] = {}
    moved = [{n: 0.0 for n in names} for _ in models]
    total, last, shrunk = 0.0, 0.0, 1.0
    for step in range(steps):
        number, rate = step + 1, lr * schedule(step)
        corrected = rate / (1 - beta**number)
        parameters = [dict(model.named_parameters()) for model in models]
        for r, model in enumerate(models):
            model.zero_grad()
            loss_of(model, r, step).backward()
        frozen, common = number > freeze, number % every == 0
        with torch.no_grad():
            for n in names:
                mean = sum(p[n].grad for p in parameters) / size
                exact = not frozen
                if exact:
                    v[n] = second * v[n] + (1 - second) * mean**2
                below = (v[n] / (1 - second ** (number if exact else freeze))).sqrt() + 1e-8
                for r in range(size):
                    gradient = mean if exact else parameters[r][n].grad
                    m[r][n] = beta * m[r][n] + (1 - beta) * gradient
                    if exact or not common:
                        parameters[r][n].mul_(1 - rate * decay).sub_(corrected * m[r][n] / below)
                        if not exact:
                            moved[r][n] = moved[r][n] + corrected * m[r][n]
                    start.setdefault(n, parameters[r][n].clone())
                    if not frozen:
                        start[n] = parameters[r][n].clone()
                if not exact and common:
                    reference = last or corrected
                    sum_ = sum(moved[r][n] + reference * m[r][n] for r in range(size)) / size
                    start[n] = start[n] * shrunk * (1 - rate * decay) - sum_ / below
                    for r in range(size):
                        parameters[r][n].copy_(start[n])
                        m[r][n], moved[r][n] = sum_ / (total + reference), 0.0
                if number == freeze:
                    v[n] = with_floor(v[n])
        if not frozen or common:
            total, last, shrunk = 0.0, 0.0, 1.0
        else:
            total, last, shrunk = total + corrected, corrected, shrunk * (1 - rate * decay)
    return [p.detach() for p in models[0].parameters()]


def with_local_steps(rank: int, size: int) -> int:
    checks = 0
    for every, freeze, steps in ((4, 6, 24), (3, 5, 18), (4, 7, 20)):
        for group in (dist.group.WORLD, None) if checks else (groups()["pith"],):
            made = Run(group, rank, f"moment:{every},freeze={freeze}/none")
            made.scheduler = torch.optim.lr_scheduler.LambdaLR(made.optimizer, schedule)
            for step in range(steps):
                made.go(1)
                assert made.compressor.is_common == (step < freeze or (step + 1) % every == 0)
            expected = local_adamw(size, freeze, every, steps, 3e-3)
            for mine, wanted in zip(made.model.parameters(), expected, strict=True):
                assert torch.allclose(mine.double(), wanted, rtol=2e-4, atol=5e-6), (
                    every,
                    (mine - wanted).abs().max().item(),
                )
            checks += 1
    dist.destroy_process_group()
    return checks


def test_local_steps_do_what_the_formulas_say() -> None:
    assert run(with_local_steps, 2) == [5, 5]


# ---- Replicas and bytes ----------------------------------------------------------------------------------------------

SPECS = (
    "moment,freeze=4/onebit",
    "moment:4,freeze=6/onebit",
    "moment,freeze=4/topk:0.05",
    "moment,freeze=4/powersgd:2",
    "0.*=none;2.*=moment:4,freeze=4,warm=4/q:2;*=moment:4,freeze=4/fp16",
)


def replicas(rank: int, size: int) -> dict[tuple[str, str], bytes]:
    found = {}
    for name, group in groups().items():
        for spec in SPECS:
            made = Run(group, rank, spec).go(12)
            assert made.phase.startswith("frozen"), (name, spec)
            assert made.compressor.is_common and made.step % 4 == 0
            found[name, spec] = made.bits
            if spec == SPECS[1]:
                apart = made.go(2)
                assert not apart.compressor.is_common
                found[name, "in the middle"] = apart.bits
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
def test_replicas_have_the_same_bits_after_each_exchange(size: int) -> None:
    found = run(replicas, size)
    for key in found[0]:
        expected = size if key[1] == "in the middle" else 1
        assert len({rank[key] for rank in found}) == expected, key
    if size == 2:  # there is one order of addition only
        for spec in SPECS:
            assert found[0]["pith", spec] == found[0]["gloo", spec], spec


def bytes_of(rank: int, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, group in groups().items():
        for spec in (
            "onebit",
            "moment,freeze=4/onebit",
            "moment:4,freeze=4/onebit",
            "moment:8,freeze=16,warm=4/onebit",
        ):
            made = Run(group, rank, spec).go(8)
            before = made.compressor.stats()
            after = made.go(8).compressor.stats()
            lines = {
                a.name: a.wire_bytes - b.wire_bytes for a, b in zip(after, before, strict=True)
            }
            found[f"{name} {spec}"] = (lines["2.weight"], lines["2.bias"])
            assert after["2.weight"].steps == 16
    dist.destroy_process_group()
    return found


def test_a_layer_sends_its_momentum_and_nothing_else() -> None:
    """Eight steps, all after the variance was frozen: as many bytes as gradients have with that codec, or their share of them."""
    for rank in run(bytes_of, 2):
        for name in BACKENDS:
            whole, bias = rank[f"{name} onebit"]
            assert rank[f"{name} moment,freeze=4/onebit"] == (whole, bias)
            local = rank[f"{name} moment:4,freeze=4/onebit"]
            assert local[0] == whole // 4 and local[1] < 0.3 * bias  # exact layers, too
            warm, other = rank[f"{name} moment:8,freeze=16,warm=4/onebit"]
            assert 3 * whole < warm < 6 * whole and other == bias


# ---- Losses ----------------------------------------------------------------------------------------------------------


class NextWord(nn.Module):
    """A network that guesses a word from the two before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(32, 32)
        self.layers = nn.Sequential(
            nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 32)
        )

    def forward(self, x: Any) -> Any:
        return self.layers(self.words(x).flatten(1))


def text_of_chance(words: int = 20000) -> Any:
    """In which a word follows from the two before it, in four of five cases."""
    chance = torch.Generator().manual_seed(5)
    following = torch.randint(0, 32, (32, 32, 3), generator=chance).tolist()
    which = torch.multinomial(torch.tensor([0.8, 0.15, 0.05]), words, True, generator=chance)
    found = [1, 2]
    for choice in which.tolist():
        found.append(following[found[-2]][found[-1]][choice])
    return torch.tensor(found)


def learned(rank: int, size: int, specs: tuple[str, ...]) -> list[float]:
    found, text, steps = [], text_of_chance(), 400
    group = groups()["pith"]
    for spec in specs:
        model = DistributedDataParallel(NextWord(), process_group=group)
        optimizer = adamw(model, lr=4e-3, weight_decay=0.01)
        pith.torch.compress(model, spec, optimizer=optimizer)
        losses = []
        for step in range(steps):
            for entry in optimizer.param_groups:
                entry["lr"] = 4e-3 * (1 - step / steps)
            at = torch.randint(
                0, len(text) - 2, (64,), generator=torch.Generator().manual_seed(1000 * step + rank)
            )
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                model(torch.stack([text[at], text[at + 1]], 1)), text[at + 2]
            )
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(sum(losses[-40:]) / 40)
    dist.destroy_process_group()
    return found


def test_momentum_trains_as_exact_gradients_do() -> None:
    specs = (
        "none",
        "ef/topk:0.05",
        "moment,freeze=100/onebit",
        "moment:4,freeze=100/onebit",
        "moment,freeze=100/topk:0.05",
        "moment/onebit",
        "moment,freeze=100,store=bf16/onebit",
        "moment,freeze=100,store=8/onebit",
    )
    ranks = run(learned, 2, specs)
    losses = [sum(pair) / 2 for pair in zip(*ranks, strict=True)]
    exact, late, one_bit, local, sparse, settled, half, byte = losses
    found = dict(zip(specs, losses, strict=True))
    assert max(one_bit, settled, half, byte) < 1.03 * exact, found
    assert local < 1.05 * exact, found
    assert late > 1.07 * exact, found  # gradients that come late
    assert sparse < 0.98 * late, found


# ---- SGD and Muon ----------------------------------------------------------------------------------------------------


def sgd(model: Any, **options: Any) -> Any:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.05, "momentum": 0.9} | options)


def muon(model: Any) -> Any:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    return torch.optim.Muon(matrices, lr=0.01, momentum=0.95)


OWN: list[Any] = [
    sgd,
    lambda model: sgd(model, nesterov=True, weight_decay=0.01),
    lambda model: sgd(model, dampening=0.3, foreach=True),
    lambda model: sgd(model, maximize=True, lr=1e-4, weight_decay=0.01),
    lambda model: sgd(model, fused=True),
]
if hasattr(torch.optim, "Muon"):
    OWN.append(muon)


def own_steps(rank: int, size: int) -> dict[Any, bytes]:
    found = {}
    for name, group in groups().items():
        for which, optimizer in enumerate(OWN):
            exact = Run(group, rank, "none", optimizer).go(12)
            made = Run(group, rank, "moment/none", optimizer).go(12)
            assert made.phase == "frozen at step 1"
            room = 2e-3 if optimizer is muon else 1e-5  # its matrices are orthogonalized in bf16
            for mine, wanted in zip(made.model.parameters(), exact.model.parameters(), strict=True):
                assert torch.allclose(mine, wanted, rtol=1e-3, atol=room), (
                    which,
                    (mine - wanted).abs().max().item(),
                )
            found[name, which] = Run(group, rank, "moment/onebit", optimizer).go(12).bits
    dist.destroy_process_group()
    return found


def test_sgd_and_muon_step_with_the_common_momentum() -> None:
    found = run(own_steps, 2)
    assert len(found[0]) == 2 * len(OWN)
    assert found[0] == found[1]


def two_optimizers(rank: int, size: int) -> str:
    group = groups()["pith"]
    model = DistributedDataParallel(make(), process_group=group)
    first = sgd(model.module[0])
    second = torch.optim.AdamW([*model.module[2].parameters(), *model.module[4].parameters()])
    compressor = pith.torch.compress(model, "moment,freeze=3/onebit", optimizer=[first, second])
    for step in range(6):
        model.zero_grad()
        loss_of(model, rank, step).backward()
        first.step()
        second.step()
    found = compressor.stats().moments.phase
    bits = [p.detach().numpy().tobytes() for p in model.parameters()]
    dist.destroy_process_group()
    return found, bits


def test_a_model_may_have_two_optimizers() -> None:
    found = run(two_optimizers, 2)
    assert found[0] == found[1]
    assert found[0][0] == "SGD frozen at step 3; AdamW frozen at step 3"


# ---- Phases ----------------------------------------------------------------------------------------------------------


def phases(rank: int, size: int) -> None:
    group = groups()["gloo"]
    quick = functools.partial(adamw, betas=(0.9, 0.8), lr=1e-3)
    made = Run(group, rank, "moment/onebit", quick).go(19)
    assert made.phase == "warm-up" and made.bits == Run(group, rank, "none", quick).go(19).bits
    table = made.compressor.stats()
    assert (table["2.weight"].spec, table["2.weight"].reason) == (
        "none",
        "warm-up of moment/onebit",
    )
    assert str(table).endswith("momentum: warm-up, now at step 19")
    made.go(60)
    assert made.phase.startswith("frozen at step "), made.phase
    since = int(made.phase.split()[-1])
    assert since % 5 == 0 and since >= 20
    table = made.compressor.stats()
    assert (table["2.weight"].spec, table["2.weight"].reason) == (
        "moment/onebit",
        f"momentum since step {since}",
    )
    assert table["2.bias"].spec == "none" and table.moments.every == 1 and table.moments.steps == 79
    variance = made.optimizer.state[made.model.module[2].weight]["exp_avg_sq"].clone()
    made.go(1)
    assert torch.equal(variance, made.optimizer.state[made.model.module[2].weight]["exp_avg_sq"])

    share = Run(group, rank, "moment,freeze=0.3/onebit", steps=20).go(6)
    assert share.phase == "frozen at step 6"
    # A plain optimizer's state says at which step a run is.
    plain = Run(group, rank, "none").go(9)
    resumed = Run(group, rank, "moment,freeze=10/onebit")
    resumed.model.load_state_dict(plain.model.state_dict())
    resumed.optimizer.load_state_dict(through_a_file(plain.optimizer.state_dict()))
    resumed.step = 9
    assert resumed.go(1).phase == "frozen at step 10"
    assert resumed.bits == plain.go(1).bits
    dist.destroy_process_group()


def test_the_variance_is_frozen_when_it_has_settled_or_when_the_spec_says() -> None:
    run(phases, 2)


def words(rank: int, size: int) -> list[float]:
    """A layer of which every other row never has a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 32))
    ddp = DistributedDataParallel(model, process_group=groups()["pith"])
    optimizer = adamw(ddp)
    pith.torch.compress(ddp, "moment,freeze=10/onebit", optimizer=optimizer)
    rare = model[0].weight[1::2].detach().clone()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(60):
        optimizer.zero_grad()
        ddp(2 * torch.randint(128, (64,), generator=generator)).square().mean().backward()
        optimizer.step()
    variance = optimizer.state[model[0].weight]["exp_avg_sq"]
    moved = (model[0].weight[1::2] - rare).abs().max().item()
    dist.destroy_process_group()
    return [variance.min().item() / variance.mean().item(), moved]


def test_values_that_had_no_gradient_before_the_freeze_make_no_large_steps() -> None:
    for share, moved in run(words, 2):
        assert share > 0.05 and moved < 0.2, (share, moved)


def shrinking(rank: int, size: int) -> list[float]:
    made = Run(groups()["gloo"], rank, "moment,freeze=10/onebit")
    made.go(10 + PERIOD + 1)
    weight = made.model.module[2].weight
    before = made.optimizer.state[weight]["exp_avg_sq"].mean().item()
    made.scale = 0.01
    made.go(3 * PERIOD)
    frozen = made.optimizer.state[weight]["exp_avg_sq"].mean().item()
    made.compressor.remove()  # the optimizer gets a variance that is right for it
    after = made.optimizer.state[weight]["exp_avg_sq"].mean().item()
    dist.destroy_process_group()
    return [frozen / before, after / before]


def test_steps_do_not_become_too_short_when_gradients_shrink() -> None:
    for frozen, after in run(shrinking, 2):
        assert frozen == 1 and after < 0.5, (frozen, after)


def runs_away(rank: int, size: int) -> list[Any]:
    group = groups()["pith"]
    quick = functools.partial(adamw, betas=(0.9, 0.5))
    made = Run(group, rank, "moment,freeze=10/onebit", quick)
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10 + 3 * PERIOD):
            made.compressor.report(torch.tensor(1.0) if made.step < 10 + 2 * PERIOD else 1.7)
            made.go(1)
        said = [str(warning.message) for warning in caught]
    phase = made.phase
    again = made.go(8).phase
    variance = made.optimizer.state[made.model.module[2].weight]["exp_avg_sq"]
    assert torch.isfinite(variance).all()
    bits = made.go(5).bits
    dist.destroy_process_group()
    return [said, phase, again, bits]


def test_gradients_travel_again_when_the_loss_rises() -> None:
    found = run(runs_away, 2)
    assert found[0][1] == f"exact again since step {10 + 3 * PERIOD}: the loss rose from 1 to 1.7"
    assert found[0][2] == f"frozen at step {18 + 3 * PERIOD}"
    assert [len(rank[0]) for rank in found] == [1, 0] and "the loss rose" in found[0][0][0]
    assert found[0][1:] == found[1][1:]


# ---- In training loops -----------------------------------------------------------------------------------------------


def scaled(group: Any, rank: int, scaler: Any, optimizer: Any, poison: int = -1) -> Run:
    made = Run(group, rank, "moment,freeze=3/q:2", optimizer, scaler=scaler)
    for step in range(12):
        made.optimizer.zero_grad()
        loss = loss_of(made.model, rank, step)
        scaler.scale(loss * float("inf") if step == poison and rank == 1 else loss).backward()
        scaler.step(made.optimizer)
        scaler.update()
    return made


def with_a_scaler(rank: int, size: int) -> list[bytes]:
    def scaler(**options: Any) -> Any:
        return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2, **options)

    found = []
    for name, group in groups().items():
        for fused in (False, True):
            optimizer = functools.partial(adamw, fused=fused)
            plain = Run(group, rank, "moment,freeze=3/q:2", optimizer).go(12)
            grown = scaled(group, rank, scaler(), optimizer)
            if not fused:
                assert grown.bits == plain.bits, name  # powers of two: nothing is rounded
            for mine, wanted in zip(
                grown.model.parameters(), plain.model.parameters(), strict=True
            ):
                assert torch.allclose(mine, wanted, rtol=1e-4, atol=1e-5), (name, fused)
            poisoned = scaled(group, rank, scaler(), optimizer, poison=6)
            assert all(torch.isfinite(p).all() for p in poisoned.model.parameters()), (name, fused)
            assert poisoned.compressor.stats().moments.steps == 11
            assert poisoned.bits != plain.bits
            found.append(poisoned.bits)
        momentum = scaled(group, rank, scaler(), lambda model: sgd(model, fused=True), poison=6)
        assert all(torch.isfinite(p).all() for p in momentum.model.parameters())
        found.append(momentum.bits)
    dist.destroy_process_group()
    return found


def test_momentum_follows_the_loss_scale_and_skipped_steps_leave_it_as_it_was() -> None:
    found = run(with_a_scaler, 2)
    assert found[0] == found[1]


def loops(rank: int, size: int) -> dict[str, bytes]:
    found = {}
    group = groups()["pith"]

    def loop(
        spec: str, step: Any, ddp: Any = None, optimizer: Any = adamw, dtype: Any = torch.float32
    ) -> Run:
        made = Run(group, rank, spec, optimizer, ddp=ddp, dtype=dtype)
        for number in range(12):
            made.optimizer.zero_grad()
            step(made, number)
            made.step += 1
        return made

    def plain(made: Run, number: int) -> None:
        loss_of(made.model, rank, number).backward()
        made.optimizer.step()

    def closure(made: Run, number: int) -> None:
        def backward() -> Any:
            loss = loss_of(made.model, rank, number)
            loss.backward()
            return loss

        assert float(made.optimizer.step(backward)) > 0

    def accumulated(made: Run, number: int) -> None:
        with made.model.no_sync():
            (loss_of(made.model, rank, number) / 2).backward()
        (loss_of(made.model, rank, number) / 2).backward()
        made.optimizer.step()

    def clipped(made: Run, number: int) -> None:
        loss_of(made.model, rank, number).backward()
        norm = torch.nn.utils.clip_grad_norm_(made.model.parameters(), 0.05)
        matrices = [p for p in made.model.parameters() if p.dim() == 2]
        wanted = [p.grad.clone() for p in matrices]
        assert norm > 0.05
        made.norms.append(float(norm))
        made.optimizer.step()
        every = made.compressor.stats().moments.every
        if made.phase.startswith("frozen") and number > 4 and every == 1:
            for parameter, momentum in zip(matrices, wanted, strict=True):
                assert torch.equal(made.optimizer.state[parameter]["exp_avg"], momentum)
            assert all(p.grad is not None for p in matrices)

    for spec in ("moment,freeze=3/q:2", "moment:4,freeze=3/q:2"):
        base = loop(spec, plain)
        assert loop(spec, closure).bits == base.bits
        assert loop(spec, plain, {"gradient_as_bucket_view": True}).bits == base.bits
        assert loop(spec, plain, {"static_graph": True}).bits == base.bits
        assert loop(spec, plain, {"bucket_cap_mb": 0.01}).bits == base.bits
        halves = loop(spec, accumulated)
        for mine, wanted in zip(halves.model.parameters(), base.model.parameters(), strict=True):
            assert torch.allclose(mine, wanted, rtol=0.1, atol=0.02)
        found[f"{spec} accumulated"] = halves.bits
        found[f"{spec} narrow"] = loop(spec, plain, dtype=torch.bfloat16).bits
    for spec in (
        "moment,freeze=3/q:2",
        "moment:4,freeze=3/q:2",
    ):  # local norms differ from rank to rank
        found[f"{spec} clipped"] = loop(spec, clipped).bits
    found["base"] = base.bits
    dist.destroy_process_group()
    return found


def test_closures_accumulation_clipping_and_every_kind_of_bucket() -> None:
    found = run(loops, 2)
    assert found[0] == found[1]


class Switched(nn.Module):
    """With a layer that no rank uses in some steps, and one that only one rank uses."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.often, self.apart = (nn.Linear(40, 40) for _ in range(3))

    def forward(self, x: Any, step: int, rank: int) -> Any:
        y = self.always(x).tanh()
        if step % 3:
            y = y + self.often(x)
        if rank == 0 or step % 2:
            y = y + self.apart(x)
        return y


def unused(rank: int, size: int) -> list[Any]:
    found = []
    group = groups()["gloo"]
    for spec in ("moment,freeze=5/none", "moment,freeze=5/onebit", "moment:4,freeze=5/onebit"):
        torch.manual_seed(0)
        model = DistributedDataParallel(
            Switched(), process_group=group, find_unused_parameters=True
        )
        optimizer = adamw(model)
        pith.torch.compress(model, spec, optimizer=optimizer)
        for step in range(16):
            before = model.module.often.weight.detach().clone()
            optimizer.zero_grad()
            x = torch.randn(8, 40, generator=torch.Generator().manual_seed(10 * step + rank))
            model(x, step, rank).pow(2).mean().backward()
            optimizer.step()
            if spec.startswith("moment,") and step % 3 == 0:
                assert torch.equal(before, model.module.often.weight)
        found.append([p.detach().numpy().tobytes() for p in model.parameters()])
    dist.destroy_process_group()
    return found


def test_layers_without_gradients_keep_parameters_and_what_they_had_to_send() -> None:
    found = run(unused, 2)
    assert found[0] == found[1]


def other_betas(rank: int, size: int) -> int:
    """A scheduler changes beta from step to step: what an exact codec gives is what two runs of AdamW with these betas give."""
    group = groups()["pith"]
    made = Run(group, rank, "moment,freeze=4/none", lambda model: adamw(model, weight_decay=0.0))
    betas = [0.9 - 0.02 * step for step in range(12)]
    moments: dict[Any, Any] = {
        p: torch.zeros_like(p) for p in made.model.parameters() if p.dim() == 2
    }
    for step, beta in enumerate(betas):
        for entry in made.optimizer.param_groups:
            entry["betas"] = (beta, 0.95)
        made.optimizer.zero_grad()
        gradients = {p: torch.zeros_like(p) for p in moments}
        for r in range(size):
            found = torch.autograd.grad(loss_of(made.model.module, r, step), list(moments))
            for p, gradient in zip(moments, found, strict=True):
                gradients[p] += gradient / size
        loss_of(made.model, rank, step).backward()
        made.optimizer.step()
        for p in moments:
            moments[p] = beta * moments[p] + (1 - beta) * gradients[p]
            assert torch.allclose(
                made.optimizer.state[p]["exp_avg"], moments[p], rtol=1e-3, atol=1e-6
            ), step
    dist.destroy_process_group()
    return len(betas)


def test_a_scheduler_may_change_beta() -> None:
    assert run(other_betas, 2) == [12, 12]


# ---- Checkpoints -----------------------------------------------------------------------------------------------------


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


RESUMED: list[tuple[str, int, Any, Any]] = [
    ("moment,freeze=10/onebit", 4, adamw, torch.float32),  # in the warm-up
    ("moment,freeze=4/onebit", 9, adamw, torch.float32),
    ("moment:4,freeze=4/onebit", 8, adamw, torch.float32),
    ("moment:4,freeze=4/onebit", 10, adamw, torch.float32),  # in the middle of a round
    ("moment:4,freeze=6,warm=4/topk:0.05", 6, adamw, torch.bfloat16),
    ("moment:4,freeze=4/q:2", 9, adamw, torch.bfloat16),
    ("moment:4,freeze=4,store=8/onebit", 10, adamw, torch.float32),
    ("moment,freeze=4,store=bf16/topk:0.05", 9, adamw, torch.bfloat16),
    ("moment/onebit", 5, sgd, torch.float32),
]


def resumed(rank: int, size: int) -> int:
    checks = 0
    for name, group in groups().items():
        for spec, steps, optimizer, dtype in RESUMED:
            made = Run(group, rank, spec, optimizer, dtype=dtype)
            made.scheduler = torch.optim.lr_scheduler.LambdaLR(made.optimizer, schedule)
            made.go(steps)
            parts = (made.model.module, made.optimizer, made.scheduler, made.compressor)
            saved = through_a_file([part.state_dict() for part in parts])
            expected = made.go(7).losses[-7:]
            again = Run(group, rank, spec, optimizer, dtype=dtype)
            again.scheduler = torch.optim.lr_scheduler.LambdaLR(again.optimizer, schedule)
            parts = (again.model.module, again.optimizer, again.scheduler, again.compressor)
            order = range(4) if checks % 2 else reversed(range(4))  # any order will do
            for at in order:
                parts[at].load_state_dict(saved[at])
            again.step = steps
            assert again.go(7).losses == expected, (name, spec, steps)
            assert again.bits == made.bits and again.phase == made.phase, (name, spec, steps)
            checks += 1
        other = Run(group, rank, RESUMED[0][0])
        with pytest.raises(pith.StateError, match="saved with AdamW, and the optimizer is SGD"):
            Run(group, rank, "moment,freeze=10/onebit", sgd).compressor.load_state_dict(
                other.compressor.state_dict()
            )
    dist.destroy_process_group()
    return checks


def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits() -> None:
    assert run(resumed, 2) == [2 * len(RESUMED)] * 2


# ---- Errors ----------------------------------------------------------------------------------------------------------


def refused(rank: int, size: int) -> int:
    group, checks = groups()["pith"], 0
    other = adamw(make())
    twins: list[tuple[Any, str, Any, Any, str]] = [
        (
            pith.ArgumentError,
            "moment/onebit",
            lambda m: None,
            {},
            "there is none: compress.*optimizer=",
        ),
        (pith.ArgumentError, "moment/onebit", lambda m: other, {}, "that of another model"),
        (
            pith.ArgumentError,
            "moment/onebit",
            lambda m: adamw(m.module[0]),
            {},
            "2 of 3 layers .* no group .*2.weight",
        ),
        (pith.UnsupportedError, "moment/onebit", lambda m: adamw(m, amsgrad=True), {}, "amsgrad"),
        (
            pith.UnsupportedError,
            "moment/onebit",
            lambda m: torch.optim.Adam(m.parameters(), weight_decay=0.1),
            {},
            "AdamW",
        ),
        (
            pith.UnsupportedError,
            "moment/onebit",
            lambda m: torch.optim.RMSprop(m.parameters()),
            {},
            "not with RMSprop",
        ),
        (
            pith.UnsupportedError,
            "moment/onebit",
            lambda m: sgd(m, momentum=0),
            {},
            "no momentum: ef/onebit",
        ),
        (pith.UnsupportedError, "moment:4/onebit", sgd, {}, "LocalSteps is for that"),
        (pith.ArgumentError, "moment,freeze=0.2/onebit", adamw, {}, "share of the run.*steps="),
        (
            pith.ArgumentError,
            "0.*=moment:2/onebit;*=moment:4/onebit",
            adamw,
            {},
            "same every=.* not 2 and 4",
        ),
        (
            pith.UnsupportedError,
            "0.*=none;*=moment:4/onebit",
            lambda m: torch.optim.AdamW([*m.module[2].parameters(), *m.module[4].parameters()]),
            {},
            "one optimizer with all parameters of the model: 0.weight is not",
        ),
        (
            pith.ArgumentError,
            "0.*=moment,freeze=2/onebit;*=moment,freeze=3/onebit",
            adamw,
            {},
            "same freeze",
        ),
        (
            pith.UnsupportedError,
            "moment:4/onebit",
            adamw,
            {"scaler": torch.amp.GradScaler("cpu")},
            "GradScaler",
        ),
        (
            pith.MismatchError,
            "moment,freeze=0.2/onebit",
            adamw,
            {"steps": 10 + rank},
            "steps is 10 on rank 0 and 11 on rank 1",
        ),
    ]
    for error, spec, optimizer, options, message in twins:
        model = DistributedDataParallel(make(), process_group=group)
        with pytest.raises(error, match=message):
            pith.torch.compress(model, spec, optimizer=optimizer(model), **options)
        checks += 1
    sparse = DistributedDataParallel(
        nn.Sequential(nn.Embedding(60, 32, sparse=True), nn.Linear(32, 40)), process_group=group
    )
    with pytest.raises(pith.UnsupportedError, match="0.weight is sparse.*0.weight=none"):
        pith.torch.compress(
            sparse, "moment/onebit", optimizer=torch.optim.SparseAdam(sparse.parameters())
        )
    model = DistributedDataParallel(make(), process_group=group)
    model.register_comm_hook(pith.torch.HookState("moment/onebit"), pith.torch.hook)
    with pytest.raises(pith.ArgumentError, match="optimizer="):
        pith.torch.compressor(model)
    plain = make()
    with pytest.raises(pith.UnsupportedError, match="LocalSteps sends something else"):
        pith.torch.LocalSteps(plain, adamw(plain), every=4, spec="moment/onebit")
    with pytest.raises(pith.UnsupportedError, match="DistributedOptimizer sends something else"):
        pith.torch.DistributedOptimizer(adamw(plain), plain, "moment/onebit")
    unlike = outcome_of(
        lambda: pith.torch.compress(
            DistributedDataParallel(make(), process_group=group),
            "moment/onebit",
            optimizer=other if rank else None,
        )
    )
    assert ("there is none" in unlike) == (rank == 0) and "Error" in unlike
    dist.destroy_process_group()
    return checks


def outcome_of(call: Any) -> str:
    try:
        call()
    except pith.Error as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_what_cannot_be_done_is_refused_before_the_first_step() -> None:
    assert run(refused, 2) == [14, 14]


def misused(rank: int, size: int) -> None:
    group = groups()["pith"]
    made = Run(group, rank, "moment:4,freeze=2/onebit").go(5)
    with pytest.raises(pith.StateError, match="without an exchange"):
        made.optimizer.step()
    with pytest.raises(pith.StateError, match="wait for a common step"):
        made.compressor.remove()
    loss_of(made.model, rank, 5).backward()
    with pytest.raises(pith.StateError, match="not followed by optimizer.step"):
        loss_of(made.model, rank, 6).backward()
    single = Run(group, rank, "moment,freeze=2/onebit").go(5)
    loss_of(single.model, rank, 5).backward()
    with pytest.warns(UserWarning, match="what it sent is dropped"):
        single.go(1)
    single.compressor.remove()
    single.go(2)
    plain = Run(group, rank, "none")
    assert single.bits != plain.bits
    dist.destroy_process_group()


def test_steps_that_are_left_out_or_made_twice_are_noticed() -> None:
    run(misused, 2)


def alone(rank: int, size: int) -> None:
    group = groups()["pith"]
    made = Run(group, rank, "moment:4,freeze=2/onebit").go(10)
    assert made.phase == "warm-up" and made.bits == Run(group, rank, "none").go(10).bits
    dist.destroy_process_group()


def test_one_rank_has_nothing_to_send() -> None:
    run(alone, 1)
