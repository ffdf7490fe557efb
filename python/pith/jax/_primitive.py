# SPDX-License-Identifier: Apache-2.0
"""The foreign calls as a primitive of JAX: how it is lowered, and what is refused.

A call has a side effect for XLA, which then neither drops it nor makes it twice. For JAX it has none: calls are ordered by their tokens,
and programs with effects are dispatched by Python, which takes milliseconds for the arrays of a large model.
"""

from __future__ import annotations

import collections
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir import ir

from .._errors import UnsupportedError
from ._parts import Operands, parts_of

TARGET = "pith_allreduce"  # the name of the handler in XLA
FINISH = -1  # the number of the call that finishes a step; those that start layers are 0, 1, …

_primitive = Primitive(TARGET)
_primitive.multiple_results = True


def call(
    key: int,
    token: Any,
    values: Sequence[Any],
    kept: Sequence[Sequence[Any]],
    before: Sequence[Any],
) -> tuple[Any, list[Any], list[list[Any]]]:
    """Token, values and kept arrays of each value after a step. ``before`` is only waited for."""
    arrays = [array for of in kept for array in of]
    counts = tuple(len(of) for of in kept)
    token, *rest = _primitive.bind(token, *values, *arrays, *before, reducer=key, counts=counts)
    means, after = rest[: len(values)], iter(rest[len(values) :])
    return token, means, [[next(after) for _ in of] for of in kept]


@_primitive.def_abstract_eval
def _types(*operands: Any, reducer: int, counts: tuple[int, ...]) -> list[Any]:
    del reducer
    return list(operands[: Operands(counts).total])


@functools.lru_cache(maxsize=256)
def _compiled(reducer: int, counts: tuple[int, ...]) -> Any:
    return jax.jit(lambda *operands: _primitive.bind(*operands, reducer=reducer, counts=counts))


@_primitive.def_impl
def _run(*operands: Any, reducer: int, counts: tuple[int, ...]) -> Any:
    """Outside of jit."""
    return _compiled(reducer, counts)(*operands)


def _emit(
    context: Any, operands: list[Any], avals: list[Any], results: int, **attributes: Any
) -> list[Any]:
    """One foreign call. Results have the buffers of their operands, but the token has its own: it is small, and goes through all calls."""
    lower = jax.ffi.ffi_lowering(
        TARGET, has_side_effect=True, operand_output_aliases={i: i for i in range(1, results)}
    )
    inside = context.replace(avals_in=avals, avals_out=avals[:results])
    return list(lower(inside, *operands, **attributes))


def _lower(
    context: Any, *operands: Any, platform: str, reducer: int, counts: tuple[int, ...]
) -> Any:
    """One call for the whole step; or several that start leaves as soon as their gradients are there, and one that finishes.

    Each call gives what it was given, and only the next one takes that: nobody else sees values that are under way.
    """
    _refuse_several_devices(context)
    number = Operands(counts)
    values, avals, key = list(operands), list(context.avals_in), np.int64(reducer)
    parts = parts_of(operands, avals, number, platform) if _in_main() else []
    if len(parts) < 2:
        return _emit(context, values, avals, number.total, key=key)
    order = np.array([leaf for part in parts for leaf in part], np.int64)
    for at, part in enumerate(parts):
        taken = number.of(part)
        waited = list(range(number.total, len(values))) if at == 0 else []
        attributes = {"order": order, "site": np.int64(_next_site(reducer))} if at == 0 else {}
        given = _emit(
            context,
            [values[i] for i in taken + waited],
            [avals[i] for i in taken + waited],
            len(taken),
            key=key,
            part=np.int64(at),
            layers=np.array(part, np.int64),
            **attributes,
        )
        for place, value in zip(taken, given, strict=True):
            values[place] = value
    return _emit(
        context,
        values[: number.total],
        avals[: number.total],
        number.total,
        key=key,
        part=np.int64(FINISH),
    )


def _in_main() -> bool:
    """Whether the call stands in the program itself. In loops XLA moves buffers that are under way; functions may be called in loops."""
    try:
        around = ir.InsertionPoint.current.block.owner
        return str(around.attributes["sym_name"]) == '"main"'
    except (KeyError, AttributeError, ValueError):
        return False


_sites: collections.Counter[int] = collections.Counter()  # by reducer: programs that were lowered


def _next_site(reducer: int) -> int:
    _sites[reducer] += 1
    return _sites[reducer]


def _refuse_several_devices(context: Any) -> None:
    where = context.module_context.axis_context  # of jit, or of shard_map
    mesh = getattr(where, "mesh", None)
    devices = int(getattr(where, "num_devices", None) or getattr(mesh, "size", None) or 1)
    if devices > 1:
        raise UnsupportedError(
            f"the program is for {devices} devices, and pith.jax.allreduce is for one: a rank is a process with one device; start a process "
            "for each device, or keep the arrays of the step on one"
        )


def _refuse(what: str) -> Any:
    def refuse(*_arguments: Any, **_parameters: Any) -> Any:
        raise UnsupportedError(f"pith.jax.allreduce cannot be {what}: call it outside of that")

    return refuse


# Some versions of JAX lower each call in a function of its own, unless told otherwise: there nothing shows when its operands are ready.
_in_place: dict[str, Any] = (
    {"cacheable": False}
    if "cacheable" in inspect.signature(mlir.register_lowering).parameters
    else {}
)
for _platform in ("cpu", "cuda"):
    _rule = functools.partial(_lower, platform=_platform)
    mlir.register_lowering(_primitive, _rule, platform=_platform, **_in_place)
batching.primitive_batchers[_primitive] = _refuse("batched (jax.vmap)")
ad.primitive_jvps[_primitive] = _refuse("differentiated (jax.grad)")
