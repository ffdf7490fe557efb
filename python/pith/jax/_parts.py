# SPDX-License-Identifier: Apache-2.0
"""Which leaves of a tree start in one foreign call, and in which order: those whose gradients are ready first, first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .._errors import ArgumentError

_PART_BYTES = {
    "cpu": 8 << 20,
    "cuda": 32 << 20,
}  # of gradients, at least: about a group of the reducer
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


def _part_bytes(platform: str) -> int:
    text = os.environ.get("PITH_JAX_PART_BYTES", str(_PART_BYTES[platform]))
    if not text.isdecimal():
        raise ArgumentError(f'PITH_JAX_PART_BYTES is "{text}": a number of bytes, or 0')
    return int(text)


def parts_of(
    values: Sequence[Any], avals: Sequence[Any], number: Operands, platform: str
) -> list[list[int]]:
    """The leaves of each part, in order. ``values`` are the operands in the program that is lowered."""
    sizes = [avals[1 + leaf].size * avals[1 + leaf].dtype.itemsize for leaf in range(number.leaves)]
    asked = _part_bytes(platform)
    least = max(asked, -(-sum(sizes) // _PARTS_MOST))
    if asked == 0 or sum(sizes) < 2 * least:
        return [list(range(number.leaves))]
    ready = _depths([values[1 + leaf] for leaf in range(number.leaves)])
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


def _depths(values: Sequence[Any]) -> list[int]:
    """For each value how many long operations, one after another, must come before it: in this order gradients become ready."""
    depth: dict[Any, int] = {}
    stack = list(values)
    while stack:
        value = stack[-1]
        needed = getattr(value.owner, "operands", ())  # none of a function's argument
        missing = [v for v in needed if v not in depth]
        stack.extend(missing)
        if not missing:
            before = max((depth[v] for v in needed), default=0)
            depth[stack.pop()] = before + (getattr(value.owner, "name", "") in _LONG)
    return [depth[value] for value in values]
