# SPDX-License-Identifier: Apache-2.0
"""The table and the page of bench/parity.py, from made-up runs: what is compared with what, and files put together."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import needs

needs.module("torch", "the script imports torch")

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"


@pytest.fixture(scope="module")
def parity() -> Any:
    if not (BENCH / "parity.py").exists():
        pytest.skip(f"{BENCH} is not there")
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module("parity")
    finally:
        sys.path.remove(str(BENCH))


def made_up(
    parity: Any, spec: str, seed: int, after: float, size: float, task: str = "text"
) -> Any:
    curve = [3.0 - i / 100 for i in range(100)]
    return parity.Run(task, spec, seed, 100, 2, 4.0, after, size, size, 1.0, curve)


def test_adaptive_specs_have_references(parity: Any) -> None:
    for spec, reference in (
        ("q:4", None),
        ("none", None),
        ("auto", "none"),
        ("auto,period=64", "none"),
        ("lgreco:q:4", "q:4"),
        ("lgreco:q:4,bucket=256,period=64", "q:4,bucket=256"),
        ("lgreco:mix,budget=q:4", "q:4"),
        ("lgreco:ef/topk:0.01,alpha=2", "ef/topk:0.01"),
        ("kmeans:q:4", "q:4"),
        ("lgreco:ef/topk:0.01,metric=l2,cap=2,accumulate=4", "ef/topk:0.01"),
        ("best:q:4,bucket=256,tolerance=0.01", "q:4,bucket=256"),
        ("global:ef/topk:0.01,start=100", "ef/topk:0.01"),
        ("accordion:q:4,q:8", "q:8"),
    ):
        assert parity.reference_of(spec) == reference, spec


def test_every_run_is_compared_with_those_of_its_seed(parity: Any) -> None:
    runs = [made_up(parity, "none", seed, 2.0 * seed, 1000) for seed in (1, 2)]
    runs += [made_up(parity, "q:4", seed, 2.0 * seed, 100) for seed in (1, 2)]
    runs += [made_up(parity, "lgreco:q:4", seed, 2.0 * seed * 1.1**seed, 50) for seed in (1, 2)]
    runs += [made_up(parity, "kmeans:q:4", 1, 2.0, 101), made_up(parity, "auto", 3, 2.0, 10)]
    rows = {row.spec: row for row in parity.rows_of(runs)}
    assert rows["q:4"].ratio == pytest.approx(1) and rows["q:4"].fewer == pytest.approx(10)
    lgreco = rows["lgreco:q:4"]
    assert lgreco.reference is rows["q:4"]
    assert lgreco.behind == pytest.approx(1.1**1.5) and lgreco.share == pytest.approx(0.5)
    assert lgreco.doubt == pytest.approx(math.log(1.1) / 2)
    assert lgreco.verdict == "loses" and rows["kmeans:q:4"].verdict == "sends more"
    assert math.isnan(rows["auto"].ratio), "no uncompressed run has its seed"


def test_files_are_put_together(parity: Any, tmp_path: Path) -> None:
    parts = [
        [made_up(parity, "none", 1, 2.0, 1000), made_up(parity, "q:4", 1, 9.0, 100)],
        [made_up(parity, "q:4", 1, 2.0, 100), made_up(parity, "lgreco:q:4", 1, 2.0, 50)],
        [made_up(parity, "none", 1, math.nan, 1000, "digits")],
    ]
    files = [str(tmp_path / f"{i}.json") for i in range(3)]
    for file, part in zip(files, parts, strict=True):
        parity.save(part, file)
    page, whole = tmp_path / "page.html", tmp_path / "whole.json"
    command = [sys.executable, str(BENCH / "parity.py"), "--merge", *files]
    done = subprocess.run(
        [*command, "--html", str(page), "--json", str(whole)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "lgreco:q:4" in line)
    assert re.search(r"1\.000 +50 +20\.0× +1\.000 +0\.500  good", line), line
    assert len(parity.merged([str(whole)])) == 4
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 2 and text.count("<table>") == 2, "what diverged is not drawn"
    assert text.count("<polyline") == 3 and "lgreco:q:4" in text
