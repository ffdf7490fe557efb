# SPDX-License-Identifier: Apache-2.0
"""Models of frameworks whose gradients come all at once, in main memory: variables as layers, and a reducer for each list of variables.

``pith.tensorflow`` and ``pith.keras`` use it. What layers keep between steps is in the reducer, so a model must find its own again: by the
variables themselves, since names may be those of another model too.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import _library as c
from ._codec import Rules, codec_of, minimal_size
from ._comm import Comm
from ._errors import ArgumentError, CorruptError, UnsupportedError
from ._reducer import Layer, Reducer
from ._spec import check_rules
from ._table import LayerStats, Table, ratio_of

TYPES = ("float32", "float16", "bfloat16", "float64")
_EXACT_F64 = "float64 is not compressed"


@dataclass(frozen=True)
class Variable:
    """A variable as a layer."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in TYPES:
            raise ArgumentError(
                f"variable {self.name} is {self.dtype}: gradients are {', '.join(TYPES)}"
            )


def unique(names: Iterable[str]) -> list[str]:
    """The same names; a second "kernel" is "kernel_1"."""
    found: list[str] = []
    seen: set[str] = set()
    for name in names:
        number, made = 0, name
        while made in seen:
            number += 1
            made = f"{name}_{number}"
        seen.add(made)
        found.append(made)
    return found


class Model:
    """The reducer of a list of variables. One step at a time; all gradients of it in one call, so that ranks cannot wait for each other."""

    def __init__(self, comm: Comm, rules: Rules, seed: int, variables: Sequence[Variable]) -> None:
        check_rules(rules, [variable.name for variable in variables])
        self.comm, self.variables = comm, variables
        self.reducer = Reducer(comm, rules, seed)
        self._lock = threading.Lock()
        for variable in variables:
            exact = _EXACT_F64 if variable.dtype == "float64" else None
            self.reducer.add(variable.name, variable.shape, variable.dtype, exact=exact)
        for layer in self.reducer.layers:
            _refuse_moments(layer)
        facts = (comm.ranks, rules.text, seed, minimal_size(), list(variables))
        self.facts = repr(facts)
        self._rows: dict[int, list[int]] = {}  # by variable: steps, raw bytes, bytes sent

    def reduce_at(self, numbers: Sequence[int], addresses: Iterable[int]) -> None:
        """Makes the gradients of these variables means, in place; the caller has checked their memory, and keeps it.

        Those of all others are not there in this step, on any rank.
        """
        with self._lock:
            for number, address in zip(numbers, addresses, strict=True):
                self.reducer.start_at(number, address)
            self.reducer.finish()

    def note_rows(self, number: int, raw: int, sent: int) -> None:
        """Counts rows of a variable's gradient that this rank has sent to each of the others, beside the reducer."""
        found = self._rows.setdefault(number, [0, 0, 0])
        for k, more in enumerate((1, raw, sent * (self.comm.ranks - 1))):
            found[k] += more

    def lines(self) -> list[LayerStats]:
        """For a table: layers that have travelled, or all before the first step."""
        layers = self.reducer.layers
        used = [n for n, layer in enumerate(layers) if layer.steps or n in self._rows]
        ranks = self.comm.ranks
        return [
            _line_of_rows(layers[n], self._rows[n], ranks)
            if n in self._rows
            else line_of(layers[n], ranks)
            for n in used or range(len(layers))
        ]


def _refuse_moments(layer: Layer) -> None:
    if layer.spec != "none" and codec_of(layer.spec).moment:
        raise UnsupportedError(
            f"layer {layer.name}: {layer.spec} sends the momentum of an optimizer, and gradients come here: it is for pith.torch.compress(), "
            "and in JAX for pith.jax.adamw()"
        )


def line_of(layer: Layer, ranks: int) -> LayerStats:
    """A layer of a reducer, as a line of a table."""
    raw, wire = layer.bytes * layer.steps, layer.traffic.sent_bytes
    error = 0.0 if layer.spec == "none" else None
    ratio = ratio_of(raw, wire, ranks)
    return LayerStats(
        layer.name, layer.spec, layer.reason, layer.n, layer.steps, raw, wire, ratio, error
    )


def _line_of_rows(layer: Layer, counted: list[int], ranks: int) -> LayerStats:
    steps, raw, wire = counted
    why = "rows (IndexedSlices) are gathered exactly"
    ratio = ratio_of(layer.bytes * steps, wire, ranks)
    return LayerStats(layer.name, "none", why, layer.n, steps, raw, wire, ratio, 0.0)


@dataclass
class _Entry:
    key: int  # of its checkpoint
    model: Model
    owners: list[weakref.ref[Any]]

    def is_of(self, owners: Sequence[Any]) -> bool:
        return all(ref() is owner for ref, owner in zip(self.owners, owners, strict=True))


class Models:
    """The models of a package, by their variables."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._lock = threading.RLock()
        self._entries: dict[tuple[Any, ...], _Entry] = {}
        self._counts: dict[str, int] = {}  # models made so far, by what they are made of
        self._loaded: dict[int, bytes] = {}  # checkpoints of models that are not made yet

    def model_for(
        self,
        comm: Comm,
        rules: Rules,
        seed: int,
        owners: Sequence[Any],
        variables: Sequence[Variable],
    ) -> Model:
        """The model of these objects; made where it is the first time. All ranks ask for theirs in the same order."""
        seed = c.whole(ctypes.c_uint64, seed, "seed")
        where = (id(comm), rules.text, seed, *map(id, owners))
        with self._lock:
            entry = self._entries.get(where)
            if entry is None or not entry.is_of(owners):
                self._drop(where)
                entry = self._entries[where] = self._make(comm, rules, seed, owners, variables)
                for owner in owners:
                    weakref.finalize(owner, self._drop, where).atexit = False
            return entry.model

    def _make(
        self,
        comm: Comm,
        rules: Rules,
        seed: int,
        owners: Sequence[Any],
        variables: Sequence[Variable],
    ) -> _Entry:
        model = Model(comm, rules, seed, variables)
        number = self._counts.get(model.facts, 0)
        self._counts[model.facts] = number + 1
        digest = hashlib.blake2b(f"{number} {model.facts}".encode(), digest_size=8).digest()
        entry = _Entry(int.from_bytes(digest, "little"), model, [weakref.ref(o) for o in owners])
        if saved := self._loaded.pop(entry.key, None):
            model.reducer.load(saved)
        return entry

    def _drop(self, where: tuple[Any, ...]) -> None:
        with self._lock:
            self._entries.pop(where, None)

    def save(self) -> bytes:
        """What codecs of this rank keep between steps, for a checkpoint."""
        with self._lock:
            return pack({e.key: e.model.reducer.save() for e in self._entries.values()})

    def load(self, data: bytes) -> None:
        """From :func:`save` of the same rank, before or after the first step."""
        found = unpack(data, self._package)
        with self._lock:
            made = {entry.key: entry.model for entry in self._entries.values()}
            for key, saved in found.items():
                if key in made:
                    made[key].reducer.load(saved)
                else:
                    self._loaded[key] = saved

    def stats(self, comm: Comm) -> Table:
        """How each layer travels, why, and what it cost, in all models so far; printed, it is a table."""
        with self._lock:
            models = [e.model for e in self._entries.values() if e.model.comm is comm]
        return Table([line for model in models for line in model.lines()], comm.ranks, "pith")


# ---- Checkpoints of several reducers in one --------------------------------------------------------------------------

_HEAD = struct.Struct("<QQ")  # key, and bytes of what follows


def pack(parts: dict[int, bytes]) -> bytes:
    """Checkpoints by their keys, as one."""
    return b"".join(_HEAD.pack(key, len(data)) + data for key, data in parts.items())


def unpack(data: bytes, package: str) -> dict[int, bytes]:
    """The inverse."""
    found, at = {}, 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise CorruptError(f"the checkpoint of {package} ends within a head")
        key, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if len(data) - at < size:
            raise CorruptError(f"the checkpoint of {package} ends within a reducer")
        found[key] = data[at : at + size]
        at += size
    return found
