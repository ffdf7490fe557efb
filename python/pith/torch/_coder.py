"""Encoding and decoding on one kind of device, for exchanges that a backend of torch makes.

A coder turns gradients into tensors of bytes on the same device and back. There is one for CPU tensors; one for another device needs the
same methods, and an entry in :func:`coder_for`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _library as c
from .._codec import Codec, State, context
from .._errors import UnsupportedError
from .._tensors import dtype_of
from ._layers import Layer


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


def _span(tensor: torch.Tensor) -> c.Span:
    return c.Span(tensor.data_ptr(), tensor.numel(), dtype_of(tensor.dtype))


def _bytes(tensor: torch.Tensor) -> c.Bytes:
    return c.Bytes(tensor.data_ptr(), tensor.numel())


def to_tensor(data: bytes) -> torch.Tensor:
    """Bytes for a checkpoint: torch.load reads tensors without trusting anybody."""
    return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)].clone()


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
    """For values in main memory."""

    def buffer(self, n: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """Memory for a message."""
        return torch.empty(n, dtype=dtype)

    @staticmethod
    def saved(state: State) -> torch.Tensor:
        """For a checkpoint."""
        return to_tensor(state.save())

    def keep(self, codec: Codec, n: int, rows: int) -> State:
        """What is kept between steps of so many values."""
        return codec.state(n, rows)

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
