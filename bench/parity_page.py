# SPDX-License-Identifier: Apache-2.0
"""The page of bench/parity.py: loss against bytes, curves of losses, and the table. One file of HTML, its pictures in it."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from pith.eval import svg

WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT, TOP = 560, 400, 48, 44, 152, 24
RING = ".ring{fill:var(--card);stroke-width:2}"
LINE = 14  # height of a label
COLOURS = [0, 2, 3, 4, 5, 6, 7, 1]  # of the style of pith.eval.svg


def colour_of(row: Any, rows: Sequence[Any]) -> int:
    """Adaptive specs have the colour of their reference."""
    uniform = ["none", *dict.fromkeys(r.spec for r in rows if r.spec != "none" and not r.reference)]
    spec = row.reference.spec if row.reference and row.reference.spec != "none" else row.spec
    return COLOURS[uniform.index(spec) % (len(COLOURS) - 1)] if spec in uniform else COLOURS[-1]


# ---- Loss against bytes


class Frame:
    """From bytes (by logarithm) and losses to places in a picture."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.low, self.high = math.log10(min(xs)), math.log10(max(xs))
        space = 0.06 * (max(ys) - min(ys) or 0.01)
        self.least, self.most = min(ys) - space, max(ys) + space

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low or 1)
        return LEFT + 12 + share * (WIDTH - LEFT - RIGHT - 24)

    def y(self, value: float) -> float:
        return TOP + (self.most - value) / (self.most - self.least) * (HEIGHT - BOTTOM - TOP)

    def axes(self) -> str:
        bottom = HEIGHT - BOTTOM
        parts = [f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" fill="none" class="axis"/>']
        for value in svg.ticks(self.least, self.most):
            y = self.y(value)
            parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" fill="none" class="grid"/>')
            parts.append(
                f'<text x="{LEFT - 6}" y="{y + 4:.0f}" class="tick" text-anchor="end">{svg.number(value, 4)}</text>'
            )
        for power in range(math.floor(self.low), math.ceil(self.high) + 1):
            for digit in (1, 2, 5):
                value = digit * 10.0**power
                if self.low <= math.log10(value) <= self.high:
                    parts.append(
                        f'<text x="{self.x(value):.0f}" y="{bottom + 16}" class="tick" text-anchor="middle">{short(value)}</text>'
                    )
        parts.append('<text x="4" y="14" class="name">loss of held-out samples</text>')
        return (
            "".join(parts)
            + f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" class="name" text-anchor="end">bytes that a rank sends in a step</text>'
        )


def short(size: float) -> str:
    return (
        f"{size / 1e6:.3g} MB"
        if size >= 1e6
        else f"{size / 1e3:.3g} kB"
        if size >= 1e3
        else f"{size:.0f}"
    )


def labels(places: list[tuple[float, float, str, int]]) -> str:
    """Names beside dots, moved apart where they would lie on each other."""
    parts, last = [], -math.inf
    for x, y, name, colour in sorted(places, key=lambda place: place[1]):
        last = max(y, last + LINE)
        parts.append(
            f'<path d="M{x + 6:.1f} {y:.1f}L{WIDTH - RIGHT + 6} {last:.1f}" class="curve c{colour}" style="stroke-width:.7;opacity:.5"/>'
        )
        parts.append(
            f'<text x="{WIDTH - RIGHT + 9}" y="{last + 4:.1f}" class="label t{colour}">{html.escape(name)}</text>'
        )
    return "".join(parts)


def loss_of(row: Any) -> float:
    """Geometric mean over seeds."""
    return math.exp(sum(math.log(run.after) for run in row.runs) / len(row.runs))


def drawable(rows: Sequence[Any]) -> list[Any]:
    """Without runs that diverged, and those of one rank, which send nothing."""
    return [row for row in rows if row.bytes and all(math.isfinite(run.after) for run in row.runs)]


def scatter(rows: Sequence[Any]) -> str:
    """A faint dot for each run, a full one for the means of a spec; adaptive ones are rings, joined to their references."""
    runs = [run for row in rows for run in row.runs]
    frame = Frame([run.bytes for run in runs], [run.after for run in runs])
    parts, places = [frame.axes()], []
    for row in rows:
        colour = colour_of(row, rows)
        x, y = frame.x(row.bytes), frame.y(loss_of(row))
        places.append((x, y, row.spec, colour))
        for run in row.runs if len(row.runs) > 1 else []:
            parts.append(
                f'<circle cx="{frame.x(run.bytes):.1f}" cy="{frame.y(run.after):.1f}" r="2.5" class="bar c{colour}" fill-opacity=".35"/>'
            )
        if row.reference in rows:
            end = f"{frame.x(row.reference.bytes):.1f} {frame.y(loss_of(row.reference)):.1f}"
            parts.append(f'<path d="M{x:.1f} {y:.1f}L{end}" fill="none" class="curve c{colour}"/>')
        inside = f"error c{colour} ring" if row.reference else f"bar c{colour}"
        title = (
            f"<title>{html.escape(row.spec)}: loss {loss_of(row):.3f}, {short(row.bytes)}</title>"
        )
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="{inside}">{title}</circle>')
    return "".join(parts) + labels(places)


def panel(drawing: str, what: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{what}">{drawing}</svg>'


def picture(rows: Sequence[Any]) -> str:
    """Loss against bytes as a file of SVG, a panel for each task."""
    rows, top = drawable(rows), 30
    tasks = list(dict.fromkeys(row.task for row in rows))
    width, height = WIDTH, (HEIGHT + top) * len(tasks)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Loss against bytes that a rank sends in a step; adaptive runs are joined to the uniform spec whose error they keep</title>",
        f"<style>{svg.STYLE}{RING}.paper{{fill:var(--card)}}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    for place, task in enumerate(tasks):
        drawing = scatter([row for row in rows if row.task == task])
        parts.append(
            f'<g transform="translate(0 {(HEIGHT + top) * place + top})"><text x="4" y="-8" class="strong">{html.escape(task)}</text>{drawing}</g>'
        )
    return "\n".join([*parts, "</svg>", ""])


# ---- Curves


def curves(rows: Sequence[Any]) -> str:
    """Losses in training, the mean over seeds; adaptive ones dashed."""
    lines = []
    for row in rows:
        curve = mean_curve(row)
        steps = [row.runs[0].steps * (i + 1) / len(curve) for i in range(len(curve))]
        if curve:
            lines.append(
                svg.Line(steps, curve, row.spec, colour_of(row, rows), False, bool(row.reference))
            )
    return svg.lines(lines, "steps", "loss of training", "loss over steps", False) if lines else ""


def mean_curve(row: Any) -> list[float]:
    shortest = min(len(run.losses) for run in row.runs)
    return [sum(run.losses[i] for run in row.runs) / len(row.runs) for i in range(shortest)]


# ---- The page


STYLE = (
    svg.STYLE
    + RING
    + """
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:76rem;padding:1rem;background:var(--paper);color:var(--ink)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:1rem;align-items:start}
table{border-collapse:collapse}td,th{padding:.3rem .9rem;text-align:right;border-bottom:1px solid var(--line)}td:first-child,th:first-child{text-align:left}
.key{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.5em}
"""
)
HEADS = [
    "gradients",
    "loss",
    "× uncompressed",
    "sent a step",
    "fewer bytes",
    "× loss of reference",
    "× its bytes",
    "",
]


def cells(row: Any) -> list[str]:
    loss = f"{row.behind:.3f}" + ("" if math.isnan(row.doubt) else f" ± {row.doubt:.3f}")
    beside = [loss, f"{row.share:.3f}", row.verdict] if row.reference else ["", "", ""]
    return [
        row.spec,
        f"{loss_of(row):.3f}",
        number(row.ratio, ".3f"),
        short(row.bytes),
        number(row.fewer, ".1f"),
        *beside,
    ]


def number(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


def table(rows: Sequence[Any]) -> str:
    heads = "".join(f"<th>{html.escape(head)}</th>" for head in HEADS)
    body = ""
    for row in rows:
        dot = f'<span class="key" style="background:var(--c{colour_of(row, rows)})"></span>'
        body += (
            "<tr>"
            + "".join(
                f"<td>{dot if j == 0 else ''}{html.escape(cell)}</td>"
                for j, cell in enumerate(cells(row))
            )
            + "</tr>"
        )
    return f"<table><tr>{heads}</tr>{body}</table>"


def pictures(rows: Sequence[Any]) -> str:
    """Runs that cannot be drawn are in the table alone."""
    drawn = drawable(rows)
    if not drawn:
        return ""
    return f'<div class="charts"><div>{panel(scatter(drawn), "loss against bytes")}</div><div>{curves(drawn)}</div></div>'


def section(task: str, rows: Sequence[Any]) -> str:
    runs = [run for row in rows for run in row.runs]
    seeds, steps = len({run.seed for run in runs}), max(run.steps for run in runs)
    about = f"{steps} steps on {runs[0].ranks} ranks, {seeds} seed{'s' if seeds > 1 else ''}"
    return f"<h2>{html.escape(task)}: {about}</h2>{pictures(rows)}{table(rows)}"


def page(rows: Sequence[Any]) -> str:
    parts = [
        section(task, [row for row in rows if row.task == task])
        for task in dict.fromkeys(row.task for row in rows)
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Pith: loss and bytes</title>'
        f"<style>{STYLE}</style><h1>What is sent, and what is lost</h1>"
        "<p>Loss of held-out samples after the last step, against the bytes that a rank sends in a step. Rings and dashed lines are adaptive specs, each "
        "joined to the uniform spec whose error it keeps.</p>" + "".join(parts) + "</html>"
    )
