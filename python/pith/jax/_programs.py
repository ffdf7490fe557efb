# SPDX-License-Identifier: Apache-2.0
"""Trees as layers, and the reducers that foreign calls of traced programs use.

A program carries the key of its reducer. The key is a hash of all that the reducer is made of, so that it is the same in the next process,
where JAX may take the compiled program from its cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

from .. import _library as c
from .._adapt import AdaptiveRules
from .._codec import Rules, minimal_size
from .._comm import Comm
from .._errors import ArgumentError, UnsupportedError
from .._models import pack, unpack
from .._reducer import Reducer
from .._spec import check_rules
from ._devices import CudaReducer, Target, target
from ._primitive import TARGET
from ._ranks import settle

_TYPES = ("float32", "float16", "bfloat16", "float64")
_ALONE = "array"  # the name of a tree that is a single leaf
_EXACT_F64 = "float64 is not compressed"

_lock = threading.RLock()
_programs: dict[tuple[int, int], Program] = {}  # by comm and key
_loaded: dict[int, bytes] = {}  # by key: checkpoints of programs that are not made yet
_registered: set[str] = set()  # platforms


@dataclass(frozen=True)
class Leaf:
    """A leaf of a tree of gradients, as a layer."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def leaves_of(tree: Any) -> tuple[list[Leaf], list[Any], Any]:
    """The leaves as layers, the leaves themselves, and the structure of a tree."""
    found, structure = tree_flatten_with_path(tree)
    values = [_array_of(value) for _, value in found]
    names = [keystr(path, simple=True, separator="/") or _ALONE for path, _ in found]
    return [_leaf(n, v) for n, v in zip(names, values, strict=True)], values, structure


def _array_of(value: Any) -> Any:
    return value if hasattr(value, "dtype") and hasattr(value, "shape") else jnp.asarray(value)


def _leaf(name: str, value: Any) -> Leaf:
    dtype = str(jax.dtypes.canonicalize_dtype(value.dtype)) if _is_plain(value) else "key"
    if dtype not in _TYPES:
        raise ArgumentError(
            f"leaf {name} of the tree is {value.dtype}: gradients are {', '.join(_TYPES)}; take other leaves out "
            "(jax.grad gives none for integers unless allow_int is set; optax.masked leaves some out)"
        )
    return Leaf(name, tuple(int(size) for size in value.shape), dtype)


def _is_plain(value: Any) -> bool:
    return not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)


class Program:
    """A reducer that foreign calls with its key use."""

    def __init__(
        self,
        key: int,
        comm: Comm,
        rules: Rules,
        seed: int,
        leaves: Sequence[Leaf],
        where: Target,
    ) -> None:
        if leaves:
            check_rules(rules, [leaf.name for leaf in leaves])
        self.key, self.comm, self.leaves = key, comm, leaves
        self.adaptive = isinstance(rules, AdaptiveRules) and bool(leaves)
        chosen = rules if self.adaptive or not isinstance(rules, AdaptiveRules) else "none"
        self.reducer: Reducer
        if where.platform == "cuda":
            self.reducer = CudaReducer(comm, chosen, seed, where.device, not self.adaptive)
        else:
            self.reducer = Reducer(comm, chosen, seed, lent=not self.adaptive)
            comm._dependents.discard(self.reducer)  # it ends with us
        for leaf in leaves:
            exact = _EXACT_F64 if leaf.dtype == "float64" else None
            self.reducer.add(leaf.name, leaf.shape, leaf.dtype, exact=exact)
        self.sizes = [self._sizes(number) for number in range(len(leaves))]
        self.restored = False
        if saved := _loaded.pop(key, None):
            self.load(saved)
        c.check(c.lib.pith_xla_bind(key, comm.pointer, self.reducer.pointer))
        comm._dependents.add(self)

    def _sizes(self, number: int) -> list[int]:
        """Bytes of the arrays of a leaf; none where the reducer keeps what it needs by itself, since that changes with its specs."""
        return [0] * 4 if self.adaptive else self.reducer.array_sizes(number)

    @property
    def steps(self) -> int:
        """How many it has made; of those before a checkpoint none."""
        return max((layer.steps for layer in self.reducer.layers), default=0)

    def load(self, saved: bytes) -> None:
        """From a checkpoint of its reducer."""
        self.reducer.load(saved)
        self.restored = True

    def close(self) -> None:
        """Waits for a call under way, and ends."""
        c.lib.pith_xla_unbind(self.key)
        self.reducer.close()
        with _lock:
            _programs.pop((id(self.comm), self.key), None)


def _key_of(comm: Comm, rules: Rules, seed: int, leaves: Sequence[Leaf], where: Target) -> int:
    facts: tuple[Any, ...] = (
        _number_of(comm),
        comm.ranks,
        rules.text,
        seed,
        minimal_size(),
        leaves,
    )
    if where.platform != "cpu":
        facts += (where,)
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # XLA's attributes are signed


_comms: weakref.WeakKeyDictionary[Comm, int] = weakref.WeakKeyDictionary()
_counted = 0


def _number_of(comm: Comm) -> int:
    """Comms in the order in which programs first used them, which is the same in every run."""
    global _counted
    if comm not in _comms:
        _comms[comm], _counted = _counted, _counted + 1
    return _comms[comm]


def program_for(
    comm: Comm, rules: Rules, seed: int, leaves: Sequence[Leaf], fresh: bool = False
) -> Program:
    """The program of a tree; made where it is the first time, or ``fresh`` where its reducer keeps something from earlier steps."""
    with _lock:
        where = target()
        register(where.platform)
        seed = c.whole(ctypes.c_uint64, seed, "seed")
        key = _key_of(comm, rules, seed, leaves, where)
        found = _programs.get((id(comm), key))
        if found is not None and fresh and found.adaptive and found.steps:
            found.close()
            found = None
        if found is None:
            found = _programs[id(comm), key] = Program(key, comm, rules, seed, leaves, where)
        return found


# ---- Checkpoints of adaptive specs -----------------------------------------------------------------------------------


def save() -> bytes:
    """The state of reducers with adaptive specs ("auto", "lgreco:q:4") on this rank, for a checkpoint beside ``State``.

    With other specs ``State`` contains everything. Waits for steps in flight.
    """
    settle()
    kept = [p for p in programs() if p.adaptive and (p.steps or p.restored)]
    return pack({p.key: p.reducer.save() for p in kept})


def load(data: bytes) -> None:
    """Loads what ``save`` returned on this rank, before the first step with the ``State`` that was saved with it."""
    settle()
    found = unpack(data, "pith.jax")
    made = {program.key: program for program in programs()}
    for key, saved in found.items():
        if key in made:
            made[key].load(saved)
        else:
            _loaded[key] = saved


def programs() -> list[Program]:
    """Those of all comms, in the order in which they were made."""
    with _lock:
        return list(_programs.values())


def register(platform: str) -> None:
    """Makes the handler of a platform known to XLA, once; an error if XLA speaks a version that is not known."""
    if platform in _registered:
        return
    jax.local_devices(
        backend=platform
    )  # before there is a backend, JAX only notes what is registered
    handlers = {"cpu": c.lib.pith_xla_allreduce_host, "cuda": c.lib.pith_xla_allreduce_cuda}
    function = ctypes.cast(handlers[platform], ctypes.c_void_p)
    name = "CUDA" if platform == "cuda" else platform  # as XLA calls it
    refused = None
    try:
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(function.value), platform=name)
    except Exception as error:
        refused = error
    major, minor = ctypes.c_int(), ctypes.c_int()
    c.check(c.lib.pith_xla_version(ctypes.byref(major), ctypes.byref(minor)))
    if refused is not None:
        raise UnsupportedError(
            f"jaxlib {jax.lib.__version__}, whose interface for foreign calls is {major.value}.{minor.value}, refuses Pith's: {refused}"
        ) from refused
    _registered.add(platform)
