# SPDX-License-Identifier: Apache-2.0
"""Memory that training on CPUs frees in a step and needs again in the next.

glibc hands large blocks back to the system as soon as they are free, and the system clears every page that it gives out again: thousands of
page faults a step, for which processors work that the exchange could use. So the allocator is told to keep what
it has, once, where gradients of CPU tensors are compressed. What a process takes at its peak stays with it.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt()
_LARGEST = 32 << 20  # what glibc allows for blocks that are not mapped each by itself
_KEPT = 1 << 30
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")  # by the user


def keep_memory() -> bool:
    """Whether the allocator keeps memory from now on: not if the user chose its settings, said PITH_KEEP_MEMORY=0, or has another C library."""
    if os.environ.get("PITH_KEEP_MEMORY") == "0" or any(name in os.environ for name in _CHOSEN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _KEPT))
