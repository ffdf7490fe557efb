# SPDX-License-Identifier: Apache-2.0
"""Compression as a part of an optimizer of optax."""

from __future__ import annotations

from typing import Any

from .._comm import Comm
from .._spec import Spec, rules_of
from ._allreduce import State, allreduce, init


def compress(
    spec: Spec = "q:4",
    *,
    rules: Any = None,
    plan: Any = None,
    seed: int = 0,
    comm: Comm | None = None,
) -> Any:
    """An ``optax.GradientTransformation`` that turns gradients into means over all ranks. Put it first::

        optimizer = optax.chain(pith.jax.compress("ef/q:4"), optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    Its state is part of the optimizer's state, and is donated, saved and loaded with it; each rank has its own. The
    arguments are those of ``allreduce``. ``rules`` or ``plan`` (also the name of its file) can be given instead of a
    spec.
    """
    import optax

    chosen = rules_of(spec, rules, plan).text  # JAX may keep it longer than the library is there

    def begin(params: Any) -> State:
        return init(params, chosen, seed=seed, comm=comm)

    def update(updates: Any, state: State, params: Any = None) -> tuple[Any, State]:
        del params
        return allreduce(updates, state, chosen, seed=seed, comm=comm)

    return optax.GradientTransformation(begin, update)
