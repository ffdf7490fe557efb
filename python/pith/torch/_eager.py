# SPDX-License-Identifier: Apache-2.0
"""Keeps torch.compile out of Pith's own functions.

The backend is Python between torch and C: its functions pass addresses to C and have nothing to compile. Dynamo would trace them all the same, where
gloo's are C++. So all of them are marked: compiled code calls them as they are, and what it does around them stays compiled. Nothing is wrapped, so
calls cost nothing more.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

_REASON = "Pith's functions call C and have nothing to compile"


def _functions(owner: Any) -> Iterator[types.FunctionType]:
    """Those that a module or a class defines."""
    name = owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__
    for value in list(vars(owner).values()):
        if isinstance(value, property):
            yield from (f for f in (value.fget, value.fset) if isinstance(f, types.FunctionType))
            continue
        value = getattr(value, "__func__", value)  # of static and class methods
        if isinstance(value, types.FunctionType) and value.__module__ == name:
            yield value
        elif isinstance(value, type) and value.__module__ == name:
            yield from _functions(value)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def keep_eager(package: str) -> None:
    """Marks all functions of the package's modules that are loaded."""
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    for name, module in list(sys.modules.items()):
        if name != package and not name.startswith(f"{package}."):
            continue
        for function in _functions(module):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where Dynamo would trace a call
            function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]
            for code in _codes(function.__code__):  # where it sees a frame begin
                frames.set_code_exec_strategy(code, skip)
