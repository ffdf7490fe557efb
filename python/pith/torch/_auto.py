# SPDX-License-Identifier: Apache-2.0
"""What ``auto`` may choose with the optimizer that was given."""

from __future__ import annotations

from typing import Any

import torch

from .._adapt import AdaptiveRules
from .._codec import Rules
from ._rates import plain_optimizers


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it takes gradients as they come, and keeps nothing of them."""
    return isinstance(optimizer, torch.optim.SGD) and all(
        group.get("momentum", 0) == 0 for group in optimizer.param_groups
    )


def is_free(adaptive: str) -> bool:
    """Whether it is ``auto`` without a budget, which chooses for speed."""
    return adaptive.startswith("auto") and "budget=" not in adaptive


def is_open(adaptive: str) -> bool:
    """Whether it is such an ``auto`` that says nothing of gradients that arrive late."""
    return is_free(adaptive) and "delayed=" not in adaptive


def suited(rules: Rules, optimizer: Any) -> Rules:
    """Rules for these optimizers: those that keep moments do not bear gradients that arrive late, and ``auto`` is without these methods."""
    if not isinstance(rules, AdaptiveRules) or not is_open(rules.adaptive):
        return rules
    keeps_moments = any(not is_plain(each) for each in plain_optimizers(optimizer))
    return AdaptiveRules(f"{rules.text},delayed=0") if keeps_moments else rules
