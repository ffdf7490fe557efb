# SPDX-License-Identifier: Apache-2.0
"""Plans of real gradients keep their promises: bench/plan_bytes.py in small, and its exhaustive search against brute force."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

import needs
import pith

numpy = needs.module("numpy", "the search is in numpy")
torch = needs.module("torch", "training needs torch")

BENCH = Path(__file__).resolve().parent.parent.parent / "bench" / "plan_bytes.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    if not BENCH.exists():
        pytest.skip(f"{BENCH} is not there")
    spec = importlib.util.spec_from_file_location("plan_bytes", BENCH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["plan_bytes"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def profiles(bench: Any) -> dict[str, pith.Profile]:
    found = {"GPT": bench.recorded(lambda: bench.text_training(64, 1), 3, 2)}
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return found
    cnn = bench.digits.make_model
    return found | {"CNN": bench.recorded(lambda: bench.digits_training(cnn(64)), 3, 2)}


@pytest.mark.parametrize("budget", ["q:4", "ef/topk:0.01", "ef/powersgd:4"])
@pytest.mark.parametrize("model", ["GPT", "CNN"])
def test_plans_of_recorded_gradients_keep_their_promises(
    bench: Any, profiles: dict[str, pith.Profile], model: str, budget: str
) -> None:
    if model not in profiles:
        needs.lacks("scikit-learn", "the digits come with scikit-learn")
    profile = profiles[model]
    own, mix = (
        bench.compare(model, profile, budget, families)
        for families in (bench.FAMILIES[budget], "mix")
    )
    assert bench.check(model, profile, budget, own, mix) == []
    assert own.plan_bytes < own.uniform_bytes, "real gradients leave something to gain"
    for row in (own, mix):
        assert row.best_bytes <= row.plan_bytes * (1 + 1e-9), "a plan below the least possible"
        assert row.plan_bytes <= 1.02 * row.best_bytes, "far from the best plan there is"


def test_broken_promises_are_seen(bench: Any, profiles: dict[str, pith.Profile]) -> None:
    good = {"model": "GPT", "budget": "q:4", "families": "mix", "best_bytes": 1.0, "exact": True}

    def row(size: float, error: float) -> Any:
        return bench.Row(**good, uniform_bytes=1e6, plan_bytes=size, share_of_error=error)

    assert not row(1.0, 1.0).promise
    assert "budget" in row(1.0, 1.001).promise
    assert "uniform" in row(1.001e6, 1.0).promise
    broken = bench.check("GPT", profiles["GPT"], "q:4", row(1.0, 1.0), row(0.999e6, 1.0))
    assert len(broken) == 1 and "alone" in broken[0]


def test_bytes_are_those_that_plans_have(bench: Any, profiles: dict[str, pith.Profile]) -> None:
    for profile in profiles.values():
        plan = profile.plan("q:4")
        size, _ = bench.Tables(profile).of_plan(plan)
        assert size == pytest.approx(sum(layer.bytes or 0 for layer in plan.layers), abs=1)


@pytest.mark.parametrize("seed", range(40))
def test_the_search_finds_what_brute_force_finds(bench: Any, seed: int) -> None:
    dice = numpy.random.default_rng(seed)
    layers, options = dice.integers(1, 6), dice.integers(1, 7)
    size = dice.lognormal(0, 2, (layers, options))
    error = dice.lognormal(0, 2, (layers, options))
    budget = error.min(axis=1).sum() + dice.random() ** 3 * error.sum()
    rows = range(layers)
    choices = [list(places) for places in itertools.product(range(options), repeat=int(layers))]
    best = min(size[rows, at].sum() for at in choices if error[rows, at].sum() <= budget)
    found, exact = bench.optimum(size, error, budget, known=1.5 * best)
    assert exact and found == pytest.approx(best, rel=1e-12)
    bound, exact = bench.optimum(size, error, budget, known=1.5 * best, most=0)
    assert not exact and bound <= best * (1 + 1e-9)
