"""One line for a training script: ``pith.torch.compress(model)``, over any backend."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .._codec import Rules
from .._errors import ArgumentError
from .._plan import Plan
from ._buckets import make_smaller
from ._copies import Copied, forget_copied, refuse_copies
from ._engine import engine_for
from ._fsdp import ShardedCompressor, is_sharded
from ._group import PithGroup
from ._group import stats as group_stats
from ._layers import Layer, Spec, agree, default_spec, layers_of, rules_of, summary_of
from ._optimizer import DistributedOptimizer
from ._reduction import Reduction
from ._table import Table

_compressors: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def compress(
    model: torch.nn.Module,
    spec: Spec | None = None,
    *,
    rules: str | Rules | None = None,
    plan: Plan | str | None = None,
    seed: int = 0,
    scaler: Any = None,
    all_gather: str | Rules | None = None,
) -> Compressor | ShardedCompressor:
    """Compresses the gradients of a model in DistributedDataParallel, or sharded by ``fully_shard``, from the next step on.

    ``spec`` is a spec for all layers (``"q:4"``, ``"ef/powersgd:4"``), rules (``"*.bias=none;embed*=ef/topk:0.01;*=q:4"``), a
    :class:`pith.Plan`, or an adaptive spec: ``"auto"`` measures and takes what is fastest here, no compression included, and ``"auto,budget=q:4"`` what
    is fastest of all that loses no more than ``q:4``; ``"lgreco:q:4"``
    shares the error of ``q:4`` out among layers so that they are smallest, and does so anew every few hundred steps (docs/planner.md).
    The default is ``"auto,budget=q:4"`` for models on CPUs, and ``"q:4"`` for those on other devices and for sharded ones, whose specs cannot change.
    ``rules`` and ``plan`` (also the name of a plan's file) say the same by name. Layers are called what
    ``model.module.named_parameters()`` calls them. Parameters of one dimension or under 1024 values stay exact unless a rule names them,
    and so do types other than f32, f16 and bf16; :func:`pith.torch.stats` says what travels how, and why.

    All ranks call it, with the same arguments. A misspelt spec, a rule that matches no layer, or ranks that disagree are an error here.

    ``seed`` is for codecs with random numbers. ``scaler``: the torch.amp.GradScaler, if there is one; what memories keep then follows its
    scale. ``all_gather``: for sharded models, a spec for the parameters when they are gathered.

    Gives an object with ``state_dict()``, ``load_state_dict()`` and ``stats()``. What codecs keep between steps differs from rank to rank:
    each rank saves and loads its own.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if model in _compressors:
        raise ArgumentError("this model is compressed already: compress() is called once")
    forget_copied(model)
    made: Compressor | ShardedCompressor
    if is_sharded(model):
        spec = spec if spec is not None else "q:4"
        made = ShardedCompressor(model, spec, rules, plan, seed, scaler, all_gather)
    elif isinstance(model, DistributedDataParallel):
        if all_gather is not None:
            raise ArgumentError(
                "all_gather is for models sharded by fully_shard; DDP gathers nothing"
            )
        spec = spec if spec is not None else default_spec(model.parameters())
        made = Compressor(model, spec, rules, plan, seed, scaler)
    else:
        raise ArgumentError(
            f"{type(model).__name__} is neither in DistributedDataParallel nor sharded by fully_shard: wrap the model first, or use "
            "pith.torch.DistributedOptimizer"
        )
    _compressors[model] = made
    return made


def stats(what: Any = None) -> Any:
    """The table of layers of a compressed model or optimizer; or what a process group of the backend pith has done."""
    if isinstance(what, (Compressor, ShardedCompressor, DistributedOptimizer)):
        return what.stats()
    if isinstance(what, torch.nn.Module):
        what = getattr(what, "_orig_mod", what)
        if what not in _compressors:
            raise ArgumentError("this model is not compressed: call pith.torch.compress() first")
        return _compressors[what].stats()
    if what is None or isinstance(what, PithGroup):
        return group_stats(what)
    raise ArgumentError(
        "stats are of a compressed model, an optimizer, or a process group of the backend pith"
    )


def _parameters(model: DistributedDataParallel) -> list[tuple[str, torch.nn.Parameter]]:
    """Those whose gradients DDP reduces."""
    ignored: set[str] = getattr(model, "parameters_to_ignore", set())
    return [
        (name, parameter)
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]


def _sparse(module: torch.nn.Module) -> set[str]:
    """Names of parameters with sparse gradients, which DDP keeps in buckets of their own."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse
        for name, _ in part.named_parameters(recurse=False)
    }


class Compressor:
    """What :func:`compress` gives for a DistributedDataParallel model."""

    def __init__(
        self,
        model: DistributedDataParallel,
        spec: Spec,
        rules: str | Rules | None,
        plan: Any,
        seed: int,
        scaler: Any,
    ) -> None:
        self._group = model.process_group
        if getattr(model, "_comm_hooks", None):
            raise ArgumentError(
                "the model has a communication hook already, and DDP takes one only"
            )

        def look() -> tuple[tuple[Rules, list[Layer]], dict[str, Any]]:
            chosen = rules_of(spec, rules, plan)
            layers = layers_of(_parameters(model), chosen, _sparse(model.module))
            return (chosen, layers), summary_of(layers, chosen, seed)

        chosen, layers = agree(self._group, look)
        self._index = {id(layer.parameter): i for i, layer in enumerate(layers)}
        engine = engine_for(self._group, chosen, layers, seed)
        self._reduction = Reduction(layers, engine, scaler=scaler)
        self._seen: set[int] = set()  # layers in this step
        self._futures: list[tuple[torch.futures.Future, torch.Tensor]] = []
        make_smaller(model)
        model.register_comm_hook(self, _hook)
        refuse_copies(model)

    def __repr__(self) -> str:
        return f"<pith.torch.Compressor of {self._reduction!r}>"

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps between steps, for its checkpoint: every rank saves its own."""
        return self._reduction.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """From a checkpoint of the same rank. Names, shapes, specs and ranks are checked before anything changes."""
        self._reduction.load_state_dict(saved)

    def stats(self) -> Table:
        """The table of layers."""
        return self._reduction.stats()

    def __reduce__(self) -> Any:
        """Copies of a model, and models from a file, are compressed by their own compress()."""
        return Copied, ()

    # ---- What DDP calls

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future:
        """Gradients of a bucket are ready. The last bucket of a step waits for all."""
        indices = [self._layer(parameter) for parameter in bucket.parameters()]
        self._seen.update(indices)
        buffer = bucket.buffer()
        if buffer.is_sparse:
            future = _exact_sparse(buffer, self._group)
        else:
            for index, gradient in zip(indices, bucket.gradients(), strict=True):
                self._reduction.put(index, gradient)
            future = _future_of(buffer)
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
        for future, buffer in futures:
            future.set_result(buffer)


def _future_of(buffer: torch.Tensor) -> torch.futures.Future:
    """One that makes streams wait for the buffer, where it is on a device."""
    return torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)


def _hook(compressor, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations, and ours are texts
    return compressor._reduce(bucket)


def _exact_sparse(gradient: torch.Tensor, group: Any) -> torch.futures.Future:
    work = dist.all_reduce(gradient, group=group, async_op=True)
    ranks = dist.get_world_size(group)
    return work.get_future().then(lambda future: future.value()[0] / ranks)
