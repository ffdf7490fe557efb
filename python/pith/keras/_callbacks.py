# SPDX-License-Identifier: Apache-2.0
"""Callbacks for ``model.fit``."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from .. import _library as c
from .._broadcast import broadcast
from .._comm import Comm
from .._models import unique
from ._backend import below
from ._optimizer import plain_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives weights and the optimizer's variables the values of one rank when training begins, bit by bit."""

    def __init__(self, root_rank: int = 0, *, comm: Comm | None = None) -> None:
        super().__init__()
        self._root, self._comm = root_rank, comm

    def on_train_begin(self, logs: Any = None) -> None:
        """Sends the root rank's variables to the others."""
        comm: Comm = below().the_comm(self._comm)
        variables = [*self.model.weights, *plain_variables(self.model.optimizer)]
        arrays = [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in variables]
        broadcast(comm, unique(str(v.path) for v in variables), arrays, self._root)
        if comm.rank != self._root:
            for variable, array in zip(variables, arrays, strict=True):
                variable.assign(array)


class MetricAverageCallback(keras.callbacks.Callback):
    """Makes the metrics of an epoch means over all ranks. Put it before callbacks that use them (checkpoints, ReduceLROnPlateau)."""

    def __init__(self, *, comm: Comm | None = None) -> None:
        super().__init__()
        self._given = comm

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the epoch's metrics by their means over all ranks."""
        found = logs if logs is not None else {}
        names = sorted(name for name, value in found.items() if np.ndim(value) == 0)
        if not names:
            return
        comm: Comm = below().the_comm(self._given)
        values = np.array([float(found[name]) for name in names], np.float64)
        which = c.lib.pith_layer_number("\n".join(names).encode())
        comm.allreduce(values, "mean", layer=which)
        found.update(zip(names, values.tolist(), strict=True))
