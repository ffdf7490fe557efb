# SPDX-License-Identifier: Apache-2.0
"""The table of layers."""

from __future__ import annotations

from .._comm import Comm
from .._models import line_of
from .._table import Table
from ._programs import programs
from ._ranks import settle, the_comm


def stats(comm: Comm | None = None) -> Table:
    """A table of all leaves in all programs so far: spec, reason, bytes and time. Waits for steps in flight."""
    found = the_comm(comm)
    settle()
    made = [program for program in programs() if program.comm is found]
    layers = [layer for program in made for layer in program.reducer.layers]
    used = [layer for layer in layers if layer.steps] or layers
    carriers = [getattr(program.reducer, "carrier", None) for program in made]
    backend = next((name for name in carriers if name), "pith")
    return Table([line_of(layer, found.ranks) for layer in used], found.ranks, backend)
