"""The foreign call as a primitive of JAX: how it is lowered, and what is refused.

The call has a side effect for XLA, which then neither drops it nor makes it twice. For JAX it has none: calls are ordered by their tokens,
and programs with effects are dispatched by Python, which takes milliseconds for the arrays of a large model.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._errors import UnsupportedError

TARGET = "pith_allreduce"  # the name of the handler in XLA

_primitive = Primitive(TARGET)
_primitive.multiple_results = True


def call(key: int, operands: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    """The results of a call, one for each operand. ``before`` is only waited for."""
    return list(_primitive.bind(*operands, *before, reducer=key, results=len(operands)))


@_primitive.def_abstract_eval
def _types(*operands: Any, reducer: int, results: int) -> list[Any]:
    del reducer
    return list(operands[:results])


@functools.lru_cache(maxsize=256)
def _compiled(reducer: int, results: int) -> Any:
    return jax.jit(lambda *operands: _primitive.bind(*operands, reducer=reducer, results=results))


@_primitive.def_impl
def _run(*operands: Any, reducer: int, results: int) -> Any:
    """Outside of jit."""
    return _compiled(reducer, results)(*operands)


def _lower(context: Any, *operands: Any, reducer: int, results: int) -> Any:
    """Results have the buffers of their operands."""
    where = context.module_context.axis_context  # of jit, or of shard_map
    mesh = getattr(where, "mesh", None)
    devices = int(getattr(where, "num_devices", None) or getattr(mesh, "size", None) or 1)
    if devices > 1:
        raise UnsupportedError(
            f"the program is for {devices} devices, and pith.jax.allreduce is for one: a rank is a process with one device; start a process "
            "for each device, or keep the arrays of the step on one"
        )
    aliases = {i: i for i in range(results)}
    lower = jax.ffi.ffi_lowering(TARGET, has_side_effect=True, operand_output_aliases=aliases)
    return lower(context, *operands, key=np.int64(reducer))


def _refuse(what: str) -> Any:
    def refuse(*_arguments: Any, **_parameters: Any) -> Any:
        raise UnsupportedError(f"pith.jax.allreduce cannot be {what}: call it outside of that")

    return refuse


mlir.register_lowering(_primitive, _lower, platform="cpu")
mlir.register_lowering(_primitive, _lower, platform="cuda")
batching.primitive_batchers[_primitive] = _refuse("batched (jax.vmap)")
ad.primitive_jvps[_primitive] = _refuse("differentiated (jax.grad)")
