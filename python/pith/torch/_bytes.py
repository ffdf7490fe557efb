# SPDX-License-Identifier: Apache-2.0
"""Bytes of any length between ranks, over any backend.

torch's own object collectives (``all_gather_object``, ``broadcast_object_list``) need numpy, which is not among torch's requirements.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def all_gather_bytes(mine: bytes, group: Any) -> list[bytes]:
    """The bytes of every rank, in rank order. All ranks of the group call it."""
    ranks, device = dist.get_world_size(group), _device_of(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks)]
    dist.all_gather(sizes, torch.full_like(sizes[0], len(mine)), group=group)
    lengths = [int(size) for size in sizes]
    room = max(1, *lengths)
    parts = [torch.empty(room, dtype=torch.uint8, device=device) for _ in range(ranks)]
    dist.all_gather(parts, _to_tensor(mine, room).to(device), group=group)
    return [to_bytes(part, length) for part, length in zip(parts, lengths, strict=True)]


def broadcast_bytes(mine: bytes, source: int, group: Any) -> bytes:
    """The bytes of ``source``, a rank of the world, on every rank of the group; what the others pass does not matter."""
    device, is_source = _device_of(group), dist.get_rank() == source
    size = torch.full((1,), len(mine), dtype=torch.int64, device=device)
    dist.broadcast(size, source, group=group)
    length = int(size)
    message = _to_tensor(mine if is_source else b"", max(1, length)).to(device)
    dist.broadcast(message, source, group=group)
    return to_bytes(message, length)


def _device_of(group: Any) -> torch.device:
    """Where the group's backend takes tensors: main memory if it does so there, else the current device of its kind."""
    group = group if group is not None else dist.group.WORLD
    kinds = [device.type for device in group._device_types]  # type: ignore[union-attr]
    return torch.device("cpu" if not kinds or "cpu" in kinds else kinds[0])


def _to_tensor(data: bytes, room: int) -> torch.Tensor:
    """The bytes, followed by zeros."""
    return torch.frombuffer(bytearray(data.ljust(room, b"\0")), dtype=torch.uint8)


def to_bytes(tensor: torch.Tensor, length: int) -> bytes:
    """The first bytes of a tensor of them, without numpy."""
    copy = bytearray(tensor.numel())
    torch.frombuffer(copy, dtype=torch.uint8).copy_(tensor)
    return bytes(copy[:length])
