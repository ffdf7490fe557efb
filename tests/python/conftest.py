"""Every test sees this folder, and an environment without settings of Pith."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
