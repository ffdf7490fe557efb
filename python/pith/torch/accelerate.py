# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Hugging Face accelerate with the states of compressors::

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = pith.torch.compress(model, "ef/q:4")
    pith.torch.accelerate.keep_state(accelerator, handle)

Compression itself needs nothing from here.
"""

from __future__ import annotations

import warnings
from typing import Any

from . import _states

__all__ = ["keep_state"]


def keep_state(accelerator: Any, compressor: Any) -> None:
    """``accelerator.save_state()`` and ``load_state()`` also save and load the states of compressors.

    Every rank has a file of its own in the folder, ``pith-rank<N>.pt``. All ranks call this, with what :func:`pith.torch.compress` gave.
    """

    def save(models: Any, weights: Any, folder: str) -> None:
        _states.save_file(compressor, folder)

    def load(models: Any, folder: str) -> None:
        # accelerate loads weights after this; that they belong to the state follows from the folder.
        if not _states.load_file(compressor, folder, check_weights=False):
            warnings.warn(
                f"pith: {folder} has no states of compressors: residuals stay as they are",
                stacklevel=2,
            )

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
