"""Encoding and decoding on GPUs, for exchanges that a backend of torch makes: the coder of :mod:`._coder` for CUDA tensors.

Kernels are those of the CUDA module, with the CPU's bytes, on the current stream, all layers of a parcel in one call. Everything is
enqueued: the host waits only where sizes vary and must be known.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from .. import _library as c
from .._codec import Caps, Codec
from .._errors import StateError, UnsupportedError
from .._tensors import dtype_of
from ._coder import Coder, Piece, wire_codec
from ._layers import Layer
from ._slices import Slice

Tensors = Sequence[torch.Tensor]


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def _pointers(tensors: Sequence[torch.Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[None if t is None else t.data_ptr() for t in tensors])


class CudaState:
    """What one layer keeps between steps, in device memory."""

    def __init__(self, codec: Codec, n: int, rows: int, device: torch.device) -> None:
        self.codec, self.n = codec, n
        self.tensors: dict[str, torch.Tensor] = {}
        self._device = device
        self.kind = codec.parts.split("/")[0].partition(":")[0] if codec.has_memory else ""
        if self.kind:
            self.make("memory", n)
        if self.kind == "dgc":
            self.make("momentum", n)
        part = c.lib.pith_cuda_part(codec._pointer, n, rows)
        if part:
            self.make("part", part // 4)

    def make(self, name: str, n: int) -> torch.Tensor:
        """The tensor of that name, zeros at first."""
        if name not in self.tensors:
            self.tensors[name] = torch.zeros(n, dtype=torch.float32, device=self._device)
        return self.tensors[name]

    def get(self, name: str) -> torch.Tensor | None:
        return self.tensors.get(name)

    def slice(self, piece: Slice) -> StateSlice:
        return StateSlice(self, piece)

    def scale(self, factor: float) -> None:
        for name, tensor in self.tensors.items():
            if name != "part":
                tensor.mul_(factor)

    def save(self) -> dict[str, torch.Tensor]:
        return {name: tensor.cpu() for name, tensor in self.tensors.items()}

    def load(self, saved: dict[str, torch.Tensor]) -> None:
        for name, tensor in saved.items():
            known = self.tensors.get(name)
            if known is not None and known.numel() != tensor.numel():
                raise StateError(
                    f"the state has {tensor.numel()} values where the layer has {known.numel()}"
                )
        for name, tensor in saved.items():
            self.make(name, tensor.numel()).copy_(tensor)


class StateSlice:
    """The same of a slice of a layer, inside the layer's own."""

    def __init__(self, whole: CudaState, piece: Slice) -> None:
        self.kind, self._whole, self._piece = whole.kind, whole, piece

    def get(self, name: str) -> torch.Tensor | None:
        kept = self._whole.get(name)
        return None if kept is None else self._piece.of(kept)

    def make(self, name: str, n: int) -> torch.Tensor:
        return self._whole.make(f"{name}{self._piece.index}", n)


class CudaBucket:
    """Layers that are cut into a part for each rank and travel together (pith_cuda_bucket_*)."""

    def __init__(
        self,
        layers: Sequence[Layer | Slice],
        codecs: Sequence[Codec],
        states: Sequence[CudaState | StateSlice],
        coder: CudaCoder,
    ) -> None:
        self._codecs, self._coder = codecs, coder  # the bucket points to the codecs
        entries = (c.BucketLayer * len(layers))()
        for entry, layer, codec in zip(entries, layers, codecs, strict=True):
            entry.codec, entry.layer, entry.n, entry.dtype = (
                codec._pointer,
                layer.number,
                layer.n,
                dtype_of(layer.dtype),
            )
        pointer = ctypes.c_void_p()
        c.check(
            c.lib.pith_bucket_create(
                coder.rank, coder.ranks, entries, len(layers), ctypes.byref(pointer)
            )
        )
        self._pointer: ctypes.c_void_p | None = pointer
        self.part_bytes = [c.lib.pith_bucket_bytes(pointer, r) for r in range(coder.ranks)]
        self._sizes = [self._piece(index)[1] for index in range(len(layers))]
        self._states = states
        self._memories = _pointers([state.get("memory") for state in states])
        self._results = _pointers([self._result_memory(index) for index in range(len(layers))])

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer is not None:
            c.lib.pith_bucket_destroy(pointer)

    def _piece(self, index: int) -> tuple[int, int]:
        first, n = ctypes.c_size_t(), ctypes.c_size_t()
        c.check(
            c.lib.pith_bucket_piece(
                self._pointer, index, self._coder.rank, ctypes.byref(first), ctypes.byref(n)
            )
        )
        return first.value, n.value

    def _result_memory(self, index: int) -> torch.Tensor | None:
        state = self._states[index]
        return state.make("result", max(1, self._sizes[index])) if state.kind == "ef" else None

    def encode(self, gradients: Tensors, ctx: c.Ctx) -> torch.Tensor:
        """The parts for all ranks, one after another."""
        parts = self._coder.buffer(max(1, sum(self.part_bytes)))
        status = c.lib.pith_cuda_bucket_encode(
            self._pointer,
            _pointers(gradients),
            self._memories,
            ctypes.byref(ctx),
            parts.data_ptr(),
            self._coder.stream,
        )
        c.check(status)
        return parts[: sum(self.part_bytes)]

    def reduce(self, received: torch.Tensor, room: int, ctx: c.Ctx) -> torch.Tensor:
        """The encoded mean of our part, at the start of ``room`` bytes."""
        sums = self._coder.buffer(max(1, sum(self._sizes)), torch.float32)
        result = self._coder.buffer(max(1, room))
        stream, at = self._coder.stream, ctypes.byref(ctx)
        c.check(
            c.lib.pith_cuda_bucket_sum(
                self._pointer, received.data_ptr(), at, sums.data_ptr(), stream
            )
        )
        self._average(sums)
        c.check(
            c.lib.pith_cuda_bucket_result(
                self._pointer, sums.data_ptr(), self._results, at, result.data_ptr(), stream
            )
        )
        return result[:room]

    def _average(self, sums: torch.Tensor) -> None:
        c.check(c.lib.pith_cuda_bucket_mean(self._pointer, sums.data_ptr(), self._coder.stream))

    def decode(self, results: torch.Tensor, gradients: Tensors, ctx: c.Ctx) -> None:
        status = c.lib.pith_cuda_bucket_decode(
            self._pointer,
            results.data_ptr(),
            ctypes.byref(ctx),
            _pointers(gradients),
            self._coder.stream,
        )
        c.check(status)


class CudaCoder(Coder):
    """For gradients in device memory. Links between GPUs and launches of kernels like larger messages than those between CPUs."""

    block_group, whole_group, round_group = 32 << 20, 64 << 20, 128 << 20
    slice_bytes = block_group

    def __init__(self, device: torch.device, rank: int, ranks: int, seed: int) -> None:
        status = c.lib.pith_cuda_probe(None)
        if status:
            raise UnsupportedError(
                f"gradients on {device} cannot be compressed: {c.last_error(status)}"
            )
        super().__init__(rank, ranks, seed)
        self.device = device
        self.side = torch.cuda.Stream(device)  # exchanges run here, beside the backward pass
        self._ends: list[torch.cuda.Event] = []  # of steps that the host has not waited for

    @property
    def stream(self) -> int:
        return _stream(self.device)

    def admit(self, layer: Layer, codec: Codec) -> None:
        """An error if the layer's codec has no kernels."""
        status = c.lib.pith_cuda_supports(codec._pointer)
        if status:
            raise UnsupportedError(f"layer {layer.name}: {c.last_error(status)}")

    # ---- Between the stream that computes and the one that sends

    def lend(self) -> torch.cuda.Event:
        """Gradients are ready where the caller's stream is now."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def borrow(self, ready: torch.cuda.Event) -> None:
        self.side.wait_event(ready)

    def give_back(self) -> None:
        """The caller's stream goes on when all means are there."""
        torch.cuda.current_stream(self.device).wait_stream(self.side)

    def keep_pace(self, exact: bool) -> None:
        """The host waits for the device, so that its times are those of steps: at most a step ahead, or not at all."""
        self._ends.append(self.lend())
        while len(self._ends) > (0 if exact else 1):
            self._ends.pop(0).synchronize()

    def working(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self.side)

    @staticmethod
    def saved(state: CudaState) -> dict[str, torch.Tensor]:
        return state.save()

    def buffer(self, n: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.empty(n, dtype=dtype, device=self.device)

    # ---- Many layers in one call

    def _item(
        self,
        codec: Codec,
        state: CudaState | None,
        values: torch.Tensor,
        payload: int,
        size: int,
        ctx: c.Ctx,
    ) -> Any:
        item = c.CudaItem(
            codec=codec._pointer.value,
            dtype=dtype_of(values.dtype),
            n=values.numel(),
            values=values.data_ptr(),
            payload=payload,
            size=size,
            ctx=ctx,
        )
        for name in ("memory", "momentum", "part") if state is not None else ():
            kept = state.get(name)  # type: ignore[union-attr]
            setattr(item, name, None if kept is None else kept.data_ptr())
        return item

    def _items(self, pieces: Sequence[Piece], sizes: torch.Tensor | None) -> list[Any]:
        found = []
        for index, piece in enumerate(pieces):
            at = sizes.data_ptr() + 8 * index if sizes is not None else 0
            found.append(
                self._item(
                    piece.codec, piece.state, piece.values, piece.payload.data_ptr(), at, piece.ctx
                )
            )
        return found

    def _run(self, function: Any, items: Sequence[Any], *options: Any) -> None:
        """Enqueues it, with memory that nobody else gets before the stream has come past it."""
        array = (c.CudaItem * len(items))(*items)
        room = self.buffer(max(1, c.lib.pith_cuda_workspace(array, len(items))))
        c.check(function(array, len(items), *options, room.data_ptr(), room.numel(), self.stream))

    # ---- Whole payloads

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """Writes their payloads; how many bytes each took. Waits for these numbers where they vary."""
        bounds = [piece.codec.bound(piece.values.numel()) for piece in pieces]
        if _all_fixed(pieces):
            self._run(c.lib.pith_cuda_encode, self._items(pieces, None))
            return bounds
        sizes = torch.tensor(
            bounds, device=self.device
        )  # those that vary are written by the kernels
        self._run(c.lib.pith_cuda_encode, self._items(pieces, sizes))
        found: list[int] = sizes.tolist()
        return found

    def decode_pieces(self, pieces: Sequence[Piece], add: bool) -> None:
        """Sets their values, or adds to them."""
        sizes = None
        if not _all_fixed(pieces):
            sizes = torch.tensor([piece.payload.numel() for piece in pieces], device=self.device)
        self._run(c.lib.pith_cuda_decode, self._items(pieces, sizes), int(add))

    def encode_all(self, parcel: Any) -> list[torch.Tensor]:
        """The payload of each layer of a parcel."""
        codecs = [wire_codec(layer) for layer in parcel.layers]
        bounds = [
            _aligned(codec.bound(layer.n))
            for codec, layer in zip(codecs, parcel.layers, strict=True)
        ]
        rooms = self.buffer(max(1, sum(bounds)))[: sum(bounds)].split(bounds)
        pieces = [
            Piece(codec, gradient, room, self.context(parcel.step, layer), state)
            for codec, gradient, room, layer, state in zip(
                codecs, parcel.gradients, rooms, parcel.layers, parcel.states, strict=True
            )
        ]
        return [room[:size] for room, size in zip(rooms, self.encode_pieces(pieces), strict=True)]

    def mean_all(self, parcel: Any, messages: torch.Tensor, sizes: list[list[int]]) -> None:
        """Decodes the payloads of all ranks, adds them up in f32 in rank order, and divides."""
        totals = [
            g if g.dtype == torch.float32 else torch.empty_like(g, dtype=torch.float32)
            for g in parcel.gradients
        ]
        for rank, (message, row) in enumerate(zip(messages, sizes, strict=True)):
            pieces = [
                Piece(wire_codec(layer), total, payload, self.context(parcel.step, layer, rank))
                for layer, total, payload in zip(
                    parcel.layers, totals, message[: sum(row)].split(row), strict=True
                )
            ]
            self.decode_pieces(pieces, rank > 0)
        for layer, total, gradient in zip(parcel.layers, totals, parcel.gradients, strict=True):
            self.aggregate(wire_codec(layer), total)
            if total is not gradient:
                gradient.copy_(total)

    def aggregate(self, codec: Codec, values: torch.Tensor) -> None:
        """Turns a sum of decoded payloads of all ranks into the mean, or the majority."""
        item = self._item(codec, None, values, values.data_ptr(), 0, self.context(0))
        c.check(c.lib.pith_cuda_aggregate(ctypes.byref(item), 1, self.stream))

    # ---- Fixed sizes, in parts

    def state(self, layer: Layer) -> CudaState:
        codec = wire_codec(layer)
        self.admit(layer, codec)
        return self.keep(codec, layer.n, layer.rows)

    def keep(self, codec: Codec, n: int, rows: int) -> CudaState:
        return CudaState(codec, n, rows, self.device)

    def bucket(
        self, layers: Sequence[Layer | Slice], states: Sequence[CudaState | StateSlice]
    ) -> CudaBucket:
        return CudaBucket(layers, [wire_codec(layer) for layer in layers], states, self)

    # ---- Rounds

    def rounds(self, layer: Layer, state: CudaState) -> tuple[int, int]:
        """How many values are added up in each round: those of the factors; of a layer that is not worth factoring, none and then its own."""
        rows = layer.rows or max(1, math.isqrt(layer.n))
        cols = -(-layer.n // rows)
        part = state.get("part")
        rank = part.numel() // (rows + cols) if part is not None else 0
        return (rank * rows, rank * cols) if rank else (0, layer.n)

    def _round(
        self, function: Any, index: int, parcel: Any, buffer: torch.Tensor, counts: Sequence[int]
    ) -> None:
        items, at = [], buffer.data_ptr()
        for layer, state, gradient, count in zip(
            parcel.layers, parcel.states, parcel.gradients, counts, strict=True
        ):
            items.append(
                self._item(state.codec, state, gradient, at, 0, self.context(parcel.step, layer))
            )
            at += 4 * count
        self._run(function, items, index)

    def produce_all(
        self, index: int, parcel: Any, buffer: torch.Tensor, counts: Sequence[int]
    ) -> None:
        self._round(c.lib.pith_cuda_produce, index, parcel, buffer, counts)

    def consume_all(
        self, index: int, parcel: Any, buffer: torch.Tensor, counts: Sequence[int]
    ) -> None:
        self._round(c.lib.pith_cuda_consume, index, parcel, buffer, counts)


def _all_fixed(pieces: Sequence[Piece]) -> bool:
    return all(Caps.FIXED in piece.codec.caps for piece in pieces)


def _aligned(size: int) -> int:
    return -(-size // 256) * 256
