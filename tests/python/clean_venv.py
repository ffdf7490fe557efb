# SPDX-License-Identifier: Apache-2.0
"""A virtual environment with torch and what torch requires, and with nothing else: no numpy.

torch is some hundred megabytes, so its folders are links to those of the environment that runs the tests. To Python and pip they are
installed like any others.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any


def required_by(name: str) -> dict[str, importlib.metadata.Distribution]:
    """A distribution and all that it requires, directly or not; extras and other platforms aside."""
    from packaging.requirements import Requirement

    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [name]
    while waiting:
        key = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if key in found:
            continue
        found[key] = importlib.metadata.distribution(key)
        for text in found[key].requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


class CleanVenv:
    """Made in a folder, with torch."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        self._home = folder
        packages = Path(
            self.output(
                self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
            ).strip()
        )
        for distribution in required_by("torch").values():
            self._link(distribution, packages)

    def _link(self, distribution: importlib.metadata.Distribution, packages: Path) -> None:
        tops = {
            file.parts[0]
            for file in distribution.files or []
            if file.parts[0] not in ("..", "__pycache__")
        }
        assert tops, f"{distribution.name} has no list of its files"
        for top in tops:
            (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
        for entry in distribution.entry_points:
            if entry.group == "console_scripts":
                script = self.bin / entry.name
                script.write_text(
                    f"#!{self.python}\nimport sys\nfrom {entry.module} import {entry.attr} as main\nsys.exit(main())\n"
                )
                script.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """What a user has who has activated it: nothing of the environment that the tests run in."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PITH_", "PYTHON", "VIRTUAL_ENV"))
        }
        return kept | {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "VIRTUAL_ENV": str(self._home),
        }

    def run(self, *command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = self.environment | options.pop("env", {})
        return subprocess.run(
            [str(part) for part in command],
            env=environment,
            capture_output=True,
            text=True,
            **options,
        )

    def output(self, *command: Any, **options: Any) -> str:
        """What a command that must succeed prints."""
        done = self.run(*command, **options)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def install(self, *what: str) -> None:
        """By the pip of the tests, offline: what is required has to be here already."""
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.python),
            "install",
            "--quiet",
            "--no-index",
        ]
        self.output(*pip, *what)
