"""Encoding and decoding on one kind of device, for exchanges that a backend of torch makes.

A coder turns gradients into tensors of bytes on the same device and back. There is one for CPU tensors; one for another device needs the
same methods, and an entry in :func:`coder_for`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .. import _library as c
from .._codec import Caps, Codec, State, codec_of, context
from .._errors import UnsupportedError
from .._tensors import dtype_of
from ._layers import Layer

if TYPE_CHECKING:
    from ._slices import Slice

_MEAN = 4
_CASTS = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_TORCH_TYPES = {
    0: torch.float32,
    1: torch.float16,
    2: torch.bfloat16,
    3: torch.int8,
    4: torch.int16,
    5: torch.int32,
    6: torch.float64,
    7: torch.int64,
}

Tensors = Sequence[torch.Tensor]


def coder_for(device: torch.device, rank: int, ranks: int, seed: int) -> Any:
    """The coder for tensors of a device."""
    if device.type == "cuda":
        from ._cuda import CudaCoder

        return CudaCoder(device, rank, ranks, seed)
    if device.type != "cpu":
        raise UnsupportedError(
            f"gradients on {device} cannot be compressed: pith.torch.compress takes models on CPUs and CUDA devices"
        )
    return CpuCoder(rank, ranks, seed)


def wire_codec(layer: Layer | Slice) -> Codec:
    """The codec a layer travels by. Exact halves travel as they are: "none" would send them as f32."""
    return codec_of(_CASTS.get(layer.dtype, "none")) if layer.spec == "none" else layer.codec


def is_block(codec: Codec) -> bool:
    """Whether it has sizes known beforehand and can be cut into a part for each rank."""
    return Caps.FIXED | Caps.CHUNKED in codec.caps and not codec.rounds


def _span(tensor: torch.Tensor) -> c.Span:
    return c.Span(tensor.data_ptr(), tensor.numel(), dtype_of(tensor.dtype))


def _bytes(tensor: torch.Tensor) -> c.Bytes:
    return c.Bytes(tensor.data_ptr(), tensor.numel())


def _pointers(tensors: Tensors) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def to_tensor(data: bytes) -> torch.Tensor:
    """Bytes for a checkpoint: torch.load reads tensors without trusting anybody."""
    return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)].clone()


class Bucket:
    """Layers that are cut into a part for each rank and travel together (pith_bucket_*)."""

    def __init__(self, layers: Sequence[Layer], states: Sequence[State], rank: int, ranks: int):
        self._kept = (layers, states)  # the bucket points to them
        entries = c.array(c.BucketItem, len(layers))
        for entry, layer, state in zip(entries, layers, states, strict=True):
            codec = wire_codec(layer)
            entry.codec = codec._pointer
            entry.state = state._pointer if codec.has_memory else None
            entry.layer, entry.n, entry.dtype = layer.number, layer.n, dtype_of(layer.dtype)
        pointer = ctypes.c_void_p()
        c.check(c.lib.pith_bucket_create(rank, ranks, entries, len(layers), ctypes.byref(pointer)))
        self._pointer: ctypes.c_void_p | None = pointer
        self._rank = rank
        self.part_bytes = [c.lib.pith_bucket_bytes(pointer, r) for r in range(ranks)]

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer is not None:
            c.lib.pith_bucket_destroy(pointer)

    def encode(self, gradients: Tensors, ctx: c.Ctx) -> torch.Tensor:
        """The parts for all ranks, one after another."""
        parts = torch.empty(max(1, sum(self.part_bytes)), dtype=torch.uint8)
        pointers = _pointers(gradients)
        c.check(
            c.lib.pith_bucket_encode(self._pointer, pointers, ctypes.byref(ctx), parts.data_ptr())
        )
        return parts[: sum(self.part_bytes)]

    def reduce(self, received: torch.Tensor, room: int, ctx: c.Ctx) -> torch.Tensor:
        """The encoded mean of our part, at the start of ``room`` bytes."""
        result = torch.empty(max(1, room), dtype=torch.uint8)
        status = c.lib.pith_bucket_reduce(
            self._pointer, _bytes(received), _MEAN, ctypes.byref(ctx), result.data_ptr()
        )
        c.check(status)
        return result[:room]

    def decode(self, results: torch.Tensor, gradients: Tensors, ctx: c.Ctx) -> None:
        pointers = _pointers(gradients)
        c.check(
            c.lib.pith_bucket_decode(self._pointer, _bytes(results), ctypes.byref(ctx), pointers)
        )


@dataclass(frozen=True)
class Piece:
    """Values and their payload: one is made from the other."""

    codec: Codec
    values: torch.Tensor
    payload: torch.Tensor  # for encoding, at least the codec's bound of bytes
    ctx: c.Ctx  # the encoder's
    state: Any = None  # what the encoder keeps of these values


class Coder:
    """What coders of all devices have in common: who encodes, and with which random numbers."""

    slice_bytes = 0  # layers much larger than that travel in slices; 0: none do

    def __init__(self, rank: int, ranks: int, seed: int) -> None:
        self.rank, self.ranks, self.seed = rank, ranks, seed

    def admit(self, layer: Layer, codec: Codec) -> None:
        """An error if the layer cannot travel by this codec here."""

    def context(self, step: int, layer: Layer | None = None, rank: int | None = None) -> c.Ctx:
        return context(
            seed=self.seed,
            step=step,
            layer=layer.number if layer else 0,
            rank=self.rank if rank is None else rank,
            ranks=self.ranks,
            rows=layer.rows if layer else 0,
        )


class CpuCoder(Coder):
    """For gradients in main memory."""

    block_group, whole_group, round_group = (
        8 << 20,
        16 << 20,
        16 << 20,
    )  # bytes of gradients that travel together

    # ---- Between the thread that computes and the one that sends: there is nothing to wait for in main memory

    def lend(self) -> None:
        """Gradients are ready, where the caller is."""

    def borrow(self, ready: None) -> None:
        """Whoever sends them may touch them from here on."""

    def give_back(self) -> None:
        """The caller may touch them again."""

    def keep_pace(self, exact: bool) -> None:
        """Means are there already."""

    working = staticmethod(nullcontext)  # in which the thread works that sends

    def buffer(self, n: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """Memory for a message."""
        return torch.empty(n, dtype=dtype)

    @staticmethod
    def saved(state: State) -> torch.Tensor:
        """For a checkpoint."""
        return to_tensor(state.save())

    def state(self, layer: Layer) -> State:
        return self.keep(wire_codec(layer), layer.n, layer.rows)

    def keep(self, codec: Codec, n: int, rows: int) -> State:
        """What is kept between steps of so many values."""
        return codec.state(n, rows)

    # ---- Fixed sizes, in parts

    def bucket(self, layers: Sequence[Layer], states: Sequence[State]) -> Bucket:
        return Bucket(layers, states, self.rank, self.ranks)

    # ---- Whole payloads

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """Writes their payloads; how many bytes each took."""
        return [
            self.encode(piece.codec, piece.state, piece.values, piece.payload, piece.ctx)
            for piece in pieces
        ]

    def decode_pieces(self, pieces: Sequence[Piece], add: bool) -> None:
        """Sets their values, or adds to them."""
        for piece in pieces:
            self.decode(piece.codec, piece.payload, piece.values, add, piece.ctx)

    def encode(
        self, codec: Codec, state: State | None, values: torch.Tensor, out: torch.Tensor, ctx: c.Ctx
    ) -> int:
        """Writes the payload to ``out`` (at least the codec's bound); how many bytes it took."""
        target = c.Out(out.data_ptr(), out.numel(), 0)
        memory = state._pointer if state is not None else None
        status = c.lib.pith_encode(
            codec._pointer, memory, _span(values), ctypes.byref(target), ctypes.byref(ctx)
        )
        c.check(status)
        return target.size

    def decode(
        self, codec: Codec, payload: torch.Tensor, values: torch.Tensor, add: bool, ctx: c.Ctx
    ) -> None:
        """Sets values, or adds to them. ``ctx`` is the encoder's."""
        status = c.lib.pith_decode(
            codec._pointer, _bytes(payload), _span(values), int(add), ctypes.byref(ctx)
        )
        c.check(status)

    def aggregate(self, codec: Codec, values: torch.Tensor) -> None:
        """Turns a sum of decoded payloads of all ranks into the mean, or the majority."""
        ctx = self.context(0)
        c.check(c.lib.pith_aggregate(codec._pointer, _span(values), ctypes.byref(ctx)))

    def encode_all(self, parcel: Any) -> list[torch.Tensor]:
        """The payload of each layer of a parcel."""
        found = []
        for layer, state, gradient in zip(
            parcel.layers, parcel.states, parcel.gradients, strict=True
        ):
            codec = wire_codec(layer)
            out = self.buffer(max(1, codec.bound(layer.n)))
            found.append(
                out[: self.encode(codec, state, gradient, out, self.context(parcel.step, layer))]
            )
        return found

    def mean_all(self, parcel: Any, messages: torch.Tensor, sizes: list[list[int]]) -> None:
        """The mean of each layer, from the message of each rank, which has a payload of so many bytes for each layer."""
        cut = [
            message[: sum(row)].split(row) for message, row in zip(messages, sizes, strict=True)
        ]  # of each rank, of each layer
        for index, (layer, gradient) in enumerate(
            zip(parcel.layers, parcel.gradients, strict=True)
        ):
            self.mean(layer, [payloads[index] for payloads in cut], gradient, parcel.step)

    def mean(self, layer: Layer, payloads: Tensors, gradient: torch.Tensor, step: int) -> None:
        """Decodes the payloads of all ranks, adds them up in f32 in rank order, and divides."""
        codec = wire_codec(layer)
        total = gradient if gradient.dtype == torch.float32 else torch.empty_like(gradient).float()
        for rank, payload in enumerate(payloads):
            self.decode(codec, payload, total, rank > 0, self.context(step, layer, rank))
        self.aggregate(codec, total)
        if total is not gradient:
            gradient.copy_(total)

    # ---- Rounds

    def rounds(self, layer: Layer, state: State) -> list[c.Round]:
        codec, found = wire_codec(layer), []
        for index in range(codec.rounds):
            entry = c.Round()
            status = c.lib.pith_round_describe(
                codec._pointer, state._pointer, index, ctypes.byref(entry)
            )
            c.check(status)
            found.append(entry)
        return found

    def round_type(self, entry: c.Round) -> torch.dtype:
        return _TORCH_TYPES[entry.dtype]

    def produce_all(
        self, index: int, parcel: Any, buffer: torch.Tensor, counts: Sequence[int]
    ) -> None:
        """What this rank puts into a round: for each layer as many values of the buffer, one after another."""
        for layer, state, gradient, piece in _members(parcel, buffer, counts):
            self.produce(layer, state, index, gradient, piece, parcel.step)

    def consume_all(
        self, index: int, parcel: Any, buffer: torch.Tensor, counts: Sequence[int]
    ) -> None:
        for layer, state, gradient, piece in _members(parcel, buffer, counts):
            self.consume(layer, state, index, piece, gradient, parcel.step)

    def produce(
        self,
        layer: Layer,
        state: State,
        index: int,
        gradient: torch.Tensor,
        buffer: torch.Tensor,
        step: int,
    ) -> None:
        ctx = self.context(step, layer)
        status = c.lib.pith_round_produce(
            wire_codec(layer)._pointer,
            state._pointer,
            index,
            _span(gradient),
            buffer.data_ptr(),
            ctypes.byref(ctx),
        )
        c.check(status)

    def consume(
        self,
        layer: Layer,
        state: State,
        index: int,
        buffer: torch.Tensor,
        gradient: torch.Tensor,
        step: int,
    ) -> None:
        ctx = self.context(step, layer)
        status = c.lib.pith_round_consume(
            wire_codec(layer)._pointer,
            state._pointer,
            index,
            buffer.data_ptr(),
            _span(gradient),
            ctypes.byref(ctx),
        )
        c.check(status)


def _members(parcel: Any, buffer: torch.Tensor, counts: Sequence[int]) -> Any:
    pieces = buffer[: sum(counts)].split(list(counts))
    return zip(parcel.layers, parcel.states, parcel.gradients, pieces, strict=True)
