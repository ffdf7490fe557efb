# SPDX-License-Identifier: Apache-2.0
"""Compressed training with the ``Trainer`` of Lightning::

    from pith.torch.lightning import PithCallback

    trainer = Trainer(strategy="ddp", devices=2, callbacks=[PithCallback("q:4")])
    trainer.fit(module, loader)

The callback compresses the model when fitting begins, and keeps the states of all ranks' compressors in the checkpoints of the trainer.
"""

from __future__ import annotations

import os
import uuid
import warnings
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment]
    except ImportError as error:
        raise ImportError("pith.torch.lightning needs Lightning: pip install lightning") from error

from .._codec import Rules
from .._errors import ArgumentError, StateError
from .._plan import Plan
from .._spec import Spec
from . import _states
from ._bytes import broadcast_bytes
from ._hook import HookState, compress, compressor, hook, is_compressed

__all__ = ["PithCallback"]

_KEY = "pith"  # in a checkpoint


class PithCallback(Callback):
    """Compresses gradients of a Lightning ``Trainer``. The arguments are those of :func:`pith.torch.compress`, and two more:

    ``restore``: whether ``fit(ckpt_path=…)`` also loads the states of compressors; without them residuals start at zero.
    ``folder``: where ranks write their states, a file each. By default all of them are in the checkpoint itself, so that rank 0 has room
    for the residuals of every rank: a model's size for each of them with error feedback, next to nothing without. The files of a
    checkpoint that Lightning deletes stay.

    With a strategy that has a :class:`pith.torch.HookState`, a callback without a spec saves and loads its state. It also registers the hook
    for models on CPUs, where Lightning by itself ignores ``ddp_comm_hook``.
    """

    def __init__(
        self,
        spec: Spec | None = None,
        *,
        rules: str | Rules | None = None,
        plan: Plan | str | None = None,
        seed: int = 0,
        follow_lr: bool | None = None,
        all_gather: str | Rules | None = None,
        replicas: str | Rules | None = None,
        restore: bool = True,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {"spec": spec, "rules": rules, "plan": plan, "seed": seed}
        self._settings |= {"follow_lr": follow_lr, "all_gather": all_gather}
        self._settings |= {"replicas": replicas}
        self._restore, self._folder = restore, folder
        self._handle: Any = None
        self._loaded: dict[str, Any] | None = None  # from a checkpoint, until the model is there

    @property
    def compressor(self) -> Any:
        """The handle of the compressed model, with ``stats()``, once fitting has begun."""
        if self._handle is None:
            raise ArgumentError(
                "nothing is compressed yet: fit() of the trainer compresses the model"
            )
        return self._handle

    # ---- What the trainer calls

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Compresses the model that the strategy has wrapped."""
        if trainer.world_size == 1:
            warnings.warn("pith: there is one process only, and nothing to compress", stacklevel=2)
            return
        model, state = trainer.strategy.model, getattr(trainer.strategy, "_ddp_comm_state", None)
        known = [each for each in trainer.optimizers if isinstance(each, Optimizer)]
        follow_lr = self._settings["follow_lr"]
        if isinstance(state, HookState):
            if any(value for value in self._settings.values()):
                raise ArgumentError(
                    "the strategy has a pith.torch.HookState: give the spec to that, and PithCallback() no arguments"
                )
            if not is_compressed(model):  # Lightning registers hooks for models on GPUs only
                model.register_comm_hook(state, hook)
            follow_lr = state._settings.follow_lr
        elif not is_compressed(model):
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            steps = trainer.max_steps if trainer.max_steps > 0 else None
            compress(model, scaler=scaler, optimizer=known, steps=steps, **self._settings)
        self._handle = compressor(model)
        self._handle.follow(known, follow_lr)  # a second fit() has another optimizer

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Weights are loaded by now, with every strategy."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and self._handle is not None:
            self._load(loaded)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """On all ranks; rank 0 writes the checkpoint."""
        if self._handle is None:
            return
        if self._folder is None:
            checkpoint[_KEY] = {"states": _states.gather_states(self._handle)}
            return
        name = broadcast_bytes(uuid.uuid4().hex.encode(), 0, None).decode()
        folder = Path(self._folder) / f"step={trainer.global_step}-{name}"
        _states.save_file(self._handle, folder)
        checkpoint[_KEY] = {"folder": folder.name}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keeps what the checkpoint holds of this rank until the model is wrapped."""
        if self._restore:
            self._loaded = checkpoint.get(_KEY, {})

    def _load(self, loaded: dict[str, Any]) -> None:
        if "states" in loaded:
            _states.load_gathered(self._handle, loaded["states"], "the checkpoint")
        elif "folder" not in loaded:
            warnings.warn(
                "pith: the checkpoint has no states of compressors: residuals start at zero",
                stacklevel=2,
            )
        elif self._folder is None:
            raise StateError(
                f"the states of compressors are in files: give PithCallback(folder=…), the folder that has {loaded['folder']}"
            )
        elif not _states.load_file(self._handle, Path(self._folder) / loaded["folder"]):
            raise StateError(
                f"{Path(self._folder) / loaded['folder']} has no states of compressors: give the folder that the checkpoint was saved "
                "with, or go on without them (restore=False); residuals then start at zero"
            )
