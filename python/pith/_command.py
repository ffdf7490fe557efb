"""The command ``pith``: hands over to the program that the package carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_NATIVE = Path(__file__).resolve().parent / "_native"


def main() -> None:
    """Becomes the program; only comes back with an error. ``pith doctor`` asks this interpreter about torch."""
    program = Path(os.environ.get("PITH_COMMAND") or _NATIVE / "pith")
    if not program.exists():
        sys.exit(f"pith: {program} is missing; install the package again (pip install .)")
    os.environ.setdefault("PITH_PYTHON", sys.executable)
    os.execv(program, ["pith", *sys.argv[1:]])


if __name__ == "__main__":
    main()
