# SPDX-License-Identifier: Apache-2.0
"""The mean of a pytree over all ranks, and the state that goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._comm import Comm
from .._errors import ArgumentError
from .._spec import Spec, rules_of
from .._tensors import count
from ._primitive import call
from ._programs import Leaf, Program, leaves_of, program_for
from ._ranks import the_comm


class State(NamedTuple):
    """The states of layers between steps, as pytrees with the shape of the gradients; None if the spec of a leaf has no
    state.

    Each rank has its own. ``token`` is the step (two numbers), the rank and the number of ranks. A call takes a token
    and returns the next one, so that calls are made in the order of their states.
    """

    token: Any
    residual: (
        Any  # f32: what was not sent yet (``ef/…``); bytes where it is packed (``ef,store=8/…``)
    )
    momentum: Any  # f32 (``momentum/…``, ``dgc/…``)
    result: (
        Any  # f32: what results that this rank encodes for all have lost (``ef/…`` of quantizers)
    )
    codec: Any  # bytes of the codec's own, such as the factors of ``powersgd``


def _kinds(leaf: Leaf, sizes: Sequence[int]) -> list[Any]:
    """Shape and type of each array that a leaf keeps; None where there is none."""
    floats = 4 * count(leaf.shape)

    def kind(size: int, is_value: bool) -> Any:
        if not size:
            return None
        if is_value and size == floats:
            return jax.ShapeDtypeStruct(leaf.shape, jnp.float32)
        return jax.ShapeDtypeStruct((size,), jnp.uint8)  # packed (store=8), or the codec's own

    return [kind(size, number < 3) for number, size in enumerate(sizes)]


def init(tree: Any, spec: Spec, *, seed: int = 0, comm: Comm | None = None) -> State:
    """The state before the first step, all zeros.

    ``tree`` has the shapes and types of the gradients, for example the parameters or the result of ``jax.eval_shape``.
    """
    found = the_comm(comm)
    leaves, _, structure = leaves_of(tree)
    program = program_for(found, rules_of(spec, None, None), seed, leaves, fresh=True)
    kinds = [_kinds(leaf, sizes) for leaf, sizes in zip(leaves, program.sizes, strict=True)]
    zeros = [
        [None if kind is None else jnp.zeros(kind.shape, kind.dtype) for kind in of] for of in kinds
    ]
    token = jnp.asarray(np.array([0, 0, found.rank, found.ranks], np.uint32))
    columns = [[of[i] for of in zeros] for i in range(4)]
    return State(token, *(jax.tree.unflatten(structure, column) for column in columns))


def allreduce(
    tree: Any,
    state: State,
    spec: Spec,
    *,
    seed: int = 0,
    comm: Comm | None = None,
    after: State | None = None,
) -> tuple[Any, State]:
    """The mean of a pytree of gradients over all ranks, and the next state. For use inside ``jax.jit``. All ranks make
    the same calls.

    ``spec`` is a spec such as "q:4", rules by path ("*bias=none;embed/*=ef/topk:0.01;*=q:4"; the names of nested dicts
    are joined by "/"), or a ``pith.Plan``. Leaves of one dimension, small ones and those of f64 stay exact unless a
    rule names them. ``seed`` is for stochastic codecs, the same on all ranks.

    Calls that share a state, one after another, are made in that order on all ranks. If a program has calls with
    different states, pass the new state of the earlier call to the later one as ``after``.

    Errors of a step are raised where JAX raises errors of compiled programs, which is where a result is used, as
    ``jax.errors.JaxRuntimeError``. The text names the rank. If JAX runs a small program at once, they are raised here,
    as ValueError. Errors in the arguments are raised here, as ``pith.Error``.
    """
    leaves, values, structure = leaves_of(tree)
    program = program_for(the_comm(comm), rules_of(spec, None, None), seed, leaves)
    kept = _kept_of(state, structure, program)
    arrays = [[jnp.asarray(array) for array in of if array is not None] for of in kept]
    before = [] if after is None else [jnp.asarray(after.token)]
    token, means, given = call(
        program.key, jnp.asarray(state.token), [jnp.asarray(v) for v in values], arrays, before
    )
    rest = iter(array for of in given for array in of)
    next_kept = [[None if array is None else next(rest) for array in of] for of in kept]
    columns = [[of[i] for of in next_kept] for i in range(4)]
    return jax.tree.unflatten(structure, means), State(
        token, *(jax.tree.unflatten(structure, column) for column in columns)
    )


def _kept_of(state: State, structure: Any, program: Program) -> list[list[Any]]:
    """The arrays of each leaf in a state, which must be those that its spec keeps."""
    if not isinstance(state, State):
        raise ArgumentError(f"the state is a {type(state).__name__}: pith.jax.init() makes one")
    try:
        columns = [structure.flatten_up_to(part) for part in state[1:]]
    except ValueError as error:
        raise ArgumentError(
            f"the state is of another tree than the gradients: make it by pith.jax.init() of such a tree ({error})"
        ) from None
    kept = [list(of) for of in zip(*columns, strict=True)] if program.leaves else []
    for leaf, sizes, of in zip(program.leaves, program.sizes, kept, strict=True):
        for name, kind, array in zip(State._fields[1:], _kinds(leaf, sizes), of, strict=True):
            _check_array(leaf, name, kind, array)
    return kept


def _check_array(leaf: Leaf, name: str, kind: Any, array: Any) -> None:
    wanted = None if kind is None else (tuple(kind.shape), str(kind.dtype))
    found = None if array is None else (tuple(array.shape), str(array.dtype))
    if wanted != found:
        raise ArgumentError(
            f"the state has for the {name} of leaf {leaf.name} {_said(found)}, and its spec keeps {_said(wanted)}: "
            "make the state by pith.jax.init() with the same tree and spec"
        )


def _said(kind: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if kind is None else f"{kind[1]}{list(kind[0])}"
