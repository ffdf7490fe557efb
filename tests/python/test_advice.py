# SPDX-License-Identifier: Apache-2.0
"""Who chooses for speed alone, without saying for which optimizer, is told where that does not bear it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import needs

torch = needs.module("torch", "the tests here use it")

import torch.distributed as dist  # noqa: E402

from pith.torch._advice import Advice  # noqa: E402
from pith.torch._layers import Layer  # noqa: E402


def warned(
    monkeypatch: Any,
    optimizer: Any,
    spec: str,
    adaptive: str = "auto",
    reason: str = "auto, since step 100",
    rank: int = 0,
) -> list[str]:
    """What 200 steps of it say."""
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    parameter = torch.nn.Parameter(torch.ones(64, 64))
    layer = Layer("fc.weight", parameter, (64, 64), torch.float32, spec, reason, adaptive=adaptive)
    advice, made = Advice([layer]), optimizer([parameter])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(200):
            parameter.grad = torch.ones_like(parameter)
            made.step()
            advice.step([layer])
    return [str(warning.message) for warning in found]


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_who_did_not_give_an_optimizer_that_keeps_moments_is_told_to(monkeypatch: Any) -> None:
    for optimizer, name in ((torch.optim.AdamW, "AdamW"), (momentum, "SGD")):
        for spec in ("ef/topk:0.01", "ef/powersgd:4"):
            (said,) = warned(monkeypatch, optimizer, spec)
            assert (
                f"{spec} for fc.weight" in said
                and f"{name}, which keeps moments" in said
                and 'compress(model, "auto", optimizer=optimizer)' in said
                and '"auto,delayed=1"' in said
            )
            assert ("tries its momentum" in said) == (name == "AdamW")


@pytest.mark.parametrize(
    "case",
    [
        {"optimizer": sgd, "spec": "ef/topk:0.01"},
        {"optimizer": torch.optim.AdamW, "spec": "q:4"},
        {"optimizer": torch.optim.AdamW, "spec": "ef/topk:0.01", "adaptive": "auto,budget=q:4"},
        {"optimizer": torch.optim.AdamW, "spec": "ef/topk:0.01", "adaptive": "auto,delayed=1"},
        {"optimizer": torch.optim.AdamW, "spec": "ef/topk:0.01", "adaptive": "lgreco:ef/topk:0.01"},
        {"optimizer": torch.optim.AdamW, "spec": "ef/topk:0.01", "adaptive": ""},
        {
            "optimizer": torch.optim.AdamW,
            "spec": "ef/topk:0.01",
            "reason": "auto, trial of ef/topk:0.01",
        },
        {"optimizer": torch.optim.AdamW, "spec": "ef/topk:0.01", "rank": 1},
    ],
)
def test_others_are_left_in_peace(monkeypatch: Any, case: dict[str, Any]) -> None:
    assert warned(monkeypatch, **case) == []
