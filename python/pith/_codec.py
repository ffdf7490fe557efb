# SPDX-License-Identifier: Apache-2.0
"""Specs as objects: codecs, states, rules, and the methods there are."""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

from . import _library as c
from ._errors import ArgumentError
from ._tensors import address_of, count, dtype_of, target_of, view_of

_UNKNOWN = ctypes.c_size_t(-1).value  # SIZE_MAX
_TALLIED = 4
_WIDEST = 8  # bytes of a value of any type


class Caps(IntFlag):
    """What a codec can do. This decides which collectives it can use."""

    FIXED = 1 << 0
    CHUNKED = 1 << 1
    LINEAR = 1 << 2
    SPARSE = 1 << 3
    ROUNDS = 1 << 4
    VOTE = 1 << 5
    UNBIASED = 1 << 6
    SEEDED = 1 << 7
    ONCE = 1 << 8


def context(
    *,
    seed: int = 0,
    step: int = 0,
    layer: int = 0,
    rank: int = 0,
    ranks: int = 1,
    rows: int = 0,
    gamma: float = 1.0,
) -> c.Ctx:
    """A pith_ctx: what random numbers follow from."""
    return c.Ctx(
        seed=c.whole(ctypes.c_uint64, seed, "seed"),
        step=c.whole(ctypes.c_uint64, step, "step"),
        layer=c.whole(ctypes.c_uint64, layer, "layer"),
        rank=c.whole(ctypes.c_uint32, rank, "rank"),
        ranks=c.whole(ctypes.c_uint32, ranks, "ranks"),
        rows=c.whole(ctypes.c_uint64, rows, "rows"),
        gamma=gamma,
    )


@dataclass(frozen=True)
class Moment:
    """How momentum is sent: its weight of the past, when the variance is frozen (0: when it has settled; below 1: a share of the run; else a step),
    one of how many steps is exchanged, and the bits of gradients before (0: exact)."""

    beta: float
    freeze: float
    every: int
    warm: int


class Codec:
    """A method, made from a spec such as ``"q:4"`` or ``"ef/topk:0.01,values=fp16"``.

    A codec is immutable, and threads may share it. ``pith.methods()`` and the command ``pith codecs`` list the parts of
    specs.
    """

    def __init__(self, spec: str) -> None:
        pointer = ctypes.c_void_p()
        c.check(c.lib.pith_codec_create(spec.encode(), ctypes.byref(pointer)))
        self._pointer = pointer

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) and c is not None:  # at the end of the process it may be
            c.lib.pith_codec_destroy(self._pointer)

    def __repr__(self) -> str:
        return f"pith.Codec({self.spec!r})"

    @property
    def spec(self) -> str:
        """The canonical text: without defaults, and with values in their shortest form."""
        return c.text(c.lib.pith_codec_spec(self._pointer))

    @property
    def parts(self) -> str:
        """The canonical text with presets expanded: ``"signum:0.9"`` is ``"momentum:0.9/sign"``."""
        return c.text(c.lib.pith_codec_parts(self._pointer))

    @property
    def caps(self) -> Caps:
        return Caps(c.lib.pith_codec_caps(self._pointer))

    @property
    def fingerprint(self) -> int:
        """A number that is equal for two codecs exactly if they mean the same."""
        return c.lib.pith_codec_fingerprint(self._pointer)

    @property
    def granule(self) -> int:
        """Pieces of a CHUNKED codec start at multiples of this; 0 if the tensor is encoded as a whole."""
        return c.lib.pith_codec_granule(self._pointer)

    @property
    def rounds(self) -> int:
        """The number of exchanges of a ROUNDS codec; 0 for all others."""
        return c.lib.pith_codec_rounds(self._pointer)

    @property
    def has_memory(self) -> bool:
        """Whether a rank keeps state between steps (error feedback, momentum, low-rank factors)."""
        stages = {stage.partition(":")[0].partition(",")[0] for stage in self.parts.split("/")}
        return self.rounds > 0 or bool(stages & _memories())

    @property
    def moment(self) -> Moment | None:
        """The parameters of a spec that sends momentum; None for all others."""
        found = c.Moment()
        if not c.lib.pith_codec_moment(self._pointer, ctypes.byref(found)):
            return None
        return Moment(found.beta, found.freeze, found.every, found.warm)

    def bound(self, n: int) -> int:
        """The largest number of bytes that n values can take."""
        bytes_ = c.lib.pith_codec_bound(self._pointer, n)
        if bytes_ == _UNKNOWN:
            raise ArgumentError(f"{n} values are too many for any buffer")
        return bytes_

    def residual_size(self, n: int) -> int:
        """Bytes of the residual of n values, which depend on the parameter ``store``; 0 if the spec has no residual."""
        return int(c.lib.pith_codec_residual_size(self._pointer, n))

    def state(self, n: int, rows: int = 0) -> State:
        """A new state for a layer of n values."""
        return State(self, n, rows)

    def encode(self, tensor: Any, *, state: State | None = None, **where: Any) -> bytearray:
        """Encodes a tensor (f32, f16 or bf16).

        ``where`` are the inputs of random numbers (seed, step, layer, rank), ``rows`` for low rank, and ``gamma``, a
        factor on the gradient.
        """
        view = view_of(tensor)
        payload = bytearray(self.bound(view.n))
        out = c.Out(address_of(payload), len(payload), 0)
        ctx = context(**where)
        memory = state._pointer if state else None
        c.check(
            c.lib.pith_encode(
                self._pointer, memory, view.span, ctypes.byref(out), ctypes.byref(ctx)
            )
        )
        del payload[out.size :]
        return payload

    def decode(self, payload: Any, dst: Any, *, add: bool = False, **where: Any) -> Any:
        """Decodes into ``dst``, or adds to it, and returns ``dst``. ``where`` must be the encoder's."""
        source, target = view_of(payload), target_of(dst)
        bytes_ = c.Bytes(source.data, source.n)
        ctx = context(**where)
        c.check(c.lib.pith_decode(self._pointer, bytes_, target.span, int(add), ctypes.byref(ctx)))
        return dst

    def aggregate(self, total: Any, ranks: int, **where: Any) -> Any:
        """Turns the sum of decoded payloads of ``ranks`` ranks into the mean (or the majority), in place."""
        ctx = context(ranks=ranks, **where)
        c.check(c.lib.pith_aggregate(self._pointer, target_of(total).span, ctypes.byref(ctx)))
        return total


@functools.lru_cache(maxsize=256)
def codec_of(spec: str | Codec) -> Codec:
    """A codec from a spec; the same object for the same text."""
    return spec if isinstance(spec, Codec) else Codec(spec)


def through(codec: Codec, tensor: Any, dst: Any, *, rows: int = 0, **where: Any) -> Any:
    """What others get of a tensor, with a fresh state: encoded and decoded into ``dst``, or by rounds of one rank."""
    source, target, ctx = view_of(tensor), target_of(dst), context(rows=rows, **where)
    state = codec.state(source.n, rows)
    if not codec.rounds:
        payload = codec.encode(tensor, state=state, rows=rows, **where)
        return codec.decode(payload, dst, rows=rows, **where)
    for index in range(codec.rounds):
        which, entry = (codec._pointer, state._pointer, index), c.Round()
        c.check(c.lib.pith_round_describe(*which, ctypes.byref(entry)))
        buffer = ctypes.create_string_buffer(entry.count * _WIDEST + 1)
        at, here = ctypes.addressof(buffer), ctypes.byref(ctx)
        c.check(c.lib.pith_round_produce(*which, source.span, at, here))
        c.check(c.lib.pith_round_consume(*which, at, target.span, here))
    return dst


def tally(specs: Iterable[str]) -> str:
    """How often each spec comes, the most frequent first and the rest left out: "8 × q:4, 3 × none"."""
    found = Counter(specs).most_common()
    shown = [f"{times} × {spec}" for spec, times in found[:_TALLIED]]
    return ", ".join(shown + (["…"] if len(found) > _TALLIED else []))


def encode(
    tensor: Any, spec: str | Codec, *, state: State | None = None, **where: Any
) -> bytearray:
    """Encodes a tensor: ``pith.encode(gradient, "q:4")``. See ``Codec.encode``."""
    return codec_of(spec).encode(tensor, state=state, **where)


def decode(
    payload: Any,
    spec: str | Codec,
    dst: Any = None,
    *,
    n: int | None = None,
    add: bool = False,
    **where: Any,
) -> Any:
    """Decodes a payload into ``dst``, or into a new numpy array of ``n`` f32 values."""
    if dst is None:
        if n is None:
            raise ArgumentError(
                "pith.decode: give dst, or n for a new numpy array of that many values"
            )
        dst = _zeros(n)
    return codec_of(spec).decode(payload, dst, add=add, **where)


def _zeros(n: int) -> Any:
    try:
        import numpy
    except ImportError:
        raise ArgumentError(
            "pith.decode: a new array needs numpy, which is not installed; give dst instead of n"
        ) from None
    return numpy.zeros(n, numpy.float32)


class State:
    """What one rank keeps for one layer between steps. One thread may use it at a time."""

    def __init__(self, codec: Codec, n: int, rows: int = 0) -> None:
        pointer = ctypes.c_void_p()
        c.check(c.lib.pith_state_create(codec._pointer, n, rows, ctypes.byref(pointer)))
        self._pointer = pointer
        self._codec = codec  # must outlive the state
        self.n = n

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) and c is not None:  # at the end of the process it may be
            c.lib.pith_state_destroy(self._pointer)

    def __repr__(self) -> str:
        return f"<pith.State of {self._codec.spec}, {self.n} values>"

    def adapt(self, codec: Codec) -> None:
        """Changes to another spec. Residual and momentum are kept if the new spec has them, too."""
        c.check(c.lib.pith_state_adapt(self._pointer, codec._pointer))
        self._codec = codec

    def save(self) -> bytes:
        """Returns the state as bytes, for a checkpoint."""
        return saved(c.lib.pith_state_save_size, c.lib.pith_state_save, self._pointer)

    def load(self, data: Any) -> None:
        """Loads a saved state. Another layer size or damaged bytes raise an error and change nothing.

        A state that a comm has used belongs to one rank; another rank cannot load it.
        """
        view = view_of(data)
        c.check(c.lib.pith_state_load(self._pointer, c.Bytes(view.data, view.n)))

    def scale(self, factor: float) -> None:
        """Multiplies everything that is kept, for example after a change of the loss scale."""
        c.check(c.lib.pith_state_scale(self._pointer, factor))

    def scale_residual(self, factor: float) -> None:
        """Multiplies the residual; by a/b after the learning rate has changed from a to b. Momenta stay as they are."""
        c.check(c.lib.pith_state_scale_residual(self._pointer, factor))

    @property
    def residual(self) -> list[float] | None:
        """A copy of the values that were not sent yet; None if the state has no residual."""
        if not self._codec.residual_size(1):
            return None
        copy = (ctypes.c_float * self.n)()
        c.lib.pith_state_copy_residual(self._pointer, copy)
        return list(copy)


def saved(size: Any, save: Any, pointer: Any) -> bytes:
    """What a pair of C functions (how many bytes, and write them) give."""
    buffer = bytearray(size(pointer))
    out = c.Out(address_of(buffer), len(buffer), 0)
    c.check(save(pointer, ctypes.byref(out)))
    return bytes(memoryview(buffer)[: out.size])


# ---- Rules -----------------------------------------------------------------------------------------------------------


def minimal_size() -> int:
    """Tensors with fewer values are compressed only if a rule names them. The value of ``set_minimal_size``, else
    ``PITH_MINIMAL_SIZE``, else 1024.
    """
    values = ctypes.c_size_t()
    c.check(c.lib.pith_minimal_size(ctypes.byref(values)))
    return values.value


def set_minimal_size(values: int | None) -> None:
    """Sets ``minimal_size`` for codecs and rules that this process creates from now on. It must be the same on all
    ranks. ``None`` resets it.
    """
    unset = ctypes.c_size_t(-1).value
    c.lib.pith_minimal_size_set(
        unset if values is None else c.whole(ctypes.c_size_t, values, "values")
    )


@dataclass(frozen=True)
class Choice:
    """The result of rules for a layer."""

    spec: str
    rule: int | None  # None: a default decided
    reason: str


class Rules:
    """Specs by layer name: ``"*.bias=none;embed*=ef/topk:0.01;*=q:4"``. The first match wins."""

    def __init__(self, text: str) -> None:
        pointer = ctypes.c_void_p()
        c.check(c.lib.pith_rules_create(text.encode(), ctypes.byref(pointer)))
        self._pointer = pointer

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) and c is not None:  # at the end of the process it may be
            c.lib.pith_rules_destroy(self._pointer)

    def __len__(self) -> int:
        return c.lib.pith_rules_count(self._pointer)

    def __repr__(self) -> str:
        return f"pith.Rules({self.text!r})"

    @property
    def text(self) -> str:
        """The canonical text."""
        return c.text(c.lib.pith_rules_text(self._pointer))

    def find(self, layer: str, shape: Sequence[int]) -> Choice:
        """The spec of a layer. Tensors of one dimension or under ``pith.minimal_size()`` values stay exact unless a rule names them."""
        match = c.Match()
        status = c.lib.pith_rules_find(
            self._pointer, layer.encode(), len(shape), count(shape), ctypes.byref(match)
        )
        c.check(status)
        rule = None if match.rule == _UNKNOWN else match.rule
        return Choice(c.text(c.lib.pith_codec_spec(match.codec)), rule, c.text(match.reason))

    def matches(self, rule: int, layer: str) -> bool:
        """Whether the pattern of this rule matches the name."""
        return bool(c.lib.pith_rules_matches(self._pointer, rule, layer.encode()))


# ---- Methods ---------------------------------------------------------------------------------------------------------

_KINDS = ("codec", "transform", "memory", "preset")
_PARAM_TYPES = ("int", "real", "choice")


@dataclass(frozen=True)
class Param:
    """A parameter of a method."""

    key: str
    type: str  # "int", "real" or "choice"
    min: float
    max: float
    default: str | None  # None: must be given
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Method:
    """A preset, or a part of specs."""

    name: str
    kind: str  # "codec", "transform", "memory" or "preset"
    family: str
    summary: str
    made_of: str | None
    bits: str | None
    caps: Caps
    survey: bool  # one of the sixteen methods of the GRACE survey
    origin: str
    params: tuple[Param, ...]


def _params(first: Any) -> tuple[Param, ...]:
    params: list[Param] = []
    start, step = (
        ctypes.cast(first, ctypes.c_void_p).value or 0,
        first.contents.size if first else 0,
    )
    while start and (p := c.Param.from_address(start + step * len(params))).key:
        choices = tuple(c.text(p.choices).split("|")) if p.choices else ()
        default = c.text(p.initial) if p.initial is not None else None
        params.append(
            Param(
                c.text(p.key), _PARAM_TYPES[p.type], p.min, p.max, default, choices, c.text(p.help)
            )
        )
    return tuple(params)


def methods() -> list[Method]:
    """All methods of this library, including those of plug-ins."""
    found = []
    for index in range(c.lib.pith_method_count()):
        m = c.Method()
        c.check(c.lib.pith_method_get(index, ctypes.byref(m)))
        found.append(
            Method(
                name=c.text(m.name),
                kind=_KINDS[m.kind],
                family=c.text(m.family),
                summary=c.text(m.summary),
                made_of=c.text(m.made_of) or None,
                bits=c.text(m.bits) or None,
                caps=Caps(m.caps),
                survey=bool(m.survey),
                origin=c.text(m.origin),
                params=_params(m.params),
            )
        )
    return found


@functools.cache
def _memories() -> frozenset[str]:
    return frozenset(method.name for method in methods() if method.kind == "memory")


def load_plugin(name: str) -> None:
    """Loads codecs from a shared object, by its path, or by a name in the folders of PITH_PLUGIN_PATH."""
    c.check(c.lib.pith_plugin_load(name.encode()))
    _memories.cache_clear()


def dtype_size(dtype: Any) -> int:
    """Bytes of one value of a type."""
    return c.lib.pith_dtype_size(dtype_of(dtype))
