# SPDX-License-Identifier: Apache-2.0
"""What is done to a DDP model: a spec of Pith's, one of PyTorch's own hooks, or nothing.

Beside specs there are names for the rivals: ``torch:none`` (DDP as it is), ``torch:fp16``, ``torch:bf16`` and ``torch:powersgd:RANK`` (PyTorch's hooks), and
``local``: no exchange at all, by which computing alone is timed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import pith.torch

LOCAL = "local"


def is_rival(spec: str) -> bool:
    """Whether a spec is not one of Pith's."""
    return spec == LOCAL or spec.startswith("torch:")


def _nothing(_state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations
    future: Any = torch.futures.Future(
        devices=[bucket.buffer().device] if bucket.buffer().is_cuda else None
    )
    future.set_result(bucket.buffer())
    return future


# PyTorch's hooks under names for which DDP does not ask for a GPU.
def _bf16(group, bucket):  # type: ignore[no-untyped-def]
    return default_hooks.bf16_compress_hook(group, bucket)


def _fp16(group, bucket):  # type: ignore[no-untyped-def]
    return default_hooks.fp16_compress_hook(group, bucket)


def _powersgd(ddp: DistributedDataParallel, group: Any, rank: int) -> None:
    state = powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1.0
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def distributed(model: torch.nn.Module, spec: str, group: Any) -> DistributedDataParallel:
    """The model in DDP, over a group."""
    # PyTorch's PowerSGD starts exchanges from callbacks, in an order that may differ between ranks where there are several buckets.
    single: dict[str, Any] = {"bucket_cap_mb": 4096} if spec.startswith("torch:powersgd") else {}
    return DistributedDataParallel(
        model, process_group=group, gradient_as_bucket_view=True, **single
    )


def prepare(
    ddp: DistributedDataParallel, spec: str, group: Any, optimizer: Any, seed: int, steps: int
) -> Any:
    """Does what the spec says. Gives Pith's handle, if there is one."""
    if spec == LOCAL:
        ddp.register_comm_hook(None, _nothing)
    elif spec == "torch:fp16":
        ddp.register_comm_hook(group, _fp16)
    elif spec == "torch:bf16":
        ddp.register_comm_hook(group, _bf16)
    elif spec.startswith("torch:powersgd"):
        _powersgd(ddp, group, int(spec.rpartition(":")[2]))
    elif spec != "torch:none":
        return pith.torch.compress(ddp, spec, seed=seed, optimizer=optimizer, steps=steps)
    return None


class Groups:
    """Process groups by backend, made when they are first used. All ranks use them in the same order."""

    def __init__(self, world: str) -> None:
        self._made: dict[str, Any] = {world: dist.group.WORLD}

    def get(self, backend: str) -> Any:
        if backend not in self._made:
            self._made[backend] = dist.new_group(backend=backend)
        return self._made[backend]
