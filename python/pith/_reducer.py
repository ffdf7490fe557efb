# SPDX-License-Identifier: Apache-2.0
"""The object a training loop uses: layers by name, reduced to their mean in the background."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _library as c
from ._carrier import Bridge, Carrier, Cuda, NcclCarrier, Options
from ._codec import Rules, saved
from ._comm import Comm, Traffic, traffic_of
from ._errors import ArgumentError
from ._plan import Plan
from ._tensors import NAMES, count, dtype_of, target_of, view_of

_SUM, _MEAN = 0, 4  # pith_reduce_op


@dataclass(frozen=True)
class Layer:
    """A layer of a reducer: its spec and the reason for it, its values, bytes, steps and traffic so far."""

    name: str
    spec: str
    reason: str
    n: int
    bytes: int
    steps: int
    traffic: Traffic


class Reducer:
    """Reduces gradients to their mean over all ranks, in place, while the next ones are computed::

        reducer = pith.Reducer(comm, "*.bias=none;*=ef/q:4")
        for name, p in parameters:
            reducer.add(name, p.shape, p.dtype)
        …
        reducer.start("fc1.weight", gradient)   # every step: as soon as it is ready, in the same order on all ranks
        reducer.finish()                        # all gradients are means now

    ``rules`` is a spec, rules, a ``Plan``, or an adaptive spec ("auto", "lgreco:q:4"; also in the last rule,
    "embed*=none;*=auto"), which may change specs of layers between two steps. One thread may use a reducer at a time.
    Gradients must not be changed from start to finish.

    A ``Carrier`` instead of a comm moves the bytes by other means. ``group_bytes`` and ``in_order`` control how layers
    are grouped. A group of that many bytes, from the last layer to the first, is sent when all its gradients are ready;
    with ``in_order`` groups are sent one after another in that order. ``cuda``: gradients are on a device. Over a comm,
    ``cuda.carrier`` chooses the path of messages; a carrier chooses it itself. ``sharded``: every rank owns a shard of
    each layer (``add_shards``, ``reduce_scatter``, ``all_gather``); of ``rules`` only an adaptive spec is used, for
    layers with the same spec. ``in_parts``: a training step consists of several starts and finishes.

    ``lent``: the states of layers are arrays of the caller, which C code lends (pith/carrier.h); ``pith.jax`` uses
    this.
    """

    def __init__(
        self,
        comm: Comm | Carrier,
        rules: str | Rules | Plan,
        seed: int = 0,
        *,
        group_bytes: int = 0,
        in_order: bool = False,
        cuda: Cuda | None = None,
        sharded: bool = False,
        lent: bool = False,
        in_parts: bool = False,
    ) -> None:
        text = rules if isinstance(rules, str) else rules.text
        pointer = ctypes.c_void_p()
        group_bytes = c.whole(ctypes.c_size_t, group_bytes, "group_bytes")
        self._bridge: Bridge | None = None
        create, over = c.lib.pith_reducer_create_over, None  # type: Any, Any
        if isinstance(comm, Comm):
            create, over = c.lib.pith_reducer_create_with, comm.pointer
            comm._dependents.add(self)
        elif isinstance(comm, NcclCarrier):
            over = ctypes.byref(comm.struct)
        else:
            self._bridge = Bridge(comm)
            over = ctypes.byref(self._bridge.struct)
        self._options = Options(
            group_bytes,
            in_order,
            cuda if isinstance(comm, Comm) else comm.cuda,
            sharded,
            lent,
            in_parts,
        )
        options = ctypes.byref(self._options.struct)
        status = create(over, text.encode(), seed, options, ctypes.byref(pointer))
        if status and isinstance(comm, NcclCarrier):
            comm.struct.release(comm.struct.self)
        c.check(status)
        self._pointer: ctypes.c_void_p | None = pointer
        self._comm, self._rules = comm, text
        self._numbers: dict[str, int] = {}
        self._shapes: list[tuple[int, int]] = []  # values and type of each layer
        self._lent: list[Any] = []

    def _check(self, status: int) -> None:
        """Raises the exception of the carrier, or of who gives memory, where there is one."""
        for where in (self._bridge, self._options) if status else ():
            if where is not None and where.error is not None:
                raise where.error
        c.check(status)

    def close(self) -> None:
        """Waits for operations in flight, and closes the reducer."""
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer is not None:
            c.lib.pith_reducer_destroy(pointer)
            if self._bridge is not None:
                self._bridge.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = "" if self._pointer else ", closed"
        return f"<pith.Reducer {self._rules!r}, {len(self._shapes)} layers, rank {self._comm.rank} of {self._comm.ranks}{closed}>"

    def _open(self) -> ctypes.c_void_p:
        if self._pointer is None:
            raise ArgumentError("the reducer is closed")
        return self._pointer

    def add(
        self, name: str, shape: Sequence[int], dtype: Any = "f32", *, exact: str | None = None
    ) -> int:
        """Adds a layer and returns its number. All ranks add the same layers in the same order.

        ``exact`` is a reason why the layer is never compressed, whatever the rules say; layers of f64 need one.
        """
        number, kind = ctypes.c_size_t(), dtype_of(dtype)
        reason = None if exact is None else c.encoded(exact, "exact")
        layer = c.Layer(c.encoded(name, "the name"), c.numbers(shape), len(shape), kind, reason)
        c.check(c.lib.pith_reducer_add(self._open(), ctypes.byref(layer), ctypes.byref(number)))
        self._numbers[name] = number.value
        self._shapes.append((count(shape), kind))
        return number.value

    def add_as(self, name: str, shape: Sequence[int], dtype: Any, spec: str) -> int:
        """Adds a layer with this spec, whatever the rules say and however small it is. Returns its number."""
        number, kind = ctypes.c_size_t(), dtype_of(dtype)
        layer = c.Layer(c.encoded(name, "the name"), c.numbers(shape), len(shape), kind)
        c.check(
            c.lib.pith_reducer_add_as(
                self._open(), ctypes.byref(layer), spec.encode(), ctypes.byref(number)
            )
        )
        self._numbers[name] = number.value
        self._shapes.append((count(shape), kind))
        return number.value

    def add_shards(self, name: str, shape: Sequence[int], spec: str) -> int:
        """Adds a layer of which every rank owns a shard of this shape. Returns its number."""
        number = ctypes.c_size_t()
        layer = c.Layer(c.encoded(name, "the name"), c.numbers(shape), len(shape), dtype_of("f32"))
        add = c.lib.pith_reducer_add_shards
        c.check(add(self._open(), ctypes.byref(layer), spec.encode(), ctypes.byref(number)))
        return number.value

    def reduce_scatter(
        self, layers: Sequence[int], source: c.Span, target: c.Span, mean: bool
    ) -> None:
        """Writes sums or means of this rank's shards to ``target``. ``source`` has the shards of these layers for rank
        0, then for rank 1, and so on.
        """
        reduce = c.lib.pith_reducer_reduce_scatter
        numbers, op = c.numbers(layers), _MEAN if mean else _SUM
        self._check(reduce(self._open(), numbers, len(layers), source, target, op))

    def all_gather(self, layers: Sequence[int], source: c.Span, target: c.Span) -> None:
        """Gathers the shards of all ranks; ``source`` has those of this rank. All ranks get the decoded values, the owner too."""
        gather, numbers = c.lib.pith_reducer_all_gather, c.numbers(layers)
        self._check(gather(self._open(), numbers, len(layers), source, target))

    def gathered(self, layers: Sequence[int], target: c.Span) -> None:
        """Repeats the result of the last ``all_gather`` of these layers, whose specs begin with ``delta``. Nothing is sent."""
        numbers = c.numbers(layers)
        self._check(c.lib.pith_reducer_gathered(self._open(), numbers, len(layers), target))

    def start(self, layer: str | int, gradient: Any) -> None:
        """Starts to reduce a layer's gradient."""
        number = self._number(layer)
        view = target_of(gradient)
        n, dtype = self._shapes[number]
        if (view.n, view.dtype) != (n, dtype):
            raise ArgumentError(
                f"layer {layer} has {n} {NAMES[dtype]} values, the gradient {view.n} {NAMES[view.dtype]}"
            )
        self._lent.append(view)
        self._check(c.lib.pith_reducer_start(self._open(), number, view.data))

    def start_at(self, number: int, address: int) -> None:
        """Starts to reduce values at an address. The caller checks the address and keeps the memory."""
        self._check(c.lib.pith_reducer_start(self._open(), number, address))

    def _number(self, layer: str | int) -> int:
        if isinstance(layer, int):
            if not 0 <= layer < len(self._shapes):
                raise ArgumentError(f"there is no layer number {layer}")
            return layer
        try:
            return self._numbers[layer]
        except KeyError:
            raise ArgumentError(f"there is no layer {layer!r}: add it first") from None

    def flush(self) -> None:
        """Sends incomplete groups, for when the next gradient will take a while. Call it at the same places on all ranks."""
        self._check(c.lib.pith_reducer_flush(self._open()))

    def finish(self) -> None:
        """Waits for all layers of this step, and ends it."""
        try:
            self._check(c.lib.pith_reducer_finish(self._open()))
        finally:
            self._lent.clear()

    def check(self) -> None:
        """Raises if a rule matches no layer, or if ranks have different layers or rules. Communicates."""
        self._check(c.lib.pith_reducer_check(self._open()))

    def scale(self, factor: float) -> None:
        """Multiplies the states of all layers, between two steps, for example after a change of the loss scale."""
        c.check(c.lib.pith_reducer_scale(self._open(), factor))

    def scale_residual(self, number: int, factor: float) -> None:
        """Multiplies a layer's residual, between two steps; by a/b after its learning rate has changed from a to b."""
        c.check(c.lib.pith_reducer_scale_residual(self._open(), number, factor))

    def set_spec(self, number: int, spec: str | None) -> None:
        """Gives a layer another spec, between two steps, the same on all ranks. If the new spec sends gradients, unsent
        momentum is dropped.

        None: the adaptive spec chooses again. The adaptive spec is paused while any of its layers has a spec that was
        set.
        """
        c.check(c.lib.pith_reducer_set_spec(self._open(), number, c.encoded(spec, "the spec")))

    def update(self, updates: Any, stream: int | None = None) -> None:
        """Runs an optimizer's step on layers, in place. ``updates`` is an array or a sequence of ``_library.Update``;
        the caller checks the addresses and keeps the memory. ``stream``: the CUDA stream, if gradients are on a
        device.
        """
        if not isinstance(updates, ctypes.Array):
            updates = (c.Update * len(updates))(*updates)
        c.check(c.lib.pith_reducer_update(self._open(), updates, len(updates), stream))

    def copy_residual(self, number: int, address: int, stream: int | None = None) -> None:
        """Writes a layer's residual, however it is stored, to an address in the memory of its gradients, as one f32 for
        each value.

        The caller checks the address. ``stream``: as for ``update``.
        """
        c.check(c.lib.pith_reducer_copy_residual(self._open(), number, address, stream))

    def owed(self, number: int, owed: int | None, momentum: int | None = None) -> None:
        """Adds what this rank has not sent yet of a layer to f32 values at an address in the memory of its gradients.
        With ``momentum``, writes its momentum there.
        """
        c.check(c.lib.pith_reducer_owed(self._open(), number, owed, momentum))

    def owe(self, number: int, owed: int | None, momentum: int | None = None) -> None:
        """Replaces a layer's state by such values; the next gradients contain them."""
        c.check(c.lib.pith_reducer_owe(self._open(), number, owed, momentum))

    def resume(self, step: int) -> None:
        """Continues to count steps from ``step``. Parameters that are sent as differences are sent whole next."""
        c.check(c.lib.pith_reducer_resume(self._open(), step))

    def array_sizes(self, number: int) -> list[int]:
        """Bytes of a layer's state arrays: residual, momentum, results, the codec's own; 0 for those that it does not have."""
        sizes = (ctypes.c_size_t * 4)()
        c.check(c.lib.pith_reducer_array_sizes(self._open(), number, sizes))
        return list(sizes)

    @property
    def pointer(self) -> ctypes.c_void_p:
        """The pith_reducer of the C library."""
        return self._open()

    @property
    def layers(self) -> list[Layer]:
        """A table of all layers."""
        return [self.layer(index) for index in range(c.lib.pith_reducer_layers(self._open()))]

    def layer(self, number: int) -> Layer:
        """One layer. With an adaptive spec, its spec is that of the next step."""
        layer, traffic = c.LayerStats(), c.Traffic()
        c.check(c.lib.pith_reducer_layer_stats(self._open(), number, ctypes.byref(layer)))
        c.check(c.lib.pith_reducer_layer_traffic(self._open(), number, ctypes.byref(traffic)))
        return Layer(
            c.text(layer.name),
            c.text(layer.spec),
            c.text(layer.reason),
            layer.n,
            layer.bytes,
            layer.steps,
            traffic_of(traffic),
        )

    def write_profile(self, path: str | os.PathLike[str]) -> None:
        """Writes the statistics of the last plan of an adaptive spec, for ``pith plan`` and ``pith.Profile``."""
        c.check(c.lib.pith_reducer_profile(self._open(), os.fsencode(path)))

    def save(self) -> bytes:
        """Returns the step and the states of all layers, for a checkpoint of this rank."""
        return saved(c.lib.pith_reducer_save_size, c.lib.pith_reducer_save, self._open())

    def load(self, data: Any) -> None:
        """Loads a checkpoint of this rank. Rank, names, sizes and specs are checked before anything changes."""
        view = view_of(data)
        c.check(c.lib.pith_reducer_load(self._open(), c.Bytes(view.data, view.n)))
