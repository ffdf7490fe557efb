# SPDX-License-Identifier: Apache-2.0
"""Keras on PyTorch: ``apply`` is called with the gradients of parameters, which become means in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._comm import Comm
from .._errors import UnsupportedError
from .._models import Models, Variable, unique
from .._ranks import Ranks
from .._table import Table
from ._options import Options

_ranks = Ranks("pith.keras")
_models = Models("pith.keras")

initialize, shutdown, the_comm = _ranks.initialize, _ranks.shutdown, _ranks.the_comm
save, load = _models.save, _models.load


def stats(comm: Comm | None) -> Table:
    """The table of layers."""
    return _models.stats(the_comm(comm))


class Means:
    """What an optimizer's gradients become."""

    variables: Sequence[Any] = ()

    def __init__(self, optimizer: Any, options: Options) -> None:
        del optimizer
        self._options = options

    def build(self, variables: Sequence[Any]) -> None:
        """Before the first step."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The means over all ranks."""
        o, names = self._options, unique(str(variable.path) for variable in variables)
        layers = [
            Variable(name, tuple(map(int, v.shape)), str(v.dtype))
            for name, v in zip(names, variables, strict=True)
        ]
        model = _models.model_for(the_comm(o.comm), o.rules, o.seed, variables, layers)
        there = [k for k, gradient in enumerate(gradients) if gradient is not None]
        found = list(gradients)
        for k in there:
            found[k] = _in_memory(gradients[k])
        model.reduce_at(there, [found[k].data_ptr() for k in there])
        return found


def _in_memory(gradient: Any) -> Any:
    if gradient.device.type != "cpu":
        raise UnsupportedError(
            f"gradients are on {gradient.device}, and pith.keras reduces those in main memory: set CUDA_VISIBLE_DEVICES= to train on CPUs, or "
            "train with pith.torch, which is for GPUs too"
        )
    return (gradient.to_dense() if gradient.is_sparse else gradient).contiguous()
