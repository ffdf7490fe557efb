# SPDX-License-Identifier: Apache-2.0
"""Shows in a few minutes what compression changes: trains the same small GPT on four ranks, without and with compression, with three seeds each.

The ranks are four emulated hosts behind links of 1 Gbit/s (`pith lab`). This needs root, or a system that lets users create namespaces. Otherwise
the demo says why it cannot, and the ranks are processes over shared memory (`pith run`), where compression gains little. It ends with a table and
a page of curves.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from pith.eval import svg

HERE = pathlib.Path(__file__).resolve().parent
COLOURS = [0, 2, 3, 4, 5, 6, 7]  # of the page's style, for each method
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


# ---- Running


def launcher(pith: str, ranks: int, rate: str) -> tuple[list[str], str]:
    """How ranks are started, and what to call it."""
    lab = [pith, "lab", "--no-prefix", "-n", str(ranks), "--rate", rate, "--"]
    tried = subprocess.run([*lab, "true"], capture_output=True, text=True)
    if tried.returncode == 0:
        return lab, f"{ranks} hosts behind links of {rate}"
    lines = tried.stderr.strip().splitlines()
    print(
        "No slow network can be emulated here, so the ranks share memory, where compression saves little time."
    )
    print(f"{lines[-1] if lines else 'pith lab gave no reason'}\n")
    return [
        pith,
        "run",
        "--no-prefix",
        "-n",
        str(ranks),
        "--",
    ], f"{ranks} processes on this machine"


def train(launch: list[str], spec: str, folder: pathlib.Path, a: argparse.Namespace) -> list[dict]:
    """A run for each seed, in one job."""
    result = folder / f"{''.join(c if c.isalnum() else '-' for c in spec)}.json"
    result.unlink(missing_ok=True)
    command = [
        *launch, sys.executable, str(HERE / "gpt.py"), "--spec", spec, "--steps", str(a.steps), "--batch", "1", "--context", "64", "--seeds", str(a.seeds),
        "--threads", str(max(1, (os.cpu_count() or 1) // a.ranks)), "--width", str(a.width), "--layers", str(a.layers), "--lr", "1e-3",
        "--schedule", "linear", "--evaluate", str(max(1, a.steps // 10)), "--json", str(result),
    ]  # fmt: skip
    if a.data:
        command += ["--data", a.data]
    print(f"training with {'no compression' if spec == 'none' else spec} …", flush=True)
    # gloo, which carries torch's own messages, warns about hosts without a name, and those of the lab have none.
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ}
    done = subprocess.run(command, stdout=subprocess.DEVNULL, env=quiet)
    runs = [json.loads(line) for line in result.read_text().splitlines()] if result.exists() else []
    if done.returncode != 0 or len(runs) != a.seeds:
        raise SystemExit(
            f"the run with {spec} failed (exit code {done.returncode}): {' '.join(command)}"
        )
    return runs


# ---- What came of it


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def name_of(runs: list[dict]) -> str:
    return "uncompressed" if runs[0]["spec"] == "none" else runs[0]["spec"]


def step_seconds(runs: list[dict]) -> float:
    return median([run["step_seconds"] for run in runs])


def sent(runs: list[dict]) -> float:
    """Bytes that a rank sends in a step."""
    return mean([run["wire_bytes"] / len(run["losses"]) for run in runs])


def times(run: dict) -> list[float]:
    """When the losses of held-out text were taken, in seconds of training."""
    seconds = [0.0, *run["seconds"]]
    return [seconds[step] for step in run["held_out_steps"]]


def time_to(run: dict, target: float) -> float | None:
    """Seconds of training until the loss of held-out text is at the target, between two looks by a straight line."""
    before = None
    for second, loss in zip(times(run), run["held_out"], strict=True):
        if loss <= target:
            if before is None or before[1] == loss:
                return second
            share = (before[1] - target) / (before[1] - loss)
            return before[0] + share * (second - before[0])
        before = (second, loss)
    return None


def target_of(base: list[dict]) -> float:
    """What uncompressed training reaches with every seed within three quarters of its steps, rounded up to a hundredth."""
    at = math.ceil(0.75 * (len(base[0]["held_out"]) - 1))
    return math.ceil(round(100 * max(min(run["held_out"][: at + 1]) for run in base), 6)) / 100


def to_target(runs: list[dict], target: float) -> float | None:
    """The mean over seeds, if all of them reach it."""
    found = [time_to(run, target) for run in runs]
    return None if None in found else mean([second for second in found if second is not None])


def spread(values: list[float]) -> str:
    return f" ± {(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else ""


def heads(target: float) -> list[str]:
    return [
        "gradients",
        "loss",
        f"time to {target:.2f}",
        "faster",
        "step",
        "sent a step",
        "fewer bytes",
    ]


def rows(methods: list[list[dict]], target: float) -> list[list[str]]:
    base = methods[0]
    first = to_target(base, target)
    found = []
    for runs in methods:
        ends = [run["held_out"][-1] for run in runs]
        seconds = to_target(runs, target)
        found.append(
            [
                name_of(runs),
                f"{mean(ends):.2f}{spread(ends)}",
                "not reached" if seconds is None else f"{seconds:.1f} s",
                "–"
                if seconds is None or first is None or not seconds
                else f"{first / seconds:.2f}×",
                f"{1e3 * step_seconds(runs):.0f} ms",
                f"{sent(runs) / 1e6:.2f} MB",
                f"{sent(base) / sent(runs):.1f}×",
            ]
        )
    return found


def print_table(table: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = zip(row, widths, strict=True)
        print(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(cells)
            )
        )


def reason(methods: list[list[dict]], rate: float | None) -> str:
    """Why it is faster, in numbers of these runs."""
    if rate is None:
        return "The ranks share memory here, so there is little to gain. Behind slow links a step waits for its gradients."
    base = methods[0]
    least = 8 * sent(base) / rate
    share = least / step_seconds(base)
    target = target_of(base)
    best = min(
        methods[1:], key=lambda runs: (to_target(runs, target) or math.inf, step_seconds(runs))
    )
    return (
        f"Why: uncompressed, a rank sends {sent(base) / 1e6:.1f} MB in a step. A link of {svg.with_unit(rate, svg.BITS)} needs "
        f"{1e3 * least:.0f} ms for that, {100 * share:.0f}% of the step. With {name_of(best)} a rank sends {sent(best) / 1e6:.2f} MB, which need "
        f"{8e3 * sent(best) / rate:.0f} ms."
    )


def rate_of(text: str) -> float | None:
    found = re.fullmatch(r"([\d.]+)([kmg]bit)", text)
    return float(found[1]) * UNITS[found[2]] if found else None


# ---- The page


def curve(runs: list[dict], colour: int) -> svg.Line:
    """Held-out losses over time: the mean over seeds, and their range as a band."""
    xs = [mean(list(at)) for at in zip(*(times(run) for run in runs), strict=True)]
    ys = list(zip(*(run["held_out"] for run in runs), strict=True))
    return svg.Line(
        xs, [mean(list(y)) for y in ys], name_of(runs), colour, colour == 0, False,
        [min(y) for y in ys] if len(runs) > 1 else (), [max(y) for y in ys] if len(runs) > 1 else (),
    )  # fmt: skip


def figures(methods: list[list[dict]], target: float, rate: float | None) -> list[tuple[str, str]]:
    """Pictures with what they show."""
    coloured = [(runs, COLOURS[i % len(COLOURS)]) for i, runs in enumerate(methods)]
    found = [
        (
            "Loss of held-out text against time. Bands: range over seeds.",
            svg.lines([curve(runs, colour) for runs, colour in coloured], "seconds of training →", "loss", "Loss against time", False, [(target, "target")]),
        )
    ]  # fmt: skip
    if rate is not None:
        parts = []
        for runs in methods:
            least = min(8 * sent(runs) / rate, step_seconds(runs))
            rest = step_seconds(runs) - least
            parts.append(
                svg.Bar(
                    name_of(runs),
                    [(1e3 * rest, 8), (1e3 * least, 11)],
                    f"{1e3 * step_seconds(runs):.0f} ms",
                )
            )
        legend = [("computing, encoding, waiting", 8), ("the link at its full rate", 11)]
        found.append(
            (
                "Where a step's time goes.",
                svg.bars(parts, "milliseconds a step", "Time of a step", legend=legend),
            )
        )
    sizes = [
        svg.Bar(name_of(runs), [(sent(runs), colour)], svg.with_unit(sent(runs), svg.BYTES))
        for runs, colour in coloured
    ]
    found.append(
        (
            "What a rank sends in a step.",
            svg.bars(
                sizes,
                "bytes",
                "Bytes of a step",
                True,
                lambda value: svg.with_unit(value, svg.BYTES),
            ),
        )
    )
    return found


STYLE = (
    svg.STYLE
    + """
*{box-sizing:border-box}body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.7rem;line-height:1.25;margin:.6rem 0}p{max-width:75ch}a{color:var(--c2)}code{font-size:.9em;background:var(--card);padding:.1em .3em;border-radius:4px;overflow-wrap:anywhere}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:1rem;align-items:start}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.7rem}figcaption{font-size:.9rem;margin-bottom:.4rem}
.scroll{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse;font-variant-numeric:tabular-nums;white-space:nowrap}
td,th{padding:.3rem .9rem .3rem 0;text-align:right;border-bottom:1px solid var(--line)}th{color:var(--soft);font-weight:600}td:first-child,th:first-child{text-align:left}
.dot{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.5em}
@media print{body{max-width:none;padding:0}figure{break-inside:avoid}.figures{grid-template-columns:1fr 1fr}}
"""
)


def page(
    methods: list[list[dict]], where: str, target: float, rate: float | None, next_step: str
) -> str:
    top = "".join(f"<th>{html.escape(h)}</th>" for h in heads(target))
    body = ""
    for i, row in enumerate(rows(methods, target)):
        dot = f'<span class="dot" style="background:var(--c{COLOURS[i % len(COLOURS)]})"></span>'
        cells = (
            f"<td>{dot if j == 0 else ''}{html.escape(cell)}</td>" for j, cell in enumerate(row)
        )
        body += f"<tr>{''.join(cells)}</tr>"
    pictures = "".join(
        f"<figure><figcaption>{html.escape(about)}</figcaption>{drawing}</figure>"
        for about, drawing in figures(methods, target, rate)
    )
    first = methods[0][0]
    seeds = len(methods[0])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>Pith demo</title><style>{STYLE}</style></head><body>'
        "<h1>The same training, with less to send</h1>"
        f"<p>A GPT of {first['parameters'] / 1e6:.1f} million parameters learns to predict characters on {html.escape(where)}: {len(first['losses'])} steps of "
        f"AdamW with each of {seeds} seed{'s' if seeds > 1 else ''}. Losses are those of held-out text; ± is half their range over seeds. The target "
        f"of {target:.2f} is what uncompressed training reaches with every seed within three quarters of its steps. Times count training only.</p>"
        f"<p>{html.escape(reason(methods, rate))}</p>"
        f'<div class="figures">{pictures}</div><div class="scroll"><table><tr>{top}</tr>{body}</table></div>'
        f"<p>{html.escape(next_step)}</p></body></html>\n"
    )


NEXT = 'Next: add pith.torch.compress(model, "q:4") after DistributedDataParallel in your script, and start it: pith run -n 2 -- python train.py'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pith", default=shutil.which("pith") or "build/pith", help="the command")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--data", help="a text file, or a folder of them")
    parser.add_argument(
        "--spec",
        action="append",
        help="compared with uncompressed (default: q:4, ef/topk:0.01, ef/powersgd:4)",
    )
    parser.add_argument("--out", default="build/demo", help="a folder for the results")
    a = parser.parse_args()
    folder = pathlib.Path(a.out)
    folder.mkdir(parents=True, exist_ok=True)
    launch, where = launcher(a.pith, a.ranks, a.rate)
    rate = rate_of(a.rate) if launch[1] == "lab" else None
    specs = ["none", *(a.spec or ["q:4", "ef/topk:0.01", "ef/powersgd:4"])]
    started = time.perf_counter()
    print(
        f"a small GPT on {where}, {a.steps} steps with {a.seeds} seeds and each of: {', '.join(specs)}\n"
    )
    methods = [train(launch, spec, folder, a) for spec in specs]
    target = target_of(methods[0])
    print()
    print_table([heads(target), *rows(methods, target)])
    print(f"\n{reason(methods, rate)}")
    page_file = folder / "index.html"
    page_file.write_text(page(methods, where, target, rate, NEXT), encoding="utf-8")
    print(
        f"{time.perf_counter() - started:.0f} seconds in all; a page with curves: {page_file.resolve()}"
    )
    print(NEXT)


if __name__ == "__main__":
    main()
