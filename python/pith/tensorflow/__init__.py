# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients in TensorFlow, in eager mode and in ``tf.function``::

    import pith.tensorflow

    pith.tensorflow.broadcast_variables(model.variables)        # the same start on all ranks

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(model(x), y)
        tape = pith.tensorflow.DistributedGradientTape(tape, "ef/q:4")
        gradients = tape.gradient(loss, model.trainable_variables)    # means over all ranks
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

or with ``model.fit``::

    model.compile(pith.tensorflow.DistributedOptimizer(keras.optimizers.Adam(), "ef/q:4"), loss=…)
    model.fit(…, callbacks=[pith.tensorflow.BroadcastGlobalVariablesCallback()])

A rank is a process, started by ``pith run``, torchrun, mpirun or srun. docs/tensorflow.md says more.
"""

from __future__ import annotations

from typing import Any

from ._allreduce import allreduce, load, save, stats
from ._ranks import initialize, rank, ranks, shutdown
from ._tape import DistributedGradientTape
from ._variables import broadcast_variables

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "MetricAverageCallback",
    "allreduce",
    "broadcast_variables",
    "initialize",
    "load",
    "rank",
    "ranks",
    "save",
    "shutdown",
    "stats",
]

_OF_KERAS = ("BroadcastGlobalVariablesCallback", "DistributedOptimizer", "MetricAverageCallback")


def __getattr__(name: str) -> Any:
    """What is of Keras is imported when it is asked for: programs without Keras need none."""
    if name not in _OF_KERAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"pith.tensorflow.{name} is for Keras on TensorFlow, and the backend is {keras.backend.backend()}: pith.keras.{name} is for all"
        )
    import pith.keras

    return getattr(pith.keras, name)
