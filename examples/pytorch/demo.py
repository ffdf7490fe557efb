"""What compression changes, in a few minutes: the same small GPT trained on four ranks, uncompressed and compressed.

The ranks are four hosts behind links of 1 Gbit/s (`pith lab`), without root too where the system lets users have namespaces. Where it does
not, the demo says why and what to do, and the ranks are processes over shared memory (`pith run`), where there is little to win. Ends with a
table, and a page with the curves.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
COLOURS = ["#6b7280", "#2563eb", "#059669", "#d97706", "#7c3aed"]


# ---- Running


def launcher(pith: str, ranks: int, rate: str) -> tuple[list[str], str]:
    """How ranks are started, and what to call it."""
    lab = [pith, "lab", "--no-prefix", "-n", str(ranks), "--rate", rate, "--"]
    tried = subprocess.run([*lab, "true"], capture_output=True, text=True)
    if tried.returncode == 0:
        return lab, f"{ranks} hosts behind links of {rate}"
    lines = tried.stderr.strip().splitlines()
    print(
        "No slow network can be made here, so the ranks share memory, where compression has little to win in time."
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


def train(launch: list[str], spec: str, folder: pathlib.Path, a: argparse.Namespace) -> dict:
    result = folder / f"{''.join(c if c.isalnum() else '-' for c in spec)}.json"
    result.unlink(missing_ok=True)
    command = [
        *launch, sys.executable, str(HERE / "gpt.py"), "--spec", spec, "--steps", str(a.steps), "--batch", "1", "--context", "64",
        "--threads", str(max(1, (os.cpu_count() or 1) // a.ranks)), "--width", str(a.width), "--layers", str(a.layers), "--lr", "1e-3", "--json", str(result),
    ]  # fmt: skip
    if a.data:
        command += ["--data", a.data]
    print(f"training with {'no compression' if spec == 'none' else spec} …", flush=True)
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    if done.returncode != 0 or not result.exists():
        raise SystemExit(
            f"the run with {spec} failed (exit code {done.returncode}): {' '.join(command)}"
        )
    return json.loads(result.read_text())


# ---- Showing


def megabytes(run: dict) -> float:
    return run["wire_bytes"] / len(run["losses"]) / 1e6


def rows(runs: list[dict]) -> list[list[str]]:
    base = runs[0]
    return [
        [
            "uncompressed" if run["spec"] == "none" else run["spec"],
            f"{run['final_loss']:.3f}",
            f"{1e3 * run['step_seconds']:.0f} ms",
            f"{megabytes(run):.2f} MB",
            f"{megabytes(base) / megabytes(run):.1f}×",
            f"{base['step_seconds'] / run['step_seconds']:.2f}×",
        ]
        for run in runs
    ]


HEADS = ["gradients", "final loss", "time a step", "sent a step", "fewer bytes", "faster"]


def print_table(runs: list[dict]) -> None:
    table = [HEADS, *rows(runs)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADS))]
    for row in table:
        print(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
        )


def smooth(values: list[float]) -> list[float]:
    """A running mean: single batches are noisy."""
    result, mean = [], values[0]
    for value in values:
        mean = 0.9 * mean + 0.1 * value
        result.append(mean)
    return result


def curves(runs: list[dict], xs: list[list[float]], label: str) -> str:
    """Losses as a picture."""
    width, height, left, bottom = 560, 300, 48, 40
    losses = [smooth(run["losses"]) for run in runs]
    low, high = min(map(min, losses)), max(y[min(3, len(y) - 1)] for y in losses)
    far = max(x[-1] for x in xs) or 1

    def point(x: float, y: float) -> str:
        up = (min(y, high) - low) / (high - low or 1)
        return f"{left + x / far * (width - left - 8):.1f},{height - bottom - up * (height - bottom - 8):.1f}"

    lines = [
        f'<polyline fill="none" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2" points="'
        + " ".join(point(x, y) for x, y in zip(xs[i], losses[i], strict=True))
        + '"/>'
        for i in range(len(runs))
    ]
    ticks = "".join(
        f'<text x="{left - 6}" y="{height - bottom - k / 4 * (height - bottom - 8) + 4:.0f}" text-anchor="end">{low + k / 4 * (high - low):.2f}</text>'
        f'<text x="{left + k / 4 * (width - left - 8):.0f}" y="{height - bottom + 16}" text-anchor="middle">{far * k / 4:.0f}</text>'
        for k in range(5)
    )
    axes = f'<path d="M{left} 8V{height - bottom}H{width - 8}" fill="none" stroke="#9ca3af"/>'
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="loss over {label}">{axes}{ticks}{"".join(lines)}'
        f'<text x="{width / 2:.0f}" y="{height - 4}" text-anchor="middle">{label}</text></svg>'
    )


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #111827 }
svg { width: 100%; height: auto; font-size: 12px; fill: #4b5563 } .charts { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem }
table { border-collapse: collapse } td, th { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid #e5e7eb }
td:first-child, th:first-child { text-align: left } .dot { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .5em }
@media (max-width: 50rem) { .charts { grid-template-columns: 1fr } }
"""


def page(runs: list[dict], where: str) -> str:
    heads = "".join(f"<th>{html.escape(h)}</th>" for h in HEADS)
    body = ""
    for i, row in enumerate(rows(runs)):
        dot = f'<span class="dot" style="background:{COLOURS[i % len(COLOURS)]}"></span>'
        body += (
            "<tr>"
            + "".join(
                f"<td>{dot if j == 0 else ''}{html.escape(cell)}</td>" for j, cell in enumerate(row)
            )
            + "</tr>"
        )
    steps = curves(runs, [list(range(1, len(run["losses"]) + 1)) for run in runs], "steps")
    seconds = curves(runs, [run["seconds"] for run in runs], "seconds")
    size = runs[0]["parameters"]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Pith demo</title>'
        f"<style>{STYLE}</style><h1>The same training, with less to send</h1>"
        f"<p>A GPT of {size / 1e6:.1f} million parameters learns characters on {html.escape(where)}. Losses are running means.</p>"
        f'<div class="charts"><div>{steps}</div><div>{seconds}</div></div><table><tr>{heads}</tr>{body}</table></html>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pith", default=shutil.which("pith") or "build/pith", help="the command")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--width", type=int, default=320)
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
    specs = ["none", *(a.spec or ["q:4", "ef/topk:0.01", "ef/powersgd:4"])]
    started = time.perf_counter()
    print(f"a small GPT on {where}, {a.steps} steps with each of: {', '.join(specs)}\n")
    runs = [train(launch, spec, folder, a) for spec in specs]
    print()
    print_table(runs)
    target = folder / "index.html"
    target.write_text(page(runs, where), encoding="utf-8")
    print(f"\n{time.perf_counter() - started:.0f} seconds; the curves: {target.resolve()}")


if __name__ == "__main__":
    main()
