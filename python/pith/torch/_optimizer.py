# SPDX-License-Identifier: Apache-2.0
"""For scripts without DistributedDataParallel: an optimizer that averages gradients over all ranks before it steps."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from .._codec import Rules
from .._errors import ArgumentError, StateError
from .._plan import Plan
from .._spec import Spec, rules_of
from .._table import Table
from ._auto import suited
from ._bytes import broadcast_bytes
from ._engine import engine_for
from ._layers import (
    Layer,
    agree,
    default_spec,
    layers_of,
    plain_name,
    refuse_moments,
    summary_of,
)
from ._reduction import Reduction

Named = Iterable[tuple[str, torch.nn.Parameter]]


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer, so that it steps with means over all ranks::

        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = pith.torch.DistributedOptimizer(optimizer, model, "q:4")
        pith.torch.broadcast_parameters(model)
        …
        optimizer.zero_grad(); loss.backward(); optimizer.step()

    Gradients are sent during the backward pass, and are means over all ranks when ``step`` begins. ``spec``, ``rules``,
    ``plan``, ``seed``, ``scaler`` and ``follow_lr`` are those of ``pith.torch.compress``. ``parameters`` is the model,
    or its ``named_parameters()``.

    With ``backward_passes_per_step``, gradients of that many backward passes are summed before they are sent. A
    parameter without a gradient counts as zero, since other ranks may have one. Call ``synchronize`` to look at or clip
    the means before the step.
    """

    _step_supports_amp_scaling = False  # a GradScaler unscales gradients, once they are means

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: torch.nn.Module | Named,
        spec: Spec | None = None,
        *,
        rules: str | Rules | None = None,
        plan: Plan | str | None = None,
        seed: int = 0,
        scaler: Any = None,
        follow_lr: bool | None = None,
        backward_passes_per_step: int = 1,
        group: Any = None,
    ) -> None:
        # The base class is not initialized: all that it would hold is the inner optimizer's.
        self.optimizer = optimizer
        self._passes = backward_passes_per_step
        group = group if group is not None else dist.group.WORLD
        self.group = group  # the process group over which gradients are averaged

        def look() -> tuple[tuple[Rules, list[Layer]], dict[str, Any]]:
            if backward_passes_per_step < 1:
                raise ArgumentError("backward_passes_per_step is at least 1")
            named = optimized(optimizer, parameters)
            wanted = spec if spec is not None else default_spec(p for _, p in named)
            chosen = suited(rules_of(wanted, rules, plan), optimizer)
            layers = layers_of(named, chosen)
            refuse_moments(layers, "DistributedOptimizer sends something else")
            more = {"backward_passes_per_step": backward_passes_per_step}
            return (chosen, layers), summary_of(layers, chosen, seed, **more)

        chosen, self._layers = agree(group, look)
        engine = engine_for(group, chosen, self._layers, seed, in_order=True)
        self._reduction = Reduction(
            self._layers, engine, scaler=scaler, optimizer=optimizer, follow_lr=follow_lr
        )
        self._counts = [0] * len(self._layers)  # backward passes since the last step
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._synchronized = False
        self._skip = False
        self._hooks = [
            layer.parameter.register_post_accumulate_grad_hook(self._ready(index))
            for index, layer in enumerate(self._layers)
        ]

    # ---- Gradients

    def _ready(self, index: int) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            self._synchronized = False
            self._counts[index] += 1
            if self._counts[index] == self._passes:
                self._put(index)
            elif self._counts[index] > self._passes:
                raise StateError(
                    f"layer {self._layers[index].name} had {self._counts[index]} backward passes before step() and "
                    f"backward_passes_per_step is {self._passes}"
                )

        return hook

    def _put(self, index: int) -> None:
        parameter = self._layers[index].parameter
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
        gradient = parameter.grad
        if not gradient.is_contiguous():
            gradient = gradient.contiguous()
            self._copies.append((parameter.grad, gradient))
        self._reduction.put(index, gradient)

    def synchronize(self) -> None:
        """Waits until all gradients are means. ``step`` then does not wait again."""
        for index in reversed(range(len(self._layers))):
            if not self._reduction.has(index):
                self._put(index)
        self._reduction.finish()
        with torch.no_grad():
            for gradient, mean in self._copies:
                gradient.copy_(mean)
        self._copies.clear()
        self._counts = [0] * len(self._layers)
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context ``step`` uses gradients as they are."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    # ---- What an optimizer does

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Waits for the means, then runs the optimizer's step. A closure is called once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._skip and self._reduction.under_way:
            raise StateError("gradients are on their way: call synchronize() first")
        if not self._skip and not self._synchronized:
            self.synchronize()
        self._synchronized = False
        found = self.optimizer.step()
        return loss if closure is not None else found

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients; refused while they are being reduced."""
        if self._reduction.under_way:
            raise StateError(
                "gradients are on their way: call zero_grad() after step() or synchronize()"
            )
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not supported: the layers are fixed when the optimizer is wrapped."""
        raise ArgumentError("add parameters to the optimizer before DistributedOptimizer")

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"<pith.torch.DistributedOptimizer of {self._reduction!r}: {self.optimizer!r}>"

    # ---- Checkpoints and statistics

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer, with that of this rank's codecs under "pith". Every rank saves its own."""
        return self.optimizer.state_dict() | {"pith": self._reduction.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # type: ignore[override]
        """Loads a checkpoint of the same rank, or one of the plain optimizer; codecs then start without a state."""
        inner = {key: value for key, value in state_dict.items() if key != "pith"}
        if "pith" in state_dict:
            self._reduction.load_state_dict(state_dict["pith"])
        self.optimizer.load_state_dict(inner)

    def stats(self) -> Table:
        """The table of layers."""
        return self._reduction.stats()


def optimized(
    optimizer: torch.optim.Optimizer, parameters: torch.nn.Module | Named
) -> list[tuple[str, torch.nn.Parameter]]:
    """Names of the parameters that the optimizer has."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentError(f"{type(optimizer).__name__} is not an optimizer of torch")
    module = isinstance(parameters, torch.nn.Module)
    pairs: Any = parameters.named_parameters() if module else parameters  # type: ignore[union-attr]
    named = [(plain_name(name), p) for name, p in pairs]
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = [(name, p) for name, p in named if id(p) in wanted and p.requires_grad]
    nameless = wanted - {id(p) for _, p in named}
    if nameless:
        raise ArgumentError(
            f"{len(nameless)} of {len(wanted)} parameters of the optimizer are not among the named ones"
        )
    if len({name for name, _ in found}) != len(found):
        raise ArgumentError("two parameters have the same name")
    return found


# ---- The same start on all ranks -------------------------------------------------------------------------------------


def broadcast_parameters(
    model: torch.nn.Module | dict[str, Any], root: int = 0, group: Any = None
) -> None:
    """Copies parameters and buffers of a model (or a dictionary of tensors) from ``root``, a rank of the group, to all ranks."""
    entries = model.state_dict() if isinstance(model, torch.nn.Module) else model
    tensors = [value for value in entries.values() if isinstance(value, torch.Tensor)]
    if not tensors:
        warnings.warn("pith: there is nothing to broadcast", stacklevel=2)
    _broadcast(tensors, root, group)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root: int = 0, group: Any = None
) -> None:
    """Copies hyperparameters and state of an optimizer from ``root`` to all ranks. Each rank keeps the memories of its codecs."""
    inner = optimizer.optimizer if isinstance(optimizer, DistributedOptimizer) else optimizer
    source, mine = _global(root, group), _Skeleton()
    sent = broadcast_bytes(mine.of(inner.state_dict()), source, group)
    if dist.get_rank() == source:
        _broadcast(mine.tensors, root, group)
        return
    theirs = _Joined(io.BytesIO(sent))
    state = theirs.load()
    _broadcast(theirs.tensors, root, group)
    inner.load_state_dict(state)


class _Skeleton(pickle.Pickler):
    """Anything but its tensors, which are listed: bytes have shapes and types in their places."""

    def __init__(self) -> None:
        self._file, self.tensors = io.BytesIO(), list[torch.Tensor]()
        super().__init__(self._file)

    def of(self, value: Any) -> bytes:
        self.dump(value)
        return self._file.getvalue()

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, torch.Tensor):
            return None
        self.tensors.append(thing)
        return tuple(thing.shape), thing.dtype


class _Joined(pickle.Unpickler):
    """The inverse, with new tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        self.tensors = list[torch.Tensor]()
        super().__init__(file)

    def persistent_load(self, place: Any) -> torch.Tensor:
        shape, dtype = place
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]


def _global(root: int, group: Any) -> int:
    group = group if group is not None else dist.group.WORLD
    return dist.get_global_rank(group, root)


def _broadcast(tensors: list[torch.Tensor], root: int, group: Any) -> None:
    source = _global(root, group)
    works = [dist.broadcast(t.detach(), source, group=group, async_op=True) for t in tensors]
    for work in works:
        work.wait()
