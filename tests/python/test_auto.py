# SPDX-License-Identifier: Apache-2.0
"""``auto`` knows the optimizer: what it leaves out, and momentum as a candidate that the time of a step decides on."""

from __future__ import annotations

import functools
import hashlib
import io
import warnings
from typing import Any

import pytest

import needs
import pith
from pith._spec import rules_of
from ranks import run

torch = needs.module("torch", "the tests here use it")

import torch.distributed as dist  # noqa: E402

import pith.torch  # noqa: E402
from pith.torch import _moment_trial, _moments  # noqa: E402
from pith.torch._auto import suited  # noqa: E402
from pith.torch._bytes import all_gather_bytes  # noqa: E402
from pith.torch._layers import layers_of  # noqa: E402
from pith.torch._moment_plan import plans_of  # noqa: E402
from pith.torch._moment_trial import Trial, is_calm  # noqa: E402
from test_moments import Run, adamw, groups, make  # noqa: E402

# ---- What auto leaves out --------------------------------------------------------------------------------------------


def parameters() -> list[Any]:
    return [torch.nn.Parameter(torch.ones(64, 64))]


def sgd(momentum: float = 0.0) -> Any:
    return torch.optim.SGD(parameters(), lr=0.1, momentum=momentum)


def test_optimizers_that_keep_moments_get_auto_without_delayed_gradients() -> None:
    keepers = (torch.optim.AdamW(parameters()), torch.optim.RMSprop(parameters()), sgd(0.9))
    for optimizer in (*keepers, [sgd(), keepers[0]]):
        assert suited(rules_of("auto", None, None), optimizer).text == "*=auto,delayed=0"
        found = suited(rules_of("embed*=none;*=auto,period=64", None, None), optimizer)
        assert found.text == "embed*=none;*=auto,period=64,delayed=0"
    for optimizer in (None, sgd(), [sgd(), sgd()], []):
        assert suited(rules_of("auto", None, None), optimizer).text == "*=auto"


def test_what_the_user_says_of_delayed_gradients_and_budgets_counts() -> None:
    for text in ("auto,delayed=1", "auto,delayed=0", "auto,budget=q:4", "lgreco:ef/topk:0.01"):
        rules = rules_of(text, None, None)
        assert suited(rules, torch.optim.AdamW(parameters())) is rules
    plain = rules_of("ef/topk:0.01", None, None)
    assert suited(plain, torch.optim.AdamW(parameters())) is plain


def plans(spec: str, make_optimizer: Any, scaler: Any = None) -> Any:
    model = make()
    found = make_optimizer(model)
    rules = suited(rules_of(spec, None, None), found)
    return plans_of(layers_of(model.named_parameters(), rules), found, scaler, None)


def test_momentum_is_a_candidate_with_adam_and_without_a_budget() -> None:
    for spec in ("auto", "auto,delayed=1", "0.weight=none;*=auto"):
        (plan,) = plans(spec, adamw).made
        assert plan.adaptive.startswith("auto,delayed=")
        names = [member.name for member in plan.members]
        assert names == ["0.weight", "2.weight", "4.weight"][spec.startswith("0") :]
        assert {member.codec.spec for member in plan.members} == {"moment/onebit"}
    for spec in ("auto,budget=q:4", "lgreco:q:4", "q:4"):
        assert not plans(spec, adamw)
    assert not plans("auto", lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    assert not plans("auto", lambda model: None)


@pytest.mark.parametrize(
    ("make_optimizer", "why"),
    [
        (lambda model: adamw(model, amsgrad=True), "amsgrad"),
        (lambda model: torch.optim.Adam(model.parameters(), weight_decay=0.1), "weight decay"),
        (lambda model: torch.optim.SGD(model.parameters(), momentum=0.9), "not with SGD"),
        (lambda model: torch.optim.RMSprop(model.parameters()), "not with RMSprop"),
        (
            lambda model: [
                torch.optim.AdamW(list(model.parameters())[:2]),
                torch.optim.AdamW(list(model.parameters())[2:]),
            ],
            "there are 2",
        ),
        (lambda model: torch.optim.AdamW(list(model.parameters())[:2]), "in no group"),
    ],
)
def test_where_momentum_cannot_travel_auto_goes_on_without_it(
    make_optimizer: Any, why: str
) -> None:
    found = plans("auto", make_optimizer)
    assert found.made == [] and why in found.why_not


# ---- The rule --------------------------------------------------------------------------------------------------------


def test_momentum_must_gain_a_twentieth_by_the_mean_over_ranks() -> None:
    trial = Trial(torch.device("cpu"))
    trial.stage = "gradients"
    trial.note([0.9, 1.1])
    trial.stage = "momentum"
    for found, gains, clear in (
        ([0.94, 0.94], True, False),
        ([0.5, 1.3], True, False),
        ([0.5, 1.5], False, False),
        ([0.96, 0.96], False, False),
        ([0.79, 0.79], True, True),
    ):
        trial.note(found)
        assert (trial.gains(), trial.is_clear) == (gains, clear), found
    trial.note([0.9])
    trial.stage, trial.confirms = "gradients", True
    trial.note([2.0])
    assert trial.gains() and trial.gradients == 1.0, "the shorter time counts"
    trial.note([0.91])
    assert not trial.gains()


def test_on_a_device_the_end_of_steps_that_are_timed_is_waited_for(monkeypatch: Any) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(_moment_trial, "_now", lambda: float(len(waited)))
    trial = Trial(torch.device("cuda", 1))
    trial.begin("gradients", "a plan")
    trial.lap("a plan")
    assert waited == [torch.device("cuda", 1)] * 2
    trial.hold()
    assert len(waited) == 2


def test_the_adapter_is_calm_between_its_trials() -> None:
    assert is_calm("auto,delayed=0, q:4 since step 84")
    assert not is_calm("auto,delayed=0, warm-up")
    assert not is_calm("auto,delayed=0, trial of lgreco:q:4")


class Clock:
    """Seconds that a test makes pass."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def test_a_time_is_the_lower_quartile_of_steps_behind_the_first_two(monkeypatch: Any) -> None:
    clock = Clock()
    monkeypatch.setattr(_moment_trial, "_now", clock)
    trial = Trial(torch.device("cpu"))
    trial.begin("gradients", "a plan")
    for lap in range(26):
        clock.at += 100.0 if lap < 2 else 1.0 + lap % 4
        assert trial.lap("a plan") == (lap == 25)
    assert trial.typical == 2.0
    trial.begin("gradients", "a plan")
    for _ in range(20):
        clock.at += 1.0
        trial.lap("a plan")
    for lap in range(27):  # another plan: from the beginning
        clock.at += 5.0
        assert trial.lap("another plan") == (lap == 26)
    assert trial.typical == 5.0


# ---- Trials ----------------------------------------------------------------------------------------------------------

SETTLED, WINDOW = (
    10,
    26,
)  # the step at which the variance counts as settled here; steps of a trial's half


def span_ten(model: Any) -> Any:
    return adamw(model, betas=(0.9, 0.9))


class AutoRun(Run):
    """A run whose steps take the time that ``seconds(momentum travels)`` says, with an adapter that stays in its warm-up."""

    def __init__(
        self, group: Any, rank: int, seconds: Any, spec: str = "auto,warmup=100000"
    ) -> None:
        self.compressor: Any
        self.clock, self.seconds = Clock(), seconds
        _moment_trial._now = self.clock  # type: ignore[assignment]
        super().__init__(group, rank, spec, span_ten)

    def go(self, steps: int) -> AutoRun:
        for _ in range(steps):
            self.clock.at += self.seconds(self.sends_momentum)
            super().go(1)
        return self

    @property
    def sends_momentum(self) -> bool:
        return any(layer.spec.startswith("moment") for layer in self.compressor.layers)

    def check_replicas(self, group: Any) -> None:
        mine = hashlib.sha256(self.bits).digest()
        assert all_gather_bytes(mine, group) == [mine] * dist.get_world_size(group)

    @property
    def weight(self) -> Any:
        return self.compressor.stats()["2.weight"]


def quick() -> None:
    """The variance is settled soon, and the adapter always calm."""
    _moments.is_settled = lambda norms, step, span: step >= SETTLED  # type: ignore[assignment]
    _moments.is_calm = lambda reason: True  # type: ignore[assignment]


def keeps_what_is_faster(rank: int, size: int) -> int:
    checks = 0
    quick()
    for name, group in groups().items():
        made = AutoRun(group, rank, lambda momentum: 0.01 if momentum else 0.02)
        assert "when the variance has settled" in made.phase, name
        before = 0
        for _ in range(80):
            made.go(1)
            made.check_replicas(group)
            before += not made.sends_momentum
            if made.phase.startswith("trial"):
                assert made.weight.reason.endswith(", trial of moment/onebit")
        assert "frozen at step" in made.phase
        assert "10 ms a step with momentum, 20 ms with gradients" in made.phase
        assert made.weight.spec.startswith("moment") and "delayed=0" in made.weight.reason
        assert "moment/onebit since step" in made.weight.reason
        assert made.compressor.stats()["2.bias"].spec == "none"
        assert before == SETTLED + WINDOW
        assert "momentum: moment/onebit, frozen" in str(made.compressor.stats())
        said = Run(group, rank, f"moment,freeze={before + 1}/onebit", span_ten).go(80)
        assert made.bits == said.bits, "the same as by its own spec"
        checks += 1
    dist.destroy_process_group()
    return checks


def test_momentum_stays_where_it_is_faster() -> None:
    assert run(keeps_what_is_faster, 2) == [2, 2]


def gives_back_what_is_not(rank: int, size: int) -> int:
    quick()
    _moment_trial._WAIT = 40
    checks, group = 0, groups()["pith"]
    # Faster on one rank and slower on the other; as fast; faster by less than what pays.
    for seconds in (
        lambda momentum: (0.01 if rank else 0.04) if momentum else 0.02,
        lambda momentum: 0.02,
        lambda momentum: 0.0196 if momentum else 0.02,
    ):
        made = AutoRun(group, rank, seconds)
        trials, found = [], []
        for step in range(170):
            was = made.sends_momentum
            made.go(1)
            made.check_replicas(group)
            if made.sends_momentum and not was:
                trials.append(step)
            found.append(made.sends_momentum)
        assert not found[-1] and WINDOW * len(trials) == sum(found) and len(trials) == 2
        assert made.phase.startswith("gradients since step") and "does not pay" in made.phase
        assert made.weight.spec == "none" and made.weight.reason.endswith("warm-up")
        assert trials[1] - trials[0] > WINDOW + 40
        last = int(made.phase.rpartition("after step ")[2].split()[0])
        assert last - trials[1] > 80, "the second pause is twice as long"
        variance = made.optimizer.state[made.model.module[2].weight]["exp_avg_sq"]
        before = variance.clone()
        made.go(1)
        assert not torch.equal(before, variance), "the variance follows gradients again"
        checks += 1
    # A small gain, because something had made steps with gradients slower.
    made = AutoRun(group, rank, lambda momentum: 0.018 if momentum else 0.02)
    while "timed again" not in made.phase:
        assert made.go(1).step < 70
    made.seconds = lambda momentum: 0.018
    made.go(WINDOW + 1)
    made.check_replicas(group)
    assert "18 ms with gradients, which does not pay" in made.phase and not made.sends_momentum
    dist.destroy_process_group()
    return checks


def test_momentum_goes_where_it_does_not_pay() -> None:
    assert run(gives_back_what_is_not, 2) == [3, 3]


def seconds_with(momentum: float, travels: bool) -> float:
    return momentum if travels else 0.02


def goes_on(rank: int, size: int) -> list[str]:
    """Saved in every phase, and gone on with a fresh model, optimizer and compressor."""
    quick()
    phases, group = [], groups()["pith"]
    for seconds in (0.01, 0.02, 0.018):
        seconds_of = functools.partial(seconds_with, seconds)
        whole = AutoRun(group, rank, seconds_of)
        saved = []
        for _ in range(100):
            if whole.step % 20 == 5:
                file = io.BytesIO()
                torch.save(
                    {
                        "model": whole.model.state_dict(),
                        "optimizer": whole.optimizer.state_dict(),
                        "pith": whole.compressor.state_dict(),
                    },
                    file,
                )
                saved.append((whole.step, whole.phase, file.getvalue()))
            whole.go(1)
        for step, phase, data in saved:
            state = torch.load(io.BytesIO(data))
            again = AutoRun(group, rank, seconds_of)
            again.model.load_state_dict(state["model"])
            again.optimizer.load_state_dict(state["optimizer"])
            again.compressor.load_state_dict(state["pith"])
            assert again.phase == phase
            again.step = step
            again.go(100 - step)
            assert again.phase == whole.phase and again.bits == whole.bits, (step, phase)
            assert again.weight.reason == whole.weight.reason
            again.compressor.remove()
            phases.append(phase)
    dist.destroy_process_group()
    return phases


def test_a_checkpoint_of_every_phase_goes_on_bit_by_bit() -> None:
    first, second = run(goes_on, 2)
    assert first == second
    for said in (
        "has settled",
        "tried next",
        "trial of",
        "again since",
        "frozen at",
        "does not pay",
    ):
        assert any(said in phase for phase in first), said


def with_the_adapter(rank: int, size: int) -> tuple[bool, str]:
    """The adapter's own trials come first, by real times; it goes on where it stopped."""
    _moments.is_settled = lambda norms, step, span: step >= SETTLED  # type: ignore[assignment]
    group = groups()["pith"]
    made = AutoRun(group, rank, lambda momentum: 0.02, "auto,warmup=8,period=64")
    plan, seen = "", False
    for _ in range(600):
        was, reason = made.sends_momentum, made.weight.reason
        made.go(1)
        if made.sends_momentum and not was:
            assert is_calm(reason)
            plan, seen = reason, True
        if seen and not made.sends_momentum:
            break
    assert seen, made.phase
    assert made.weight.reason == plan
    made.go(160)  # longer than a period
    made.check_replicas(group)
    assert made.weight.reason.startswith("auto,warmup=8,period=64,delayed=0, ")
    dist.destroy_process_group()
    return seen, plan


def test_momentum_is_tried_when_the_adapter_has_chosen_and_the_adapter_goes_on_afterwards() -> None:
    first, second = run(with_the_adapter, 2)
    assert first == second and first[0]


def changes_its_mind(rank: int, size: int) -> int:
    quick()
    group = groups()["gloo"]
    made = AutoRun(group, rank, lambda momentum: 0.01 if momentum else 0.02)
    for _ in range(70):
        made.compressor.report(1.0)
        made.go(1)
    assert made.sends_momentum
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(70):
            made.compressor.report(9.0)
            made.go(1)
    assert not made.sends_momentum and "the loss rose" in made.phase
    assert len([w for w in found if "gradients travel again" in str(w.message)]) == (rank == 0)
    other = span_ten(made.model)
    made.compressor.follow(other)
    assert "when the variance has settled" in made.phase
    made.optimizer = other
    made.go(45)
    assert made.sends_momentum
    plain = torch.optim.SGD(made.model.parameters(), lr=0.01, momentum=0.9)
    saved = made.compressor.state_dict()
    made.compressor.follow(plain)
    assert not made.sends_momentum and "not tried: " in made.phase and "not with SGD" in made.phase
    with pytest.raises(pith.StateError, match="momentum travels.*not with SGD"):
        made.compressor.load_state_dict(saved)
    made.optimizer = plain
    made.go(5)
    made.check_replicas(group)
    made.compressor.remove()
    dist.destroy_process_group()
    return 1


def test_a_loss_that_rises_and_another_optimizer_end_it() -> None:
    assert run(changes_its_mind, 2) == [1, 1]


# ---- DistributedOptimizer --------------------------------------------------------------------------------------------


def by_the_optimizer(rank: int, size: int) -> list[str]:
    groups()
    model, found = make(), []
    for optimizer in (adamw(model), torch.optim.SGD(model.parameters(), lr=0.1)):
        made = pith.torch.DistributedOptimizer(optimizer, model, "auto")
        found.append(made.stats()["2.weight"].reason)
    dist.destroy_process_group()
    return found


def test_a_distributed_optimizer_knows_its_optimizer() -> None:
    assert run(by_the_optimizer, 2) == [["auto,delayed=0, warm-up", "auto, warm-up"]] * 2
