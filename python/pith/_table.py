# SPDX-License-Identifier: Apache-2.0
"""The table of layers: how each travels, why, what it cost on the wire, and what it loses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ALLREDUCE, REDUCE_SCATTER = 2, 1  # how often the bytes of a tensor, less a rank's own, leave it


@dataclass(frozen=True)
class LayerStats:
    """A layer. Bytes are those of all steps so far, on this rank."""

    name: str
    spec: str
    reason: str  # why it has this spec
    n: int
    steps: int
    raw_bytes: int  # of its gradients
    wire_bytes: int  # that left this rank
    ratio: float  # bytes that exact gradients would have sent, to wire_bytes; nan before the first step
    error: float | None  # ‖x−x̂‖/‖x‖ of encoding its latest gradient once; None: there is none now


@dataclass(frozen=True)
class MomentStats:
    """Of layers whose specs begin with ``moment``, and of those of ``auto`` where the optimizer was given."""

    phase: str  # "warm-up", "frozen at step N", "exact again since step N: …"; with auto, what was tried and found
    every: int  # one of so many steps is exchanged, once frozen
    steps: int  # of the optimizer; 0 where no momentum can travel


class Table(Sequence[LayerStats]):
    """One line for each layer, by number or by name; as text, a table with the sums below."""

    def __init__(
        self,
        layers: list[LayerStats],
        ranks: int,
        backend: str,
        passes: int = ALLREDUCE,
        moments: MomentStats | None = None,
        exact_bytes: float | None = None,
    ) -> None:
        self.layers, self.ranks, self.backend = layers, ranks, backend
        self.moments = moments  # None: no layer sends its momentum
        self._passes = passes
        self._exact_bytes = exact_bytes  # that exact gradients would have sent, where lines differ in passes or ranks

    def __getitem__(self, key: int | str) -> LayerStats:  # type: ignore[override]
        if isinstance(key, str):
            for layer in self.layers:
                if layer.name == key:
                    return layer
            raise KeyError(key)
        return self.layers[key]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerStats]:
        return iter(self.layers)

    @property
    def raw_bytes(self) -> int:
        return sum(layer.raw_bytes for layer in self.layers)

    @property
    def wire_bytes(self) -> int:
        return sum(layer.wire_bytes for layer in self.layers)

    @property
    def ratio(self) -> float:
        if self._exact_bytes is not None:
            return self._exact_bytes / self.wire_bytes if self.wire_bytes else math.nan
        return ratio_of(self.raw_bytes, self.wire_bytes, self.ranks, self._passes)

    def __str__(self) -> str:
        head = ("layer", "spec", "why", "values", "raw bytes", "wire bytes", "ratio", "error")
        rows = [head, *map(_cells, self.layers)]
        rows.append(
            ("all", "", "", _count(sum(layer.n for layer in self.layers)))
            + (_count(self.raw_bytes), _count(self.wire_bytes), _short(self.ratio), "")
        )
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(_pad(row[i], widths[i], i) for i in range(len(head))) for row in rows]
        if self.moments is not None:
            found = self.moments
            how = f", every {found.every} steps" if found.every > 1 else ""
            now = f", now at step {found.steps}" if found.steps else ""
            lines.append(f"momentum{how}: {found.phase}{now}")
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def _cells(layer: LayerStats) -> tuple[str, ...]:
    error = "-" if layer.error is None else f"{layer.error:.3g}"
    return (
        (layer.name, layer.spec, layer.reason, _count(layer.n))
        + (_count(layer.raw_bytes), _count(layer.wire_bytes))
        + (_short(layer.ratio), error)
    )


def _count(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _short(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.1f}"


def _pad(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column < 3 else text.rjust(width)


def ratio_of(raw: int, wire: int, ranks: int, passes: int = ALLREDUCE) -> float:
    """What exact gradients would have sent, to what was sent."""
    exact = passes * raw * (ranks - 1) / ranks
    return exact / wire if wire else math.nan
