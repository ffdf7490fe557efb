# SPDX-License-Identifier: Apache-2.0
"""From what a user wrote to rules, and whether they fit the layers there are."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from ._adapt import rules_from
from ._codec import Codec, Rules
from ._errors import ArgumentError, SpecError
from ._plan import Plan

Spec = str | Codec | Rules | Plan


def rules_of(spec: Spec | None, rules: str | Rules | None, plan: Any) -> Rules:
    """One of the three: a spec (or anything else that says it), rules, or a plan (or the name of its file)."""
    given = [name for name, value in (("rules", rules), ("plan", plan)) if value is not None]
    if len(given) > 1:
        raise ArgumentError("rules and plan say the same thing: give one of them")
    what: Any = rules if rules is not None else plan if plan is not None else spec
    if isinstance(plan, (str, os.PathLike)):
        what = Plan.load(plan)
    if isinstance(what, Rules):
        return what
    if isinstance(what, Plan):
        return Rules(what.text)
    if isinstance(what, Codec):
        return Rules(what.spec)
    if isinstance(what, str):
        return rules_from(what)
    raise ArgumentError(f"{what!r} is no spec: a text such as 'q:4', pith.Rules or a pith.Plan is")


def texts_of(rules: Rules) -> list[str]:
    """The rules one by one."""
    return [text.strip() for text in rules.text.split(";") if text.strip()]


def check_rules(rules: Rules, names: Collection[str]) -> None:
    """A rule that matches no layer is probably a slip."""
    for index, text in enumerate(texts_of(rules)):
        if not any(rules.matches(index, name) for name in names):
            some = ", ".join(list(names)[:3])
            raise SpecError(
                f'the rule "{text}" matches none of the {len(names)} layers of the model ({some}, …)'
            )
