# SPDX-License-Identifier: Apache-2.0
"""The reference as pages of Markdown, made from what headers.py and modules.py read; and the page of specs, made from `pith codecs`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import headers
import modules

_CODE = re.compile(r"`[^`]*`")


def _paragraphs(comment: str) -> str:
    """A comment's text as Markdown. Lines that are indented by two or more, and do not belong to a list, are code."""
    out: list[str] = []
    code: list[str] = []
    listed = False

    def flush() -> None:
        if code:
            out.extend(
                ["", "```c", *textwrap.dedent("\n".join(code)).rstrip().split("\n"), "```", ""]
            )
            code.clear()

    for line in comment.split("\n"):
        if re.match(r" ?- ", line):
            flush()
            listed = True
            out.append(
                ("" if not out or out[-1].startswith("- ") else "\n") + "- " + line.strip()[2:]
            )
        elif listed and line.startswith("   "):
            out[-1] += " " + line.strip()
        elif line.startswith("  ") or code and not line.strip():
            code.append(line)
        else:
            flush()
            listed = False
            out.append(line)
    flush()
    return "\n".join(out)


def _linked(text: str, known: dict[str, str], page: str) -> str:
    """Names of functions and types as links to where they are explained."""

    def link(found: re.Match) -> str:
        name = found[1]
        target = known.get(name)
        if target is None:
            return found[0]
        shown = f"`{found[0]}`"
        return f"[{shown}]({'' if target == page else target}#{name.lower()})"

    parts = re.split(r"(```.*?```|`[^`]*`)", text, flags=re.S)
    pattern = re.compile(r"\b(pith_\w+|PITH_[A-Z0-9_]*[A-Z0-9])(?:\(\))?")
    return "".join(
        p
        if p.startswith("`")
        else pattern.sub(link, p.replace("<", "&lt;").replace("*", r"\*").replace("…_", r"…\_"))
        for p in parts
    )


def page_of_header(name: str) -> str:
    return f"c-{name.removesuffix('.h')}.md"


def header_pages(folder: Path) -> dict[str, str]:
    found = headers.read_headers(folder)
    known = {name: page_of_header(h.name) for h in found for name in h.names}
    return {page_of_header(h.name): _header_page(h, known) for h in found}


def _header_page(header: headers.Header, known: dict[str, str]) -> str:
    page = page_of_header(header.name)
    parts = [f"# pith/{header.name}", _linked(_paragraphs(header.about), known, page)]
    for item in header.items:
        if item.kind == "section":
            parts.append(f"## {item.text}")
        elif item.kind == "prose":
            parts.append(_linked(_paragraphs(item.text), known, page))
        elif _is_initializer(item) and parts[-2].startswith("```c"):
            anchors = "".join(f'<a id="{name.lower()}"></a>' for name in item.names)
            parts[-2] = parts[-2].removesuffix("\n```") + f"\n\n{item.code}\n```"
            parts[-1] += anchors
        else:
            anchors = "".join(f'<a id="{name.lower()}"></a>' for name in item.names)
            title = ", ".join(f"`{name}`" for name in item.names[:4])
            parts += [f"### {title}{' …' if len(item.names) > 4 else ''}", anchors]
            parts.append(f"```c\n{item.code}\n```")
            parts.append(_linked(_paragraphs(item.text), known, page))
    return "\n\n".join(parts) + "\n"


def _is_initializer(item: headers.Item) -> bool:
    return all(name.endswith("_INIT") for name in item.names)


def page_of_module(name: str) -> str:
    return f"python-{name.replace('.', '-')}.md"


def module_pages(folder: Path) -> dict[str, str]:
    return {page_of_module(m.name): _module_page(m) for m in modules.read_modules(folder)}


def _wrapped(signature: str) -> str:
    """A signature that is too long for a line, with one parameter on each."""
    if len(signature) < 90 or "(" not in signature:
        return signature
    head, _, rest = signature.partition("(")
    inner, _, result = rest.rpartition(")")
    parts, depth, start = [], 0, 0
    for i, char in enumerate(inner):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(inner[start:i].strip())
            start = i + 1
    parts.append(inner[start:].strip())
    return f"{head}(\n" + "".join(f"    {part},\n" for part in parts if part) + f"){result}"


def _module_page(module: modules.Module) -> str:
    parts = [f"# {module.name}", modules.to_markdown(module.about)]
    for o in module.objects:
        parts += [
            f"## {o.path}",
            f"```python\n{_wrapped(o.signature)}\n```",
            modules.to_markdown(o.text),
        ]
        for m in o.members:
            parts += [
                f"### {m.path.removeprefix(module.name + '.')}",
                f"```python\n{_wrapped(m.signature)}\n```",
                modules.to_markdown(m.text),
            ]
    return "\n\n".join(parts) + "\n"


def index_page(include: Path, python: Path) -> str:
    """Everything public in one list."""
    lines = [
        "# Reference",
        "",
        "This page lists every public function, type and macro of the C library, and every public object of the Python package.",
        "Their texts are the comments of the headers and the docstrings of the sources.",
        "",
        "## Python",
        "",
    ]
    for m in modules.read_modules(python):
        names = ", ".join(
            f"[`{o.path.removeprefix(m.name + '.')}`]({page_of_module(m.name)}#{_anchor(o.path)})"
            for o in m.objects
        )
        lines += [f"**[{m.name}]({page_of_module(m.name)})**: {names}", ""]
    lines += ["## C", ""]
    for h in headers.read_headers(include):
        names = ", ".join(
            f"[`{n}`]({page_of_header(h.name)}#{n.lower()})"
            for i in h.items
            for n in i.names
            if not n.endswith("_INIT")
        )
        lines += [f"**[pith/{h.name}]({page_of_header(h.name)})**: {names}", ""]
    return "\n".join(lines)


def _anchor(path: str) -> str:
    return re.sub(r"[^\w\-]", "", path.lower())
