# SPDX-License-Identifier: Apache-2.0
"""The report: one page without anything from outside, and the same as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from . import svg
from .analysis import (
    UNCOMPRESSED,
    Entry,
    Panel,
    break_even,
    is_higher,
    panels_of,
    pareto,
    spoken_rate,
)
from .results import Results, read_all

_METRICS = {
    "text": ("bits per byte", "GPT on text"),
    "words": ("perplexity", "LSTM on words"),
    "digits": ("accuracy, %", "CNN on digits"),
    "images": ("accuracy, %", "ResNet-9 on images"),
    "recommend": ("hit rate at 10, %", "Recommender"),
    "defects": ("IoU, %", "U-Net on defects"),
}
_FAMILIES = ("uncompressed, 16 bits", "PyTorch's own", "quantization", "sign", "sparse", "low rank", "adaptive", "other")  # fmt: skip
_FAMILY_OF = {"quantization": 2, "cast": 0, "sign": 3, "sparsification": 4, "low rank": 5}
_SIGNS = ("signsgd", "signum", "efsignsgd", "onebit", "sign", "signmean", "drive", "moment")
_PARTS = (("compute", 8), ("encode", 9), ("decode", 10), ("wire", 11), ("exchange", 12))
_CURVES = 7
_BASE = ("bf16", "torch:bf16")


def metric_name(task: str) -> str:
    return _METRICS.get(task, ("metric", task))[0]


def task_title(task: str) -> str:
    return _METRICS.get(task, ("metric", task))[1]


def family(spec: str) -> int:
    """The number of a family of methods, which has a colour."""
    import pith

    if spec.startswith("torch:"):
        return 1
    last = spec.rpartition("/")[2].partition(":")[0].partition(",")[0]
    if last in ("none", "bf16", "fp16"):
        return 0
    if spec.split(":")[0].split(",")[0] in ("auto", "lgreco", "kmeans", "accordion", "bayes"):
        return 6
    if last in _SIGNS or spec.startswith("moment"):
        return 3
    found = {m.name: m.family for m in pith.methods()}.get(last, "")
    for part, number in _FAMILY_OF.items():
        if found.startswith(part):
            return number
    return 7


# ---- Figures ---------------------------------------------------------------------------------------------------------


def _is_strong(entry: Entry) -> bool:
    return entry.label in (*_BASE, *UNCOMPRESSED)


def _marks(panel: Panel) -> list[tuple[float, str]]:
    return [] if panel.target is None else [(panel.target, "target")]


def _quality_figure(panel: Panel) -> str:
    def point(entry: Entry) -> svg.Point:
        return svg.Point(
            entry.throughput or 0.0,
            entry.mean("metric") or 0.0,
            entry.label,
            family(entry.spec),
            entry.throughput_error,
            entry.spread("metric"),
            _is_strong(entry),
        )

    known = [e for e in panel.entries if e.mean("metric") is not None and e.throughput]
    if not known:
        return ""
    return svg.scatter(
        [point(e) for e in known],
        [point(e) for e in pareto(panel.entries)],
        "samples a second →",
        f"{metric_name(panel.task)} {'↑' if is_higher(panel.task) else '(lower is better, drawn upwards)'}",
        f"Throughput and quality: {panel.title}",
        is_higher(panel.task),
        _marks(panel),
    )


def _mean_curve(entry: Entry) -> tuple[list[float], list[list[float]]]:
    """Mean seconds over seeds, and the metric of each seed then; the curves have the same steps."""
    curves = [r["curve"] for r in entry.good if r.get("curve")]
    length = min(len(curve) for curve in curves)
    xs, ys = [], []
    for i in range(length):
        values = [curve[i][3] for curve in curves if curve[i][3] is not None]
        if values:
            seconds = [entry.seconds(curve[i]) or 0.0 for curve in curves]
            xs.append(sum(seconds) / len(curves))
            ys.append(values)
    return xs, ys


def _told(panel: Panel) -> list[Entry]:
    """Methods whose curves are drawn: baselines, the fastest to the target, then the Pareto line."""
    wanted = [e for e in panel.entries if e.label in (*_BASE, *UNCOMPRESSED)]
    wanted += sorted(
        (e for e in panel.entries if e.time_to_target is not None),
        key=lambda e: e.time_to_target or 0.0,
    )
    wanted += pareto(panel.entries)
    found: list[Entry] = []
    for entry in wanted:
        is_drawn = entry.good and (entry.is_timed or entry.step is not None)
        if is_drawn and entry not in found and len(_mean_curve(entry)[0]) > 1:
            found.append(entry)
    return found[:_CURVES]


def _time_figure(panel: Panel) -> str:
    curves = []
    for entry in _told(panel):
        xs, ys = _mean_curve(entry)
        dashed = entry.backend != "pith"
        means = [sum(values) / len(values) for values in ys]
        low, high = (
            ([min(y) for y in ys], [max(y) for y in ys]) if len(entry.good) > 1 else ([], [])
        )
        curves.append(
            svg.Line(
                xs, means, entry.label, family(entry.spec), _is_strong(entry), dashed, low, high
            )
        )
    if not curves:
        return ""
    return svg.lines(
        curves,
        "seconds of training →",
        metric_name(panel.task),
        f"Quality against time: {panel.title}",
        is_higher(panel.task),
        _marks(panel),
    )


def _target_figure(panel: Panel) -> str:
    if panel.target is None or not any(entry.step for entry in panel.entries):
        return ""
    rows = []
    reached = [e for e in panel.entries if e.time_to_target is not None]
    for entry in sorted(reached, key=lambda e: e.time_to_target or 0.0):
        seconds = entry.time_to_target or 0.0
        rows.append(
            svg.Bar(
                entry.label,
                [(seconds, family(entry.spec))],
                svg.with_unit(seconds, svg.SECONDS),
                strong=_is_strong(entry),
            )
        )
    for entry in panel.entries:
        if entry.time_to_target is None:
            note = entry.status if entry.status != "ok" else "not reached"
            if entry.status == "ok" and entry.reached:
                note = f"reached by {len(entry.reached)} of {len(entry.runs)} seeds"
            rows.append(svg.Bar(entry.label, [], "", note))
    return svg.bars(rows, "seconds to the target", f"Time to target: {panel.title}")


def _bytes_figure(panel: Panel) -> str:
    known = [(e, size) for e in panel.entries if (size := e.bytes)]
    rows = [
        svg.Bar(
            e.label,
            [(size, family(e.spec))],
            svg.with_unit(size, svg.BYTES),
            strong=_is_strong(e),
        )
        for e, size in sorted(known, key=lambda entry: -entry[1])
    ]
    return (
        svg.bars(
            rows,
            "bytes that a rank sends in a step",
            f"Bytes: {panel.title}",
            True,
            lambda value: svg.with_unit(value, svg.BYTES),
        )
        if rows
        else ""
    )


def _step_figure(panel: Panel) -> str:
    colours = dict(_PARTS)
    known = [(e, split) for e in panel.entries if (split := e.split)]
    rows = [
        svg.Bar(
            e.label,
            [(1e3 * seconds, colours[part]) for part, seconds in split.items()],
            svg.number(1e3 * sum(split.values())),
            strong=_is_strong(e),
        )
        for e, split in sorted(known, key=lambda entry: -sum(entry[1].values()))
    ]
    used = {part for _, split in known for part in split}
    names = {"wire": "wire, not hidden", "exchange": "exchange"}
    legend = [(names.get(part, part), colour) for part, colour in _PARTS if part in used]
    title = f"Step times: {panel.title}"
    return svg.bars(rows, "milliseconds of a step", title, legend=legend) if rows else ""


def _base_of(panel: Panel) -> Entry | None:
    return panel.find(*_BASE, *UNCOMPRESSED)


def _even_figure(panel: Panel) -> str:
    base = _base_of(panel)
    if base is None:
        return ""
    rows: list[tuple[float, svg.Bar]] = []
    for entry in panel.entries:
        if entry is base or entry.bytes is None or entry.free_step is None:
            continue
        rate = break_even(entry, base)
        if rate is None:
            rows.append((0.0, svg.Bar(entry.label, [], "", "sends as much or more")))
        elif math.isinf(rate):
            rows.append((rate, svg.Bar(entry.label, [], "", "at any bandwidth tried here")))
        else:
            bar = svg.Bar(
                entry.label, [(rate, family(entry.spec))], svg.with_unit(rate, svg.BITS, 2)
            )
            rows.append((rate, bar))
    rows.sort(key=lambda entry: -entry[0])
    title = f"Break-even bandwidth: {panel.title}"
    if not rows:
        return ""
    return svg.bars(
        [bar for _, bar in rows],
        f"faster than {base.label} below this bandwidth",
        title,
        True,
        lambda value: svg.with_unit(value, svg.BITS),
    )


# ---- Words -----------------------------------------------------------------------------------------------------------


def _sentences(panel: Panel) -> list[str]:
    """What the numbers of a panel say."""
    found = []
    base = _base_of(panel)
    reached = sorted(
        (e for e in panel.entries if e.time_to_target is not None),
        key=lambda e: e.time_to_target or 0.0,
    )
    if panel.target is not None and reached:
        first = reached[0]
        text = (
            f"The target is {svg.number(panel.target, 4)} {metric_name(panel.task).split(',')[0]}, from the runs of "
            f"{panel.target_from}. {first.label} reaches it first, after {svg.with_unit(first.time_to_target or 0, svg.SECONDS)}"
        )
        if base is not None and base is not first and base.time_to_target:
            ratio = base.time_to_target / (first.time_to_target or 1)
            text += f", {svg.number(ratio)} times as fast as {base.label}"
        found.append(text + ".")
        never = [
            e.label
            for e in panel.entries
            if e.time_to_target is None and e.status == "ok" and not e.reached
        ]
        if never:
            found.append(f"No seed reached it with {', '.join(never)}.")
    bad = [f"{e.label} ({e.status})" for e in panel.entries if e.status != "ok"]
    if bad:
        found.append(f"Diverged or failed: {', '.join(bad)}.")
    if base is not None and (step := base.step):
        slower = [e for e in panel.entries if (e.step or 0) > step and e is not base]
        if slower:
            names = ", ".join(e.label for e in slower)
            found.append(f"A step takes longer than with {base.label}: {names}.")
    edge = [e.label for e in panel.entries if e.is_edge and e.good]
    if edge:
        found.append(
            f"Best at the lowest or highest learning rate tried, so another rate may be better: {', '.join(edge)}."
        )
    return found


def _machine_text(machine: dict[str, Any]) -> str:
    gpus = machine.get("gpus") or []
    parts = [
        f"{machine.get('cpu', '?')}, {machine.get('cores', '?')} cores ({machine.get('instructions', '?')})",
        f"{machine.get('memory', 0) / 2**30:.0f} GiB",
        *({f"{gpus.count(g)} × {g}" for g in gpus}),
        machine.get("system", "?"),
        f"Python {machine.get('python', '?')}, torch {machine.get('torch', '?')}, pith {machine.get('pith', '?')}",
    ]
    return "; ".join(parts)


# ---- Tables ----------------------------------------------------------------------------------------------------------

_SUMMARY_HEAD = (
    "method", "rate", "quality", "±", "ms a step", "× bf16", "to target, s", "bytes a step", "pays below", "memory, MB",
)  # fmt: skip


def _summary_rows(panel: Panel) -> list[list[str]]:
    base = _base_of(panel)
    rows = []
    sign = -1 if is_higher(panel.task) else 1

    def order(entry: Entry) -> tuple[float, float]:
        metric = entry.mean("metric")
        return (entry.time_to_target or math.inf, sign * metric if metric is not None else math.inf)

    for e in sorted(panel.entries, key=order):
        step, base_step = e.step, base.step if base else None
        even = break_even(e, base) if base is not None and e is not base else None
        metric, size, memory = e.mean("metric"), e.bytes, e.mean("memory")
        rows.append(
            [
                e.label,
                f"{svg.number(e.rate, 2)}{'*' if e.is_edge else ''}",
                svg.number(metric, 4) if metric is not None else e.status,
                svg.number(e.spread("metric"), 2) if len(e.good) > 1 else "",
                svg.number(1e3 * step) if step else "",
                svg.number(base_step / step) if step and base_step else "",
                svg.number(e.time_to_target) if e.time_to_target is not None else "–",
                svg.with_unit(size, svg.BYTES) if size else "",
                ("always" if math.isinf(even) else svg.with_unit(even, svg.BITS, 2))
                if even is not None
                else "",
                svg.number(memory / 1e6) if memory else "",
            ]
        )
    return rows


RUN_COLUMNS = (
    "task", "optimizer", "spec", "label", "backend", "link", "ranks", "seed", "phase", "rate", "steps", "batch", "size",
    "device", "status", "metric", "loss", "seconds", "step", "throughput", "encode", "decode", "raw_bytes", "wire_bytes",
    "link_bytes", "memory", "parameters", "threads", "specs", "error", "id",
)  # fmt: skip


def run_rows(results: Results) -> list[dict[str, Any]]:
    """Every run, flat."""
    rows = []
    for run in results.runs.values():
        merged = run["cell"] | run["result"]
        row = {name: merged.get(name, "") for name in RUN_COLUMNS}
        row["specs"] = " ".join(merged.get("specs") or [])
        rows.append({name: "" if value is None else value for name, value in row.items()})
    return rows


def to_csv(results: Results) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, RUN_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(run_rows(results))
    return out.getvalue()


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]], style: str = "") -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table class="{style}"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _run_cell(name: str, value: Any) -> str:
    if value == "" or not isinstance(value, (int, float)):
        return str(value)
    if name.endswith("_bytes") or name == "memory":
        return svg.with_unit(value, svg.BYTES)
    if name in ("step", "seconds"):
        return svg.with_unit(value, svg.SECONDS)
    return svg.number(value, 4) if isinstance(value, float) else str(value)


_SHOWN = (
    "task", "optimizer", "label", "backend", "link", "ranks", "seed", "phase", "rate", "steps", "batch", "status", "metric",
    "loss", "seconds", "step", "link_bytes", "wire_bytes", "memory", "error",
)  # fmt: skip


# ---- The page --------------------------------------------------------------------------------------------------------

_STYLE = (
    svg.STYLE
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1460px;margin:0 auto;padding:1rem}
h1{font-size:1.7rem;margin:.4rem 0}h2{font-size:1.3rem;margin:2.2rem 0 .4rem;border-top:1px solid var(--line);padding-top:1.2rem}
p,li{max-width:75ch}.soft{color:var(--soft);font-size:.9rem}nav{display:flex;flex-wrap:wrap;gap:.3rem .9rem;margin:.6rem 0}
a{color:var(--c2)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:1rem;align-items:start}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.7rem}
figcaption{font-size:.9rem;margin-bottom:.3rem}figcaption b{display:block}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.9rem;margin:.5rem 0}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:50%}
.scroll{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600}td:first-child,th:first-child{text-align:left}.runs{font-size:.75rem}.runs td,.runs th{text-align:left;padding:.1rem .5rem}
@media print{main{max-width:none;padding:0}figure{break-inside:avoid}
.figures{grid-template-columns:1fr 1fr}.scroll{overflow:visible}table{font-size:.6rem}.runs{font-size:.4rem}.runs td,.runs th{padding:0 .2rem;white-space:normal}}
"""
)
_CAPTIONS = (
    ("Throughput and quality", "Better is up and to the right. The line joins the methods that no other beats in both. "
     "Upright bars: range over seeds; level bars: middle half of the steps. Triangles are below the figure.", _quality_figure),
    ("Quality against time", "On held-out samples, without the time to evaluate. Bands: range over seeds. Dashed: over another backend than Pith's.", _time_figure),
    ("Time to target", "Means over seeds; all seeds must reach it.", _target_figure),
    ("Step times", "Compute was timed without an exchange. If encoding cannot be timed by itself, the rest is one part.", _step_figure),
    ("Bytes", "Counted at the emulated link, or by Pith where there is none.", _bytes_figure),
    ("Break-even bandwidth", "From the bytes of both methods, and from the time that compression adds without a limited link.", _even_figure),
)  # fmt: skip


def _panel_html(panel: Panel, index: int) -> str:
    figures = []
    for name, note, draw in _CAPTIONS:
        drawn = draw(panel)
        if drawn:
            figures.append(
                f'<figure><figcaption><b>{name}</b><span class="soft">{note}</span></figcaption>{drawn}</figure>'
            )
    said = "".join(f"<li>{escape(text)}</li>" for text in _sentences(panel))
    where = "" if panel.link in ("none", "any") else f" behind {spoken_rate(panel.link)}"
    title = f"{task_title(panel.task)}, {panel.optimizer}, {panel.ranks} ranks{where}"
    return (
        f'<section id="p{index}"><h2>{escape(title)}</h2><ul>{said}</ul><div class="figures">{"".join(figures)}</div>'
        f"{_html_table(_SUMMARY_HEAD, _summary_rows(panel))}"
        '<p class="soft">Rate: the best learning rate tried; *: it was the lowest or highest. ±: half the range over seeds. × bf16: steps in the same '
        "time, divided by those of bf16. Memory: the peak of a rank minus what it used before the run.</p></section>"
    )


def _head_sentences(results: Results, panels: list[Panel]) -> str:
    runs = [run for run in results.runs.values() if run["cell"]["phase"] == "final"]
    bad = sum(run["result"]["status"] != "ok" for run in runs)
    tuning = sum(run["cell"]["phase"] == "tune" for run in results.runs.values())
    tasks = len({panel.task for panel in panels})
    return (
        f"{_count(len(runs), 'run')} of {_count(tasks, 'task')}, {bad} of which diverged or failed, after {_count(tuning, 'run')} to tune "
        "learning rates, as many for each method."
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def to_html(results: Results, title: str) -> str:
    panels = panels_of(list(results.runs.values()))
    links = "".join(
        f'<a href="#p{i}">{escape(task_title(p.task))}, {escape(p.optimizer)}, {p.ranks} ranks, {escape(spoken_rate(p.link))}</a>'
        for i, p in enumerate(panels)
    )
    used = {family(e.spec) for p in panels for e in p.entries}
    key = "".join(
        f'<span><i style="background:var(--c{i})"></i>{name}</span>'
        for i, name in enumerate(_FAMILIES)
        if i in used
    )
    machines = "".join(f"<li>{escape(_machine_text(m))}</li>" for m in results.machines)
    rows = [[_run_cell(name, row[name]) for name in _SHOWN] for row in run_rows(results)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>pith eval: {escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body><main><h1>pith eval: {escape(title)}</h1><p>{escape(_head_sentences(results, panels))}</p>"
        f'<ul class="soft">{machines}</ul><nav>{links}<a href="#runs">every run</a></nav><div class="key">{key}</div>'
        f"{''.join(_panel_html(panel, i) for i, panel in enumerate(panels))}"
        f'<h2 id="runs">Every run</h2>{_html_table(_SHOWN, rows, "runs")}</main></body></html>\n'
    )


def to_markdown(results: Results, title: str) -> str:
    panels = panels_of(list(results.runs.values()))
    lines = [f"# pith eval: {title}", "", _head_sentences(results, panels), ""]
    lines += [f"- {_machine_text(machine)}" for machine in results.machines]
    for panel in panels:
        lines += ["", f"## {task_title(panel.task)}: {panel.title}", ""]
        lines += [f"- {text}" for text in _sentences(panel)]
        lines += [
            "",
            "| " + " | ".join(_SUMMARY_HEAD) + " |",
            "|---" + "|--:" * (len(_SUMMARY_HEAD) - 1) + "|",
        ]
        lines += ["| " + " | ".join(row) + " |" for row in _summary_rows(panel)]
    return "\n".join(lines) + "\n"


def write_report(paths: Sequence[Path], out: Path, title: str = "Evaluation") -> Path:
    """index.html, report.md, runs.csv and summary.json in a folder; gives the page."""
    results = read_all(paths)
    out.mkdir(parents=True, exist_ok=True)
    page = out / "index.html"
    page.write_text(to_html(results, title), encoding="utf-8")
    (out / "report.md").write_text(to_markdown(results, title), encoding="utf-8")
    (out / "runs.csv").write_text(to_csv(results), encoding="utf-8")
    return page


def summary_json(results: Results) -> str:
    """The tables of the report, for programs."""
    panels = panels_of(list(results.runs.values()))
    return json.dumps(
        [
            {
                "panel": panel.key,
                "rows": [dict(zip(_SUMMARY_HEAD, r, strict=True)) for r in _summary_rows(panel)],
            }
            for panel in panels
        ]
    )
