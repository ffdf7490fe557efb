# SPDX-License-Identifier: Apache-2.0
"""The public Python objects as reference, read from the sources by griffe: nothing is imported, so that no framework has to be there."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import griffe

MODULES = (
    "pith", "pith.torch", "pith.torch.accelerate", "pith.torch.transformers", "pith.torch.lightning", "pith.jax", "pith.tensorflow", "pith.keras",
    "pith.eval",
)  # fmt: skip


@dataclass
class Object:
    """A function, class, method or attribute."""

    path: str  # as users write it: "pith.Comm.allreduce"
    kind: str
    signature: str
    text: str
    where: str  # file and line, for complaints
    members: list[Object] = field(default_factory=list)


@dataclass
class Module:
    name: str
    about: str
    objects: list[Object]

    @property
    def names(self) -> set[str]:
        found = {o.path for o in self.objects}
        return found | {m.path for o in self.objects for m in o.members}


def read_modules(folder: Path) -> list[Module]:
    loader = griffe.GriffeLoader(search_paths=[str(folder)])
    package = loader.load("pith")
    loader.resolve_aliases(implicit=False, external=False)
    return [
        _module(package if name == "pith" else package[name.removeprefix("pith.")], name, folder)
        for name in MODULES
    ]


def _module(module: Any, name: str, folder: Path) -> Module:
    exported = [str(e) for e in module.exports] if module.exports is not None else _own(module)
    objects = []
    for public in sorted(exported, key=lambda text: (text[0].islower(), text.lower())):
        found = module.members.get(public) or _lent(module, public)
        if found is None:
            raise ValueError(f"{name}.__all__ has {public}, which is not there")
        objects.append(_object(found, f"{name}.{public}", folder))
    return Module(name, _doc(module), objects)


def _lent(module: Any, name: str) -> Any:
    """What pith.tensorflow takes from pith.keras at its first use."""
    keras = module.package.members["keras"]
    return keras.members.get(name) if name in (keras.exports or ()) else None


def _own(module: Any) -> list[str]:
    return [
        n
        for n, m in module.members.items()
        if not n.startswith("_") and not m.is_alias and (m.is_class or m.is_function)
    ]


def _doc(target: Any) -> str:
    return inspect.cleandoc(target.docstring.value) if target.docstring else ""


def _object(given: Any, path: str, folder: Path) -> Object:
    target = given.final_target if given.is_alias else given
    where = f"{Path(str(target.filepath)).relative_to(folder.parent)}:{target.lineno}"
    made = Object(
        path, target.kind.value, _signature(target, path.rpartition(".")[2]), _doc(target), where
    )
    if target.is_class:
        made.members = [
            _object(member, f"{path}.{name}", folder) for name, member in _public_members(target)
        ]
    return made


def _public_members(target: Any):
    """Its own, and those of base classes of the package."""
    for name, member in target.all_members.items():
        final = member.final_target if member.is_alias else member
        if name.startswith("_") or not final.path.startswith("pith"):
            continue
        if final.is_function or final.is_class or "property" in final.labels:
            yield name, member


def _signature(target: Any, name: str) -> str:
    if target.is_attribute:
        annotation = f": {target.annotation}" if target.annotation else ""
        return f"{name}{annotation}"
    function = target
    if target.is_class:
        function = target.all_members.get("__init__")
        fields = [
            m
            for m in target.members.values()
            if m.is_attribute and m.annotation and "property" not in m.labels
        ]
        if function is None and fields:
            shown = (
                f"{m.name}: {m.annotation}"
                + (f" = {m.value}" if m.value and "field(" not in str(m.value) else "")
                for m in fields
            )
            return f"class {name}({', '.join(shown)})"
        if function is None or not getattr(function, "parameters", None):
            bases = ", ".join(str(base) for base in target.bases)
            return f"class {name}({bases})" if bases else f"class {name}"
    parts: list[str] = []
    star = False
    for p in function.parameters:
        if p.name in ("self", "cls"):
            continue
        kind = p.kind.value if p.kind else ""
        if kind == "keyword-only" and not star:
            parts.append("*")
            star = True
        prefix = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        star = star or prefix == "*"
        text = prefix + p.name + (f": {p.annotation}" if p.annotation else "")
        if p.default is not None and not prefix:
            text += f" = {p.default}" if p.annotation else f"={p.default}"
        parts.append(text)
    result = (
        f" -> {function.returns}"
        if getattr(function, "returns", None) and not target.is_class
        else ""
    )
    return f"{'class ' if target.is_class else ''}{name}({', '.join(parts)}){result}"


def to_markdown(text: str) -> str:
    """A docstring as Markdown: double backticks, `::` before code, and roles such as :class:`X`."""
    text = re.sub(r":(?:class|func|meth|mod|attr):`~?([^`]+)`", r"`\1`", text)
    text = text.replace("``", "`")
    return re.sub(r"::\n", ":\n", text + "\n").strip()


def complaints(folder: Path) -> list[str]:
    found = []
    for module in read_modules(folder):
        if not module.about:
            found.append(f"{module.name}: no docstring says what the module is for")
        for o in module.objects:
            found += [
                f"{x.where}: {x.path} has no docstring"
                for x in (o, *o.members)
                if not x.text and x.kind != "attribute"
            ]
    return sorted(set(found))
