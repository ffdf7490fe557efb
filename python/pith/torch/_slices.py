"""Large layers in slices, which travel as layers of their own: what an exchange needs in memory then follows from the size of a message, and
not from that of the largest layer. Each slice is cut into a part for each rank; codecs of blocks do not see where a tensor was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._codec import Codec
from ._layers import Layer, number_of

_UNIT = 1 << 16  # values; a multiple of every codec's block


@dataclass(frozen=True)
class Slice:
    """Values of a layer, from ``first`` on. To an exchange it is a layer."""

    layer: Layer
    index: int
    first: int
    n: int

    @property
    def name(self) -> str:
        return f"{self.layer.name}[{self.index}]"

    @property
    def number(self) -> int:
        """Slices have random numbers of their own."""
        return number_of(self.name)

    @property
    def spec(self) -> str:
        return self.layer.spec

    @property
    def codec(self) -> Codec:
        return self.layer.codec

    @property
    def dtype(self) -> torch.dtype:
        return self.layer.dtype

    @property
    def rows(self) -> int:
        return 0

    def of(self, values: torch.Tensor) -> torch.Tensor:
        return values.reshape(-1)[self.first : self.first + self.n]


def slices_of(layer: Layer, limit: int) -> list[Slice]:
    """The layer in slices of about that many bytes."""
    step = max(_UNIT, limit // layer.dtype.itemsize // _UNIT * _UNIT)
    starts = range(0, layer.n, step)
    return [Slice(layer, k, first, min(step, layer.n - first)) for k, first in enumerate(starts)]


@dataclass(frozen=True)
class Part:
    """What one parcel takes of a group of layers. A member is a place in the group; a slice is alone in its parcel."""

    members: Sequence[int]
    layers: Sequence[Any]
    states: Sequence[Any]
    bucket: Any

    def take(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        chosen = [gradients[member] for member in self.members]
        first = self.layers[0]
        return [first.of(chosen[0])] if isinstance(first, Slice) else chosen
