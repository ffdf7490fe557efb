"""How layers in device memory travel over a backend that knows nothing of Pith.

Each way is a generator: it encodes, starts one of the backend's collectives, yields the collective's work to be waited for, decodes, starts
the next one, and so on. The number of collectives follows from the layers alone, so that all ranks start the same ones.

- blocks: codecs of fixed size that can be cut, and exact layers. Part p of every layer goes to rank p (all-to-all), the owner adds up and
  encodes the mean, everybody gets it (all-gather).
- rounds: low rank. One allreduce for each round.
- whole: sparse and other codecs. Everybody gets the payloads of all (all-gather) and adds them up in rank order.
- plain: types that no codec takes. One allreduce.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._codec import Caps
from ._carrier import all_gather_single
from ._coder import is_block, wire_codec
from ._layers import COMPRESSIBLE, Layer

if TYPE_CHECKING:
    from ._cuda import CudaBucket, CudaCoder

_PADDING = 1.1  # parts of almost the same size are gathered as if they had it

Way = Generator[Any, None, None]


@dataclass
class Parcel:
    """Layers of one kind on their way together. ``sent`` collects the bytes that leave this rank, for each layer."""

    coder: CudaCoder
    group: Any
    layers: Sequence[Layer]
    states: Sequence[Any]
    gradients: Sequence[torch.Tensor]
    step: int
    bucket: CudaBucket | None = None
    sent: list[float] = field(default_factory=list)

    def account(self, total: float, weights: Sequence[float]) -> None:
        """Every layer has its share of what was sent for all of them."""
        whole = sum(weights) or 1.0
        shares = [total * weight / whole for weight in weights]
        before = self.sent or [0.0] * len(shares)
        self.sent = [a + b for a, b in zip(before, shares, strict=True)]


def kind_of(layer: Layer) -> Hashable:
    """Layers of one kind can be in one parcel."""
    codec = wire_codec(layer)
    if layer.dtype not in COMPRESSIBLE:
        return "plain", layer.dtype
    if codec.rounds:
        return "rounds", codec.spec  # the rounds of one spec have the same types and reductions
    return "blocks" if is_block(codec) else "whole"


def way_of(kind: Hashable) -> Callable[[Parcel], Way]:
    name = kind[0] if isinstance(kind, tuple) else kind
    return {"blocks": blocks, "rounds": rounds, "whole": whole, "plain": plain}[name]  # type: ignore[index]


# ---- Collectives -----------------------------------------------------------------------------------------------------


def _all_gather(output: torch.Tensor, mine: torch.Tensor, group: Any) -> Any:
    return all_gather_single(output, mine, group=group, async_op=True)


def _all_to_all(
    output: torch.Tensor,
    source: torch.Tensor,
    receive: Sequence[int],
    send: Sequence[int],
    group: Any,
) -> Any:
    return dist.all_to_all_single(
        output, source, list(receive), list(send), group=group, async_op=True
    )


def _allreduce_bytes(nbytes: int, ranks: int) -> float:
    return 2.0 * nbytes * (ranks - 1) / ranks


# ---- Blocks ----------------------------------------------------------------------------------------------------------


def blocks(parcel: Parcel) -> Way:
    coder, bucket = parcel.coder, parcel.bucket
    assert bucket is not None
    ctx = coder.context(parcel.step)
    ranks, sizes = coder.ranks, bucket.part_bytes
    own = sizes[coder.rank]
    parts = bucket.encode(parcel.gradients, ctx)
    received = coder.buffer(own * ranks)
    yield _all_to_all(received, parts, [own] * ranks, sizes, parcel.group)
    del parts  # its memory is for the next parcel
    padded = max(sizes) * ranks <= _PADDING * sum(sizes)
    room = max(sizes) if padded else own
    result = bucket.reduce(received, room, ctx)
    del received
    if padded:
        results = coder.buffer(room * ranks)
        yield _all_gather(results, result, parcel.group)
        results = _without_gaps(results, sizes)
    else:
        results = coder.buffer(sum(sizes))
        yield _all_to_all(results, result.repeat(ranks), sizes, [own] * ranks, parcel.group)
    del result
    bucket.decode(results, parcel.gradients, ctx)
    weights = [wire_codec(layer).bound(layer.n) for layer in parcel.layers]
    parcel.account(sum(sizes) - own + room * (ranks - 1), weights)


def _without_gaps(padded: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    if len(set(sizes)) == 1:
        return padded
    rows = padded.view(len(sizes), -1)
    return torch.cat([row[:size] for row, size in zip(rows, sizes, strict=True)])


# ---- Rounds ----------------------------------------------------------------------------------------------------------


def rounds(parcel: Parcel) -> Way:
    coder = parcel.coder
    described = [
        coder.rounds(layer, state)
        for layer, state in zip(parcel.layers, parcel.states, strict=True)
    ]
    for index in range(len(described[0])):
        counts = [found[index] for found in described]
        buffer = coder.buffer(max(1, sum(counts)), torch.float32)
        coder.produce_all(index, parcel, buffer, counts)
        if sum(counts):
            yield dist.all_reduce(buffer, group=parcel.group, async_op=True)
        coder.consume_all(index, parcel, buffer, counts)
        parcel.account(_allreduce_bytes(sum(counts) * buffer.itemsize, coder.ranks), counts)


# ---- Whole payloads --------------------------------------------------------------------------------------------------


def whole(parcel: Parcel) -> Way:
    coder = parcel.coder
    ranks = coder.ranks
    payloads = coder.encode_all(parcel)
    mine = torch.tensor(
        [payload.numel() for payload in payloads], device=parcel.gradients[0].device
    )
    sizes = mine.repeat(ranks)
    if not all(Caps.FIXED in wire_codec(layer).caps for layer in parcel.layers):
        yield _all_gather(sizes, mine, parcel.group)
    table = sizes.view(ranks, -1)
    room = max(1, int(table.sum(1).max()))
    message = coder.buffer(room).zero_()
    torch.cat(payloads, out=message[: int(mine.sum())])
    del payloads
    everything = coder.buffer(room * ranks)
    yield _all_gather(everything, message, parcel.group)
    del message
    coder.mean_all(parcel, everything.view(ranks, room), table.tolist())
    parcel.account(room * (ranks - 1), mine.tolist())


# ---- Plain -----------------------------------------------------------------------------------------------------------


def plain(parcel: Parcel) -> Way:
    buffer = torch.cat([gradient.reshape(-1) for gradient in parcel.gradients])
    ranks = parcel.coder.ranks
    values = torch.view_as_real(buffer) if buffer.is_complex() else buffer
    yield dist.all_reduce(values, group=parcel.group, async_op=True)
    buffer /= ranks
    sizes = [gradient.numel() for gradient in parcel.gradients]
    for gradient, piece in zip(parcel.gradients, buffer.split(sizes), strict=True):
        gradient.copy_(piece.view_as(gradient))
    parcel.account(_allreduce_bytes(buffer.numel() * buffer.itemsize, ranks), sizes)
