# SPDX-License-Identifier: Apache-2.0
"""The layers of a model as compression sees them: name, shape, type, spec and why; and that all ranks see the same."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .. import _library as c
from .._adapt import AdaptiveRules
from .._codec import Codec, Rules, codec_of, tally
from .._errors import ArgumentError, Error, MismatchError, UnsupportedError
from .._plan import Plan
from .._spec import Spec, check_rules, rules_of
from ._bytes import all_gather_bytes

COMPRESSIBLE = (torch.float32, torch.float16, torch.bfloat16)

# What torch.compile and activation checkpointing put into the names of parameters.
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}


@dataclass(frozen=True)
class Layer:
    """A parameter whose gradient is reduced."""

    name: str
    parameter: torch.nn.Parameter
    shape: tuple[int, ...]
    dtype: torch.dtype
    spec: str
    reason: str  # why it has this spec
    sparse: bool = False  # its gradient is, and torch reduces it
    adaptive: str = ""  # the adaptive spec, if that chooses the spec
    moment: str = ""  # the spec with which its momentum travels after a warm-up

    @property
    def declared(self) -> str:
        """What the user wrote: the spec, or what chooses it."""
        return self.adaptive or self.moment or self.spec

    @functools.cached_property
    def n(self) -> int:
        return self.parameter.numel()

    @functools.cached_property
    def bytes(self) -> int:
        return self.n * self.dtype.itemsize

    @functools.cached_property
    def codec(self) -> Codec:
        return codec_of(self.spec)

    @functools.cached_property
    def rows(self) -> int:
        """The first dimension of a matrix; 0 where there is none. For low rank."""
        return self.shape[0] if len(self.shape) > 1 and self.n else 0

    @functools.cached_property
    def number(self) -> int:
        """What random numbers of the layer follow from: the same on all ranks, whatever other layers there are."""
        return number_of(self.name)


def plain_name(name: str) -> str:
    """The name of a parameter without the wrappers around its module: the same with and without torch.compile."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def number_of(name: str) -> int:
    """As reducers of the C library number layers: gradients on devices and in main memory then have the same random numbers."""
    number: int = c.lib.pith_layer_number(name.encode())
    return number


def described(layers: Sequence[Layer], backend: str, rank: int, ranks: int) -> str:
    """Layers in one line, for a repr."""
    specs = tally(layer.declared for layer in layers)
    return f"{len(layers)} layers ({specs}) over {backend}, rank {rank} of {ranks}"


# ---- From what a user wrote to rules ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The arguments of :func:`pith.torch.compress` beside the model."""

    spec: Spec | None = None
    rules: str | Rules | None = None
    plan: Plan | str | None = None
    seed: int = 0
    scaler: Any = None
    optimizer: Any = None
    follow_lr: bool | None = None
    steps: int | None = None
    all_gather: str | Rules | None = None
    replicas: str | Rules | None = None

    def rules_or(self, default: str) -> Rules:
        """What they say of specs; an error if that is a slip."""
        return rules_of(self.spec if self.spec is not None else default, self.rules, self.plan)


def default_spec(parameters: Iterable[torch.nn.Parameter]) -> str:
    """What is taken where nothing is said: what is fastest, by trial, among what any optimizer bears. Gradients can be measured on CPUs and CUDA devices."""
    measured = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    return "auto,budget=q:4" if measured else "q:4"


def layers_of(
    parameters: Iterable[tuple[str, torch.nn.Parameter]],
    rules: Rules,
    sparse: Collection[str] = (),
) -> list[Layer]:
    """Names and parameters as layers. ``sparse``: names of those with sparse gradients."""
    named = list(parameters)
    if not named:
        raise ArgumentError("the model has no parameter that gets a gradient")
    check_rules(rules, [name for name, _ in named])
    return [_layer(name, p, rules, name in sparse) for name, p in named]


def _layer(name: str, parameter: torch.nn.Parameter, rules: Rules, sparse: bool) -> Layer:
    shape, dtype = tuple(parameter.shape), parameter.dtype
    choice = rules.find(name, shape)
    spec, reason, adaptive = choice.spec, choice.reason, ""
    if sparse:
        spec, reason = "none", "sparse gradient"
    elif dtype not in COMPRESSIBLE:
        spec, reason = "none", f"{str(dtype).removeprefix('torch.')} is not compressed"
    elif isinstance(rules, AdaptiveRules) and rules.adapts(name, shape):
        reason = adaptive = rules.adaptive
    return Layer(name, parameter, shape, dtype, spec, reason, sparse, adaptive)


def refuse_moments(layers: Iterable[Layer], why: str) -> None:
    """An error if the momentum of a layer is to travel, for those that do not drive an optimizer of a whole model."""
    for layer in layers:
        if layer.codec.moment:
            raise UnsupportedError(
                f"{layer.spec} sends the momentum of an optimizer, and {why}: it is for pith.torch.compress() of a model in "
                "DistributedDataParallel, with optimizer=…"
            )


def sparse_names(module: torch.nn.Module) -> set[str]:
    """Names of parameters with sparse gradients."""
    return {
        plain_name(f"{prefix}.{name}" if prefix else name)
        for prefix, part in module.named_modules()
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse
        for name, _ in part.named_parameters(recurse=False)
    }


# ---- Agreement -------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def agree(group: Any, make: Callable[[], tuple[T, dict[str, Any]]]) -> T:
    """What ``make`` gives, if it succeeds on all ranks and its summaries are the same on all; else an error on all of them.

    A summary has values of JSON: texts, numbers, None, and lists of these.
    """
    value: T | None = None
    summary: dict[str, Any] = {}
    error: Error | None = None
    try:
        value, summary = make()
    except Error as caught:
        error = caught
    if dist.get_world_size(group) > 1:
        mine = json.dumps((summary, str(error) if error else "")).encode()
        found = [json.loads(text) for text in all_gather_bytes(mine, group)]
        if error is None:
            _compare(found)
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def _compare(found: list[Any]) -> None:
    for rank, (_, error) in enumerate(found):
        if error:
            raise MismatchError(f"rank {rank} cannot go on: {error}")
    first = found[0][0]
    for rank, (summary, _) in enumerate(found):
        for what in first:
            if summary.get(what) != first[what]:
                raise MismatchError(
                    f"ranks disagree: {_difference(what, first[what], summary.get(what), rank)}"
                )


def _difference(what: str, first: Any, other: Any, rank: int) -> str:
    if isinstance(first, list) and isinstance(other, list):
        for a, b in zip(first, other, strict=False):
            if a != b:
                return f"{what} has {a} on rank 0 and {b} on rank {rank}"
        return f"{what} has {len(first)} entries on rank 0 and {len(other)} on rank {rank}"
    return f"{what} is {first} on rank 0 and {other} on rank {rank}"


def summary_of(layers: list[Layer], rules: Rules, seed: int, **more: Any) -> dict[str, Any]:
    """What all ranks must have in common, the shortest explanation first."""
    return {
        "spec": rules.text,
        "seed": seed,
        **more,
        "the list of layers": [
            f"{layer.name} {tuple(layer.shape)} {layer.dtype} {layer.declared}" for layer in layers
        ],
    }
