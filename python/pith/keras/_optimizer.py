# SPDX-License-Identifier: Apache-2.0
"""An optimizer of Keras whose gradients are means over all ranks.

The trainers of all backends end in ``optimizer.apply(gradients, variables)``: TensorFlow's within a tf.function, JAX's traced and with all
state in variables of the optimizer, PyTorch's eagerly. So this is the one place to reduce them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from .._codec import Rules
from .._comm import Comm
from .._errors import ArgumentError, UnsupportedError
from .._plan import Plan
from .._spec import Spec, rules_of
from ._backend import below
from ._options import Options


def DistributedOptimizer(  # a function, and named as the class that others have
    optimizer: Any,
    spec: Spec = "q:4",
    *,
    rules: str | Rules | None = None,
    plan: Plan | str | None = None,
    seed: int = 0,
    sparse_as_dense: bool = False,
    comm: Comm | None = None,
) -> Any:
    """Makes gradients that an optimizer of Keras applies means over all ranks; gives the same optimizer, for ``model.compile``.

    ``spec`` says how gradients travel: a spec such as "q:4", rules by the path of variables ("*bias=none;*embed*=ef/topk:0.01;*=q:4"), an
    adaptive spec; rules and plan (or the name of its file) take its place. Gradients of one dimension, small ones and those of f64 are exact
    unless a rule names them. ``seed`` is for stochastic codecs, the same on all ranks. ``sparse_as_dense``: ``tf.IndexedSlices`` are made
    dense and compressed; else they are gathered, exactly.

    A saved model has the plain optimizer. After ``keras.models.load_model``, call this for ``model.optimizer``.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ArgumentError(f"{type(optimizer).__name__} is no optimizer of Keras")
    if isinstance(optimizer, _Distributed):
        raise ArgumentError("gradients of this optimizer are reduced already")
    _check_scaler(optimizer)
    options = Options(rules_of(spec, rules, plan), seed, sparse_as_dense, comm)
    plain = type(optimizer)
    # The name of the plain class: what is saved is loaded as that.
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
    optimizer.__class__ = type(plain.__name__, (_Distributed, plain), names)
    optimizer._pith = below().Means(optimizer, options)
    if optimizer.built:
        optimizer._pith.build(optimizer._trainable_variables)
    return optimizer


def _check_scaler(optimizer: Any) -> None:
    """A scaler skips steps in which gradients overflow. It must see the means: if one rank skips a step by itself, others wait for it."""
    scaler = keras.optimizers.LossScaleOptimizer
    is_half = keras.config.dtype_policy().compute_dtype == "float16"
    if isinstance(optimizer, scaler) and keras.backend.backend() == "jax":
        raise UnsupportedError(
            "on JAX, LossScaleOptimizer does not pass its gradients on: train with the policy mixed_bfloat16, or with loss_scale_factor=…"
        )
    if is_half and not isinstance(optimizer, scaler):
        raise ArgumentError(
            "with the policy mixed_float16, pass DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)): the scaler must see the "
            "means, which are the same on all ranks"
        )


class _Distributed:
    """What is different about the class of such an optimizer."""

    _pith: Any

    def build(self, variables: Sequence[Any]) -> None:
        super().build(variables)  # type: ignore[misc]
        self._pith.build(variables)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        optimizer: Any = super()
        if trainable_variables is not None and not self.built:  # type: ignore[attr-defined]
            self.build(list(trainable_variables))
        known = self._trainable_variables  # type: ignore[attr-defined]
        variables = known if trainable_variables is None else list(trainable_variables)
        if grads:
            grads = self._pith.reduce(list(grads), variables)
        return optimizer.apply(grads, trainable_variables)

    def save_own_variables(self, store: Any) -> None:
        """Without what codecs of this rank keep: other ranks may load it."""
        for k, variable in enumerate(plain_variables(self)):
            store[str(k)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        variables = plain_variables(self)
        if len(store.keys()) != len(variables):
            super().load_own_variables(store)  # type: ignore[misc]  # which says so
            return
        for k, variable in enumerate(variables):
            variable.assign(store[str(k)])


def plain_variables(optimizer: Any) -> list[Any]:
    """Variables of an optimizer that are not each rank's own."""
    ours = {id(variable) for variable in getattr(optimizer, "_pith", _NONE).variables}
    return [variable for variable in optimizer.variables if id(variable) not in ours]


class _Nothing:
    variables: Sequence[Any] = ()


_NONE = _Nothing()
