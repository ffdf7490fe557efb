# SPDX-License-Identifier: Apache-2.0
"""The framework below Keras: a module for each, with the same functions. Here are those that users call."""

from __future__ import annotations

import importlib
from typing import Any

import keras

from .._comm import Comm
from .._errors import UnsupportedError
from .._table import Table

_BACKENDS = ("jax", "tensorflow", "torch")


def below() -> Any:
    """The module of the backend: ``the_comm``, ``initialize``, ``shutdown``, ``Means``, ``stats``, ``save``, ``load``."""
    name = keras.backend.backend()
    if name not in _BACKENDS:
        raise UnsupportedError(
            f"the backend of Keras is {name}, and pith.keras knows {', '.join(_BACKENDS)}"
        )
    return importlib.import_module(f"._{name}", __package__)


def initialize(comm: Comm | None = None) -> None:
    """Joins the other ranks, or takes a comm that has. The first use of gradients or variables calls it by itself.

    Without a comm, rank, size and address come from the launcher: ``pith run``, torchrun, mpirun or srun; with JAX also from
    ``jax.distributed``.
    """
    below().initialize(comm)


def shutdown() -> None:
    """Leaves the other ranks."""
    below().shutdown()


def rank() -> int:
    """The number of this rank."""
    number: int = below().the_comm(None).rank
    return number


def ranks() -> int:
    """How many ranks there are."""
    number: int = below().the_comm(None).ranks
    return number


def stats(comm: Comm | None = None) -> Table:
    """How each variable's gradient travels, why, and what it cost; printed, it is a table."""
    table: Table = below().stats(comm)
    return table


def save() -> bytes:
    """What codecs keep between steps on this rank (residuals, momentum, the step), for a checkpoint. Every rank saves its own."""
    data: bytes = below().save()
    return data


def load(data: bytes) -> None:
    """From :func:`save` of the same rank and backend, before ``fit`` or between two."""
    below().load(data)
