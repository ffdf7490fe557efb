# SPDX-License-Identifier: Apache-2.0
"""Blocks of code in the documentation that tests run."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """A block of code that follows ``<!-- test: NAME -->``."""

    page: str
    name: str
    language: str
    code: str


def blocks_of(page: str, text: str) -> list[Block]:
    marked = re.findall(r"^<!-- test: (\S+) -->\n+```(\w+)\n(.*?)^```$", text, re.M | re.S)
    assert len(marked) == text.count("<!-- test: "), f"{page}: a marker without a block behind it"
    return [Block(page, *found) for found in marked]


def commands_of(code: str) -> list[str]:
    """The lines of a shell block that the test has not done already."""
    lines = code.replace("\\\n", "").splitlines()
    return [
        line
        for line in lines
        if line.strip() and not line.lstrip().startswith(("#", "pip install", "make"))
    ]
