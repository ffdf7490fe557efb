# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients in JAX: one foreign call for a whole pytree in a step, inside ``jit``::

    import pith.jax

    state = pith.jax.init(params, "ef/q:4")

    @jax.jit
    def step(params, state, batch):
        grads = jax.grad(loss)(params, batch)
        grads, state = pith.jax.allreduce(grads, state, "ef/q:4")   # the mean over all ranks
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), state

or first in a chain of optax::

    optimizer = optax.chain(pith.jax.compress("ef/q:4"), optax.adamw(1e-3))

Each rank is a process with one device, started by ``pith run``, torchrun, mpirun, srun, or joined by ``jax.distributed``. What layers keep
between steps (residuals, momentum) is an explicit pytree, :class:`State`. docs/jax.md says more.
"""

from __future__ import annotations

import jax as _jax

if not hasattr(_jax, "ffi"):
    raise ImportError(f"pith.jax needs JAX 0.5 or later, and this is {_jax.__version__}")

from ._adamw import MomentState, adamw
from ._allreduce import State, allreduce, init
from ._optax import compress
from ._programs import load, save
from ._ranks import initialize, rank, ranks, shutdown
from ._stats import stats

__all__ = [
    "MomentState",
    "State",
    "adamw",
    "allreduce",
    "compress",
    "init",
    "initialize",
    "load",
    "rank",
    "ranks",
    "save",
    "shutdown",
    "stats",
]
