# SPDX-License-Identifier: Apache-2.0
"""Which float sums of the backend are compressed, and how."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .._codec import Codec, codec_of, minimal_size
from .._errors import UnsupportedError


@dataclass(frozen=True)
class Compression:
    """The codec of a backend's sums, and the seed of its random numbers."""

    codec: Codec
    seed: int
    spec: str  # of the codec, and its caps: asked for at every operation
    caps: int
    minimal: int  # tensors under this many values stay exact


# Of the whole process: backward passes run in threads of their own.
active: list[Compression | None] = []


def _make(spec: str | Codec | None, seed: int) -> Compression | None:
    if spec is None or spec == "" or spec == "none":
        return None
    codec = codec_of(spec)
    if codec.has_memory:
        raise UnsupportedError(
            f"{codec.spec} keeps something for each layer between steps, and a process group does not know layers: use a spec "
            f"without a memory here, or give layers to a pith.Reducer"
        )
    return Compression(codec, seed, codec.spec, int(codec.caps), minimal_size())


def from_environment() -> Compression | None:
    """What PITH_SPEC and PITH_SEED say; a misspelt spec is an error here, before the first step."""
    return _make(os.environ.get("PITH_SPEC"), int(os.environ.get("PITH_SEED") or 0))


def current(otherwise: Compression | None) -> Compression | None:
    """The innermost ``with compression(…)``, else the given one."""
    return active[-1] if active else otherwise


@contextmanager
def compression(spec: str | Codec | None, seed: int = 0) -> Iterator[Compression | None]:
    """Compresses sums and means of f32, f16 and bf16 tensors on all groups of the backend within a ``with`` block;
    ``None`` or "none" makes them exact.

    Allreduce, reduce and reduce-scatter of at least ``pith.minimal_size()`` values are compressed; everything else
    stays exact, and ``pith.torch.stats`` counts it with the reason. All ranks enter and leave at the same operations.
    It applies to the whole process, so also to backward passes in other threads.
    """
    chosen = _make(spec, seed)
    active.append(chosen)
    try:
        yield chosen
    finally:
        active.remove(chosen)
