"""Whose checkpoint it is: what codecs keep between steps belongs to one rank of so many."""

from __future__ import annotations

from typing import Any

from .._errors import StateError

_VERSION = 2
_WITHOUT_RANK = 1  # a version that does not say which rank has saved it


def head_of(rank: int, ranks: int) -> dict[str, int]:
    """The entries that every state begins with."""
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
