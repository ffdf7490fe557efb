# SPDX-License-Identifier: Apache-2.0
"""Two results side by side: the same methods in the same settings, and what changed."""

from __future__ import annotations

from pathlib import Path

from . import svg
from .analysis import Entry, Panel, panels_of
from .results import ResultsError, read_all

_HEAD = ("method", "quality A", "B", "ms a step A", "B", "B/A", "to target A", "B", "bytes A", "B")


def _cell(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else svg.number(value, digits)


def _row(a: Entry, b: Entry) -> list[str]:
    one, two = a.step, b.step
    return [
        a.label,
        _cell(a.mean("metric")),
        _cell(b.mean("metric")),
        _cell(one and 1e3 * one, 3),
        _cell(two and 1e3 * two, 3),
        _cell(two / one if one and two else None, 3),
        _cell(a.time_to_target, 3),
        _cell(b.time_to_target, 3),
        "–" if a.bytes is None else svg.with_unit(a.bytes, svg.BYTES),
        "–" if b.bytes is None else svg.with_unit(b.bytes, svg.BYTES),
    ]


def _table(a: Panel, b: Panel) -> list[str]:
    others = {entry.label: entry for entry in b.entries}
    rows = [list(_HEAD)]
    rows += [_row(entry, others[entry.label]) for entry in a.entries if entry.label in others]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    alone = [entry.label for entry in a.entries if entry.label not in others]
    theirs = {entry.label for entry in a.entries}
    more = [entry.label for entry in b.entries if entry.label not in theirs]
    notes = [f"only in A: {', '.join(alone)}"] if alone else []
    notes += [f"only in B: {', '.join(more)}"] if more else []
    return [a.title, *lines, *notes, ""]


def compare(a: Path, b: Path) -> str:
    """A table for each setting that both have."""
    one, two = (panels_of(list(read_all([path]).runs.values())) for path in (a, b))
    others = {panel.key: panel for panel in two}
    common = [panel for panel in one if panel.key in others]
    if not common:
        raise ResultsError(f"{a} and {b} have no setting in common")
    return "\n".join(line for panel in common for line in _table(panel, others[panel.key]))
