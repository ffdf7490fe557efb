# SPDX-License-Identifier: Apache-2.0
"""Statistics of the gradients of any training, compressed or not, on one rank or several: what ``pith plan`` makes plans of.

Hooks on parameters see each gradient before it is sent. In some backward passes they measure it with every candidate; the sums over all
ranks are written when there are enough, or when somebody asks.
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .._codec import minimal_size
from .._errors import ArgumentError, StateError
from .._profile import Profile
from .._profile import candidates as candidates_around
from ._carrier import own_group
from ._fsdp import is_sharded
from ._hook import _parameters
from ._layers import COMPRESSIBLE, agree, plain_name

Named = list[tuple[str, torch.nn.Parameter]]


def record(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    candidates: str | Iterable[str] = "mix",
    *,
    every: int = 16,
    steps: int | None = 8,
    group: Any = None,
    seed: int = 0,
) -> Recorder:
    """Measures gradients during training, and writes a statistics file for ``pith plan make`` and ``pith.Profile``::

        pith.torch.record(model, "stats.json")       # before the first step; nothing else changes

    The model may be in DistributedDataParallel or not, compressed or not. ``candidates`` are strengths around a spec
    (``"q:4"``), those of all families (``"mix"``), or a list of specs. Every ``every``-th backward pass is measured,
    ``steps`` times. Then the file is written, and training continues unchanged. With ``steps=None`` recording ends with
    ``close()`` or at the end of a ``with`` block. If gradients are accumulated over several passes, let ``every`` be a
    multiple of their number, so that whole sums are measured.

    With several ranks, all of them call this, ``save()`` and ``close()`` with the same arguments; rank 0 writes sums
    over all ranks. ``group`` are these ranks, by default DDP's, or all. ``seed`` is for codecs with random numbers.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if group is None and isinstance(model, DistributedDataParallel):
        group = model.process_group
    if group is None and dist.is_initialized():
        group = dist.group.WORLD
    return Recorder(model, path, candidates, every, steps, group, seed)


class Recorder:
    """The object that ``record`` returns. ``samples`` counts the measurements so far."""

    def __init__(
        self,
        model: torch.nn.Module,
        path: str | os.PathLike[str],
        candidates: str | Iterable[str],
        every: int,
        steps: int | None,
        group: Any,
        seed: int,
    ) -> None:
        self.path, self.samples = Path(path), 0
        self._every, self._steps, self._seed = every, steps, seed
        self._ranks = dist.get_world_size(group) if group is not None else 1
        self._rank = dist.get_rank(group) if self._ranks > 1 else 0

        def look() -> tuple[tuple[Named, Profile], dict[str, Any]]:
            if every < 1:
                raise ArgumentError(
                    f"every={every}: gradients of every n-th backward pass, n being at least 1"
                )
            if steps is not None and steps < 1:
                raise ArgumentError(
                    f"steps={steps}: gradients are measured at least once; None: until close()"
                )
            if self._rank == 0 and not self.path.parent.is_dir():
                raise ArgumentError(
                    f"{self.path} cannot be written: there is no folder {self.path.parent.resolve()}"
                )
            named = _recorded(model)
            profile = Profile([(name, p.shape) for name, p in named], _listed(candidates))
            if all(layer.fixed for layer in profile.layers):
                raise ArgumentError(
                    f"no parameter has two dimensions and {minimal_size()} values or more: all travel uncompressed, and there is nothing to plan"
                )
            layers = [f"{name} {tuple(p.shape)}" for name, p in named]
            said = {"every": every, "steps": steps, "candidates": profile.candidates}
            return (named, profile), said | {"the list of layers": layers}

        named, self._profile = agree(group, look) if self._ranks > 1 else look()[0]
        self._group = own_group(group) if self._ranks > 1 else None
        self._device = named[0][1].device
        self._passes = 0
        self._under_way = self._wanted = False
        self._seen: set[str] = set()
        fixed = {layer.name for layer in self._profile.layers if layer.fixed}
        self._hooks = [
            p.register_hook(partial(self._see, n, p)) for n, p in named if n not in fixed
        ]
        _unfinished.add(self)

    def __repr__(self) -> str:
        wanted = f" of {self._steps}" if self._steps is not None else ""
        state = "recording" if self in _unfinished else "closed"
        return f"<pith.torch.Recorder to {self.path}: {self.samples}{wanted} samples of {len(self._profile.layers)} layers, {state}>"

    # ---- A backward pass

    def _see(self, name: str, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """A gradient is about to be added to what passes before have left. (After that, it might be on its way to other ranks already.)"""
        if not self._under_way or name in self._seen:  # the pass before may have ended in an error
            self._begin()
        self._seen.add(name)
        if self._wanted and not gradient.is_sparse:
            whole = gradient if parameter.grad is None else parameter.grad + gradient
            self._profile.update(
                name,
                whole.detach().cpu().contiguous(),
                seed=self._seed,
                step=self._passes,
                rank=self._rank,
                ranks=self._ranks,
            )

    def _begin(self) -> None:
        self._passes += 1
        self._under_way, self._wanted = True, self._passes % self._every == 0
        self._seen.clear()
        torch.autograd.Variable._execution_engine.queue_callback(self._end)  # type: ignore[attr-defined]

    def _end(self) -> None:
        """The backward pass is over: of all ranks, so they can communicate here."""
        wanted, self._under_way, self._wanted = self._wanted, False, False
        self.samples += wanted
        if wanted and self.samples == self._steps:
            self.close()

    # ---- What was measured

    def profile(self) -> Profile:
        """The statistics so far, over all ranks. All of them call it."""
        total = Profile(
            [(layer.name, layer.shape) for layer in self._profile.layers], self._profile.candidates
        )
        total.values[:] = self._profile.values[:]
        if self._ranks > 1:
            mine = torch.frombuffer(total.values, dtype=torch.float64)
            sums = mine.to(self._device) if dist.get_backend(self._group) == "nccl" else mine
            dist.all_reduce(sums, group=self._group)
            mine.copy_(sums)
        try:
            return total.measured()
        except StateError:
            raise StateError(
                f"no gradient has been measured in {self._passes} backward passes; every={self._every} measures every "
                f"{self._every}th: train longer, or measure more often"
            ) from None

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Writes the statistics so far, also to another file, and continues to record. All ranks call it; rank 0 writes."""
        found, target = self.profile(), path if path is not None else self.path

        def write() -> tuple[None, dict[str, Any]]:
            if self._rank == 0:
                found.save(target)
            return None, {}

        agree(self._group, write) if self._ranks > 1 else write()

    def close(self) -> None:
        """Writes the file and ends the recording, if that has not happened yet. All ranks call it."""
        if self in _unfinished:
            self._detach()
            self.save()

    def _detach(self) -> None:
        _unfinished.discard(self)
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """After an error nothing is written: other ranks may not get here."""
        if kind is None:
            self.close()
        else:
            self._detach()


_unfinished: set[Recorder] = set()


@atexit.register
def _give_up() -> None:
    """The program ends. Alone, what there is can be written; otherwise nobody waits for the others."""
    for r in list(_unfinished):
        if r._ranks == 1 and r.samples:
            r.close()
        elif r._rank == 0:
            r._detach()
            warnings.warn(
                f"{r.path} was not written: gradients were measured {r.samples} times in {r._passes} backward passes, and "
                f"close() was not called (every={r._every}, steps={r._steps})",
                stacklevel=2,
            )


# ---- What is asked for -----------------------------------------------------------------------------------------------


def _listed(candidates: str | Iterable[str]) -> list[str]:
    if not isinstance(candidates, str):
        return list(candidates)
    return candidates.split(";") if ";" in candidates else candidates_around(candidates)


def _recorded(model: torch.nn.Module) -> Named:
    """Parameters whose gradients a plan could compress, and small ones, whose bytes count too."""
    if is_sharded(model):
        raise ArgumentError(
            "gradients of models sharded by fully_shard cannot be recorded: no rank has a whole one"
        )
    if isinstance(model, DistributedDataParallel):
        named = _parameters(model)
    else:
        named = [(plain_name(name), p) for name, p in model.named_parameters()]
    found = [(n, p) for n, p in named if p.requires_grad and p.dtype in COMPRESSIBLE]
    if not found:
        raise ArgumentError(
            "the model has no parameter of type f32, f16 or bf16 that gets a gradient"
        )
    return found
