# SPDX-License-Identifier: Apache-2.0
"""The same values on all ranks, as training begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _library as c
from ._comm import Comm


def broadcast(comm: Comm, names: Sequence[str], arrays: Sequence[Any], root: int) -> None:
    """Arrays of numpy of one rank on all of them, in place. An array that differs between ranks in name, size or type is an error."""
    requests = [
        comm.broadcast(
            array.reshape(-1).view("uint8"),
            root,
            layer=c.lib.pith_layer_number(name.encode()),
            wait=False,
        )
        for name, array in zip(names, arrays, strict=True)
    ]
    for request in requests:
        request.wait()
