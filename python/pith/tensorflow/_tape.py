# SPDX-License-Identifier: Apache-2.0
"""A tape whose gradients are means over all ranks."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import tensorflow as tf

from .._codec import Rules
from .._comm import Comm
from .._plan import Plan
from .._spec import Spec, rules_of
from ._allreduce import allreduce


class DistributedGradientTape:
    """A ``tf.GradientTape`` around another::

        with tf.GradientTape() as tape:
            loss = …
        tape = pith.tensorflow.DistributedGradientTape(tape, "ef/q:4")
        gradients = tape.gradient(loss, model.trainable_variables)

    ``gradient`` gives means over all ranks; all else is the tape's own. A tape is made for every step, so what codecs keep between steps
    belongs to the variables. The arguments are those of :func:`pith.tensorflow.allreduce`.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        spec: Spec = "q:4",
        *,
        rules: str | Rules | None = None,
        plan: Plan | str | None = None,
        seed: int = 0,
        sparse_as_dense: bool = False,
        comm: Comm | None = None,
    ) -> None:
        self._tape, self._rules = tape, rules_of(spec, rules, plan)
        self._options: dict[str, Any] = {
            "seed": seed,
            "sparse_as_dense": sparse_as_dense,
            "comm": comm,
        }

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The means of the gradients, in the structure of ``sources``, which are variables."""
        found = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        # IndexedSlices are composite tensors: flatten keeps them whole, as it does None.
        gradients, variables = tf.nest.flatten(found), tf.nest.flatten(sources)
        means = allreduce(gradients, variables, self._rules, **self._options)
        return tf.nest.pack_sequence_as(found, means)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tape.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        if name == "_tape":
            raise AttributeError(name)
        return getattr(self._tape, name)
