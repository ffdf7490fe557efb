# SPDX-License-Identifier: Apache-2.0
"""Compressed training with the ``Trainer`` of Hugging Face transformers::

    from pith.torch.transformers import PithCallback

    trainer = Trainer(model, args, train_dataset=…, callbacks=[PithCallback("q:4")])
    trainer.train()

The callback compresses the model when training begins, under DDP and FSDP2 alike, and keeps the state of each rank's compressor in the
checkpoints of the trainer.
"""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "pith.torch.transformers needs transformers and accelerate: pip install 'transformers[torch]'"
    ) from error

from .._codec import Rules
from .._errors import ArgumentError
from .._plan import Plan
from .._spec import Spec
from . import _states
from ._fsdp import is_sharded
from ._hook import compress, compressor, is_compressed

__all__ = ["PithCallback"]

# The trainer shows callbacks the model that was wrapped and not the wrapper, so wrappers are noted as they are made.
_wrappers: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[torch.nn.Module]] = (
    weakref.WeakKeyDictionary()
)
_noting: list[Any] = []


def _note(module: torch.nn.Module, name: str, submodule: torch.nn.Module | None) -> None:
    if name == "module" and submodule is not None and isinstance(module, DistributedDataParallel):
        _wrappers[submodule] = weakref.ref(module)


class PithCallback(TrainerCallback):
    """Compresses gradients of a ``Trainer``. The arguments are those of :func:`pith.torch.compress`, and two more:

    ``restore``: whether ``train(resume_from_checkpoint=…)`` also loads the states of compressors; without them residuals start at zero.
    ``checkpoint``: the folder that ``train(resume_from_checkpoint=…)`` is given, where it is not in the trainer's ``output_dir``.

    Every rank writes a file of its own, ``pith-rank<N>.pt``, into each checkpoint folder.
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
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {"spec": spec, "rules": rules, "plan": plan, "seed": seed}
        self._settings |= {"follow_lr": follow_lr, "all_gather": all_gather}
        self._settings |= {"replicas": replicas}
        self._restore, self._checkpoint = restore, checkpoint
        self._handle: Any = None
        if not _noting:
            _noting.append(register_module_module_registration_hook(_note))

    @property
    def compressor(self) -> Any:
        """The handle of the compressed model, with ``stats()``, once training has begun."""
        if self._handle is None:
            raise ArgumentError(
                "nothing is compressed yet: train() of the trainer compresses the model"
            )
        return self._handle

    # ---- What the trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **shown: Any) -> None:
        """Compresses the model, and loads the state of the checkpoint it resumes from."""
        if args.world_size == 1:
            warnings.warn("pith: there is one process only, and nothing to compress", stacklevel=2)
            return
        model = _distributed(shown["model"])
        optimizer = shown.get("optimizer")
        known = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        if is_compressed(model):
            # A second train() of the same trainer goes on with what the first one kept, and another optimizer.
            self._handle = compressor(model)
            self._handle.follow(known, self._settings["follow_lr"])
        else:
            scaler = getattr(optimizer, "scaler", None)
            self._handle = compress(
                model, scaler=scaler, optimizer=known, steps=state.max_steps, **self._settings
            )
        if state.global_step > 0 and self._restore:
            self._load(args, state)

    def on_save(self, args: Any, state: Any, control: Any, **shown: Any) -> None:
        """Writes this rank's state beside the checkpoint."""
        if (
            self._handle is not None
            and not args.save_only_model
            and not state.is_hyper_param_search
        ):
            _states.save_file(self._handle, _folder(args, state))

    def _load(self, args: Any, state: Any) -> None:
        folder = self._checkpoint or _named(args.resume_from_checkpoint) or _folder(args, state)
        if _states.load_file(self._handle, folder):
            return
        if self._checkpoint is not None:
            raise ArgumentError(
                f"{folder} has no state of a compressor ({_states.file_of('', dist.get_rank())})"
            )
        warnings.warn(
            f"pith: {folder} has no state of a compressor: residuals start at zero. If training was resumed from another folder, give it "
            "to PithCallback(checkpoint=…) too",
            stacklevel=2,
        )


def _folder(args: Any, state: Any) -> Path:
    """Where the trainer keeps the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _named(resume: Any) -> Path | None:
    """The folder in the arguments of a trainer, which may also say yes or no."""
    return Path(resume) if resume and Path(str(resume)).is_dir() else None


def _distributed(model: torch.nn.Module) -> torch.nn.Module:
    """The distributed module of what the trainer shows."""
    if is_sharded(model) or isinstance(model, DistributedDataParallel):
        return model
    inner = getattr(model, "_orig_mod", model)
    wrapper = _wrappers.get(inner, lambda: None)() or _wrappers.get(model, lambda: None)()
    if wrapper is None:
        raise ArgumentError(
            f"{type(model).__name__} is neither in DistributedDataParallel nor sharded by FSDP2: PithCallback is for these two, and made "
            "before train() is called"
        )
    return wrapper
