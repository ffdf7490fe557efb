"""The demo: slow links without root, and a reason where there are none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
        pytest.skip("there is no setpriv")
    tried = subprocess.run(
        [*dropped, command(), "lab", "-n", "2", "--rate", "1gbit", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        pytest.skip(tried.stderr.strip())
    assert "in a user namespace of its own" in tried.stderr or not dropped
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    options = ["--ranks", "2", "--steps", "3", "--width", "64", "--layers", "1", "--spec", "q:4"]
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
    assert (tmp_path / "out" / "index.html").exists()
