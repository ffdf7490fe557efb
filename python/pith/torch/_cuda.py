"""Encoding and decoding on GPUs, for exchanges that a backend of torch makes: the coder of :mod:`._coder` for CUDA tensors.

Kernels are those of the CUDA module, with the CPU's bytes, on the current stream, all layers of a parcel in one call. Everything is
enqueued: the host waits only where sizes vary and must be known.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from .. import _library as c
from .._codec import Caps, Codec
from .._errors import StateError, UnsupportedError
from .._tensors import dtype_of
from ._coder import Coder, Piece
from ._layers import Layer

Tensors = Sequence[torch.Tensor]

# The fields of a pith_ctx that a pith_cuda_item has too.
_PLACE = ("seed", "step", "layer", "rank", "ranks", "offset", "rows", "gamma")


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


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

    def scale(self, factor: float) -> None:
        for name, tensor in self.tensors.items():
            if name != "part":
                tensor.mul_(factor)

    def scale_residual(self, factor: float) -> None:
        if self.kind != "momentum" and "memory" in self.tensors:
            self.tensors["memory"].mul_(factor)

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


class CudaCoder(Coder):
    """For gradients in device memory. Links between GPUs and launches of kernels like larger messages than those between CPUs."""

    def __init__(self, device: torch.device, rank: int, ranks: int, seed: int) -> None:
        status = c.lib.pith_cuda_probe(None)
        if status:
            raise UnsupportedError(
                f"gradients on {device} cannot be compressed: {c.last_error(status)}"
            )
        super().__init__(rank, ranks, seed)
        self.device = device

    @property
    def stream(self) -> int:
        return _stream(self.device)

    def admit(self, layer: Layer, codec: Codec) -> None:
        """An error if the layer's codec has no kernels."""
        status = c.lib.pith_cuda_supports(codec._pointer)
        if status:
            raise UnsupportedError(f"layer {layer.name}: {c.last_error(status)}")

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
            payload_size=size,
            **{name: getattr(ctx, name) for name in _PLACE},
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

    def aggregate(self, codec: Codec, values: torch.Tensor) -> None:
        """Turns a sum of decoded payloads of all ranks into the mean, or the majority."""
        item = self._item(codec, None, values, values.data_ptr(), 0, self.context(0))
        c.check(c.lib.pith_cuda_aggregate(ctypes.byref(item), 1, self.stream))

    def keep(self, codec: Codec, n: int, rows: int) -> CudaState:
        return CudaState(codec, n, rows, self.device)


def _all_fixed(pieces: Sequence[Piece]) -> bool:
    return all(Caps.FIXED in piece.codec.caps for piece in pieces)
