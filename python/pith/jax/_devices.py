# SPDX-License-Identifier: Apache-2.0
"""Which device programs are for, and what has to be there for a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from .. import _library as c
from .._codec import Rules
from .._comm import Comm
from .._errors import UnsupportedError
from .._reducer import Options, Reducer
from ._ranks import carrier

_NCCL = "libnccl.so.2"


@dataclass(frozen=True)
class Target:
    """What a program is for: "cpu", or "cuda" with the number of the device in this process."""

    platform: str
    device: int = 0


def target() -> Target:
    """Of programs that are traced now: the default device of JAX."""
    device = _default_device()
    if device.platform == "cpu":
        return Target("cpu")
    version = str(getattr(device.client, "platform_version", ""))
    if device.platform not in ("gpu", "cuda") or "rocm" in version.lower():
        raise UnsupportedError(
            f"pith.jax reduces arrays of CPUs and of GPUs with CUDA, and this program is for {device.platform} {version.strip()}: set "
            "JAX_PLATFORMS=cpu, or jax.config.update('jax_default_device', jax.devices('cpu')[0])"
        )
    number = getattr(device, "local_hardware_id", None)
    return Target("cuda", int(number or 0))


def _default_device() -> Any:
    chosen = getattr(jax.config, "jax_default_device", None)
    if chosen is not None and not isinstance(chosen, str):
        return chosen
    return jax.local_devices(backend=chosen)[0] if chosen else jax.local_devices()[0]


class CudaReducer(Reducer):
    """A reducer for programs of a GPU, on a stream of its own."""

    def __init__(self, comm: Comm, rules: str | Rules, seed: int, device: int, lent: bool) -> None:
        text = rules if isinstance(rules, str) else rules.text
        pointer = ctypes.c_void_p()
        how = carrier()
        if how != "comm":
            _load_nccl()
        self._bridge, self._options = None, Options(0, False, None, lent=lent)
        create = c.lib.pith_xla_cuda_reducer
        c.check(
            create(
                comm.pointer,
                device,
                how.encode(),
                text.encode(),
                seed,
                int(lent),
                ctypes.byref(pointer),
            )
        )
        self._pointer = pointer
        self._comm, self._rules = comm, text
        self._numbers, self._shapes, self._lent = {}, [], []

    @property
    def carrier(self) -> str | None:
        """NCCL, or pith through pinned memory; None before the first step."""
        name = c.lib.pith_xla_carrier(self.pointer)
        return None if name is None else name.decode()


def _load_nccl() -> None:
    """The NCCL of JAX is a file of its package nvidia-nccl, where the system does not look: the library finds it once it is loaded."""
    try:
        ctypes.CDLL(_NCCL)
        return
    except OSError:
        pass
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found else ():
        for file in sorted(Path(folder).glob(f"*/lib/{_NCCL}")):
            try:
                ctypes.CDLL(str(file))
                return
            except OSError:
                continue
