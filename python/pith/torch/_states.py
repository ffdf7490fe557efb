# SPDX-License-Identifier: Apache-2.0
"""The state of each rank's compressor beside the checkpoints of a training library.

A state belongs to the weights it was saved with. It carries a fingerprint of them, so that the state of another run or step is refused.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .._errors import StateError
from ._bytes import broadcast_bytes, to_bytes
from ._layers import agree

_CHUNK = 64 << 20  # bytes in one message: what a device holds of other ranks' states at a time
_VERSION = 2
_WITHOUT_RANK = 1  # a version that does not say which rank has saved it


def head_of(rank: int, ranks: int) -> dict[str, int]:
    """The entries that every state begins with: what codecs keep between steps belongs to one rank of so many."""
    return {"version": _VERSION, "rank": rank, "ranks": ranks}


def check_head(saved: Any, rank: int, ranks: int) -> None:
    """Raises unless this rank has saved the state."""
    version = saved.get("version") if isinstance(saved, dict) else None
    if not isinstance(version, int):
        raise StateError("this is no state of pith.torch")
    if version not in (_VERSION, _WITHOUT_RANK):
        raise StateError(
            f"the state was saved in version {version} of its format, and this package reads {_WITHOUT_RANK} and {_VERSION}: "
            "load it with the version of Pith that saved it"
        )
    if saved["ranks"] != ranks:
        raise StateError(
            f"the state was saved with {saved['ranks']} ranks, and now there are {ranks}: go on without it; residuals then start at zero"
        )
    if version != _WITHOUT_RANK and saved["rank"] != rank:
        raise StateError(
            f"the state was saved by rank {saved['rank']}, and rank {rank} loads it. Residuals differ from rank to rank: let every rank "
            "save and load a file of its own, or go on without the state; residuals then start at zero"
        )


# ---- With the weights it belongs to ----------------------------------------------------------------------------------


def saved_state(compressor: Any) -> dict[str, Any]:
    """The state of this rank with the fingerprint of the weights."""
    weights = fingerprint(layer.parameter for layer in compressor.layers)
    return {"weights": weights, "compressor": compressor.state_dict()}


def load_state(
    compressor: Any, saved: dict[str, Any] | None, origin: str, check_weights: bool = True
) -> bool:
    """Loads what this rank has saved; False if no rank has anything. All ranks call it: if one of them cannot, none goes on."""

    def load() -> tuple[bool, dict[str, Any]]:
        if saved is not None:
            mine = fingerprint(layer.parameter for layer in compressor.layers)
            if check_weights and saved["weights"] != mine:
                raise StateError(
                    f"{origin} is of other weights than those that training goes on with: name the checkpoint that was loaded, or go on "
                    "without the state (restore=False); residuals then start at zero"
                )
            compressor.load_state_dict(saved["compressor"])
        return saved is not None, {
            "the state of the compressor": "there" if saved is not None else "missing"
        }

    return agree(compressor.group, load)


def fingerprint(parameters: Iterable[torch.Tensor]) -> str:
    """Of the bits of this rank's parameters; computed where they are."""
    sums = []
    with torch.no_grad():
        for parameter in parameters:
            local: Any = getattr(parameter, "_local_tensor", parameter)  # of a DTensor
            local = torch.view_as_real(local) if local.is_complex() else local
            kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[local.itemsize]
            sums.append(local.detach().contiguous().view(kind).sum(dtype=torch.int64))
        numbers = torch.stack([value.to(sums[0].device) for value in sums]).tolist() if sums else []
    return hashlib.blake2b(repr(numbers).encode(), digest_size=16).hexdigest()


# ---- A file for each rank --------------------------------------------------------------------------------------------


def file_of(folder: str | os.PathLike[str], rank: int) -> Path:
    return Path(folder) / f"pith-rank{rank}.pt"


def save_file(compressor: Any, folder: str | os.PathLike[str]) -> None:
    """Writes the state of this rank; a file is there as a whole or not at all."""
    path = file_of(folder, dist.get_rank())
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    torch.save(saved_state(compressor), partial)
    partial.replace(path)


def load_file(compressor: Any, folder: str | os.PathLike[str], check_weights: bool = True) -> bool:
    """Loads the file of this rank; False if no rank has one. All ranks call it."""
    path = file_of(folder, dist.get_rank())
    saved = torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None
    return load_state(compressor, saved, str(path), check_weights)


# ---- All ranks in one place ------------------------------------------------------------------------------------------


def gather_states(compressor: Any) -> list[torch.Tensor]:
    """The states of all ranks, as bytes, on rank 0; elsewhere an empty list. All ranks call it."""
    file = io.BytesIO()
    torch.save(saved_state(compressor), file)
    found, own, keeps = [], dist.get_rank(), dist.get_rank() == 0
    for rank in range(dist.get_world_size()):
        # Chunk by chunk to all: NCCL has no messages between two ranks without a communicator of their own.
        mine, data = file.getvalue() if rank == own else b"", bytearray()
        length = broadcast_bytes(len(mine).to_bytes(8, "little"), rank, None)
        for start in range(0, int.from_bytes(length, "little"), _CHUNK):
            part = broadcast_bytes(mine[start : start + _CHUNK], rank, None)
            data += part if keeps else b""
        if keeps:
            found.append(torch.frombuffer(data, dtype=torch.uint8))
    return found


def load_gathered(compressor: Any, states: list[torch.Tensor], origin: str) -> bool:
    """Loads this rank's part of what :func:`gather_states` gave. All ranks call it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if len(states) != ranks:
        raise StateError(
            f"{origin} was saved with {len(states)} ranks, and now there are {ranks}: go on without the state (restore=False); residuals "
            "then start at zero"
        )
    data = io.BytesIO(to_bytes(states[rank], states[rank].numel()))
    return load_state(compressor, torch.load(data, map_location="cpu", weights_only=True), origin)
