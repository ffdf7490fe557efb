# SPDX-License-Identifier: Apache-2.0
"""The demo: slow links without root, and a reason where there are none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import needs
from test_launchers import command

DEMO = Path(__file__).resolve().parents[2] / "examples" / "pytorch" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_slow_links_are_used_where_they_can_be_made(demo: ModuleType, tmp_path: Path) -> None:
    launch, where = demo.launcher(program(tmp_path / "pith", "exit 0"), 3, "100mbit")
    assert launch[1] == "lab" and launch[-1] == "--"
    assert where == "3 hosts behind links of 100mbit"


def test_the_reason_is_told_where_they_cannot(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pith = program(
        tmp_path / "pith",
        'echo "pith: lab: user.max_user_namespaces is 0; ask somebody" >&2; exit 1',
    )
    launch, where = demo.launcher(pith, 3, "1gbit")
    assert launch[1] == "run"
    assert where == "3 processes on this machine"
    assert "user.max_user_namespaces is 0; ask somebody" in capsys.readouterr().out


def test_a_user_without_rights_trains_behind_slow_links(tmp_path: Path) -> None:
    """As root the rights are given away first, but for the one that lets root's own number into a user namespace."""
    rights = ["setpriv", "--inh-caps=-all", "--bounding-set=-all,+setfcap"]
    dropped = rights if os.geteuid() == 0 else []
    if dropped and shutil.which("setpriv") is None:
        needs.lacks("setpriv", "there is no setpriv")
    tried = subprocess.run(
        [*dropped, command(), "lab", "-n", "2", "--rate", "1gbit", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        needs.lacks("userns", tried.stderr.strip())
    assert "in a user namespace of its own" in tried.stderr or not dropped
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    options = ["--ranks", "2", "--steps", "3", "--width", "64", "--layers", "1", "--spec", "q:4"]
    options += ["--seeds", "2"]
    done = subprocess.run(
        [*dropped, sys.executable, str(DEMO), "--pith", command(), "--data", str(text), *options]
        + ["--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 hosts behind links of 1gbit" in done.stdout
    assert "training with q:4" in done.stdout
    assert "hostname of the client" not in done.stderr  # gloo's warning
    assert "Why: uncompressed, a rank sends" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ") and "pith run -n 2 -- python train.py" in last
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("<svg") == 3 and 'class="band c2"' in page  # two seeds make a band


def run_of(losses: list[float], seconds: float = 1.0) -> dict[str, Any]:
    """One that was looked at after every second step."""
    steps = 2 * (len(losses) - 1)
    return {
        "spec": "q:4",
        "losses": [0.0] * steps,
        "held_out": losses,
        "held_out_steps": list(range(0, steps + 1, 2)),
        "seconds": [seconds * (i + 1) for i in range(steps)],
        "step_seconds": seconds,
        "wire_bytes": 1000 * steps,
    }


def test_time_to_a_loss_lies_between_two_looks(demo: ModuleType) -> None:
    run = run_of([4.0, 3.0, 2.0])
    assert demo.time_to(run, 4.0) == 0.0
    assert demo.time_to(run, 2.5) == pytest.approx(3.0)
    assert demo.time_to(run, 2.0) == pytest.approx(4.0)
    assert demo.time_to(run, 1.9) is None


def test_the_target_comes_from_the_uncompressed_runs_alone(demo: ModuleType) -> None:
    base = [run_of([4.0, 3.0, 2.5, 2.0, 1.5]), run_of([4.0, 3.2, 2.7, 2.2, 1.7])]
    assert demo.target_of(base) == pytest.approx(2.2)  # both seeds reach it
    assert demo.to_target(base, 2.2) is not None
    assert demo.to_target([base[0], run_of([4.0, 3.9])], 2.2) is None  # one seed does not reach it


def test_the_reason_is_made_of_the_measured_numbers(demo: ModuleType) -> None:
    base, small = run_of([2.0, 1.0], 0.1), run_of([2.0, 1.0], 0.05)
    base |= {"spec": "none", "wire_bytes": 2 * 10**6}  # in two steps
    text = demo.reason([[base], [small]], 1e8)
    assert "sends 1.0 MB in a step" in text and "80 ms for that, 80% of the step" in text
    assert "little to gain" in demo.reason([[base], [small]], None)
