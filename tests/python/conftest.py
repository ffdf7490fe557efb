# SPDX-License-Identifier: Apache-2.0
"""Every test sees this folder, and an environment without settings of Pith. The files that take longest come first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ.setdefault("OMP_NUM_THREADS", "1")
for name in list(os.environ):
    if name.startswith("PITH_") and name not in (
        "PITH_LIBRARY",
        "PITH_COMMAND",
        "PITH_MODULE_PATH",
        "PITH_CPU",
        "PITH_TEST_REQUIRE",
    ):
        del os.environ[name]

# Processes that take a file each end together only if the last files are short.
LONG = (
    "test_torch_suite.py",
    "test_install.py",
    "test_backend_torch.py",
    "test_tensorflow.py",
    "test_moments.py",
    "test_frameworks.py",
    "test_carrier.py",
    "test_launchers.py",
    "test_hook.py",
    "test_hsdp.py",
    "test_eval.py",
    "test_local.py",
    "test_adapt.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))
