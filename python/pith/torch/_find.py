# SPDX-License-Identifier: Apache-2.0
"""The distributed module inside what PyTorch and the libraries on top of it hand out, and the names of its layers.

``torch.compile``, Lightning's Fabric and the like put a module around the one that reduces gradients. Such a wrapper has no parameters
of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .._errors import ArgumentError
from ._fsdp import is_sharded

_HINTS = {
    "DataParallel": "DataParallel reduces gradients inside one process: start a process for each GPU and use DistributedDataParallel",
    "FullyShardedDataParallel": "this is FSDP1: shard the model by torch.distributed.fsdp.fully_shard (FSDP2) instead",
    "DeepSpeedEngine": "DeepSpeed reduces gradients by itself: use DistributedDataParallel or FSDP2",
}


def distributed_module(model: Any) -> torch.nn.Module:
    """The DistributedDataParallel module, or the outermost one that ``fully_shard`` was called for."""
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"{type(model).__name__} is no torch.nn.Module{_where_it_is(model)}")
    found = distributed_modules(model)
    if not found:
        raise ArgumentError(
            f"{type(model).__name__} is neither in DistributedDataParallel nor sharded by fully_shard: {_hint(model)}"
        )
    if len(found) > 1:
        kinds = ", ".join(f"{type(module).__name__}" for module in found)
        raise ArgumentError(
            f"{type(model).__name__} has {len(found)} distributed modules ({kinds}): compress each of them by itself"
        )
    inside = {id(parameter) for parameter in found[0].parameters()}
    outside = [name for name, parameter in model.named_parameters() if id(parameter) not in inside]
    if outside:
        raise ArgumentError(
            f"{type(model).__name__} has parameters outside of the distributed module in it ({', '.join(outside[:3])}, …): "
            f"wrap or shard {type(model).__name__} itself, or compress the inner {type(found[0]).__name__}"
        )
    return found[0]


def distributed_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The outermost modules that reduce gradients; the model itself may be one."""
    if isinstance(model, DistributedDataParallel) or is_sharded(model):
        return [model]
    found: list[torch.nn.Module] = []
    for child in model.children():
        found += [module for module in distributed_modules(child) if module not in found]
    return found


def _hint(model: torch.nn.Module) -> str:
    for kind in type(model).__mro__:
        if kind.__name__ in _HINTS:
            return _HINTS[kind.__name__]
    return (
        "wrap the model first and pass what the wrapper is: DistributedDataParallel(model), what accelerator.prepare(model) returned, "
        "model_wrapped of a Trainer of transformers, strategy.model of a Trainer of Lightning. Without any of them, use "
        "pith.torch.DistributedOptimizer"
    )


def _where_it_is(owner: Any) -> str:
    """What to pass instead of an object that has the model somewhere."""
    if hasattr(owner, "model_wrapped"):
        return ": pass its model_wrapped, which is the distributed module once train() has begun, or add pith.torch.transformers.PithCallback"
    if hasattr(getattr(owner, "strategy", None), "model"):
        return ": pass its strategy.model, which is the distributed module once fit() has begun, or add pith.torch.lightning.PithCallback"
    if hasattr(owner, "prepare"):
        return ": pass what its prepare(model) returned"
    return ""
