# SPDX-License-Identifier: Apache-2.0
"""Pith: compressed communication for distributed deep learning.

    import numpy, pith

    payload = pith.encode(gradient, "q:4")            # bytes, an eighth of the gradient
    pith.decode(payload, "q:4", dst)                  # and back

    with pith.Comm() as comm:                         # under pith run, mpirun or torchrun
        comm.allreduce(gradient, "mean", codec="q:4")

Tensors are numpy arrays, torch CPU tensors and anything with ``__dlpack__``; nothing is copied. ``pith.torch`` is the backend for
torch.distributed. Errors are :class:`pith.Error` and its subclasses; their messages say what went wrong, where, and what to do.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from . import _library
from ._adapt import Adapter
from ._carrier import Carrier
from ._codec import (
    Caps,
    Choice,
    Codec,
    Method,
    Param,
    Rules,
    State,
    decode,
    encode,
    load_plugin,
    methods,
    minimal_size,
    set_minimal_size,
)
from ._comm import Comm, Request, Stats, Traffic
from ._errors import (
    AbortedError,
    ArgumentError,
    BufferError,
    CorruptError,
    Error,
    InterruptedError,
    MemoryError,
    MismatchError,
    PeerError,
    PluginError,
    RangeError,
    SpecError,
    StateError,
    SystemError,
    TimeoutError,
    UnsupportedError,
)
from ._launch import Launch, launch, unique_id
from ._library import version
from ._methods import (
    Where,
    import_methods,
    import_wanted,
    memory,
    method,
    register,
    transform,
)
from ._plan import Plan, PlanLayer
from ._profile import Profile, candidates
from ._reducer import Layer, Reducer

__version__ = version()

__all__ = [
    "AbortedError",
    "Adapter",
    "ArgumentError",
    "BufferError",
    "Caps",
    "Choice",
    "Carrier",
    "Codec",
    "Comm",
    "CorruptError",
    "Error",
    "InterruptedError",
    "Launch",
    "Layer",
    "MemoryError",
    "Method",
    "MismatchError",
    "Param",
    "PeerError",
    "Plan",
    "PlanLayer",
    "PluginError",
    "Profile",
    "RangeError",
    "Reducer",
    "Request",
    "Rules",
    "SpecError",
    "State",
    "StateError",
    "Stats",
    "SystemError",
    "TimeoutError",
    "Traffic",
    "UnsupportedError",
    "Where",
    "candidates",
    "decode",
    "doctor",
    "encode",
    "get_include",
    "get_library",
    "import_methods",
    "launch",
    "load_plugin",
    "memory",
    "method",
    "methods",
    "minimal_size",
    "register",
    "set_minimal_size",
    "transform",
    "unique_id",
    "version",
]


def get_include() -> str:
    """The folder of the C headers, for the compiler option ``-I``: ``#include <pith/pith.h>``."""
    here = Path(__file__).resolve().parent
    for folder in (
        here / "include",
        here.parents[1] / "include",
    ):  # as installed; in Pith's repository
        if (folder / "pith" / "pith.h").exists():
            return str(folder)
    raise FileNotFoundError(f"{here / 'include'} has no pith/pith.h: install the package again")


def get_library() -> str:
    """The path of the loaded shared library, for linkers.

    A program that is linked with it finds it at run time with ``-Wl,-rpath,FOLDER``.
    """
    path = Path(_library.path)
    return str(path.resolve() if path.exists() else path)


def doctor() -> dict[str, Any]:
    """What this machine can do, and what is missing: the library, instruction sets, transports.

    The command ``pith doctor`` shows more.
    """
    lib, text = _library.lib, _library.text
    transports = {}
    for name in ("inproc", "shm", "tcp", "mpi", "ucx"):
        status = lib.pith_transport_probe(name.encode())
        transports[name] = "ok" if status == 0 else text(lib.pith_error())
    try:
        package = importlib.metadata.version("pith")
    except importlib.metadata.PackageNotFoundError:
        package = "not installed"
    return {
        "package": package,
        "library": version(),
        "path": _library.path,
        "cpu": text(lib.pith_isa_name(lib.pith_isa_current())),
        "instruction_sets": [
            text(lib.pith_isa_name(i)) for i in range(3) if lib.pith_isa_available(i)
        ],
        "transports": transports,
    }


import_wanted()
