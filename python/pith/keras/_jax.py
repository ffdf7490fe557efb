# SPDX-License-Identifier: Apache-2.0
"""Keras on JAX: ``apply`` is traced, and all that lasts must be variables of the optimizer. So the state of ``pith.jax.allreduce`` is."""

from __future__ import annotations

import io
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .. import jax as pith_jax
from .._errors import StateError
from .._models import pack, unique, unpack
from ..jax import initialize, shutdown, stats
from ..jax._ranks import the_comm
from ._options import Options

__all__ = ["Means", "initialize", "load", "save", "shutdown", "stats", "the_comm"]

_made: weakref.WeakValueDictionary[int, Means] = weakref.WeakValueDictionary()
_count = 0
_loaded: dict[int, bytes] = {}  # by number: states of optimizers that are not built yet


class Means:
    """What an optimizer's gradients become."""

    def __init__(self, optimizer: Any, options: Options) -> None:
        global _count
        _count += 1
        self.number = _count
        _made[self.number] = self
        self._optimizer = weakref.ref(optimizer)
        self._rules, self._options = options.rules.text, options
        self.variables: list[Any] = []
        self._structure: Any = None

    def _names(self, variables: Sequence[Any]) -> list[str]:
        return unique(str(variable.path) for variable in variables)

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the optimizer's variables for what codecs keep."""
        o, names = self._options, self._names(variables)
        shapes = [jax.ShapeDtypeStruct(tuple(v.shape), v.dtype) for v in variables]
        tree = dict(zip(names, shapes, strict=True))
        state = pith_jax.init(tree, self._rules, seed=o.seed, comm=o.comm)
        leaves, self._structure = jax.tree.flatten(state)
        optimizer: Any = self._optimizer()
        self.variables = [
            optimizer.add_variable(
                leaf.shape, initializer=_exactly(leaf), dtype=str(leaf.dtype), name=f"pith_{k}"
            )
            for k, leaf in enumerate(leaves)
        ]
        if saved := _loaded.pop(self.number, None):
            self.load(saved)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The means over all ranks, in a traced program."""
        o, names = self._options, self._names(variables)
        state = jax.tree.unflatten(self._structure, [v.value for v in self.variables])
        tree = dict(zip(names, gradients, strict=True))
        means, state = pith_jax.allreduce(tree, state, self._rules, seed=o.seed, comm=o.comm)
        for variable, leaf in zip(self.variables, jax.tree.leaves(state), strict=True):
            variable.assign(leaf)
        return [means[name] for name in names]

    def save(self) -> bytes:
        """The state of this rank."""
        file = io.BytesIO()
        np.savez(file, *(np.asarray(variable.value) for variable in self.variables))
        return file.getvalue()

    def load(self, data: bytes) -> None:
        """From :meth:`save`."""
        with np.load(io.BytesIO(data)) as found:
            arrays = [found[f"arr_{k}"] for k in range(len(found.files))]
        kinds = [(tuple(v.shape), str(v.dtype)) for v in self.variables]
        if kinds != [(array.shape, str(array.dtype)) for array in arrays]:
            raise StateError("the state is of another model or spec")
        for variable, array in zip(self.variables, arrays, strict=True):
            variable.assign(array)


def _exactly(leaf: Any) -> Any:
    return lambda shape, dtype=None: leaf


def save() -> bytes:
    """States by the number of their optimizer; with number 0, what reducers of adaptive specs keep."""
    parts = {number: means.save() for number, means in sorted(_made.items()) if means.variables}
    return pack({0: pith_jax.save()} | parts)


def load(data: bytes) -> None:
    """From :func:`save`."""
    for number, saved in unpack(data, "pith.keras").items():
        means = _made.get(number)
        if number == 0:
            pith_jax.load(saved)
        elif means is not None and means.variables:
            means.load(saved)
        else:
            _loaded[number] = saved
