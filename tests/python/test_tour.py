# SPDX-License-Identifier: Apache-2.0
"""docs/tour.md names files and functions: each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/tour.md").read_text()
SECTIONS = PAGE.split("\n## ")[1:]
WALKS, MAP = SECTIONS[:-1], SECTIONS[-1]
SCREEN = 40  # lines of a section

_CODE = re.compile(r"`([^`]+)`")
_STEP = re.compile(r"(\S+\.(?:c|h|cu|cuh|py)):\s+([\w.]+)\(\)")
_CALL = re.compile(r"([\w.]+)\(\)")
_PATH = re.compile(r"\b((?:src|include|cuda|modules|python|tests|tools)/[\w./-]*\w)")


def _named(text: str) -> list[tuple[str, str]]:
    """File and function of each step. A function without a file is one of the last file that was named, or of any before it."""
    found = []
    seen: list[str] = []
    for code in _CODE.findall(text):
        step, call = _STEP.fullmatch(code), _CALL.fullmatch(code)
        if step:
            seen.append(step[1])
            found.append((step[1], step[2]))
        elif call:
            files = [file for file in reversed(seen) if _defines(file, call[1])]
            assert files, f"{call[1]}() is in none of the files named before it: {seen}"
            found.append((files[0], call[1]))
    return found


def _defines(file: str, name: str) -> bool:
    path = ROOT / file
    if not path.is_file():
        return False
    text = path.read_text()
    return _defines_python(text, name) if path.suffix == ".py" else _defines_c(text, name)


def _defines_c(text: str, name: str) -> bool:
    """A line that begins with a type, and a body behind the arguments."""
    for found in re.finditer(rf"^(?![\s#/*]).*\b{re.escape(name)}\(", text, re.M):
        body = re.search(r"[;{]", text[found.end() :])
        if body and body[0] == "{":
            return True
    return False


def _defines_python(text: str, name: str) -> bool:
    scope: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        inside = [
            node
            for node in scope
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == part
        ]
        if not inside:
            return False
        scope = inside[0].body
    return True


@pytest.mark.parametrize("section", WALKS, ids=lambda section: section.partition("\n")[0])
def test_every_function_exists(section: str) -> None:
    named = _named(section)
    assert len(named) > 10
    missing = [f"{file}: {name}()" for file, name in named if not _defines(file, name)]
    assert not missing


@pytest.mark.parametrize("section", WALKS, ids=lambda section: section.partition("\n")[0])
def test_a_walk_fits_on_a_screen(section: str) -> None:
    assert len(section.splitlines()) <= SCREEN


def test_every_file_and_folder_exists() -> None:
    paths = set(_PATH.findall(PAGE))
    assert len(paths) > 50
    assert not sorted(path for path in paths if not (ROOT / path).exists())


def test_the_map_has_every_layer() -> None:
    lines = (ROOT / "tools/layers").read_text().splitlines()
    layers = [line.split()[0] for line in lines if line and not line.startswith("#")]
    listed = re.findall(r"^\| (.+?) \|", MAP, re.M)
    folders = {folder for row in listed for folder in row.split(", ")}
    wanted = [f"src/{layer}" if (ROOT / "src" / layer).is_dir() else layer for layer in layers]
    assert len(wanted) > 10
    assert not [folder for folder in wanted if folder not in folders and "/cli/" not in folder]
    ordered = [folder for folder in wanted if "/cli/" not in folder]
    assert ordered == [folder for row in listed for folder in row.split(", ") if folder in ordered]


def test_the_check_finds_what_is_missing() -> None:
    assert _defines("src/codec/quantize.c", "q_encode")
    assert not _defines("src/codec/quantize.c", "q_decodes")
    assert not _defines("src/codec/quantize.c", "pith__kernels")  # called there, defined elsewhere
    assert not _defines("src/kernel/kernel.h", "pith__kernels")  # declared there
    assert _defines("python/pith/_reducer.py", "Reducer.start_at")
    assert not _defines("python/pith/_reducer.py", "Reducer.begin")
