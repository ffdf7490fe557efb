# SPDX-License-Identifier: Apache-2.0
"""Pages and pictures can be read: colours with enough contrast, the same ones in C and in Python, and no text that is cut off."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import needs
from pith import _look
from test_launchers import command

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "check-look"


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [_look.LIGHT, _look.DARK], ids=["light", "dark"])
def test_texts_have_contrast_on_every_surface(colours: dict[str, str]) -> None:
    texts = ["ink", "soft", *(f"c{i}" for i in range(8))]
    poor = {
        (text, surface): contrast(colours[text], colours[surface])
        for text in texts
        for surface in ("paper", "card")
        if contrast(colours[text], colours[surface]) < 4.5
    }
    assert not poor


def test_the_command_has_the_colours_of_the_pages() -> None:
    text = (ROOT / "src/cli/base/plot.c").read_text()
    for name, colours in (("light", _look.LIGHT), ("dark", _look.DARK)):
        body = re.search(rf"static const colours {name} = \{{(.*?)\n\}};", text, re.S)
        assert body is not None
        order = ["paper", "ink", "soft", "line", "c2", "c3", "c4", "c5", "c6", "c7", "c0", "c1"]
        assert re.findall(r'"(#\w+)"', body[1]) == [colours[key] for key in order]


def plot(folder: Path) -> Path:
    target = folder / "sim.svg"
    options = ["-n", "2..64", "--per-host", "4", "-b", "1M", "--codec", "q:4", "--codec", "none"]
    subprocess.run(
        [command(), "sim", "allreduce", *options, "--plot", target], check=True, capture_output=True
    )
    return target


def test_names_beside_a_plot_do_not_lie_on_each_other(tmp_path: Path) -> None:
    text = plot(tmp_path).read_text()
    at = [float(y) for y in re.findall(r'<text class="n\d" x="[\d.]+" y="([\d.]+)"', text)]
    assert len(at) > 3 and all(b - a >= 16 for a, b in pairwise(at))
    assert (
        max(at) < 400
        and "<script" not in text
        and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    )


def demo_page(folder: Path) -> Path:
    """The page of a demo that was not run: names and numbers as long as they may become."""
    path = ROOT / "examples" / "pytorch" / "demo.py"
    spec = importlib.util.spec_from_file_location("demo", path)
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)

    def runs(name: str, seconds: float, sent: float) -> list[dict[str, Any]]:
        held_out = [4.65 - 2.3 * (1 - 0.7**i) for i in range(11)]
        return [
            {
                "spec": name, "parameters": 3_275_520, "losses": [3.0] * 100, "step_seconds": seconds, "wire_bytes": 100 * sent,
                "seconds": [seconds * (i + 1) for i in range(100)], "held_out_steps": list(range(0, 101, 10)),
                "held_out": [loss * (1 + 0.01 * seed) for loss in held_out],
            }
            for seed in range(3)
        ]  # fmt: skip

    methods = [runs("none", 0.214, 19.6e6), runs("q:4", 0.063, 2.53e6)]
    methods += [runs("ef/topk:0.01,values=fp16", 0.061, 0.41e6), runs("ef/powersgd:4", 0.06, 0.3e6)]
    target = demo.target_of(methods[0])
    page = folder / "demo.html"
    page.write_text(demo.page(methods, "4 hosts behind links of 1gbit", target, 1e9, demo.NEXT))
    return page


def report(folder: Path, name: str) -> Path:
    """The report of results that are in the repository."""
    needs.module("torch", "pith.eval needs it")
    from pith.eval.report import write_report

    return write_report([ROOT / "docs" / "evaluation" / name / "results.jsonl"], folder / name)


def test_a_browser_shows_all_of_it(tmp_path: Path) -> None:
    needs_chromium()
    files = [
        plot(tmp_path),
        demo_page(tmp_path),
        report(tmp_path, "gpu"),
        report(tmp_path, "grace"),
    ]
    files += sorted((ROOT / "docs").glob("*.svg"))
    done = subprocess.run([sys.executable, TOOL, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def needs_chromium() -> None:
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        needs.lacks("chromium", "there is no Chromium (Debian, Ubuntu: apt-get install chromium)")


def test_the_browser_finds_what_cannot_be_read(tmp_path: Path) -> None:
    needs_chromium()
    page = tmp_path / "page.html"
    page.write_text(
        '<meta charset="utf-8"><p style="color:#999;background:#fff">pale</p>'
        '<p style="background:#fff;color:#000;width:60px;overflow:hidden;white-space:nowrap">this is cut off at its end</p>'
        '<svg viewBox="0 0 100 20"><rect width="100" height="20" fill="#fff"/><text x="90" y="12">beyond</text></svg>'
        '<div style="width:2000px;background:#fff;color:#000">wide</div>'
    )
    done = subprocess.run([sys.executable, TOOL, page], capture_output=True, text=True)
    assert done.returncode == 1
    for complaint in (
        "contrast",
        "cut off",
        "cut off by its picture",
        "pixels wide on a screen of",
    ):
        assert complaint in done.stderr
