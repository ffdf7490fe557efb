"""The table of layers."""

from __future__ import annotations

from .._comm import Comm
from .._reducer import Layer
from .._table import LayerStats, Table, ratio_of
from ._programs import programs
from ._ranks import settle, the_comm


def stats(comm: Comm | None = None) -> Table:
    """How each leaf travels, why, and what it cost, in all programs so far; printed, it is a table. Waits for steps under way."""
    found = the_comm(comm)
    settle()
    made = [program for program in programs() if program.comm is found]
    layers = [layer for program in made for layer in program.reducer.layers]
    used = [layer for layer in layers if layer.steps] or layers
    return Table([_line(layer, found.ranks) for layer in used], found.ranks, "pith")


def _line(layer: Layer, ranks: int) -> LayerStats:
    raw, wire = layer.bytes * layer.steps, layer.traffic.sent_bytes
    error = 0.0 if layer.spec == "none" else None
    ratio = ratio_of(raw, wire, ranks)
    return LayerStats(
        layer.name, layer.spec, layer.reason, layer.n, layer.steps, raw, wire, ratio, error
    )
