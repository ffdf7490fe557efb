"""What a compiled program must not do with an allreduce: use several devices, be batched, be differentiated.

The operands of a foreign call go through a primitive that does nothing to them. What JAX asks of it says what becomes of the call.
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._errors import UnsupportedError

_guard = Primitive("pith_guard")
_guard.multiple_results = True
_guard.def_impl(lambda *operands: list(operands))
_guard.def_abstract_eval(lambda *operands: list(operands))


def guarded(operands: list[Any]) -> list[Any]:
    """The operands as they are."""
    return list(_guard.bind(*operands))


def _lower(context: Any, *operands: Any) -> Any:
    where = context.module_context.axis_context  # of jit, or of shard_map
    mesh = getattr(where, "mesh", None)
    devices = int(getattr(where, "num_devices", None) or getattr(mesh, "size", None) or 1)
    if devices > 1:
        raise UnsupportedError(
            f"the program is for {devices} devices, and pith.jax.allreduce is for one: a rank is a process with one device; start a process "
            "for each device, or keep the arrays of the step on one"
        )
    return operands


def _refuse(what: str) -> Any:
    def refuse(*_arguments: Any, **_parameters: Any) -> Any:
        raise UnsupportedError(f"pith.jax.allreduce cannot be {what}: call it outside of that")

    return refuse


mlir.register_lowering(_guard, _lower)
batching.primitive_batchers[_guard] = _refuse("batched (jax.vmap)")
ad.primitive_jvps[_guard] = _refuse("differentiated (jax.grad)")
