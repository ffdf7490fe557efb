"""Momentum that travels: phases, steps and checkpoints of compress(model, "moment/…", optimizer=optimizer)."""

from __future__ import annotations

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
        self.model = DistributedDataParallel(make(dtype), process_group=group, **(ddp or {}))
        self.optimizer = make_optimizer(self.model)
        self.scheduler: Any = None
        self.compressor = pith.torch.compress(self.model, spec, optimizer=self.optimizer, **options)
        self.losses: list[float] = []

    def go(self, steps: int) -> Run:
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = loss_of(self.model, self.rank, self.step)
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
        made = Run(group, rank, "moment,freeze=6/none", lambda model: adamw(model, **settings))
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
                exact = not frozen or parameters[0][n].dim() == 1
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
