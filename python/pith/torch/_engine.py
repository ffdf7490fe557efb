"""The two engines that reduce gradients: the reducer of the C library, and exchanges of device tensors over a backend of torch.

Both take gradients as they become ready, reduce them in groups in the background, and write means in place. Groups are the same in every
step, whatever order or buckets gradients come in: what an owner of a part keeps between steps belongs to it.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from .._adapt import AdaptiveRules
from .._codec import Rules
from .._comm import Comm
from .._errors import StateError
from .._reducer import Reducer
from ._adaptive import Adapting
from ._carrier import TorchCarrier, give_group_back, taken_group
from ._coder import coder_for, to_tensor
from ._exchange import Parcel, Way, kind_of, way_of
from ._group import PithGroup
from ._layers import COMPRESSIBLE, Layer, texts_of
from ._malloc import keep_memory
from ._slices import Part, slices_of

Tensors = Sequence[torch.Tensor]


class Engine(Protocol):
    """What both engines can do."""

    name: str
    rank: int
    ranks: int

    def put(self, index: int, gradient: torch.Tensor) -> None:
        """The gradient of a layer is there, and lent until the end of the step."""

    def finish(self) -> bool:
        """Waits for all that came, and ends the step. Whether layers have other specs now, in the list that was given."""

    def scale(self, factor: float) -> None:
        """Multiplies what is kept between steps."""

    def sent(self) -> list[int]:
        """Bytes that have left this rank, for each layer."""

    def save(self) -> dict[str, Any]: ...

    def load(self, saved: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """Gives back threads, memory and groups. All ranks call it, between steps."""


def engine_for(
    group: Any, rules: Rules, layers: list[Layer], seed: int, in_order: bool = False
) -> Engine:
    """The engine for these layers.

    ``in_order``: groups leave in one order on all ranks, whatever order gradients come in. Without it, gradients must come in the same order
    on all ranks.
    """
    if not layers[0].parameter.is_cpu:
        return ExchangeEngine(group, rules, layers, seed, in_order)
    keep_memory()
    if isinstance(group, PithGroup):
        return ReducerEngine(group.comm, rules, layers, seed, in_order)
    return ReducerEngine(TorchCarrier(group), rules, layers, seed, in_order)


# ---- Main memory -----------------------------------------------------------------------------------------------------

_COMM_GROUP_BYTES = 4 << 20  # enough to be worth a message, soon enough to overlap


class ReducerEngine:
    """Layers in a reducer of the C library, over a comm of Pith's own or the collectives of a backend."""

    def __init__(
        self,
        over: Comm | TorchCarrier,
        rules: Rules,
        layers: list[Layer],
        seed: int,
        in_order: bool,
    ) -> None:
        self._over, self._layers = over, layers
        self.name = over.name if isinstance(over, TorchCarrier) else "pith"
        self.rank, self.ranks = over.rank, over.ranks
        self._adapted = [i for i, layer in enumerate(layers) if layer.adaptive]
        self._lent: list[torch.Tensor] = []
        inside = [i for i, layer in enumerate(layers) if not layer.sparse]
        self._reducer = Reducer(
            over,
            _rules_for([layers[i].name for i in inside], rules),
            seed,
            group_bytes=_COMM_GROUP_BYTES if isinstance(over, Comm) else 0,
            in_order=in_order,
        )
        self._numbers = {i: self._add(layers[i]) for i in inside}
        if inside:
            self._reducer.check()
        self._follow()

    def _add(self, layer: Layer) -> int:
        if layer.dtype in COMPRESSIBLE:
            return self._reducer.add(layer.name, layer.shape, layer.dtype)
        shape, dtype = layer.shape, layer.dtype
        if dtype.is_complex:
            shape, dtype = (*shape, 2), dtype.to_real()
        return self._reducer.add(layer.name, shape, dtype, exact=layer.reason)

    def put(self, index: int, gradient: torch.Tensor) -> None:
        values = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        self._lent.append(values)
        self._reducer.start_at(self._numbers[index], values.data_ptr())

    def finish(self) -> bool:
        try:
            self._reducer.finish()
        finally:
            self._lent.clear()
        return self._follow()

    def _follow(self) -> bool:
        """Layers as the adapter of the reducer has them, if that has changed: the reason of any of them tells."""
        if not self._adapted:
            return False
        first = self._adapted[0]
        if self._reducer.layer(self._numbers[first]).reason == self._layers[first].reason:
            return False
        for i in self._adapted:
            now = self._reducer.layer(self._numbers[i])
            self._layers[i] = dataclasses.replace(self._layers[i], spec=now.spec, reason=now.reason)
        return True

    def scale(self, factor: float) -> None:
        self._reducer.scale(factor)

    def sent(self) -> list[int]:
        found = [0] * len(self._layers)
        layers = self._reducer.layers
        for index, number in self._numbers.items():
            found[index] = layers[number].traffic.sent_bytes
        return found

    def save(self) -> dict[str, Any]:
        return {"reducer": to_tensor(self._reducer.save())}

    def load(self, saved: dict[str, Any]) -> None:
        if "reducer" not in saved:
            raise StateError(
                f"the state was saved over {self.name} by Pith 0.1, which kept it in another form; train on without it"
            )
        self._reducer.load(saved["reducer"])
        self._follow()

    def close(self) -> None:
        self._reducer.close()
        if isinstance(self._over, TorchCarrier):
            self._over.close()


def _rules_for(names: Sequence[str], rules: Rules) -> str:
    """Rules that match none of these would be slips to a reducer."""
    texts = enumerate(texts_of(rules))
    return ";".join(t for i, t in texts if any(rules.matches(i, name) for name in names)) or "none"


# ---- Devices ---------------------------------------------------------------------------------------------------------


def grouped(layers: Sequence[Layer], group_bytes: Callable[[Hashable], int]) -> list[list[int]]:
    """Layers of one kind in groups, from the last layer to the first: the order of a backward pass."""
    groups: list[list[int]] = []
    open_: dict[Hashable, tuple[list[int], int]] = {}
    for index in reversed(range(len(layers))):
        if layers[index].sparse:
            continue
        kind = kind_of(layers[index])
        members, size = open_.get(kind, ([], 0))
        if not members:
            groups.append(members)
        members.append(index)
        size += layers[index].bytes
        open_[kind] = ([], 0) if size >= group_bytes(kind) else (members, size)
    return groups


class ExchangeEngine:
    """Parcels of device tensors over a group of any backend, sent by a thread.

    The group is one of our own, so that nobody else's collectives come between ours. Parcels overlap: when one is handed over, its first
    collective is started, then the one before it goes a collective further, and so on. That order follows from the order of parcels
    alone, never from time, so it is the same on all ranks.
    """

    def __init__(
        self, group: Any, rules: Rules, layers: list[Layer], seed: int, in_order: bool
    ) -> None:
        self.name = str(dist.get_backend(group))
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._layers = layers
        self._coder = coder_for(layers[0].parameter.device, self.rank, self.ranks, seed)
        self._states = [self._coder.state(layer) for layer in layers]
        self._parts: dict[tuple[int, ...], list[Part]] = {}
        self._sent = [0.0] * len(layers)
        self._step = 0
        self._parent = group
        self._group = taken_group(group) if self.ranks > 1 else None
        self._worker = Worker(self._coder.working) if self.ranks > 1 else None
        self._adapting: Adapting | None = None
        if isinstance(rules, AdaptiveRules) and any(layer.adaptive for layer in layers):
            self._adapting = Adapting(
                rules.adaptive, layers, self._states, self._coder, self._group
            )
        self._in_order = in_order
        self._present: dict[int, torch.Tensor] = {}
        self._regroup()

    def _regroup(self) -> None:
        self._groups = grouped(self._layers, self._group_bytes)
        self._group_of = {i: g for g, members in enumerate(self._groups) for i in members}
        self._begin()

    def _begin(self) -> None:
        self._missing = [len(members) for members in self._groups]
        self._waiting = set(range(len(self._groups)))  # groups that have not left in this step

    def put(self, index: int, gradient: torch.Tensor) -> None:
        self._present[index] = gradient
        group = self._group_of[index]
        self._missing[group] -= 1
        if not self._in_order:
            if self._missing[group] == 0:
                self._leave(group)
            return
        while self._waiting and self._missing[min(self._waiting)] == 0:
            self._leave(min(self._waiting))

    def _leave(self, group: int) -> None:
        self._waiting.discard(group)
        members = [i for i in self._groups[group] if i in self._present]
        if members:
            self._start(members, [self._present[i] for i in members])

    def __del__(self) -> None:
        if getattr(self, "_worker", None) is not None:
            self._worker.close()  # type: ignore[union-attr]

    def _group_bytes(self, kind: Hashable) -> int:
        """Low rank and sparse codecs send little, and what they cost is the time of a message."""
        if kind == "blocks":
            return self._coder.block_group
        return self._coder.whole_group if kind == "whole" else self._coder.round_group

    def _start(self, members: Sequence[int], gradients: Tensors) -> None:
        if self._worker is None:  # one rank: its gradient is the mean
            return
        if self._adapting is not None:
            for index, gradient in zip(members, gradients, strict=True):
                self._adapting.put(index, gradient)
        way = way_of(kind_of(self._layers[members[0]]))
        ready = self._coder.lend()
        for part in self._parts_of(members):
            layers, taken = part.layers, part.take(gradients)
            parcel = Parcel(
                self._coder, self._group, layers, part.states, taken, self._step, part.bucket
            )
            self._worker.put(self._sending(way, parcel, [members[m] for m in part.members], ready))

    def _sending(self, way: Any, parcel: Parcel, members: list[int], ready: Any) -> Way:
        self._coder.borrow(ready)
        yield from way(parcel)
        for index, sent in zip(members, parcel.sent, strict=True):
            self._sent[index] += sent

    def _parts_of(self, members: Sequence[int]) -> list[Part]:
        """The parcels of a group: one, and one for each slice of a large layer where the coder cuts."""
        key = tuple(members)
        if key not in self._parts:
            limit = self._coder.slice_bytes
            blocks = kind_of(self._layers[members[0]]) == "blocks"
            large = [
                m
                for m, i in enumerate(members)
                if blocks and limit and self._layers[i].bytes > 2 * limit
            ]
            found = (
                [self._part(members, [m for m in range(len(members)) if m not in large])]
                if len(large) < len(members)
                else []
            )
            for m in large:
                found += self._slices(members, m, limit)
            self._parts[key] = found
        return self._parts[key]

    def _part(self, members: Sequence[int], chosen: list[int]) -> Part:
        layers = [self._layers[members[m]] for m in chosen]
        states = [self._states[members[m]] for m in chosen]
        return Part(
            chosen,
            layers,
            states,
            self._coder.bucket(layers, states) if kind_of(layers[0]) == "blocks" else None,
        )

    def _slices(self, members: Sequence[int], member: int, limit: int) -> list[Part]:
        found = []
        for piece in slices_of(self._layers[members[member]], limit):
            states = [self._states[members[member]].slice(piece)]
            found.append(Part([member], [piece], states, self._coder.bucket([piece], states)))
        return found

    def finish(self) -> bool:
        try:
            for group in sorted(self._waiting):
                self._leave(group)
            if self._worker is not None:
                self._worker.finish()
                self._coder.give_back()
        finally:
            self._present = {}
            self._step += 1
            self._begin()
        changed = self._adapting is not None and self._adapting.finish()
        if changed:
            self._parts.clear()  # they are of the old codecs
            self._regroup()
        return changed

    def scale(self, factor: float) -> None:
        for state in self._states:
            state.scale(factor)
        if self._adapting is not None:
            self._adapting.scale(factor)

    def sent(self) -> list[int]:
        return [round(sent) for sent in self._sent]

    def save(self) -> dict[str, Any]:
        kept = {
            "step": self._step,
            "states": [self._coder.saved(state) for state in self._states],
        }
        return kept | (self._adapting.save() if self._adapting is not None else {})

    def load(self, saved: dict[str, Any]) -> None:
        states, layers = saved["states"], self._layers
        if len(states) != len(self._states):
            raise StateError(f"{len(states)} states for {len(self._states)} layers")
        if self._adapting is not None:
            adapter, layers = self._adapting.read(saved)
        fresh = [self._coder.state(layer) for layer in layers]
        for state, data in zip(fresh, states, strict=True):  # all of them load, or nothing changes
            state.load(data)
        if self._adapting is not None:
            self._adapting.load(adapter, saved)
        self._states[:] = fresh
        self._parts.clear()
        self._step = saved["step"]
        self._regroup()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._group is not None:
            give_group_back(self._parent, self._group)
            self._group = None


class Worker:
    """A thread that moves parcels on, in waves: one for each new parcel, and as many as are needed at the end of a step."""

    def __init__(self, working: Callable[[], AbstractContextManager[Any]]) -> None:
        self._working = working
        self._queue: queue.SimpleQueue[Way | threading.Event | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, way: Way) -> None:
        self._post(way)

    def finish(self) -> None:
        """Waits until all parcels have arrived; raises what went wrong."""
        done = threading.Event()
        self._post(done)
        done.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)

    def _post(self, entry: Way | threading.Event) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pith-exchange", daemon=True)
            self._thread.start()
        self._queue.put(entry)

    @torch.no_grad()
    def _run(self) -> None:
        with self._working():
            self._work()

    def _work(self) -> None:
        under_way: list[tuple[Way, Any]] = []  # with the work to wait for, newest first
        while (entry := self._queue.get()) is not None:
            try:
                if isinstance(entry, threading.Event):
                    while under_way and self._error is None:
                        under_way = _advance(under_way)
                elif self._error is None:
                    under_way = _begin(entry) + _advance(under_way)
            except BaseException as error:  # finish() raises it where the user is
                self._error = error
            if self._error is not None:
                under_way = []
            if isinstance(entry, threading.Event):
                entry.set()
            del entry


def _begin(way: Way) -> list[tuple[Way, Any]]:
    for work in way:
        return [(way, work)]
    return []


def _advance(under_way: list[tuple[Way, Any]]) -> list[tuple[Way, Any]]:
    """Every parcel goes one collective further; those that have arrived are left out."""
    still = []
    for way, work in under_way:
        work.wait()
        still += _begin(way)
    return still
