# SPDX-License-Identifier: Apache-2.0
"""Every block of code in README and docs is tested, or says why it is not. A line directly above it says which:

    <!-- test: NAME -->         a test runs the block as it is (tests/python/pages.py); one of tests/python/test_*.py names the page
    <!-- tested by: FILE -->    a test of another form does what the block does
    <!-- same as: FILE -->      every line of the block is in a program that is built and run by tests
    <!-- not run: REASON -->    what the test machine lacks, or why there is nothing to run

Whatever the line says, names in the block must exist: commands and options of pith, targets of make, files, Python objects, C functions. So must
commands and files in the `code` of a sentence.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import modules

LANGUAGES = ("sh", "python", "c")
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^ *```$", re.S | re.M)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.S | re.M)
_MARKER = re.compile(r"<!-- (test|tested by|same as|not run): (.+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str
    marker: str  # "test", …; "" without one
    told: str  # what the marker says


def blocks_of(page: str, text: str) -> list[Block]:
    found = []
    for block in _BLOCK.finditer(text):
        if block["language"] in LANGUAGES:
            marker = _MARKER.search(text[: block.start()])
            line = text.count("\n", 0, block.start()) + 1
            kind, told = (marker[1], marker[2]) if marker else ("", "")
            found.append(
                Block(page, line, block["language"], textwrap.dedent(block["code"]), kind, told)
            )
    return found


def complaints(root: Path, pages: dict[str, str]) -> list[str]:
    found = []
    for page, text in pages.items():
        blocks = blocks_of(page, text)
        for block in blocks:
            told = [*_marker_complaints(root, block), *_name_complaints(root, block)]
            found += [f"{page}:{block.line}: {complaint}" for complaint in told]
        found += [f"{page}:{line}: {told}" for line, told in _span_complaints(root, text)]
        if any(block.marker == "test" for block in blocks) and not _is_named_by_a_test(root, page):
            found.append(f"{page}: it has blocks to test, and no tests/python/test_*.py names it")
    return found


def _span_complaints(root: Path, text: str) -> list[tuple[int, str]]:
    """Of commands and files in sentences, outside of blocks."""
    prose = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    return [
        (prose.count("\n", 0, span.start()) + 1, complaint)
        for span in re.finditer(r"`([^`]+)`", prose)
        for complaint in _shell_complaints(root, span[1].replace("\n", " "))
    ]


@cache
def _tests(root: Path) -> str:
    return "\n".join(path.read_text() for path in sorted((root / "tests/python").glob("test_*.py")))


def _is_named_by_a_test(root: Path, page: str) -> bool:
    return f'"{page}"' in _tests(root)


def _marker_complaints(root: Path, block: Block) -> list[str]:
    if not block.marker:
        return ["a block without a test, and without the reason why: see tools/site/blocks.py"]
    if block.marker in ("test", "not run"):
        return []
    path = root / block.told
    if not path.is_file():
        return [f"there is no {block.told}"]
    text = path.read_text()
    if block.marker == "same as":
        lines = {line.strip() for line in text.splitlines()}
        return [
            f"{block.told} has no line {line.strip()!r}"
            for line in block.code.splitlines()
            if line.strip() and line.strip() not in lines
        ]
    words = _key_words(block)
    return [f"{block.told} says nothing of {word!r}" for word in words if word not in text]


def _commands(code: str) -> list[str]:
    lines = re.sub(r"\\\n *", "", code).splitlines()
    return [
        re.sub(r"(^|\s+)#.*", "", line) for line in lines if re.sub(r"(^|\s+)#.*", "", line).strip()
    ]


def _key_words(block: Block) -> list[str]:
    """What a test of the block must mention: commands within a command ("completion" of pith, "install" of make), and what is called of pith with which
    arguments."""
    if block.language == "sh":
        return [
            word
            for line in _commands(block.code)
            for word in re.findall(r"\b(?:pith|make) ([a-z_]+)\b", line)
        ]
    if block.language == "c":
        return sorted(set(re.findall(r"\bpith_\w+(?=\()", block.code)))
    words = []
    for node in ast.walk(ast.parse(block.code.replace("…", "..."))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("pith."):
            words += [
                ast.unparse(node.func).rpartition(".")[2],
                *(str(each.arg) for each in node.keywords),
            ]
    return words


# ---- Names -----------------------------------------------------------------------------------------------------------


def _name_complaints(root: Path, block: Block) -> list[str]:
    return {"sh": _shell_complaints, "python": _python_complaints, "c": _c_complaints}[
        block.language
    ](root, block.code)


@cache
def _targets(root: Path) -> frozenset[str]:
    return frozenset(
        re.search(r"^\.PHONY: (.*)$", (root / "Makefile").read_text(), re.M)[1].split()
    )  # type: ignore[index]


@cache
def _command_texts(root: Path) -> str:
    files = [
        *sorted((root / "src/cli").rglob("*.c")),
        *sorted((root / "python/pith").rglob("*.py")),
    ]
    return "\n".join(path.read_text() for path in files)


def _shell_complaints(root: Path, code: str) -> list[str]:
    found = []
    for line in _commands(code):
        for target in re.findall(r"(?:^|&& |; )make ((?:[A-Z_]+=\S+ )*)([a-z-]+)", line):
            if target[1] not in _targets(root):
                found.append(f"there is no make {target[1]}")
        for path in re.findall(
            r"(?<![\w./-])((?:tests|tools|bench|examples|docs)/[\w./-]*\w)", line
        ):
            if not (root / path).exists():
                found.append(f"there is no {path}")
        for command in re.finditer(r"(?:^|[ /])pith ([a-z]+)((?: [^|&;]*)?)", line):
            if f'"{command[1]}"' not in _command_texts(root):
                found.append(f"pith has no command {command[1]}")
            own = command[2].split(" -- ")[0]
            found += [
                f"pith {command[1]} has no option {o}"
                for o in re.findall(r"(?<=\s)--[a-z][a-z-]*", own)
                if f"{o}" not in _command_texts(root)
            ]
    return found


@cache
def _python_names(root: Path) -> frozenset[str]:
    return frozenset(
        name
        for module in modules.read_modules(root / "python")
        for name in (module.name, *module.names)
    )


def _python_complaints(root: Path, code: str) -> list[str]:
    try:
        compile(code.replace("…", "..."), "block", "exec")
    except SyntaxError as error:
        return [f"Python cannot read it: {error.msg}, line {error.lineno}"]
    found = []
    names, packages = _python_names(root), set(modules.MODULES)
    for name in re.findall(r"(?<![\w.\"'/])pith(?:\.\w+)+", code):
        parts = name.split(".")
        longest = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in names)
        if longest < len(parts) and ".".join(parts[:longest]) in packages:
            found.append(f"there is no {name}")
    return found


@cache
def _c_names(root: Path) -> frozenset[str]:
    text = "\n".join(path.read_text() for path in (root / "include/pith").glob("*.h"))
    listed = {f"PITH_{name}" for name in re.findall(r"X\((\w+),", text)}
    return frozenset(listed | set(re.findall(r"\b(?:pith|PITH)_\w+", text)))


def _c_complaints(root: Path, code: str) -> list[str]:
    return [
        f"there is no {name}"
        for name in sorted(set(re.findall(r"\b(?:pith|PITH)_\w+", code)) - _c_names(root))
    ]
