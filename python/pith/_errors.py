# SPDX-License-Identifier: Apache-2.0
"""Statuses of the C library as exceptions.

The library says what went wrong in a number and a sentence; here each number has a class of its own, so that a program can tell a
misspelt spec from a rank that died. The sentence is the library's. All are RuntimeErrors, as what PyTorch's own backends raise, so that
scripts which catch those catch these.
"""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """Something failed in Pith. ``status`` is the number of the C library (``pith_status``)."""

    status: int = 0

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status


class ArgumentError(Error, ValueError):
    """An argument is invalid."""

    status = 1


class SpecError(Error, ValueError):
    """A spec or a list of rules cannot be parsed. The message says where, and what is valid there."""

    status = 2


class RangeError(Error, ValueError):
    """A parameter is outside its range."""

    status = 3


class UnsupportedError(Error):
    """The parts of a spec do not fit together, or this machine lacks something."""

    status = 4


class BufferError(Error, builtins.BufferError):
    """A buffer is too small."""

    status = 5


class CorruptError(Error, ValueError):
    """The bytes are not a payload of this codec and length."""

    status = 6


class MemoryError(Error, builtins.MemoryError):
    """Out of memory."""

    status = 7


class StateError(Error):
    """A state belongs to another spec or layer."""

    status = 8


class PluginError(Error):
    """A plug-in cannot be used."""

    status = 9


class SystemError(Error, OSError):
    """A call of the operating system failed."""

    status = 10


class PeerError(Error, ConnectionError):
    """Another rank failed; the message names it."""

    status = 11


class TimeoutError(Error, builtins.TimeoutError):
    """A rank did not connect or did not answer in time; the message names it."""

    status = 12


class MismatchError(Error):
    """Ranks disagree about a collective operation."""

    status = 13


class AbortedError(Error):
    """A rank aborted the group."""

    status = 14


class InterruptedError(Error, builtins.InterruptedError):
    """A signal handler ended a wait. Python raises the handler's exception instead, usually KeyboardInterrupt."""

    status = 15


_BY_STATUS: dict[int, type[Error]] = {
    kind.status: kind
    for kind in (
        ArgumentError,
        SpecError,
        RangeError,
        UnsupportedError,
        BufferError,
        CorruptError,
        MemoryError,
        StateError,
        PluginError,
        SystemError,
        PeerError,
        TimeoutError,
        MismatchError,
        AbortedError,
        InterruptedError,
    )
}


def error_of(status: int, message: str) -> Error:
    """The exception for a status; one that this package does not know yet is an ``Error``."""
    return _BY_STATUS.get(status, Error)(message, status)
