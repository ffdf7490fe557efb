# SPDX-License-Identifier: Apache-2.0
"""Variables of TensorFlow and Keras: their names, and the same values on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .._broadcast import broadcast
from .._comm import Comm
from .._errors import ArgumentError
from .._models import Variable, unique
from ._ranks import the_comm


def is_variable(value: Any) -> bool:
    """A variable of TensorFlow or of Keras."""
    return isinstance(value, tf.Variable) or (hasattr(value, "path") and hasattr(value, "assign"))


def name_of(variable: Any) -> str:
    """Its path in a model of Keras ("dense/kernel"), or its name."""
    if not is_variable(variable):
        raise ArgumentError(
            f"{type(variable).__name__} is no variable: gradients of variables are averaged; take those of tensors with the tape itself"
        )
    return str(getattr(variable, "path", None) or variable.name.split(":")[0])


def described(variables: Sequence[Any]) -> list[Variable]:
    """Variables as layers."""
    names = unique(map(name_of, variables))
    return [_described(n, v) for n, v in zip(names, variables, strict=True)]


def _described(name: str, variable: Any) -> Variable:
    shape = tf.TensorShape(variable.shape)
    if not shape.is_fully_defined():
        raise ArgumentError(f"variable {name} has the shape {shape}: all sizes must be known")
    return Variable(name, tuple(shape.as_list()), tf.as_dtype(variable.dtype).name)


def broadcast_variables(variables: Any, root_rank: int = 0, *, comm: Comm | None = None) -> None:
    """Copies variables from one rank to all, bit by bit. All ranks call it with the same variables, outside of ``tf.function``."""
    if not tf.executing_eagerly():
        raise ArgumentError("broadcast_variables() is called outside of tf.function, once")
    found, chosen = the_comm(comm), list(tf.nest.flatten(variables))
    copies = [np.array(variable) for variable in chosen]
    broadcast(found, unique(map(name_of, chosen)), copies, root_rank)
    if found.rank != root_rank:
        for variable, copy in zip(chosen, copies, strict=True):
            variable.assign(copy)
