# SPDX-License-Identifier: Apache-2.0
"""pith eval: grids go on after a kill, failures are results, results merge, and the report has no empty panel."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import needs

needs.module("torch", "pith eval trains with torch")

from pith.eval import main
from pith.eval.analysis import break_even, panels_of, pareto
from pith.eval.compare import compare
from pith.eval.grid import GridError, expand, jobs_of, names, rate_of, read
from pith.eval.jobs import share_of
from pith.eval.report import run_rows, to_csv, to_html, write_report
from pith.eval.results import Results, ResultsError, drop_unfinished, read_all, write_all

ROOT = Path(__file__).resolve().parents[2]

METHODS = """
import os
import pith

def leave(x):
    os._exit(3)

pith.register("leaves", leave, lambda p, n: p)
"""

GRID = """
title = "tiny"
import = ["methods.py", "{sbc}"]
defaults = {{ task = "recommend", optimizer = "adamw", link = "none", seeds = 1, steps = 0.1, rates = [1.0] }}

[[run]]
spec = ["none", "bf16", "torch:bf16", "q:4", "ef/sbc:0.05", "nosuch"]

[[run]]
spec = ["leaves"]
"""


def command(folder: Path) -> list[str]:
    grid = folder.parent / "tiny.toml"
    if not grid.exists():
        (folder.parent / "methods.py").write_text(METHODS)
        grid.write_text(GRID.format(sbc=ROOT / "examples/methods/sbc.py"))
    return [sys.executable, "-m", "pith", "eval", "run", str(grid), "-o", str(folder)]


def finish(folder: Path) -> Results:
    done = subprocess.run(command(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return read_all([folder])


def count_runs(folder: Path) -> int:
    path = folder / "results.jsonl"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("eval") / "whole"
    finish(folder)
    return folder


@pytest.fixture(scope="module")
def killed(whole: Path) -> Path:
    """The same grid, killed after some runs, and then done to the end."""
    folder = whole.parent / "killed"
    process = subprocess.Popen(command(folder), stderr=subprocess.DEVNULL)
    end = time.monotonic() + 200
    while count_runs(folder) < 3 and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1)  # its ranks end with it
    assert 3 <= count_runs(folder) < count_runs(whole)
    with (folder / "results.jsonl").open("ab") as file:
        file.write(b'{"cell":{"id":"torn')
    finish(folder)
    return folder


def qualities(results: Results) -> dict[str, Any]:
    """What does not depend on the clock."""
    return {
        key: (run["result"]["status"], run["result"].get("metric"), run["result"].get("wire_bytes"))
        for key, run in results.runs.items()
    }


# ---- Running


def test_a_killed_grid_goes_on_and_gives_the_same_report(whole: Path, killed: Path) -> None:
    one, two = read_all([whole]), read_all([killed])
    assert qualities(one) == qualities(two)
    titles = [
        sorted(re.findall(r'aria-label="([^"]*)"', (f / "index.html").read_text()))
        for f in (whole, killed)
    ]
    assert titles[0] == titles[1] and titles[0]


def test_failures_are_results_and_name_what_failed(whole: Path) -> None:
    runs = [r for r in read_all([whole]).runs.values() if r["cell"]["phase"] == "final"]
    found = {run["cell"]["spec"]: run["result"] for run in runs}
    assert len(found) == 7
    assert found["nosuch"]["status"] == "failed" and "no method" in found["nosuch"]["error"]
    assert found["leaves"]["status"] == "failed"
    assert found["q:4"]["status"] == found["ef/sbc:0.05"]["status"] == "ok"
    assert found["q:4"]["wire_bytes"] < found["bf16"]["wire_bytes"] < found["none"]["wire_bytes"]


def test_another_machine_can_help_with_what_is_not_timed(whole: Path, tmp_path: Path) -> None:
    out = whole.parent / "helped"
    done = subprocess.run(
        [*command(out), "--untimed", "--jobs", "1"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "runs are left" in done.stderr
    helped, all_of_it = read_all([out]), read_all([whole])
    assert {run["cell"]["phase"] for run in helped.runs.values()} == {"final"}
    assert qualities(helped).items() <= qualities(all_of_it).items()
    page = write_report([out, whole], tmp_path)
    assert page.read_text().count("<figure>") == (whole / "index.html").read_text().count(
        "<figure>"
    )


def test_jobs_have_cores_of_their_own() -> None:
    cell = {"phase": "tune", "link": "any", "ranks": 4, "device": "cpu"}
    timed = cell | {"phase": "speed", "link": "1gbit"}
    assert jobs_of(cell, 16, 12) == 12 and jobs_of(timed, 16, 12) == 4
    assert jobs_of(timed, 2, 2) == 1 and jobs_of(timed | {"device": "cuda"}, 16, 3) == 1
    cores = list(range(16))
    assert [share_of(cores, i, 4) for i in range(4)] == [cores[4 * i : 4 * i + 4] for i in range(4)]
    assert [share_of([5, 7], i, 3) for i in range(3)] == [[5], [7], [5]]


def test_results_of_different_data_are_not_mixed() -> None:
    one, two = made_up("bf16", 0.1, 0.1, 1.0, 90.0)[0], made_up("q:4", 0.1, 0.1, 1.0, 90.0)[0]
    two["cell"]["origin"] = "another"
    with pytest.raises(ResultsError, match="different data for the task digits"):
        panels_of([one, two])


def test_what_is_done_is_not_done_again(whole: Path, capsys: Any) -> None:
    before = (whole / "results.jsonl").read_bytes()
    assert main(["run", str(whole.parent / "tiny.toml"), "-o", str(whole)]) == 0
    assert "about 0 s" in capsys.readouterr().err
    assert (whole / "results.jsonl").read_bytes() == before


def test_runs_have_log_lines(whole: Path) -> None:
    logs = list((whole / "logs").glob("*.log"))
    assert logs
    for log in logs:
        lines = log.read_text().splitlines()
        entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
        keys = [entry["key"] for entry in entries]
        assert "run_start" in keys and keys[-1] == "run_stop"


# ---- Report


def test_the_page_needs_nothing_from_outside_and_has_no_empty_panel(whole: Path) -> None:
    page = (whole / "index.html").read_text()
    assert not re.search(r"(src|href)=.(https?:)?//|@import|url\((?!#)", page)
    assert "prefers-color-scheme" in page and "@media print" in page and "viewport" in page
    figures = re.findall(r"<figure>.*?</figure>", page, re.S)
    panels = panels_of(list(read_all([whole]).runs.values()))
    assert len(panels) == 1 and len(figures) == 6
    for figure in figures:
        assert len(re.findall(r'class="(bar|dot|curve|note)', figure)) >= 2, figure[:200]
        assert "NaN" not in figure and "nan" not in figure
    assert "ef/sbc:0.05" in page and "failed" in page


def test_markdown_and_csv_have_every_method_and_run(whole: Path) -> None:
    text, results = (whole / "report.md").read_text(), read_all([whole])
    for spec in ("none", "bf16", "torch:bf16", "q:4", "ef/sbc:0.05", "nosuch", "leaves"):
        assert f"| {spec} |" in text
    lines = (whole / "runs.csv").read_text().splitlines()
    assert len(lines) == 1 + len(results.runs) == 1 + len(run_rows(results))


def test_two_machines_results_merge(whole: Path, tmp_path: Path) -> None:
    lines = (whole / "results.jsonl").read_text().splitlines()
    other = json.loads(lines[0])
    other["machine"]["cpu"] = "another one"
    (tmp_path / "a.jsonl").write_text("\n".join([lines[0], *lines[1:6]]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join([json.dumps(other), *lines[4:]]) + "\n")
    merged = read_all([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert qualities(merged) == qualities(read_all([whole])) and len(merged.machines) == 2
    write_all(merged, tmp_path / "c.jsonl")
    again = read_all([tmp_path / "c.jsonl"])
    assert qualities(again) == qualities(merged)
    assert "another one" in write_report([tmp_path / "c.jsonl"], tmp_path).read_text()
    with pytest.raises(ResultsError, match="there already"):
        write_all(merged, tmp_path / "c.jsonl")


def test_results_stand_side_by_side(whole: Path, killed: Path) -> None:
    table = compare(whole, killed)
    assert "quality A" in table and "q:4" in table


@pytest.mark.parametrize(
    "line, says",
    [
        ("{broken", "no JSON"),
        ("[]", "not an object"),
        ('{"cell":{}}', "neither a run nor a machine"),
        ('{"cell":{"id":"x"},"result":{}}', "a run without task"),
        ('{"format":99,"machine":{}}', "format 99"),
    ],
)
def test_damaged_results_are_an_error_with_file_and_line(
    whole: Path, tmp_path: Path, line: str, says: str
) -> None:
    first = (whole / "results.jsonl").read_text().splitlines()[0]
    path = tmp_path / "results.jsonl"
    path.write_text(f"{first}\n{line}\n")
    with pytest.raises(ResultsError, match=rf"results.jsonl, line 2: .*{says}"):
        read_all([path])
    with pytest.raises(ResultsError, match="there is no"):
        read_all([tmp_path / "missing"])


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"a":1}\n{"b"')
    assert drop_unfinished(path) and path.read_bytes() == b'{"a":1}\n'
    assert not drop_unfinished(path)


# ---- Grids and figures without a run


def test_the_grids_of_the_package_can_be_read() -> None:
    assert set(names()) == {"quick", "grace", "full", "gpu"}
    for name in names():
        cells = expand(read(name)).cells
        assert len({cell["id"] for cell in cells}) == len(cells)
    quick = expand(read("quick")).cells
    assert len({cell["task"] for cell in quick}) >= 3
    specs = {
        cell["spec"].rpartition("/")[2].split(":")[0] for cell in quick if cell["task"] == "digits"
    }
    survey = {
        "qsgd", "terngrad", "natural", "inceptionn", "topk", "randomk", "threshold", "adaptive", "sketchml", "powersgd", "signsgd",
        "signum", "efsignsgd", "onebit", "u8", "dgc",
    }  # fmt: skip
    assert survey <= specs


@pytest.mark.parametrize(
    "block, says",
    [
        ({}, "has no task"),
        ({"task": "no", "spec": ["none"]}, "there is no task 'no'"),
        ({"task": "text", "spec": ["none"], "lnk": "x"}, "no setting 'lnk'"),
        ({"task": "text", "spec": ["none"], "link": "fast"}, "'fast' is not a rate"),
        ({"task": "text", "spec": [{"spc": 1}]}, "is no spec"),
        ({"task": "text", "spec": ["none"], "optimizer": "lion"}, "neither sgd nor adamw"),
    ],
)
def test_mistakes_in_grids_are_named(block: dict[str, Any], says: str) -> None:
    with pytest.raises(GridError, match=says):
        expand({"run": [block]})


def test_every_method_has_the_same_number_of_tuning_runs() -> None:
    cells = expand({"run": [{"task": "text", "spec": ["none", "q:4"], "seeds": 2}]}).cells
    for spec in ("none", "q:4"):
        phases = [cell["phase"] for cell in cells if cell["spec"] == spec]
        assert phases.count("tune") == 3 and phases.count("final") == 2
    assert rate_of("100mbit") == 1e8 and rate_of("none") is None


def made_up(label: str, rate: float, step: float, sent: float, metric: float | None) -> list[Any]:
    """Runs of one method, as results have them."""
    cell = {
        "id": f"{label}-{rate}", "task": "digits", "size": "small", "origin": "", "optimizer": "sgd", "ranks": 2, "device": "cpu", "batch": 16,
        "steps": 20, "spec": label, "backend": "pith", "label": label, "link": "1gbit", "seed": 1, "phase": "final", "rate": rate,
        "rates": [1.0], "multiplier": 1.0,
    }  # fmt: skip
    ok = metric is not None
    curve = [[10, 10 * step, 1.0, 50.0], [20, 20 * step, 0.5, metric]] if ok else []
    result = {
        "status": "ok" if ok else "diverged", "error": "", "metric": metric, "step": step, "late_step": step, "link_bytes": sent,
        "curve": curve, "seconds": 20 * step, "memory": 1e6,
    }  # fmt: skip
    return [{"cell": cell, "result": result if ok else {"status": "diverged", "error": "x"}}]


def speed(link: str, steps: dict[str, float]) -> Any:
    cell = made_up("in turns", 1, 1, 1, 1)[0]["cell"] | {
        "phase": "speed",
        "link": link,
        "shown": link != "none",
    }
    ways = {k: {"step": v, "low": v, "high": v} for k, v in steps.items()}
    return {"cell": cell, "result": {"status": "ok", "error": "", "ways": ways}}


def test_targets_pareto_and_break_even_are_those_of_the_rules() -> None:
    runs = [
        *made_up("bf16", 0.1, 0.10, 10e6, 90.0),
        *made_up("q:4", 0.1, 0.05, 2e6, 89.5),
        *made_up("topk:0.01", 0.1, 0.02, 1e6, 60.0),
        *made_up("slow", 0.1, 0.20, 20e6, 80.0),
        *made_up("broken", 0.1, 0.20, 20e6, None),
        speed("1gbit", {"local": 0.01, "bf16": 0.1, "q:4": 0.05, "topk:0.01": 0.02, "slow": 0.2}),
        speed("none", {"local": 0.01, "bf16": 0.01, "q:4": 0.02, "topk:0.01": 0.01, "slow": 0.1}),
    ]
    (panel,) = panels_of(runs)
    by_label = {entry.label: entry for entry in panel.entries}
    assert panel.target == pytest.approx(90 - 0.02 * 40)
    assert by_label["q:4"].time_to_target == pytest.approx(1.0)
    assert by_label["topk:0.01"].time_to_target is None
    assert by_label["broken"].status == "diverged: 1 of 1"
    assert [entry.label for entry in pareto(panel.entries)] == ["bf16", "q:4", "topk:0.01"]
    assert break_even(by_label["q:4"], by_label["bf16"]) == pytest.approx(8 * 8e6 / 0.01)
    assert break_even(by_label["topk:0.01"], by_label["bf16"]) == float("inf")
    assert break_even(by_label["slow"], by_label["bf16"]) is None
    results = Results([{}], {str(i): run for i, run in enumerate(runs)})
    page = to_html(results, "made up")
    assert page.count("<figure>") == 6 and "diverged" in page
    assert to_csv(results).count("\n") == 1 + len(runs)
