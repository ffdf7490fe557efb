"""The two engines that reduce gradients: Pith's own reducer, and exchanges over another backend.

Both take groups of layers as their gradients become ready, work on them in the background, and write means in place. Groups are the same
in every step, whatever order or buckets gradients come in: what an owner of a part keeps between steps belongs to it.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from .. import _library as c
from .._adapt import AdaptiveRules
from .._codec import Rules
from .._comm import Request
from .._errors import ArgumentError, StateError
from .._reducer import Reducer
from ._adaptive import Adapting
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

    def kind_of(self, layer: Layer) -> Hashable:
        """Layers of one kind may be in one group."""

    def group_bytes(self, kind: Hashable) -> int:
        """Gradients of that many bytes make a group: enough to be worth a message, soon enough to overlap."""

    def start(self, members: Sequence[int], gradients: Tensors) -> None:
        """Begins to reduce the gradients of these layers, in place."""

    def finish(self) -> bool:
        """Waits for all that was started, and ends the step. Whether layers have other specs now, in the list that was given."""

    def scale(self, factor: float) -> None:
        """Multiplies what is kept between steps."""

    def sent(self) -> list[int]:
        """Bytes that have left this rank, for each layer."""

    def save(self) -> dict[str, Any]: ...

    def load(self, saved: dict[str, Any]) -> None: ...


def engine_for(group: Any, rules: Rules, layers: list[Layer], seed: int) -> Engine:
    """The reducer over the backend pith, exchanges over any other, and for devices: only payloads come to main memory."""
    if layers[0].parameter.is_cpu:
        keep_memory()
        if isinstance(group, PithGroup):
            return ReducerEngine(group, rules, layers, seed)
    return ExchangeEngine(group, rules, layers, seed)


# ---- Over pith -------------------------------------------------------------------------------------------------------


class ReducerEngine:
    """Layers in a reducer of the C library; types that it does not take are allreduced exactly beside it."""

    name = "pith"

    def __init__(self, group: PithGroup, rules: Rules, layers: list[Layer], seed: int) -> None:
        self._comm = group.comm
        self.rank, self.ranks = self._comm.rank, self._comm.ranks
        self._layers = layers
        self._adapted = [i for i, layer in enumerate(layers) if layer.adaptive]
        self._inside = [i for i, layer in enumerate(layers) if self.kind_of(layer) == "reducer"]
        self._numbers: dict[int, int] = {}
        self._reducer: Reducer | None = None
        self._beside: list[tuple[Request, Any]] = []
        self._beside_sent = [0] * len(layers)
        self._lent: list[torch.Tensor] = []
        if self._inside:
            self._make_reducer(rules, seed)

    def _make_reducer(self, rules: Rules, seed: int) -> None:
        """Rules that match only layers beside the reducer would be slips to it."""
        names = [self._layers[i].name for i in self._inside]
        texts = [
            text
            for index, text in enumerate(texts_of(rules))
            if any(rules.matches(index, name) for name in names)
        ]
        self._reducer = Reducer(self._comm, ";".join(texts) or "none", seed)
        for i in self._inside:
            layer = self._layers[i]
            self._numbers[i] = self._reducer.add(layer.name, layer.shape, layer.dtype)
        self._reducer.check()
        self._follow()

    def kind_of(self, layer: Layer) -> Hashable:
        return "reducer" if layer.dtype in COMPRESSIBLE else "beside"

    def group_bytes(self, kind: Hashable) -> int:
        return 4 << 20

    def start(self, members: Sequence[int], gradients: Tensors) -> None:
        for index, gradient in zip(members, gradients, strict=True):
            if index in self._numbers:
                self._start_inside(self._numbers[index], gradient)
            else:
                self._start_beside(index, gradient)
        if self._reducer is not None:
            self._reducer.flush()

    def _start_inside(self, number: int, gradient: torch.Tensor) -> None:
        assert self._reducer is not None
        self._lent.append(gradient)
        pointer = self._reducer._open()
        c.check(c.lib.pith_reducer_start(pointer, number, gradient.data_ptr()))

    def _start_beside(self, index: int, gradient: torch.Tensor) -> None:
        values = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        self._beside.append((self._comm.allreduce(values, "mean", wait=False), gradient))
        bytes_ = gradient.numel() * gradient.itemsize
        self._beside_sent[index] += 2 * bytes_ * (self.ranks - 1) // self.ranks

    def finish(self) -> bool:
        try:
            for request, _ in self._beside:
                request.wait()
        finally:
            self._beside.clear()
            try:
                if self._reducer is not None:
                    self._reducer.finish()
            finally:
                self._lent.clear()
        return self._follow()

    def _follow(self) -> bool:
        """Layers as the adapter of the reducer has them, if that has changed: the reason of any of them tells."""
        if not self._adapted or self._reducer is None:
            return False
        first = self._adapted[0]
        if self._reducer.layer(self._numbers[first]).reason == self._layers[first].reason:
            return False
        for i in self._adapted:
            now = self._reducer.layer(self._numbers[i])
            self._layers[i] = dataclasses.replace(self._layers[i], spec=now.spec, reason=now.reason)
        return True

    def scale(self, factor: float) -> None:
        if self._reducer is not None:
            c.check(c.lib.pith_reducer_scale(self._reducer._open(), factor))

    def sent(self) -> list[int]:
        found = list(self._beside_sent)
        layers = self._reducer.layers if self._reducer is not None else []
        for index, number in self._numbers.items():
            found[index] = layers[number].traffic.sent_bytes
        return found

    def save(self) -> dict[str, Any]:
        return {"reducer": to_tensor(self._reducer.save() if self._reducer is not None else b"")}

    def load(self, saved: dict[str, Any]) -> None:
        if self._reducer is not None:
            self._reducer.load(saved["reducer"])
            self._follow()


# ---- Over other backends ---------------------------------------------------------------------------------------------


class ExchangeEngine:
    """Parcels over a group of another backend, sent by a thread.

    The group is one of our own, so that nobody else's collectives come between ours. Parcels overlap: when one is handed over, its first
    collective is started, then the one before it goes a collective further, and so on. That order follows from the order of parcels
    alone, never from time, so it is the same on all ranks.
    """

    def __init__(self, group: Any, rules: Rules, layers: list[Layer], seed: int) -> None:
        self.name = str(dist.get_backend(group))
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._layers = layers
        self._coder = coder_for(layers[0].parameter.device, self.rank, self.ranks, seed)
        self._states = [self._coder.state(layer) for layer in layers]
        self._parts: dict[tuple[int, ...], list[Part]] = {}
        self._sent = [0.0] * len(layers)
        self._step = 0
        self._group = _own_group(group) if self.ranks > 1 else None
        self._worker = Worker(self._coder.working) if self.ranks > 1 else None
        self._adapting: Adapting | None = None
        if isinstance(rules, AdaptiveRules) and any(layer.adaptive for layer in layers):
            self._adapting = Adapting(
                rules.adaptive, layers, self._states, self._coder, self._group
            )

    def __del__(self) -> None:
        if getattr(self, "_worker", None) is not None:
            self._worker.close()  # type: ignore[union-attr]

    def kind_of(self, layer: Layer) -> Hashable:
        return kind_of(layer)

    def group_bytes(self, kind: Hashable) -> int:
        """Low rank and sparse codecs send little, and what they cost is the time of a message."""
        if kind == "blocks":
            return self._coder.block_group
        return self._coder.whole_group if kind == "whole" else self._coder.round_group

    def start(self, members: Sequence[int], gradients: Tensors) -> None:
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
        self._step += 1
        if self._worker is None:
            return False
        self._worker.finish()
        self._coder.give_back()
        changed = self._adapting is not None and self._adapting.finish()
        if changed:
            self._parts.clear()  # they are of the old codecs
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


def _own_group(group: Any) -> Any:
    """A second group of the same ranks and backend."""
    backend = dist.get_backend(group)
    ranks = dist.get_process_group_ranks(group)
    local = backend != "mpi"
    if not local and len(ranks) != dist.get_world_size():
        raise ArgumentError("over MPI, only models of the whole world can be compressed")
    return dist.new_group(
        ranks,
        timeout=_timeout_of(group),
        backend=backend,
        use_local_synchronization=local,
        group_desc="pith",
    )


def _timeout_of(group: Any) -> timedelta | None:
    """The group's own time-out, where torch tells; None is torch's default."""
    try:
        device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
        return group._get_backend(torch.device(device)).options._timeout
    except (AttributeError, RuntimeError):
        return None


class Worker:
    """A thread that moves parcels on, in waves: one for each new parcel, and as many as are needed at the end of a step."""

    def __init__(self, working: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
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
