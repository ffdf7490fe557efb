# SPDX-License-Identifier: Apache-2.0
"""Compressed training with PyTorch, by one line, over any backend::

    model = DistributedDataParallel(model)
    pith.torch.compress(model)  # auto; or with a spec: "q:4"

and a backend for torch.distributed::

    import pith.torch
    torch.distributed.init_process_group("pith")

under torchrun, ``pith run`` and mpirun. Everything that gloo offers for CPU tensors works, exactly as there; float sums are compressed when
asked, by ``PITH_SPEC=q:4`` in the environment or for a while::

    with pith.torch.compression("q:4"):
        loss.backward()

Specs with a memory (``ef/…``) belong to layers, which a process group does not know, and are refused there; ``compress`` takes them all.
Scripts without DistributedDataParallel have :class:`DistributedOptimizer`, and for slow links :class:`LocalSteps`. Callbacks for the trainers of Hugging Face and Lightning are in
``pith.torch.transformers`` and ``pith.torch.lightning``, which are imported by themselves.
"""

from __future__ import annotations

import torch.distributed as _dist

from .._table import LayerStats, Table
from ._base import Usage
from ._checkpoint import Checkpoint
from ._compression import Compression, compression
from ._eager import keep_eager
from ._fsdp import ShardedCompressor
from ._group import PithGroup, create
from ._hook import Compressor, HookState, compress, compressor, hook, is_compressed, stats
from ._launcher import adopt_launcher
from ._local import LocalSteps
from ._optimizer import (
    DistributedOptimizer,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ._record import Recorder, record
from ._reserved import open_to_pith

__all__ = [
    "Checkpoint",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "HookState",
    "LayerStats",
    "LocalSteps",
    "PithGroup",
    "Recorder",
    "ShardedCompressor",
    "Table",
    "Usage",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compress",
    "compression",
    "compressor",
    "hook",
    "is_compressed",
    "record",
    "stats",
]

# Kinds of tensors that the backend takes; a kind that is added here needs its memory in _buffers.py.
DEVICES = ["cpu", "cuda"]

adopt_launcher()
open_to_pith()
_dist.Backend.register_backend("pith", create, extended_api=True, devices=DEVICES)
keep_eager(__package__.split(".")[0])
