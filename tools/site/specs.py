# SPDX-License-Identifier: Apache-2.0
"""docs/specs.md: every method with its parameters, from the same tables as `pith codecs`."""

from __future__ import annotations

import re
import textwrap

HEAD = """# All specs

This page answers: which specs are there, and which parameters has each of them? It is made from the tables that `pith
codecs` shows, by `make specs`; [choosing a method](methods.md) says which to take.

A spec is a chain of parts with slashes between them: memories, transforms, then one codec, as in `ef/hadamard/q:2`.
`ef,store=8/topk:0.01,values=fp16` sets parameters: the first of a method may follow a colon, all others have their
names. Rules give each layer a spec, by patterns of names: `embed*=ef/topk:0.01;*=q:4`. `pith codecs SPEC` explains any
spec or rules, and [format.md](format.md#specs) has the grammar.

Bits are those of a value, for layers of any size; ● marks the sixteen methods of the GRACE survey.
"""
GROUPS = (
    ("codec", "Codecs", "A codec turns values into bytes. Every spec ends with one, or with a preset."),
    ("transform", "Transforms", "A transform stands before a codec, and is undone after it."),
    ("memory", "Memories", "A memory stands first. It keeps something of a layer between steps."),
    ("preset", "Presets", "A preset is a short name for a memory and a codec with their parameters."),
    ("adaptive", "Adaptive specs", "An adaptive spec gives each layer a spec of its own, from what is measured while the model trains ([planner.md](planner.md#in-training))."),
)  # fmt: skip
_KINDS = ("codec", "transform", "memory", "preset")
_TYPES = ("int", "real", "choice", "spec")


def _methods():
    import ctypes

    from pith import _library as c

    text = c.text
    index = 0
    while index < c.lib.pith_method_count():
        method = c.Method()
        c.lib.pith_method_get(index, ctypes.byref(method))
        yield (
            _KINDS[method.kind],
            method,
            text(c.lib.pith_method_detail(index)),
            text(c.lib.pith_method_use(index)),
        )
        index += 1
    index = 0
    while True:
        method = c.Method()
        if c.lib.pith_adaptive_get(index, ctypes.byref(method)) != 0:
            return
        yield "adaptive", method, "", text(c.lib.pith_adaptive_use(index))
        index += 1


def _params(method):
    import ctypes

    from pith import _library as c

    address = ctypes.cast(method.params, ctypes.c_void_p).value
    while address:
        param = c.Param.from_address(address)
        if not param.key:
            return
        yield param
        address += param.size


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _range(param, text) -> str:
    if param.choices and _TYPES[param.type] != "real":
        return ", ".join(f"`{choice}`" for choice in text(param.choices).split("|"))
    if _TYPES[param.type] == "spec":
        return "a spec"
    words = (
        f", {', '.join(f'`{word}`' for word in text(param.choices).split('|'))}"
        if param.choices
        else ""
    )
    return f"{param.min:g} … {param.max:g}{words}"


def _section(kind: str, method, detail: str, use: str) -> list[str]:
    from pith import _library as c

    text = c.text
    name = text(method.name)
    lines = [f"### {name}", "", textwrap.fill(_sentence(text(method.summary)), 120), ""]
    facts = []
    if method.made_of:
        facts.append(
            ("the form is " if kind == "adaptive" else "stands for ") + f"`{text(method.made_of)}`"
        )
    if method.bits:
        facts.append(f"bits of a value: `{text(method.bits)}`")
    if method.survey:
        facts.append("●")
    if method.origin:
        facts.append(f"origin: {text(method.origin)}")
    lines += [textwrap.fill("; ".join(facts) + ".", 120), ""] if facts else []
    if detail:
        lines += [
            textwrap.fill(("Kept: " if kind == "memory" else "Sent: ") + _sentence(detail), 120),
            "",
        ]
    if use:
        lines += [textwrap.fill("Use: " + _sentence(use), 120), ""]
    rows = [
        (text(p.key), text(p.initial) if p.initial else "", _range(p, text), text(p.help))
        for p in _params(method)
    ]
    if rows:
        lines += ["| parameter | default | values | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{key}` | {f'`{initial}`' if initial else 'must be given' if kind != 'adaptive' else ''} | {_cell(values)} | {_cell(told)} |"
            for key, initial, values, told in rows
        ]
        lines.append("")
    return lines


def _sentence(text: str) -> str:
    return text if re.search(r"[.!?]$", text) else text + "."


def page() -> str:
    found = list(_methods())
    lines = [HEAD]
    for kind, title, about in GROUPS:
        lines += [f"## {title}", "", textwrap.fill(about, 120), ""]
        for entry in found:
            if entry[0] == kind:
                lines += _section(*entry)
    return "\n".join(lines).rstrip() + "\n"
