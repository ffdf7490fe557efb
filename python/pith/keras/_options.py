# SPDX-License-Identifier: Apache-2.0
"""How gradients travel."""

from __future__ import annotations

from dataclasses import dataclass

from .._codec import Rules
from .._comm import Comm


@dataclass(frozen=True)
class Options:
    """The arguments of ``DistributedOptimizer``."""

    rules: Rules
    seed: int
    sparse_as_dense: bool
    comm: Comm | None
