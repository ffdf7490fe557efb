# SPDX-License-Identifier: Apache-2.0
"""One line for a training script, over any backend: ``pith.torch.compress(model)``; and its parts for PyTorch's own interface,
``model.register_comm_hook(pith.torch.HookState("q:4"), pith.torch.hook)``.

DDP takes one communication hook for as long as it lives. So what it gets is a :class:`HookState`, in which the compressor can be
replaced, or taken away: the hook then does what DDP does by itself.
"""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .._codec import Rules
from .._errors import ArgumentError, StateError
from .._plan import Plan
from .._spec import Spec
from .._table import Table
from ._auto import suited
from ._buckets import make_smaller
from ._copies import Copied, allow_copies, forget_copied, refuse_copies
from ._engine import engine_for
from ._find import distributed_module
from ._fsdp import ShardedCompressor
from ._group import PithGroup
from ._group import stats as group_stats
from ._layers import (
    Layer,
    Settings,
    agree,
    default_spec,
    layers_of,
    plain_name,
    sparse_names,
    summary_of,
)
from ._local import LocalSteps
from ._moment_plan import Plans, check_sparse, plans_of
from ._moments import Moments
from ._optimizer import DistributedOptimizer
from ._rates import followed
from ._reduction import Reduction

_compressors: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def compress(
    model: torch.nn.Module,
    spec: Spec | None = None,
    *,
    rules: str | Rules | None = None,
    plan: Plan | str | None = None,
    seed: int = 0,
    scaler: Any = None,
    optimizer: Any = None,
    follow_lr: bool | None = None,
    steps: int | None = None,
    all_gather: str | Rules | None = None,
    replicas: str | Rules | None = None,
) -> Compressor | ShardedCompressor:
    """Compresses the gradients of a model in DistributedDataParallel, or sharded by ``fully_shard``, from the next step
    on.

    ``spec`` is one of:

    - a spec for all layers: ``"q:4"``, ``"ef/powersgd:4"``
    - rules by layer name: ``"*.bias=none;embed*=ef/topk:0.01;*=q:4"``
    - a ``pith.Plan``
    - an adaptive spec (docs/planner.md): ``"auto"`` measures, and chooses the fastest specs that suit the
      ``optimizer``. ``"auto,budget=q:4"`` chooses the fastest that lose no more than ``q:4``. ``"lgreco:q:4"``
      distributes the error of ``q:4`` among the layers so that they are smallest, and plans again every few hundred
      steps.

    The default is ``"auto,budget=q:4"`` for models on CPUs and CUDA devices, and ``"q:4"`` on other devices.

    ``rules`` and ``plan`` (also the name of a plan's file) can be given instead. Layers have the names of
    ``model.module.named_parameters()``. Parameters of one dimension or under ``pith.minimal_size()`` values stay exact
    unless a rule names them, and so do types other than f32, f16 and bf16. ``pith.torch.stats`` shows the spec of each
    layer and the reason for it.

    All ranks call it with the same arguments. A misspelt spec, a rule that matches no layer, or ranks that disagree
    raise an error here.

    ``seed`` is for codecs with random numbers. ``scaler`` is the torch.amp.GradScaler, if there is one: residuals then
    follow its scale. ``optimizer`` is the optimizer of the model: residuals of ``ef`` and ``dgc`` then follow its
    learning rate, so that a schedule does not change their weight. By default this is so for SGD only, whose update is
    linear in the gradient; ``follow_lr`` switches it on or off (docs/pytorch.md, Learning rates). Specs that begin with
    ``moment`` (``"moment/onebit"``) send the optimizer's momentum, and need ``optimizer``. ``steps`` is the number of
    steps of the run, for such a spec with a share of it (docs/optimizers.md).

    ``all_gather``: for sharded models, a spec for gathered parameters; with ``delta/`` before it they are sent as
    differences from values that all ranks have. ``replicas``: for models sharded over a mesh of two dimensions, a spec
    for the allreduce between replicas, by default that of the gradients. ``model`` may be wrapped by torch.compile, by
    ``prepare()`` of accelerate or by ``setup()`` of Lightning's Fabric.

    Returns a handle with ``state_dict()``, ``load_state_dict()``, ``stats()`` and ``remove()``; ``compressor`` finds it
    again. States differ between ranks: each rank saves and loads its own. ``Checkpoint`` is for other numbers of ranks.
    """
    found = distributed_module(model)
    if found in _compressors:
        raise ArgumentError(
            "this model is compressed already: compress() is called once; pith.torch.compressor(model).remove() ends it"
        )
    settings = Settings(
        spec, rules, plan, seed, scaler, optimizer, follow_lr, steps, all_gather, replicas
    )
    if not isinstance(found, DistributedDataParallel):
        made = ShardedCompressor(found, settings)
        made._forget = _forgetting(found)
        _compressors[found] = made
        return made
    if all_gather is not None:
        raise ArgumentError("all_gather is for models sharded by fully_shard; DDP gathers nothing")
    if replicas is not None:
        raise ArgumentError(
            "replicas is for models sharded by fully_shard over a mesh of two dimensions"
        )
    forget_copied(found)
    left = _removed_state(found)
    state = left if left is not None else HookState()
    handle = state._bind(found, settings)
    if left is None:
        make_smaller(found)
        found.register_comm_hook(state, hook)
    return handle


def compressor(model: torch.nn.Module) -> Compressor | ShardedCompressor:
    """The handle of a compressed model, as ``compress`` returned it.

    For a ``HookState`` before its first step, this binds the layers already now; all ranks call it then.
    """
    found = distributed_module(model)
    if found in _compressors:
        return _compressors[found]
    state = _waiting_state(found)
    if state is None:
        raise ArgumentError("this model is not compressed: call pith.torch.compress() first")
    return state._bound(found)  # type: ignore[arg-type]


def is_compressed(model: torch.nn.Module) -> bool:
    """Whether the gradients of a model are compressed, or will be from the first step on."""
    found = distributed_module(model)
    return found in _compressors or _waiting_state(found) is not None


def stats(what: Any = None) -> Any:
    """A table of the layers of a compressed model, an optimizer or local steps; or the statistics of a process group of
    the backend pith.
    """
    if isinstance(what, (Compressor, ShardedCompressor, DistributedOptimizer, LocalSteps)):
        return what.stats()
    if isinstance(what, torch.nn.Module):
        return compressor(what).stats()
    if what is None or isinstance(what, PithGroup):
        return group_stats(what)
    raise ArgumentError(
        "stats are of a compressed model, an optimizer, or a process group of the backend pith"
    )


def _parameters(model: DistributedDataParallel) -> list[tuple[str, torch.nn.Parameter]]:
    """Those whose gradients DDP reduces."""
    ignored: set[str] = getattr(model, "parameters_to_ignore", set())
    return [
        (plain_name(name), parameter)
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]


def _forgetting(model: torch.nn.Module) -> Any:
    """What a compressor calls when it is removed; the model may be gone by then."""
    reference = weakref.ref(model)

    def forget() -> None:
        alive = reference()
        if alive is not None:
            _compressors.pop(alive, None)

    return forget


# ---- PyTorch's own interface -----------------------------------------------------------------------------------------


class HookState:
    """The state of ``hook``, for DDP's own interface and for libraries that offer it::

        model.register_comm_hook(pith.torch.HookState("q:4"), pith.torch.hook)
        DDPStrategy(ddp_comm_state=pith.torch.HookState("q:4"), ddp_comm_hook=pith.torch.hook)  # Lightning, on GPUs

    The arguments are those of ``compress``. Layers get the same names as there, and are bound at the first bucket of
    the first step, where all ranks check that they agree. ``pith.torch.compressor(model)`` binds them earlier and
    returns the handle. A state belongs to one model, which keeps it when it is wrapped again, for example by a second
    ``fit()``.
    """

    def __init__(
        self,
        spec: Spec | None = None,
        *,
        rules: str | Rules | None = None,
        plan: Plan | str | None = None,
        seed: int = 0,
        scaler: Any = None,
        optimizer: Any = None,
        follow_lr: bool | None = None,
        steps: int | None = None,
    ) -> None:
        self._settings = Settings(spec, rules, plan, seed, scaler, optimizer, follow_lr, steps)
        self._settings.rules_or("none")  # a slip is an error here
        self._compressor: Compressor | None = None
        self._model: weakref.ref[DistributedDataParallel] | None = None
        self._removed_from: Any = None  # the process group, after remove()

    @property
    def removed(self) -> bool:
        """Whether the handle's ``remove()`` was called: gradients are averaged exactly, as DDP does it."""
        return self._removed_from is not None

    def __repr__(self) -> str:
        if self._compressor is not None:
            return f"<pith.torch.HookState of {self._compressor!r}>"
        return f"<pith.torch.HookState: {'removed' if self.removed else 'no step yet'}>"

    def __reduce__(self) -> Any:
        """In a copy of a model, or one from a file, DDP does not call its hooks. States without a model travel to processes as they are."""
        if self._compressor is not None or self.removed:
            return Copied, ()
        return HookState, (), {"_settings": self._settings}

    def _bind(self, model: DistributedDataParallel, settings: Settings) -> Compressor:
        """Makes the compressor of a model. All ranks do it at the same time; nothing changes if one of them cannot."""
        made = Compressor(model, settings)
        self._settings, self._compressor, self._removed_from = settings, made, None
        self._model = weakref.ref(model)
        made._forget = self._remove
        refuse_copies(model)
        _compressors[model] = made
        return made

    def _bound(self, model: DistributedDataParallel) -> Compressor:
        """The compressor, for a model that has this state in its hooks: one that is wrapped again goes on with what it had."""
        bound = self._compressor
        if bound is None or not bound._serves(model):
            self._leave_model()
            return self._bind(model, self._settings)
        self._model = weakref.ref(model)
        refuse_copies(model)
        _compressors[model] = bound
        return bound

    def _leave_model(self) -> None:
        if self._model is None or self._compressor is None:
            return
        if self._model() is not None:
            gc.collect()  # DDP and what wraps it refer to each other
        if self._model() is not None and self._compressor._group_is_there():
            raise ArgumentError(
                "this pith.torch.HookState is that of another model: make one for each model"
            )

    def _remove(self) -> None:
        model = self._model() if self._model is not None else None
        assert self._compressor is not None
        self._removed_from, self._compressor = self._compressor._group, None
        if model is not None:
            self._removed_from = model.process_group
            _compressors.pop(model, None)
            allow_copies(model)

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future:
        if self.removed:
            return _exact(bucket, self._removed_from)
        bound = self._compressor
        if bound is None or not bound._takes(bucket):
            bound = self._bound(_model_of(self, bucket))
        return bound._reduce(bucket)


def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations, and ours are texts
    """The communication hook for :class:`HookState`."""
    return state._reduce(bucket)


def _removed_state(model: DistributedDataParallel) -> HookState | None:
    """The state of a model whose compressor was removed; an error if there is another hook."""
    hooks = getattr(model, "_comm_hooks", None) or []
    for _, state in hooks:
        if isinstance(state, HookState) and state.removed:
            return state
        if isinstance(state, HookState):
            raise ArgumentError(
                "the model has a pith.torch.HookState already, which compresses it: pith.torch.compressor(model) returns its handle"
            )
        raise ArgumentError("the model has a communication hook already, and DDP takes one only")
    return None


def _waiting_state(model: torch.nn.Module) -> HookState | None:
    """A state that the model has in its hooks, and that was not removed."""
    states = [state for _, state in getattr(model, "_comm_hooks", None) or ()]
    return next((s for s in states if isinstance(s, HookState) and not s.removed), None)


def _model_of(state: HookState, bucket: dist.GradBucket) -> DistributedDataParallel:
    """The model that has the state in its hooks and the bucket's parameters. DDP hands over neither itself nor names, so this looks
    through all objects of the process; once, at the first bucket."""
    parameter = bucket.parameters()[0]
    found = [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), DistributedDataParallel)
        and any(other is state for _, other in getattr(thing, "_comm_hooks", ()))
        and any(other is parameter for other in thing.parameters())
    ]
    if not found:
        raise ArgumentError(
            "pith.torch.hook is for model.register_comm_hook(pith.torch.HookState(…), pith.torch.hook) of DistributedDataParallel, and no "
            "such model has these parameters"
        )
    return found[-1]


def _exact(bucket: dist.GradBucket, group: Any) -> torch.futures.Future:
    """The mean as DDP makes it without a hook: every rank multiplies by 1/ranks, then they add up."""
    buffer = bucket.buffer()
    if buffer.is_sparse:
        return _exact_sparse(buffer, group)
    buffer.mul_(1.0 / dist.get_world_size(group))
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


# ---- The compressor --------------------------------------------------------------------------------------------------


class Compressor:
    """The handle that ``compress`` returns for a DistributedDataParallel model."""

    def __init__(self, model: DistributedDataParallel, settings: Settings) -> None:
        self._group, self._settings = model.process_group, settings
        seed, scaler, steps = settings.seed, settings.scaler, settings.steps
        optimizer, follow_lr = settings.optimizer, settings.follow_lr

        def look() -> tuple[tuple[Rules, list[Layer], Plans], dict[str, Any]]:
            followed(optimizer, follow_lr)  # a slip is an error here
            chosen = suited(settings.rules_or(default_spec(model.parameters())), optimizer)
            layers = layers_of(_parameters(model), chosen, sparse_names(model.module))
            check_sparse(layers, chosen)
            plans = plans_of(layers, optimizer, scaler, steps)
            kinds = ", ".join(type(each.optimizer).__name__ for each in plans.made)
            more = {"the optimizer": kinds, "steps": steps} if plans else {}
            return (chosen, layers, plans), summary_of(layers, chosen, seed, **more)

        chosen, layers, plans = agree(self._group, look)
        demanded = [each for each in plans.made if not each.adaptive]
        for index in [member.index for each in demanded for member in each.members]:
            layers[index] = dataclasses.replace(layers[index], moment=layers[index].spec)
        self._index = {id(layer.parameter): i for i, layer in enumerate(layers)}
        self._reduction = Reduction(
            layers,
            engine_for(self._group, chosen, layers, seed),
            scaler=scaler,
            optimizer=optimizer,
            follow_lr=follow_lr,
        )
        self._moments = Moments(plans, self._reduction, self._group, scaler) if plans else None
        self._seen: set[int] = set()  # layers in this step
        self._futures: list[tuple[torch.futures.Future, torch.Tensor]] = []
        self._forget: Any = None
        self._removed = False

    def __repr__(self) -> str:
        return f"<pith.torch.Compressor of {self._reduction!r}>"

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank, for its checkpoint. Every rank saves its own."""
        self._check_there()
        moments = {} if self._moments is None else {"moments": self._moments.save()}
        return self._reduction.state_dict() | moments

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Loads a checkpoint of the same rank. Names, shapes, specs and ranks are checked before anything changes."""
        self._check_there()
        if self._moments is not None:
            self._reduction.check_saved(saved)
            self._moments.load(saved.get("moments"))
        self._reduction.load_state_dict(saved)

    def stats(self) -> Table:
        """The table of layers."""
        self._check_there()
        return self._reduction.stats(None if self._moments is None else self._moments.stats())

    @property
    def is_common(self) -> bool:
        """Whether all ranks have the same parameters, as needed to evaluate and to save. False between local steps
        (``moment:every=4/…``).
        """
        return self._moments is None or self._moments.is_common

    def report(self, loss: float | torch.Tensor) -> None:
        """Reports the loss of a step on this rank, so that momentum is no longer sent when the loss rises. Either all
        ranks report it, or none.
        """
        if self._moments is not None:
            self._moments.report(loss)

    def follow(self, optimizer: Any, follow_lr: bool | None = None) -> None:
        """Makes residuals follow the learning rates of this optimizer, or of several in a list, from the next step on,
        as ``compress(model, spec, optimizer=…)`` does. For an optimizer that is created later.
        """
        self._check_there()
        if self._moments is not None and not self._moments.serves(optimizer):
            s = self._settings
            self._moments = self._moments.moved(optimizer, s.scaler, s.steps)
        self._reduction.rates.change(optimizer, follow_lr)

    def remove(self) -> None:
        """Ends compression. From now on gradients are averaged exactly, and compress() may be called again.

        Residuals are lost. All ranks call it, between steps.
        """
        self._check_there()
        if self._reduction.under_way or self._futures:
            raise StateError("a step is under way: remove compression between steps")
        if self._moments is not None:
            self._moments.close()
        self._removed = True
        self._forget()
        self._reduction.engine.close()

    @property
    def group(self) -> Any:
        """The process group of the model."""
        return self._group

    @property
    def layers(self) -> list[Layer]:
        """The parameters that get a gradient."""
        return list(self._reduction.layers)

    def _check_there(self) -> None:
        if self._removed:
            raise StateError("this compressor was removed from its model")

    # ---- What DDP calls

    def _takes(self, bucket: dist.GradBucket) -> bool:
        """Whether a bucket is one of the model's. Asked once a step; in the middle of a step the answer is yes."""
        return bool(self._seen) or (
            id(bucket.parameters()[0]) in self._index and self._group_is_there()
        )

    def _serves(self, model: DistributedDataParallel) -> bool:
        """Whether a model has the same layers and ranks."""
        same = [id(parameter) for _, parameter in _parameters(model)] == list(self._index)
        return same and model.process_group is self._group and self._group_is_there()

    def _group_is_there(self) -> bool:
        """Not after destroy_process_group()."""
        try:
            dist.get_backend(self._group)
        except (AssertionError, RuntimeError, TypeError, ValueError):
            return False
        return True

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future:
        """Gradients of a bucket are ready. The last bucket of a step waits for all."""
        moments = self._moments
        if moments is not None and not self._seen:
            moments.begin()
        indices = [self._layer(parameter) for parameter in bucket.parameters()]
        self._seen.update(indices)
        buffer = bucket.buffer()
        if buffer.is_sparse:
            future = _exact_sparse(buffer, self._group)
        else:
            for index, gradient in zip(indices, _gradients(bucket), strict=True):
                if moments is None or moments.travels(index, gradient):
                    self._reduction.put(index, gradient)
            # Where the buffer is on a device, streams wait for it.
            future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
            self._futures.append((future, buffer))
        # The first step of a static graph has its buckets all at once, and calls none of them the last.
        if bucket.is_last() or len(self._seen) == len(self._index):
            self._finish()
        return future

    def _layer(self, parameter: torch.Tensor) -> int:
        try:
            return self._index[id(parameter)]
        except KeyError:
            raise ArgumentError(
                f"DDP reduces a parameter of shape {tuple(parameter.shape)} that got no gradient when compress() was called: freeze and "
                "unfreeze parameters before DDP and compress()"
            ) from None

    def _finish(self) -> None:
        futures, self._futures = self._futures, []
        self._seen.clear()
        self._reduction.finish()
        if self._moments is not None:
            self._moments.exchanged()
        for future, buffer in futures:
            future.set_result(buffer)


def _gradients(bucket: dist.GradBucket) -> Sequence[torch.Tensor]:
    """A bucket of complex parameters has real and imaginary parts as real values, and torch's own views end after half of them."""
    parameters = bucket.parameters()
    if not parameters[0].is_complex() or bucket.buffer().is_complex():
        return bucket.gradients()
    values = torch.view_as_complex(bucket.buffer().view(-1, 2))
    return values.split([parameter.numel() for parameter in parameters])


def _exact_sparse(gradient: torch.Tensor, group: Any) -> torch.futures.Future:
    work = dist.all_reduce(gradient, group=group, async_op=True)
    ranks = dist.get_world_size(group)
    return work.get_future().then(lambda future: future.value()[0] / ranks)
