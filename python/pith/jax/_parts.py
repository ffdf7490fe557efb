"""Which leaves of a tree start in one foreign call, and in which order: those whose gradients are ready first, first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .._errors import ArgumentError

_PART_BYTES = 32 << 20  # of gradients, at least: about what the reducer sends in one group
_PARTS_MOST = 16

# Operations that take time. What lies between them (casts, sums over a batch) does not change the order in which gradients are ready.
_LONG = frozenset(
    {
        "stablehlo.dot_general",
        "stablehlo.convolution",
        "stablehlo.while",
        "stablehlo.case",
        "stablehlo.custom_call",
        "stablehlo.scatter",
        "func.call",
    }
)


class Operands:
    """The numbers of a step's operands: the token, a gradient for each leaf, then what leaves keep, ``counts`` arrays for each."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.leaves = len(counts)
        self._arrays, self.total = [], 1 + len(counts)
        for count in counts:
            self._arrays.append(list(range(self.total, self.total + count)))
            self.total += count

    def of(self, leaves: Sequence[int]) -> list[int]:
        """Those of a call that starts these leaves."""
        return [
            0,
            *(1 + leaf for leaf in leaves),
            *(i for leaf in leaves for i in self._arrays[leaf]),
        ]


def _part_bytes() -> int:
    text = os.environ.get("PITH_JAX_PART_BYTES", str(_PART_BYTES))
    if not text.isdecimal():
        raise ArgumentError(f'PITH_JAX_PART_BYTES is "{text}": a number of bytes, or 0')
    return int(text)


def parts_of(values: Sequence[Any], avals: Sequence[Any], number: Operands) -> list[list[int]]:
    """The leaves of each part, in order. ``values`` are the operands in the program that is lowered."""
    sizes = [avals[1 + leaf].size * avals[1 + leaf].dtype.itemsize for leaf in range(number.leaves)]
    least = max(_part_bytes(), -(-sum(sizes) // _PARTS_MOST))
    if _part_bytes() == 0 or sum(sizes) < 2 * least:
        return [list(range(number.leaves))]
    ready = _moments([values[1 + leaf] for leaf in range(number.leaves)])
    order = sorted(range(number.leaves), key=lambda leaf: (ready[leaf], -leaf))
    parts: list[list[int]] = [[]]
    held = 0
    for leaf in order:
        if held >= least:
            parts.append([])
            held = 0
        parts[-1].append(leaf)
        held += sizes[leaf]
    return parts


def _moments(values: Sequence[Any]) -> list[int]:
    """For each value the place, in the program so far, of the last long operation that it depends on."""
    block = next(
        (v.owner.block for v in values if hasattr(v.owner, "block")), None
    )  # else all are arguments
    if block is None:
        return [0] * len(values)
    moment: dict[Any, int] = {}
    for place, operation in enumerate(block.operations):
        found = max((moment.get(operand, 0) for operand in operation.operands), default=0)
        found = place if operation.operation.name in _LONG else found
        moment.update(dict.fromkeys(operation.results, found))
    return [moment.get(value, 0) for value in values]
