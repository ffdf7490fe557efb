"""From what a user wrote to rules."""

from __future__ import annotations

import os
from typing import Any

from ._adapt import rules_from
from ._codec import Codec, Rules
from ._errors import ArgumentError
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
