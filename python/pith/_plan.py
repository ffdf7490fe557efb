# SPDX-License-Identifier: Apache-2.0
"""Plans: one spec for each layer, in a file that people read and edit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ._codec import Rules, codec_of, tally
from ._errors import ArgumentError, Error, SpecError

_VERSION = 1
_ABOUT = ("note", "method", "objective", "reference", "metric")  # texts of the head
_RESERVED = set("*?[]=,;\n")  # of the grammar of rules


@dataclass
class PlanLayer:
    """A layer of a plan."""

    name: str
    spec: str
    shape: tuple[int, ...] = ()
    bytes: int | None = None  # of a payload
    share: float | None = None  # of the error budget


@dataclass(repr=False)
class Plan:
    """Rules with one spec for each layer. Layers that a plan does not name get ``default``.

    The file is JSON with a line for each layer::

        {
          "pith_plan": 1,
          "note": "made by hand",
          "default": "none",
          "layers": [
            {"name": "embed.weight", "spec": "ef/topk:0.01", "shape": [50257, 768]},
            {"name": "fc1.weight", "spec": "q:4", "shape": [512, 784]}
          ]
        }

    Plans that the planner made (``pith plan make``) also say how: method, objective, the spec whose error is the budget, and
    the budget itself; layers then have their bytes and their share of the budget.
    """

    layers: list[PlanLayer] = field(default_factory=list)
    default: str = "none"
    note: str = ""
    method: str = ""
    objective: str = ""
    reference: str = ""
    metric: str = ""  # of errors; "" is l2sq
    budget: float | None = None

    def __repr__(self) -> str:
        specs = tally(layer.spec for layer in self.layers)
        return f"<pith.Plan of {len(self.layers)} layers{': ' + specs if specs else ''}; default {self.default}>"

    @classmethod
    def from_rules(
        cls, rules: str | Rules, layers: Iterable[tuple[str, Sequence[int]]], note: str = ""
    ) -> Plan:
        """The specs that rules give these layers (name, shape), as a plan to edit."""
        parsed = rules if isinstance(rules, Rules) else Rules(rules)
        chosen = [
            PlanLayer(name, parsed.find(name, shape).spec, tuple(shape)) for name, shape in layers
        ]
        return cls(chosen, note=note)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads and checks a plan file."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise SpecError(f"{path} is not a plan: {error}") from None
        try:
            return cls._from_json(data)
        except Error as error:
            raise SpecError(f"{path}: {error}") from None

    @classmethod
    def _from_json(cls, data: object) -> Plan:
        if not isinstance(data, dict) or data.get("pith_plan") != _VERSION:
            raise SpecError(f'a plan is a JSON object with "pith_plan": {_VERSION}')
        unknown = set(data) - {"pith_plan", "default", "layers", *_ABOUT, "budget"}
        if unknown:
            raise SpecError(
                f"a plan has no {', '.join(sorted(unknown))}: pith_plan, note, method, objective, reference, metric, budget, "
                "default, layers"
            )
        layers = data.get("layers", [])
        if not isinstance(layers, list):
            raise SpecError("layers is a list with one object for each layer")
        about = {key: data.get(key, "") for key in _ABOUT}
        plan = cls(
            [_layer(entry) for entry in layers],
            data.get("default", "none"),
            budget=data.get("budget"),
            **about,
        )
        plan.check()
        return plan

    def check(self) -> None:
        """Raises if a name appears twice or cannot be a rule, or if a spec is wrong; the message names the layer."""
        seen = set()
        for layer in self.layers:
            if not layer.name or _RESERVED & set(layer.name) or layer.name != layer.name.strip():
                raise ArgumentError(
                    f"{layer.name!r} cannot be a layer of a plan: names have none of * ? [ ] = , ;"
                )
            if layer.name in seen:
                raise ArgumentError(f"layer {layer.name} comes twice")
            seen.add(layer.name)
            _check_spec(layer.spec, f"layer {layer.name}")
        _check_spec(self.default, "default")

    @property
    def text(self) -> str:
        """The plan as rules."""
        self.check()
        rules = [f"{layer.name}={layer.spec}" for layer in self.layers]
        return ";".join([*rules, f"*={self.default}"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file atomically."""
        self.check()
        target = Path(path)
        fresh = target.with_name(target.name + ".new")
        fresh.write_text(self.to_json(), encoding="utf-8")
        fresh.replace(target)

    def to_json(self) -> str:
        """The text of the file: one line for each layer."""
        lines = [json.dumps(_entry(layer), ensure_ascii=False) for layer in self.layers]
        head: dict[str, object] = {"pith_plan": _VERSION, "note": self.note}
        head |= {key: getattr(self, key) for key in _ABOUT[1:] if getattr(self, key)}
        head |= {"budget": self.budget} if self.budget is not None else {}
        head["default"] = self.default
        fields = [
            f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in head.items()
        ]
        layers = ",\n".join(f"    {line}" for line in lines)
        fields.append(f'  "layers": [\n{layers}\n  ]' if lines else '  "layers": []')
        return "{\n" + ",\n".join(fields) + "\n}\n"


def _entry(layer: PlanLayer) -> dict[str, object]:
    entry: dict[str, object] = {"name": layer.name, "spec": layer.spec}
    entry |= {"shape": list(layer.shape)} if layer.shape else {}
    entry |= {"bytes": layer.bytes} if layer.bytes is not None else {}
    return entry | ({"share": layer.share} if layer.share is not None else {})


def _layer(entry: object) -> PlanLayer:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise SpecError(f"{entry!r} is not a layer: it needs a name and a spec")
    if not isinstance(entry.get("spec"), str):
        raise SpecError(f"layer {entry['name']} has no spec")
    unknown = set(entry) - {"name", "spec", "shape", "bytes", "share"}
    if unknown:
        raise SpecError(
            f"layer {entry['name']} has no {', '.join(sorted(unknown))}: name, spec, shape, bytes, share"
        )
    shape = tuple(entry.get("shape", ()))
    return PlanLayer(entry["name"], entry["spec"], shape, entry.get("bytes"), entry.get("share"))


def _check_spec(spec: str, where: str) -> None:
    try:
        codec_of(spec)
    except Error as error:
        raise type(error)(f"{where}: {error}") from None
