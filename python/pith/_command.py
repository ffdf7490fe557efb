# SPDX-License-Identifier: Apache-2.0
"""The command ``pith``: hands over to the program that the package carries, or to what is written in Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_NATIVE = Path(__file__).resolve().parent / "_native"


def main() -> None:
    """Becomes the program; only comes back with an error. ``pith doctor`` asks this interpreter about torch."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["eval"]:
        from .eval import main as evaluate

        sys.exit(evaluate(arguments[1:]))
    if arguments[:2] == ["bench", "codec"] and any(a.startswith("--import") for a in arguments):
        from ._bench import bench_codec

        sys.path.insert(0, os.getcwd())
        sys.exit(bench_codec(arguments[2:]))
    os.environ.setdefault("PITH_PYTHON", sys.executable)
    os.execv(program(), ["pith", *arguments])


def program() -> str:
    """The path of the program."""
    found = Path(os.environ.get("PITH_COMMAND") or _NATIVE / "pith")
    if not found.exists():
        sys.exit(f"pith: {found} is missing; install the package again (pip install .)")
    return str(found)


if __name__ == "__main__":
    main()
