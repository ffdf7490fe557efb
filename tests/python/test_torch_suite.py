# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own distributed tests pass with the backend pith wherever they pass with gloo (torch_suite.py runs them).

torch_suite_gloo.txt lists the tests that pass with gloo on three ranks, with torch 2.13; `python tests/python/torch_suite.py --backend gloo` finds
them anew. The tests that are not on the list fail or are skipped with gloo, too:

- They need a GPU where a CPU tensor is no substitute: SyncBatchNorm, CUDA streams and events, NCCL.
- They need an even number of ranks, four ranks or torchvision.
- torch's own list of disabled tests has them.
- They send parts of different sizes in an all_to_all, which gloo refuses. (Pith passes these.)

None of the tests that pass with gloo is left out here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import needs

torch = pytest.importorskip("torch", reason="these are torch's tests")
needs.module("expecttest", "torch's own tests import it")

import torch_suite  # noqa: E402

LISTED = Path(__file__).with_name("torch_suite_gloo.txt").read_text().split()
VERSION = "2.13"


def test_every_test_that_passes_with_gloo_passes_with_pith() -> None:
    there = set(torch_suite.names())
    missing = [name for name in LISTED if name not in there]
    assert not missing or not torch.__version__.startswith(VERSION), missing
    tests = [name for name in LISTED if name in there]
    assert len(tests) > 180
    results = torch_suite.run("pith", tests)
    others = [f"{r.name} {r.outcome}: {r.why}" for r in results if r.outcome != "passed"]
    assert not others, "\n\n".join(others)
    assert len(results) == len(tests)
