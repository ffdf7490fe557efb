# SPDX-License-Identifier: Apache-2.0
"""The mean of gradients over all ranks: all of a step in one call, whose values TensorFlow and the reducer share.

In ``tf.function`` the call is a ``tf.numpy_function``, which hands out the memory of tensors in main memory and takes aligned arrays without
a copy. TensorFlow runs such calls in the order of the program, on every rank. Gradients may be shared with other tensors, so each is copied
once, to where its mean will be. In eager mode it is a plain call, and TensorFlow copies the means once more.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .. import _library as c
from .._codec import Rules
from .._comm import Comm
from .._errors import ArgumentError
from .._models import Model, Models
from .._plan import Plan
from .._spec import Spec, rules_of
from .._table import Table
from .._tensors import count
from ._ranks import the_comm
from ._variables import described

_ALIGNED = 64  # bytes: what TensorFlow takes without a copy

_models = Models("pith.tensorflow")


def allreduce(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    spec: Spec = "q:4",
    *,
    rules: str | Rules | None = None,
    plan: Plan | str | None = None,
    seed: int = 0,
    sparse_as_dense: bool = False,
    comm: Comm | None = None,
) -> list[Any]:
    """The means of the gradients of variables over all ranks. All ranks make the same calls, in eager mode or in
    ``tf.function``.

    ``spec`` is a spec such as "q:4", rules by the path of variables ("*bias=none;embed*=ef/topk:0.01;*=q:4"), or an
    adaptive spec; ``rules`` or ``plan`` (also the name of its file) can be given instead. Gradients of one dimension,
    small ones and those of f64 stay exact unless a rule names them. ``seed`` is for stochastic codecs, the same on all
    ranks. States of codecs belong to the list of variables.

    A gradient that is None stays None, on all ranks. ``tf.IndexedSlices`` are gathered from all ranks, exactly;
    ``sparse_as_dense`` makes them dense first, so that they are compressed like the others.
    """
    chosen, owners = rules_of(spec, rules, plan), list(variables)
    if len(gradients) != len(owners):
        raise ArgumentError(f"{len(gradients)} gradients for {len(owners)} variables")
    layers = described(owners)
    if not layers:
        return []
    model = _models.model_for(the_comm(comm), chosen, seed, owners, layers)
    if sparse_as_dense:
        gradients = [tf.convert_to_tensor(g) if _is_rows(g) else g for g in gradients]
    return _Step(model, gradients).means()


def _is_rows(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


class _Step:
    """Which gradients there are, and what becomes of them."""

    def __init__(self, model: Model, gradients: Sequence[Any]) -> None:
        self.model, self.gradients = model, gradients
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        self.dense = [i for i in there if not _is_rows(gradients[i])]
        self.rows = [i for i in there if _is_rows(gradients[i])]

    def means(self) -> list[Any]:
        dense = [tf.convert_to_tensor(self.gradients[i]) for i in self.dense]
        rows = [part for i in self.rows for part in _parts(self.gradients[i])]
        results = self._eagerly(dense, rows) if tf.executing_eagerly() else self._graph(dense, rows)
        found: list[Any] = [None] * len(self.gradients)
        for i, mean in zip(self.dense, results, strict=False):
            found[i] = mean
        ranks = self.model.comm.ranks
        for k, i in enumerate(self.rows):
            values, indices = results[len(dense) + 2 * k : len(dense) + 2 * k + 2]
            found[i] = tf.IndexedSlices(values / ranks, indices, self.gradients[i].dense_shape)
        return found

    def _eagerly(self, dense: list[Any], rows: list[Any]) -> list[Any]:
        found = self._run([np.asarray(t) for t in dense], [np.asarray(part) for part in rows])
        return [tf.convert_to_tensor(array) for array in found]

    def _graph(self, dense: list[Any], rows: list[Any]) -> list[Any]:
        def call(*arrays: Any) -> list[Any]:
            return self._run(arrays[: len(dense)], arrays[len(dense) :])

        if not dense and not rows:
            return []
        results = tf.numpy_function(call, dense + rows, [t.dtype for t in dense + rows])
        for tensor, result in zip(dense, results, strict=False):
            result.set_shape(tensor.shape)
        for tensor, result in zip(rows, results[len(dense) :], strict=True):
            result.set_shape([None, *tensor.shape[1:]])
        return results

    def _run(self, dense: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """The means of dense gradients, in memory of ours, and the rows of all ranks."""
        means, addresses = _buffers_of(self.model).take(self.dense)

        def copied() -> Iterator[int]:
            """Each is sent when it is there, while the next one is copied."""
            for mean, array, address in zip(means, dense, addresses, strict=True):
                np.copyto(mean, array)
                yield address

        self.model.reduce_at(self.dense, copied())
        return means + (_gather(self.model, self.rows, rows) if self.rows else [])


# ---- Memory of means -------------------------------------------------------------------------------------------------


class _Buffers:
    """Memory for the means of a model, which TensorFlow uses as its own. What it no longer uses is taken again: new memory would cost the
    system a page fault for every 4 KiB, in every step."""

    def __init__(self, model: Model) -> None:
        self._kinds = [(v.shape, _dtype(v.dtype)) for v in model.variables]
        self._offsets, end = [], 0
        for shape, dtype in self._kinds:
            self._offsets.append(end)
            end += -(-count(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
        self._size = end + _ALIGNED
        self._made: list[np.ndarray] = []

    def take(self, numbers: Sequence[int]) -> tuple[list[Any], list[int]]:
        """An array for each of these variables, and its address."""
        buffer = next((b for b in self._made if sys.getrefcount(b) <= _UNUSED), None)
        if buffer is None:
            buffer = np.empty(self._size, np.uint8)
            self._made = [*self._made[-2:], buffer]  # three are used in turn
        address = buffer.ctypes.data
        begin = -address % _ALIGNED
        offsets = [begin + self._offsets[n] for n in numbers]
        kinds = [self._kinds[n] for n in numbers]
        arrays = [
            np.ndarray(shape, dtype, buffer, offset)
            for (shape, dtype), offset in zip(kinds, offsets, strict=True)
        ]
        return arrays, [address + offset for offset in offsets]


# References to an array that only a list has, counted as take() does: how many these are depends on the version of Python.
_UNUSED = next(sys.getrefcount(b) for b in [np.empty(0, np.uint8)])

_buffers: weakref.WeakKeyDictionary[Model, _Buffers] = weakref.WeakKeyDictionary()


def _buffers_of(model: Model) -> _Buffers:
    found = _buffers.get(model)
    if found is None:
        found = _buffers[model] = _Buffers(model)
    return found


def _dtype(name: str) -> Any:
    return np.dtype(tf.as_dtype(name).as_numpy_dtype)


# ---- Rows ------------------------------------------------------------------------------------------------------------


def _parts(rows: Any) -> tuple[Any, Any]:
    return rows.values, rows.indices


def _gather(model: Model, numbers: Sequence[int], parts: Sequence[Any]) -> list[Any]:
    """Values and indices of all ranks, in their order, for each variable."""
    comm, arrays = model.comm, [np.ascontiguousarray(part) for part in parts]
    mine = np.array([len(array) for array in arrays], np.int64)
    counts = np.empty((comm.ranks, len(arrays)), np.int64)
    comm.all_gather(mine, counts)
    found = []
    for k, array in enumerate(arrays):
        variable = model.variables[numbers[k // 2]]
        width = int(np.prod(array.shape[1:])) * array.itemsize
        whole = np.empty((int(counts[:, k].sum()), *array.shape[1:]), array.dtype)
        comm.all_gather(
            array.reshape(-1).view(np.uint8),
            whole.reshape(-1).view(np.uint8),
            [int(count) * width for count in counts[:, k]],
            layer=c.lib.pith_layer_number(variable.name.encode()),
        )
        found.append(whole)
    for k, number in enumerate(numbers):
        values, indices = arrays[2 * k : 2 * k + 2]
        model.note_rows(number, values.nbytes, values.nbytes + indices.nbytes)
    return found


# ---- Statistics and checkpoints --------------------------------------------------------------------------------------


def stats(comm: Comm | None = None) -> Table:
    """A table of all variables in all models so far: spec, reason, bytes and time."""
    return _models.stats(the_comm(comm))


def save() -> bytes:
    """The states of this rank's codecs (residuals, momentum, the step), for a checkpoint. Every rank saves its own."""
    return _models.save()


def load(data: bytes) -> None:
    """Loads what ``save`` returned on the same rank, before the first step or between two."""
    _models.load(data)
