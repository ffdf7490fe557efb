# SPDX-License-Identifier: Apache-2.0
"""The declarations of the package are those of the C header."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pith import _comm, _errors, _library, _tensors
from pith._codec import Caps

INCLUDE = Path(__file__).resolve().parents[2] / "include"
NAMES = (
    "types.h",
    "codec.h",
    "comm.h",
    "carrier.h",
    "cuda.h",
    "plan.h",
    "sim.h",
    "adapt.h",
    "optimizer.h",
    "xla.h",
    "plugin.h",
)
HEADERS = [INCLUDE / "pith" / name for name in NAMES]


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("there is no C compiler to ask")
    return found


def ask(compiler: str, folder: Path, expressions: list[str]) -> list[int]:
    """The values of C expressions of type size_t or int."""
    lines = "\n".join(f'  printf("%lld\\n", (long long)({e}));' for e in expressions)
    source = folder / "ask.c"
    source.write_text(
        f"#include <pith/pith.h>\n#include <pith/plugin.h>\n#include <stdio.h>\nint main(void) {{\n{lines}\n}}\n"
    )
    subprocess.run(
        [compiler, "-std=c11", f"-I{INCLUDE}", str(source), "-o", str(folder / "ask")], check=True
    )
    answer = subprocess.run([str(folder / "ask")], check=True, capture_output=True, text=True)
    return [int(line) for line in answer.stdout.split()]


@pytest.mark.parametrize("name", _library.STRUCTURES)
def test_structures_have_the_size_and_offsets_of_the_header(
    name: str, compiler: str, tmp_path: Path
) -> None:
    structure = _library.STRUCTURES[name]
    fields = [field[0] for field in structure._fields_]
    expressions = [f"sizeof({name})"] + [f"offsetof({name}, {field})" for field in fields]
    expressions += [f"sizeof((({name} *)0)->{field})" for field in fields]
    expected = [ctypes.sizeof(structure)] + [getattr(structure, field).offset for field in fields]
    expected += [getattr(structure, field).size for field in fields]
    found = dict(zip(expressions, ask(compiler, tmp_path, expressions), strict=True))
    assert found == dict(zip(expressions, expected, strict=True))


@pytest.mark.parametrize("name", _library.STRUCTURES)
def test_structures_have_the_fields_of_the_header(name: str) -> None:
    text = "\n".join(header.read_text() for header in HEADERS)
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", text, re.S)
    assert body is not None
    code = re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.S)
    code = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", code)  # pointers to functions
    declared = [
        re.search(r"(\w+)(?:\[\w+\])?$", part.strip()).group(1)
        for part in re.split("[;,]", code)
        if part.strip()
    ]
    assert [field[0] for field in _library.STRUCTURES[name]._fields_] == declared


def test_every_function_of_the_header_is_declared() -> None:
    declared: set[str] = set()
    for header in HEADERS:
        declared |= set(re.findall(r"PITH_API [^;]*?(pith_\w+)\(", header.read_text()))
    assert declared
    assert declared == set(_library.FUNCTIONS)


def test_numbers_of_enums_are_those_of_the_header(compiler: str, tmp_path: Path) -> None:
    expected = {f"PITH_{name.upper()}": number for number, name in _tensors.NAMES.items()}
    expected |= {f"PITH_{name.upper()}": number for name, number in _comm.REDUCTIONS.items()}
    expected |= {f"PITH_CAP_{cap.name}": cap.value for cap in Caps}
    expected |= {
        f"PITH_ERR_{kind.__name__.removesuffix('Error').upper()}": status
        for status, kind in _errors._BY_STATUS.items()
    }
    found = dict(zip(expected, ask(compiler, tmp_path, list(expected)), strict=True))
    assert found == expected


def test_every_status_has_an_exception() -> None:
    statuses = {int(value) for value in re.findall(r"X\(ERR_\w+, (\d+),", HEADERS[0].read_text())}
    assert statuses == set(_errors._BY_STATUS)
