# SPDX-License-Identifier: Apache-2.0
"""The outer step of local steps: an optimizer of torch, whose gradients are means of what ranks have moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .._errors import ArgumentError

Outer = str | Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

_KINDS = {  # arguments of torch.optim.SGD; those of DiLoCo for "nesterov"
    "average": {"lr": 1.0},
    "nesterov": {"lr": 0.7, "momentum": 0.9},
}


def make_outer(outer: Outer, start: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of ``"average"``, ``"nesterov"`` (with options: ``"nesterov,lr=0.5,momentum=0.8"``), or the one a function makes."""
    if isinstance(outer, str):
        return _named(outer, start)
    if not callable(outer):
        raise ArgumentError(f'outer={outer!r} is neither "average", "nesterov" nor a function')
    try:
        made = outer(list(start))
    except Exception as error:  # on one rank only, the others would wait
        raise ArgumentError(
            f"outer could not make its optimizer: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise ArgumentError(f"outer made {type(made).__name__}, which is not an optimizer of torch")
    if {id(p) for group in made.param_groups for p in group["params"]} != {id(p) for p in start}:
        raise ArgumentError("outer made an optimizer of other parameters than it was given")
    return made


def _named(text: str, start: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    kind, *settings = (part.strip() for part in text.split(","))
    if kind not in _KINDS:
        raise ArgumentError(
            f'outer="{text}" is unknown: "average", "nesterov" or a function is possible'
        )
    options = dict(_KINDS[kind])
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in options:
            raise ArgumentError(
                f'outer="{text}": {kind} has no option {name!r}, only {", ".join(options)}'
            )
        try:
            options[name] = float(value)
        except ValueError:
            raise ArgumentError(f'outer="{text}": {value!r} is no number') from None
    try:
        return torch.optim.SGD(start, nesterov=kind == "nesterov", **options)  # type: ignore[arg-type]
    except ValueError as error:
        raise ArgumentError(f'outer="{text}": {error}') from None
