# SPDX-License-Identifier: Apache-2.0
"""``pith eval``: many methods, several tasks, one set of rules.

    pith eval run quick                      # runs a grid, and writes results and report to eval-quick
    pith eval report eval-quick              # the report alone
    pith eval compare eval-a eval-b          # two results side by side

docs/evaluation.md has the rules. From Python: ``pith.eval.evaluate(grid, folder)``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ._main import main

__all__ = ["evaluate", "main"]


def evaluate(grid: str | dict[str, Any], out: str | Path, **options: Any) -> Path:
    """Runs a grid (its name, its file, or what such a file has) and writes results and report to a folder; gives the page."""
    from ._main import run_grid

    return run_grid(grid, Path(out), **options)
