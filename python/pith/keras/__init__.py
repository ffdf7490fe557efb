# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients in Keras 3, with TensorFlow, JAX or PyTorch below::

    import pith.keras

    optimizer = pith.keras.DistributedOptimizer(keras.optimizers.Adam(1e-3), "ef/q:4")
    model.compile(optimizer, loss=…)
    model.fit(…, callbacks=[pith.keras.BroadcastGlobalVariablesCallback(), pith.keras.MetricAverageCallback()])

A rank is a process, started by ``pith run``, torchrun, mpirun or srun. docs/keras.md says more.
"""

from __future__ import annotations

from ._backend import initialize, load, rank, ranks, save, shutdown, stats
from ._callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback
from ._optimizer import DistributedOptimizer

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "DistributedOptimizer",
    "MetricAverageCallback",
    "initialize",
    "load",
    "rank",
    "ranks",
    "save",
    "shutdown",
    "stats",
]
