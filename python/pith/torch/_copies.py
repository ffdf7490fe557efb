# SPDX-License-Identifier: Apache-2.0
"""Copies of a compressed DDP model: by ``copy.deepcopy``, or by ``torch.save(model)`` and ``torch.load``.

DDP writes its communication hooks into a copy, but the copy does not call them: it would go on uncompressed without a word. Compression
cannot be copied along either: all ranks have to agree on it, and a copy may be one rank's own (an average of weights, say). So a copy is a
model like any other, to be evaluated or compressed as wanted; only training it as it is, is refused.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .._errors import StateError


class Copied:
    """What stands in a copy where the original has its compressor."""


_originals: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def refuse_copies(model: torch.nn.Module) -> None:
    """Marks a model that is compressed; its copies, which have its hooks but not the mark, cannot be trained."""
    _originals.add(model)
    if _check not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_check)


def allow_copies(model: torch.nn.Module) -> None:
    """The model is not compressed any more, and its copies are as good as itself."""
    for key, hook in list(model._forward_pre_hooks.items()):
        if hook is _check:
            del model._forward_pre_hooks[key]


def forget_copied(model: torch.nn.Module) -> None:
    """A copy is to be compressed: what is left of the original's compressor is in the way."""
    hooks = getattr(model, "_comm_hooks", None)
    if hooks:
        hooks[:] = [hook for hook in hooks if not isinstance(hook[1], Copied)]


def _check(model: torch.nn.Module, _: Any) -> None:
    if torch.compiler.is_compiling() or model in _originals:
        return
    if model.training and torch.is_grad_enabled():
        raise StateError(
            "this is a copy of a compressed model, and not compressed itself: call pith.torch.compress() on it before it is trained"
        )
