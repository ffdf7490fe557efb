# SPDX-License-Identifier: Apache-2.0
"""What tests need that a machine may lack. PITH_TEST_REQUIRE=torch,mpi,… makes a failure of a skip, so that nothing goes unnoticed where
all of it was meant to be installed."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import NoReturn

import pytest

_REQUIRED = os.environ.get("PITH_TEST_REQUIRE", "").split(",")


def lacks(what: str, reason: str) -> NoReturn:
    """Skips the test, or the whole file; fails it where PITH_TEST_REQUIRE names what is missing."""
    if what in _REQUIRED:
        pytest.fail(f"PITH_TEST_REQUIRE has {what}: {reason}", pytrace=False)
    pytest.skip(f"[{what}] {reason}", allow_module_level=True)


def module(name: str, reason: str) -> ModuleType:
    """A Python package that the tests of a file need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        lacks(name, f"{reason}: {error}")
