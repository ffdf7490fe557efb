# SPDX-License-Identifier: Apache-2.0
"""Two functions of torch.distributed that ask for gloo by name: here they also take groups of the backend pith.

``monitored_barrier`` refuses every other backend, and ``_set_pg_timeout`` ignores it with a warning, before the group could answer. For all other
groups both are torch's own, unchanged. And one list: of backends that the flight recorder of torch leaves alone.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ._group import PithGroup


@functools.wraps(c10d.monitored_barrier)
def _monitored_barrier(
    group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
) -> None:
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, PithGroup):
        return _torch_monitored_barrier(group, timeout, wait_all_ranks)
    if isinstance(timeout, (int, float)):
        timeout = timedelta(seconds=timeout)
    found.monitored_barrier(timeout, wait_all_ranks)


@functools.wraps(c10d._set_pg_timeout)
def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, PithGroup):
        return _torch_set_pg_timeout(timeout, group)
    found.set_timeout(timeout)


_torch_monitored_barrier = c10d.monitored_barrier
_torch_set_pg_timeout = c10d._set_pg_timeout


def open_to_pith() -> None:
    """Puts them in torch's place."""
    for module in (c10d, dist):
        module.monitored_barrier = _monitored_barrier  # type: ignore[attr-defined]
    c10d._set_pg_timeout = _set_pg_timeout
    # From torch 2.15 on a recorder of operations hooks into the backends that a group consists of, and this one consists of none.
    recording = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", None)
    if isinstance(recording, set):
        recording.add("pith")
