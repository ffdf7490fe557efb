# SPDX-License-Identifier: Apache-2.0
"""Figures as SVG, made of text. Colours are classes (``c0`` …), so that the page decides what they are in light and in dark.

Figures are 460 units wide, which is what fits a phone; on larger screens several stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from .._look import FIGURES, VARIABLES

STYLE = VARIABLES + FIGURES  # what a page needs to show figures
WIDTH = 460
_CHARACTER = 6.7  # width of one, on average, at the size of labels
_TICK_CHARACTER = 6.2  # and at that of ticks
_HEIGHT = 13  # of a line


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    label: str
    colour: int
    x_error: float = 0.0
    y_error: float = 0.0
    strong: bool = False


@dataclass(frozen=True)
class Line:
    """A curve. ``low`` and ``high``: the range over seeds, drawn as a band."""

    xs: Sequence[float]
    ys: Sequence[float]
    label: str
    colour: int
    strong: bool = False
    dashed: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Bar:
    """One row. ``parts``: lengths and colours, one after another. ``note`` stands in place of a bar that cannot be drawn."""

    label: str
    parts: Sequence[tuple[float, int]]
    text: str
    note: str = ""
    strong: bool = False


# ---- Numbers ---------------------------------------------------------------------------------------------------------


def number(value: float, digits: int = 3) -> str:
    """A number for people: 0.0123, 4.56, 78.9, 1 234."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞" if value > 0 else "−∞" if value < 0 else "–"
    size = math.floor(math.log10(abs(value)))
    if size >= digits:
        return f"{round(value):,}".replace(",", "\u202f").replace("-", "−")
    text = f"{value:.{max(0, digits - 1 - size)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def with_unit(value: float, units: Sequence[tuple[float, str]], digits: int = 3) -> str:
    """In the greatest unit that leaves at least one."""
    for size, name in units:
        if abs(value) >= size or (size, name) == units[-1]:
            return f"{number(value / size, digits)} {name}"
    return number(value)


BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
BITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))
SECONDS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * f for f in (1, 2, 5, 10) if size * f >= raw)
    first = math.ceil(low / step - 1e-9)
    return [
        round(i * step, 12) + 0.0
        for i in range(first, first + count + 2)
        if i * step <= high * (1 + 1e-9)
    ]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten between two."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**i for i in range(first, last + 1)]


# ---- Parts -----------------------------------------------------------------------------------------------------------


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _wrap(parts: list[str], height: float, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title, True)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _tick_texts(ticks: Sequence[tuple[float, str]], y: float) -> list[str]:
    """Texts below an axis, each around its place and inside the picture. One that would touch the text before it is left out."""
    parts, end = [], 0.0
    for x, text in ticks:
        half = _TICK_CHARACTER * len(text) / 2
        x = max(half, min(x, WIDTH - half - 2))
        if x - half < end:
            continue
        parts.append(_text(x, y, text, "tick", "middle"))
        end = x + half + 6
    return parts


class _Frame:
    """A rectangle with axes."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], height: float, right: float = 12
    ) -> None:
        self.left, self.top, self.right, self.bottom = 52.0, 24.0, WIDTH - right, height - 40.0
        self._x, self._y = x, y

    def x(self, value: float) -> float:
        low, high = self._x
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self._y
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def axes(self, x_title: str, y_title: str) -> list[str]:
        parts = []
        for value in ticks(min(self._y), max(self._y)):
            y = self.y(value)
            parts += [_line(self.left, y, self.right, y, "grid")]
            parts += [_text(self.left - 5, y + 4, number(value), "tick", "end")]
        below = ticks(*self._x)
        for value in below:
            parts += [_line(self.x(value), self.bottom, self.x(value), self.bottom + 4, "axis")]
        parts += _tick_texts([(self.x(v), number(v)) for v in below], self.bottom + 15)
        parts += [_line(self.left, self.bottom, self.right, self.bottom, "axis")]
        parts += [_text(self.right, self.bottom + 32, x_title, "name", "end")]
        parts += [_text(4, 13, y_title, "name")]
        return parts


_Box = tuple[float, float, float, float]


def _overlaps(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _places(x: float, y: float, width: float) -> list[tuple[float, float, str]]:
    """Where a label can be, the best first: x, y of the base line, anchor."""
    found = []
    for distance in (8.0, 16.0, 26.0, 38.0, 52.0, 68.0, 86.0, 106.0):
        for angle in (0, 180, -40, 40, -140, 140, -90, 90, -20, 20, -65, 65, -160, 160):
            dx, dy = (
                distance * math.cos(math.radians(angle)),
                distance * math.sin(math.radians(angle)),
            )
            anchor = "start" if dx > 1 else "end" if dx < -1 else "middle"
            found.append((x + dx, y + dy + 4, anchor))
    return found


def _box(x: float, y: float, width: float, anchor: str) -> _Box:
    left = x if anchor == "start" else x - width if anchor == "end" else x - width / 2
    return left, y - 10, left + width, y + 3


def labels(
    points: Sequence[tuple[float, float, str, bool]], area: _Box, taken: list[_Box]
) -> list[str]:
    """A label for each point, none on another; with a line to its point where it is far."""
    parts = []
    for x, y, label, strong in points:
        width = _CHARACTER * len(label) + (4 if strong else 0)
        for lx, ly, anchor in _places(x, y, width):
            box = _box(lx, ly, width, anchor)
            inside = (
                box[0] >= area[0] and box[1] >= area[1] and box[2] <= area[2] and box[3] <= area[3]
            )
            if inside and not any(_overlaps(box, other) for other in taken):
                break
        else:
            continue  # the table below has it
        taken.append(box)
        if math.hypot(lx - x, ly - 4 - y) > 20:
            parts.append(_line(x, y, lx, ly - 4, "leader"))
        parts.append(_text(lx, ly, label, "label strong" if strong else "label", anchor))
    return parts


# ---- Figures ---------------------------------------------------------------------------------------------------------


def _limits(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room


def _worth_showing(
    points: Sequence[Point], marks: Sequence[tuple[float, str]], higher: bool
) -> tuple[float, float]:
    """The range of y: the better two thirds and some room; differences below 4% are not blown up."""
    ys = sorted((p.y for p in points), reverse=higher)
    best, middle = ys[0], ys[len(ys) * 2 // 3]
    far = best + 1.6 * (middle - best)
    least = best + (-0.04 if higher else 0.04) * abs(best)
    far = min(far, least) if higher else max(far, least)
    shown = [y for y in (*ys, *(y for y, _ in marks)) if (y >= far if higher else y <= far)]
    low, high = _limits([*shown, far])
    return (max(0.0, low) if min(ys) >= 0 else low), high


def _dot(frame: _Frame, p: Point, low: float, high: float) -> tuple[list[str], float, float]:
    """A point with its error bars, and where it is. One that is far behind is a triangle at the lower edge."""
    x, style = frame.x(p.x), f"error c{p.colour}"
    outside = not low <= p.y <= high
    y = frame.bottom - 5 if outside else frame.y(p.y)
    parts = []
    if p.x_error:
        left, right = frame.x(p.x - p.x_error), frame.x(p.x + p.x_error)
        parts.append(_line(max(frame.left, left), y, min(frame.right, right), y, style))
    if outside:
        shape = f"{x - 5:.1f},{y - 5:.1f} {x + 5:.1f},{y - 5:.1f} {x:.1f},{y + 5:.1f}"
        parts.append(f'<polygon points="{shape}" class="dot c{p.colour}"/>')
        return parts, x, y
    if p.y_error:
        ends = (frame.y(max(low, p.y - p.y_error)), frame.y(min(high, p.y + p.y_error)))
        parts.append(_line(x, ends[0], x, ends[1], style))
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="dot c{p.colour}"/>')
    return parts, x, y


def scatter(
    points: Sequence[Point],
    line: Sequence[Point],
    x_title: str,
    y_title: str,
    title: str,
    higher: bool,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Points with error bars, the Pareto line, and a name at each; better is always up and to the right."""
    height = 250 + 9 * len(points)
    low, high = _worth_showing(points, marks, higher)
    x_low, x_high = _limits([p.x for p in points])
    ends = (low, high) if higher else (high, low)
    frame = _Frame((max(0.0, x_low), x_high), ends, height)
    parts = frame.axes(x_title, y_title)
    named: list[tuple[float, float, str, bool]] = []
    taken: list[_Box] = []
    for value, name in marks:
        if low <= value <= high:
            parts.append(_line(frame.left, frame.y(value), frame.right, frame.y(value), "mark"))
            parts.append(_text(frame.left + 4, frame.y(value) - 4, name, "tick"))
            taken.append(_box(frame.left + 4, frame.y(value) - 4, _CHARACTER * len(name), "start"))
    seen = [p for p in line if low <= p.y <= high]
    if len(seen) > 1:
        path = " ".join(f"{frame.x(p.x):.1f},{frame.y(p.y):.1f}" for p in seen)
        parts.append(f'<polyline points="{path}" class="pareto"/>')
    for p in points:
        drawn, x, y = _dot(frame, p, low, high)
        parts += drawn
        taken.append((x - 5, y - 5, x + 5, y + 5))
        label = p.label if low <= p.y <= high else f"{p.label} ({number(p.y)})"
        named.append((x, y, label, p.strong))
    area = (frame.left + 2, frame.top - 8, frame.right + 2, frame.bottom - 2)
    named.sort(key=lambda entry: (not entry[3], entry[1]))
    return _wrap(parts + labels(named, area, taken), height, title)


def lines(
    curves: Sequence[Line],
    x_title: str,
    y_title: str,
    title: str,
    higher: bool,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Curves with their names at the end. What lies far behind at the start is cut off, so that the end can be read."""
    height = 320
    all_y = [y for curve in curves for y in curve.ys]
    ends = [curve.ys[-1] for curve in curves]
    best, worst = (max(all_y), min(ends)) if higher else (min(all_y), max(ends))
    edge = best + 2.2 * (worst - best) if worst != best else (min if higher else max)(all_y)
    low, high = (max(edge, min(all_y)), best) if higher else (best, min(edge, max(all_y)))
    low, high = _limits([low, high, *(y for y, _ in marks)], 0.06)
    right = 14 + _CHARACTER * max((1.2 if c.strong else 1.05) * len(c.label) for c in curves)
    frame = _Frame((0.0, max(x for c in curves for x in c.xs) * 1.02), (low, high), height, right)
    parts = frame.axes(x_title, y_title)
    parts.append(
        f'<clipPath id="{_clip_id(title)}"><rect x="{frame.left}" y="{frame.top}" '
        f'width="{frame.right - frame.left}" height="{frame.bottom - frame.top}"/></clipPath>'
    )
    for value, name in marks:
        parts.append(_line(frame.left, frame.y(value), frame.right, frame.y(value), "mark"))
        parts.append(_text(frame.left + 4, frame.y(value) - 4, name, "tick"))
    wanted = []
    for curve in curves:
        path = " ".join(
            f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(curve.xs, curve.ys, strict=True)
        )
        if curve.low:
            up = [
                f"{frame.x(x):.1f},{frame.y(y):.1f}"
                for x, y in zip(curve.xs, curve.high, strict=True)
            ]
            down = [
                f"{frame.x(x):.1f},{frame.y(y):.1f}"
                for x, y in zip(curve.xs, curve.low, strict=True)
            ]
            edge_points = " ".join([*up, *reversed(down)])
            parts.append(
                f'<polygon points="{edge_points}" class="band c{curve.colour}" clip-path="url(#{_clip_id(title)})"/>'
            )
        style = f"curve c{curve.colour}{' bold' if curve.strong else ''}{' dashed' if curve.dashed else ''}"
        parts.append(
            f'<polyline points="{path}" class="{style}" clip-path="url(#{_clip_id(title)})"/>'
        )
        wanted.append((frame.y(curve.ys[-1]), frame.x(curve.xs[-1]), curve))
    wanted.sort(key=lambda entry: entry[0])
    at = frame.top
    for y, x, curve in wanted:
        at = max(at, min(frame.bottom, y) + 4)
        parts.append(_line(x, min(frame.bottom, y), frame.right + 4, at - 4, "leader faint"))
        style = f"label t{curve.colour}{' strong' if curve.strong else ''}"
        parts.append(_text(frame.right + 6, at, curve.label, style))
        at += _HEIGHT
    return _wrap(parts, max(height, at + 10), title)


def _clip_id(title: str) -> str:
    return "clip" + "".join(ch if ch.isalnum() else "-" for ch in title)


def bars(
    rows: Sequence[Bar],
    x_title: str,
    title: str,
    log: bool = False,
    format_tick: Callable[[float], str] = number,
    legend: Sequence[tuple[str, int]] = (),
) -> str:
    """Horizontal bars, each with its name before and its value behind it."""
    left = min(190.0, 14 + _CHARACTER * max(len(row.label) for row in rows))
    right, top, step = WIDTH - 66.0, 30.0 + (18 if legend else 0), 19.0
    height = top + step * len(rows) + 30
    totals = [sum(length for length, _ in row.parts) for row in rows if row.parts]
    positive = [t for t in totals if t > 0 and math.isfinite(t)] or [1.0]
    low = 10 ** math.floor(math.log10(min(positive) * 0.8)) if log else 0.0
    high = max(positive) * (1.15 if log else 1.0)

    def x(value: float) -> float:
        value = min(max(value, low), high)
        share = math.log(value / low) / math.log(high / low) if log else value / high
        return left + share * (right - left)

    parts = [_text(4, 14, x_title, "name")]
    at = 4.0
    for name, colour in legend:
        parts.append(f'<rect x="{at:.1f}" y="22" width="10" height="10" class="bar c{colour}"/>')
        parts.append(_text(at + 14, 31, name, "tick"))
        at += 26 + _CHARACTER * len(name)
    bottom = top + step * len(rows)
    places = decades(low, high) if log else ticks(0, high, 4)
    places = places if totals else []
    places = places[:: max(1, (len(places) + 4) // 5)]
    parts += [_line(x(value), top - 4, x(value), bottom, "grid") for value in places]
    parts += _tick_texts([(x(value), format_tick(value)) for value in places], bottom + 15)
    for index, row in enumerate(rows):
        y = top + step * index
        name = row.label if len(row.label) <= 28 else row.label[:27] + "…"
        parts.append(
            _text(left - 6, y + 12, name, "label strong" if row.strong else "label", "end")
        )
        if row.note:
            parts.append(_text(left + 4, y + 12, row.note, "note"))
            continue
        so_far = 0.0
        for length, colour in row.parts:
            if length > 0:
                start = x(so_far) if so_far or not log else left
                width = max(0.8, x(so_far + length) - start)
                parts.append(
                    f'<rect x="{start:.1f}" y="{y + 2:.1f}" width="{width:.1f}" height="13" class="bar c{colour}"/>'
                )
            so_far += length
        end = right if not math.isfinite(so_far) else x(so_far)
        parts.append(_text(end + 5, y + 12, row.text, "value"))
    return _wrap(parts, height, title)
