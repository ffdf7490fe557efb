# SPDX-License-Identifier: Apache-2.0
"""Keras on TensorFlow: ``apply`` runs in the tf.function of a training step, and gradients travel as those of a tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..tensorflow._allreduce import allreduce, load, save, stats
from ..tensorflow._ranks import initialize, shutdown, the_comm
from ._options import Options

__all__ = ["Means", "initialize", "load", "save", "shutdown", "stats", "the_comm"]


class Means:
    """What an optimizer's gradients become."""

    variables: Sequence[Any] = ()  # of the optimizer, that codecs use

    def __init__(self, optimizer: Any, options: Options) -> None:
        del optimizer
        self._options = options

    def build(self, variables: Sequence[Any]) -> None:
        """Before the first step."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The means over all ranks."""
        o = self._options
        return allreduce(
            gradients,
            variables,
            o.rules,
            seed=o.seed,
            sparse_as_dense=o.sparse_as_dense,
            comm=o.comm,
        )
