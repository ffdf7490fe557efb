# SPDX-License-Identifier: Apache-2.0
"""The public C headers as reference: every function, struct, enum, type and macro with the comment that explains it.

The headers are written in one style, and this reads that style alone: a comment directly above a declaration explains it, and the declarations
that follow without a blank line (a pair such as _create and _destroy shares one comment); a comment between blank lines is prose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

PAGES = (
    "types.h", "codec.h", "comm.h", "carrier.h", "optimizer.h", "plan.h", "adapt.h", "sim.h", "cuda.h", "xla.h", "mpi.h", "plugin.h", "pith.h",
)  # fmt: skip
_INTERNAL = ("PITH_API",)  # how a function is exported says nothing to a reader
_SECTION = re.compile(r"/\* -{4} (.+?) -+ \*/")


@dataclass
class Item:
    """Declarations that share a comment, a heading, or prose."""

    kind: str  # "section", "prose", "function", "struct", "enum", "type", "macro"
    names: list[str] = field(default_factory=list)
    code: str = ""
    text: str = ""
    line: int = 0
    bare: list[str] = field(default_factory=list)  # of the names: those that no comment explains


@dataclass
class Header:
    name: str
    about: str
    items: list[Item]

    @property
    def names(self) -> set[str]:
        return {name for item in self.items for name in item.names}


def read_headers(folder: Path) -> list[Header]:
    known = {path.name for path in folder.glob("*.h")}
    order = [name for name in PAGES if name in known] + sorted(known - set(PAGES))
    return [read_header(folder / name) for name in order]


def read_header(path: Path) -> Header:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^/\* SPDX-.*?\*/\n", lambda found: "\n" * found[0].count("\n"), text)
    head = re.match(r"\s*/\*.*?\*/", text, re.S)
    if head is None:
        raise ValueError(f"{path.name}: no comment says what the header is for")
    body = text[head.end() :]
    return Header(
        path.name, clean(head[0]), list(_items(_pieces(body, text[: head.end()].count("\n") + 1)))
    )


def clean(comment: str) -> str:
    """The text of a comment without its frame; indented lines keep their indent."""
    inner = comment.strip()[2:-2]
    lines = [re.sub(r"^ ?\* ?", "", line.rstrip()) for line in inner.split("\n")]
    return "\n".join(
        re.sub(r"^ (?=\S)", "", line) if i == 0 else line for i, line in enumerate(lines)
    ).strip("\n ")


# ---- From characters to pieces ---------------------------------------------------------------------------------------


@dataclass
class _Piece:
    kind: str  # "comment", "blank", "directive", "declaration"
    text: str
    line: int
    behind: str = ""  # a comment on the last line of a declaration


def _declaration_end(text: str, at: int) -> int:
    """Behind the `;` that ends it, or behind the body of an inline function."""
    depth = 0
    while at < len(text):
        if text.startswith("/*", at):
            at = text.index("*/", at) + 2
            continue
        char = text[at]
        depth += (char in "({") - (char in ")}")
        at += 1
        if depth == 0 and (
            char == ";"
            or char == "}"
            and not re.match(r"\s*\w*\s*[;,]|\s*\w+ *\[", text[at : at + 80])
        ):
            return at
    raise ValueError(f"a declaration does not end: {text[at - 80 : at]!r}")


def _pieces(text: str, line: int) -> list[_Piece]:
    found: list[_Piece] = []
    at = 0
    while at < len(text):
        start = at
        if text[at] == "\n":
            at += 1
            if text[start : at + 1] == "\n\n" or start == 0:
                found.append(_Piece("blank", "", line))
        elif text[at] in " \t":
            at += 1
        elif text.startswith("/*", at):
            at = text.index("*/", at) + 2
            found.append(_Piece("comment", text[start:at], line))
        elif text[at] == "#":
            match = re.compile(r"(?:[^\n\\]|\\\n|\\.)*").match(text, at)
            assert match is not None
            at = match.end()
            found.append(_Piece("directive", text[start:at], line))
        elif text.startswith('extern "C" {', at) or text[at] == "}":
            at = text.index("\n", at)
        else:
            at = _declaration_end(text, at)
            piece = _Piece("declaration", text[start:at], line)
            behind = re.compile(r"[ \t]*(/\*.*?\*/)", re.S).match(text, at)
            if behind is not None:
                piece.behind, at = behind[1], behind.end()
            found.append(piece)
        line += text.count("\n", start, at)
    return found


# ---- From pieces to items --------------------------------------------------------------------------------------------


def _kind_and_name(piece: _Piece) -> tuple[str, str] | None:
    text = re.sub(r"/\*.*?\*/", "", piece.text, flags=re.S)
    if piece.kind == "directive":
        macro = re.match(r"#\s*define (PITH_\w+)", text)
        if macro is None or macro[1] in _INTERNAL or re.fullmatch(r"PITH_\w*H", macro[1]):
            return None
        return "macro", macro[1]
    if text.startswith("enum {"):
        return "enum", " ".join(re.findall(r"\bPITH_\w+", text))
    for kind, pattern in (
        ("struct", r"typedef (?:struct|union) \w+ \{.*\} (\w+);"),
        ("enum", r"typedef enum \w+ \{.*\} (\w+);"),
        ("type", r"typedef struct \w+ (\w+);"),
        ("type", r"typedef .*\(\*?(\w+)\)\(.*\);"),
        ("function", r"(?:PITH_API|static inline) [^(]*?\b(\w+)\("),
    ):
        found = re.match(pattern, text, re.S)
        if found:
            return kind, found[1]
    raise ValueError(f"line {piece.line}: not understood: {piece.text[:80]!r}")


def _code(piece: _Piece) -> str:
    """The declaration as a program sees it."""
    text = piece.text
    if text.startswith("static inline"):
        text = text[: text.index("{")].rstrip() + ";"
    text = re.sub(r"^PITH_API ", "", text)
    text = re.sub(r"\n#if .*?#endif\n\s*", "", text, flags=re.S)
    indent = " " * len("PITH_API ")
    if piece.text.startswith("PITH_API "):
        text = text.replace("\n" + indent, "\n")
    return text + (" " + piece.behind if piece.behind else "")


def _items(pieces: list[_Piece]):
    lists = {
        found[1]: piece.text
        for piece in pieces
        if piece.kind == "directive"
        and (found := re.match(r"#define (PITH_\w+_LIST)\(X\)", piece.text))
    }
    comment: _Piece | None = None
    current: Item | None = None
    for piece in [*pieces, _Piece("blank", "", 0)]:
        if piece.kind == "comment":
            if comment is not None:
                yield Item("prose", text=clean(comment.text), line=comment.line)
            section = _SECTION.fullmatch(piece.text.strip())
            if current is not None:
                yield current
                current = None
            if section:
                yield Item("section", text=section[1].strip(), line=piece.line)
            comment = None if section else piece
        elif piece.kind == "blank":
            if current is not None:
                yield current
                current = None
            if comment is not None:
                yield Item("prose", text=clean(comment.text), line=comment.line)
                comment = None
        else:
            named = _kind_and_name(piece)
            if named is None:
                continue
            kind, name = named
            if current is None:
                current = Item(kind, line=piece.line, text=clean(comment.text) if comment else "")
                comment = None
            if kind == "function" or current.kind == "macro":
                current.kind = kind
            current.names += name.split()
            if not current.text and not piece.behind:
                current.bare += name.split()
            current.code += ("\n" if current.code else "") + _expand(_code(piece), lists)


def _expand(code: str, lists: dict[str, str]) -> str:
    """An enum whose values come from a list of X(name, value, text), with its values."""
    used = re.search(r"^#define \w+.*?^\s*(PITH_\w+_LIST)\(\w+\)\n#undef \w+\n", code, re.S | re.M)
    if used is None:
        return code
    rows = re.findall(r'X\((\w+), (\d+), "(.*?)"\)', lists[used[1]])
    values = "".join(f"  PITH_{name} = {value}, /* {text} */\n" for name, value, text in rows)
    return code[: used.start()] + values + code[used.end() :]


# ---- What is missing -------------------------------------------------------------------------------------------------


def complaints(folder: Path) -> list[str]:
    """Public things without a comment, and functions that this reader overlooks."""
    found = []
    for header in read_headers(folder):
        text = (folder / header.name).read_text(encoding="utf-8")
        for item in header.items:
            names = [name for name in item.bare if not _is_initializer(name, header)]
            found += [
                f"include/pith/{header.name}:{item.line}: no comment says what {name} is"
                for name in names
            ]
        declared = set(re.findall(r"^PITH_API [^(;]*?(\w+)\(", text, re.M))
        found += [
            f"include/pith/{header.name}: {name} is not in the reference"
            for name in sorted(declared - header.names)
        ]
    return found


def _is_initializer(name: str, header: Header) -> bool:
    """types.h explains PITH_…_INIT for all structs."""
    return name.endswith("_INIT") and name.removesuffix("_INIT").lower() in header.names
