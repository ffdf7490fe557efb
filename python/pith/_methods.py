# SPDX-License-Identifier: Apache-2.0
"""Methods in Python: a class, or two functions, that turn values into arrays or bytes and back; transforms and memories likewise.

    @pith.method("half")
    class Half:
        def encode(self, x):                 # n f32 values: a numpy array, or a tensor of torch
            return x.astype("float16")
        def decode(self, half, n):           # what encode returned
            return half.astype("float32")

From then on ``"ef/half"`` is a spec as any other. To the C library a method is a codec that sees the tensor as a whole
(include/pith/plugin.h), and its functions are called back here, in whatever thread encodes. What they return is packed, checked and copied
here, so that no mistake of theirs goes further than an error with the name of the method.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import inspect
import os
import struct
import sys
import traceback
import typing
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import _library as c
from ._errors import ArgumentError, CorruptError, Error, PluginError, RangeError
from ._tensors import BF16, F16, F32

_ABI = 2
_NOT_FINITE, _BYTES, _ARRAYS = 0, 1, 2  # the first byte of a payload
_TYPES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32",
    "float64", "bool", "bfloat16",
)  # fmt: skip
_ENTRY = struct.Struct("<BQ")  # of each array: its type, how many values
_SET, _ADD, _SUB = 0, 1, 2  # pith_apply
_KINDS = {"numpy": None, "torch": "cpu", "cuda": "cuda"}
_FOREIGN_IDS = 0xC000  # Python's share of the wire ids for codecs from outside
_SPARE = 1024  # bytes that a payload may have beyond its values, where no bound is declared
_MOST_OF_A_BLOCK = 65536
_INT_LIMIT = float(2**53)
_REAL_LIMIT = 1e300

T = TypeVar("T")


@dataclass(frozen=True)
class Where:
    """Where in the training run a tensor comes from. The random numbers of a method must depend on nothing else.

    A method whose ``encode`` or ``decode`` has a parameter ``ctx`` gets it. When decoding, it is the encoder's.
    """

    seed: int
    step: int
    layer: int
    rank: int  # the encoder's
    rows: int  # first dimension of the layer; 0 where it has one dimension only

    def rng(self) -> Any:
        """A numpy.random.Generator for this tensor: the same when decoding, another one on other ranks and in other steps."""
        import numpy

        return numpy.random.default_rng((self.seed, self.step, self.layer, self.rank))


# ---- Payloads --------------------------------------------------------------------------------------------------------


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise ArgumentError("methods in Python need numpy, which is not installed") from None
    return numpy


def _as_array(part: Any) -> tuple[int, Any]:
    """A part of what encode returned: the number of its type, and its values in a row."""
    numpy, kind = _numpy(), None
    if hasattr(part, "detach"):  # a tensor of torch
        part = part.detach().cpu().contiguous()
        if str(part.dtype) == "torch.bfloat16":
            kind, part = "bfloat16", part.view(sys.modules["torch"].int16)
        part = part.numpy()
    array = numpy.ascontiguousarray(part).reshape(-1)
    name = kind or array.dtype.name
    if name not in _TYPES:
        raise TypeError(f"encode returned values of type {name}; {', '.join(_TYPES)} can be sent")
    return _TYPES.index(name), array


def _packed(returned: Any) -> list[Any]:
    """What encode returned, as buffers that make up the payload."""
    if isinstance(returned, (bytes, bytearray, memoryview)):
        return [bytes((_BYTES,)), returned]
    many = isinstance(returned, (tuple, list))
    parts = [_as_array(part) for part in (returned if many else (returned,))]
    if len(parts) > 255:
        raise TypeError(f"encode returned {len(parts)} arrays; up to 255 can be sent")
    head = bytes((_ARRAYS, int(many), len(parts)))
    head += b"".join(_ENTRY.pack(number, array.size) for number, array in parts)
    return [head, *(array.view("uint8") for _, array in parts if array.size)]


def _unpacked(payload: bytes, device: str | None) -> Any:
    """What encode returned, from a payload that may have any bytes."""
    if payload[0] == _BYTES:
        return payload[1:]
    numpy = _numpy()
    if payload[0] != _ARRAYS or len(payload) < 3 or payload[1] > 1:
        raise CorruptError("a payload that no encoder has written")
    count, parts = payload[2], []
    at = 3 + count * _ENTRY.size
    if at > len(payload) or (not payload[1] and count != 1):
        raise CorruptError("a payload that ends within its head")
    for index in range(count):
        number, n = _ENTRY.unpack_from(payload, 3 + index * _ENTRY.size)
        if number >= len(_TYPES):
            raise CorruptError("a payload with values of an unknown type")
        name = _TYPES[number]
        kind = numpy.dtype("int16" if name == "bfloat16" else name)
        if n * kind.itemsize > len(payload) - at:
            raise CorruptError("a payload that ends within its values")
        array = numpy.frombuffer(payload, kind, n, at).copy()
        at += n * kind.itemsize
        parts.append(array if device is None else _as_tensor(array, device, name))
    if at != len(payload):
        raise CorruptError("a payload with bytes behind its values")
    return tuple(parts) if payload[1] else parts[0]


def _as_tensor(array: Any, device: str, name: str = "") -> Any:
    import torch

    tensor = torch.from_numpy(array)
    return (tensor.view(torch.bfloat16) if name == "bfloat16" else tensor).to(device)


# ---- Values ----------------------------------------------------------------------------------------------------------


def _memory(address: int | None, size: int) -> Any:
    """Bytes in memory as a numpy array."""
    numpy = _numpy()
    if not size or not address:
        return numpy.empty(0, numpy.uint8)
    return numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _loaded(span: Any) -> Any:
    """Values of a span in f32: a view that cannot be written to, or a copy."""
    numpy = _numpy()
    values = _memory(span.data, span.n * (4 if span.dtype == F32 else 2))
    if span.dtype == F32:
        values = values.view(numpy.float32)
        values.flags.writeable = False
        return values
    if span.dtype == F16:
        return values.view(numpy.float16).astype(numpy.float32)
    return (values.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)


def _stored(span: Any, values: Any, apply: int) -> None:
    """Sets, adds or subtracts f32 values; sums of half types are made in f32."""
    numpy = _numpy()
    target = _memory(span.data, span.n * (4 if span.dtype == F32 else 2))
    if apply != _SET:
        before = _loaded(span)
        values = before + values if apply == _ADD else before - values
    if span.dtype == F32:
        target.view(numpy.float32)[:] = values
    elif span.dtype == F16:
        with numpy.errstate(over="ignore"):
            target.view(numpy.float16)[:] = values.astype(numpy.float16)
    else:
        assert span.dtype == BF16
        bits = values.astype(numpy.float32).view(numpy.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest, ties to even
        rounded = numpy.where(numpy.isnan(values), 0x7FC0, rounded)
        target.view(numpy.uint16)[:] = rounded.astype(numpy.uint16)


# ---- Parameters ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parameter:
    key: str
    kind: int  # pith_param_type
    initial: str | None
    choices: tuple[Any, ...] = ()

    def read(self, values: int, index: int) -> Any:
        at = values + 8 * index
        if self.kind == 1:
            return ctypes.c_double.from_address(at).value
        number = ctypes.c_int64.from_address(at).value
        return self.choices[number] if self.kind == 2 else number


def _parameters(name: str, factory: Callable[..., Any]) -> tuple[_Parameter, ...]:
    """Those of a class's __init__: whole numbers, numbers, and choices (``typing.Literal``)."""
    if factory.__init__ is object.__init__:  # type: ignore[misc]
        return ()
    found = []
    hints = typing.get_type_hints(factory.__init__)  # type: ignore[misc]
    for key, parameter in inspect.signature(factory).parameters.items():
        default = parameter.default
        kind = hints.get(key, type(default))
        given = None if default is parameter.empty else str(default)
        if typing.get_origin(kind) is typing.Literal:
            found.append(_Parameter(key, 2, given, typing.get_args(kind)))
        elif kind is int or kind is float:
            found.append(_Parameter(key, int(kind is float), given))
        else:
            raise ArgumentError(
                f"{name}: the parameter {key} is neither int, float nor typing.Literal; say which, as in `{key}: float = 0.01`"
            )
    return tuple(found)


def _param_list(parameters: Sequence[_Parameter]) -> Any:
    entries = [
        c.Param(
            p.key.encode(),
            p.kind,
            -(_REAL_LIMIT if p.kind == 1 else _INT_LIMIT),
            _REAL_LIMIT if p.kind == 1 else _INT_LIMIT,
            None if p.initial is None else p.initial.encode(),
            "|".join(map(str, p.choices)).encode() if p.choices else None,
            b"",
        )
        for p in parameters
    ]
    return (c.Param * (len(entries) + 1))(*entries, c.Param())


# ---- A method --------------------------------------------------------------------------------------------------------


class _Written:
    """Something written in Python, with parameters. It stays for as long as the process runs, as the library's tables do."""

    def __init__(self, name: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
        self.name = name
        self.parameters = _parameters(name, factory)
        self._params = _param_list(self.parameters)
        self.take(factory, options)

    def take(self, factory: Callable[..., Any], options: dict[str, Any]) -> None:
        """The class, also when a cell of a notebook runs again."""
        self._factory = factory
        self._made: dict[tuple[Any, ...], Any] = {}

    def plugin(self, options: dict[str, Any], origin: str) -> Any:
        """A pith_plugin with what this is."""
        raise NotImplementedError

    def _instance(self, values: int | None) -> Any:
        parameters = enumerate(self.parameters)
        given = tuple(p.read(values or 0, i) for i, p in parameters)
        if given not in self._made:
            self._made[given] = self._factory(
                **{p.key: value for p, value in zip(self.parameters, given, strict=True)}
            )
        return self._made[given]

    def _guarded(self, what: str, call: Callable[[], None], status: int) -> int:
        """Runs a function; a failure becomes an error that names the method."""
        try:
            call()
        except BaseException as error:
            if isinstance(error, Error):
                text, status = str(error), error.status
            else:
                text = f"{what} failed: {type(error).__name__}: {error}{_place_of(error)}"
            return int(c.lib.pith_fail(status, b"%s", f"{self.name}: {text}".encode()))
        return 0

    def _check(self, values: int | None) -> int:
        return self._guarded("a parameter", lambda: self._instance(values), RangeError.status)

    def _call(self, values: int | None, what: str, ctx: Any, *arguments: Any) -> Any:
        function = getattr(self._instance(values), what)
        if ctx is not None and _takes_ctx(function):
            where = ctx.contents
            arguments += (Where(where.seed, where.step, where.layer, where.rank, where.rows),)
        return function(*arguments)


class _Method(_Written):
    """What the C library calls of a codec."""

    def take(self, factory: Callable[..., Any], options: dict[str, Any]) -> None:
        super().take(factory, options)
        self._device = _KINDS[options["tensors"]]
        self._bound = options["bound"]

    def plugin(self, options: dict[str, Any], origin: str) -> Any:
        self._table = self.table(options, origin)
        self._tables = (ctypes.POINTER(c.CodecOps) * 1)(ctypes.pointer(self._table))
        return c.Plugin(_ABI, origin.encode(), b"1", self._tables, 1)

    def table(self, options: dict[str, Any], origin: str) -> Any:
        functions = (
            c.CODEC_CHECK(self._check),
            c.CODEC_SIZE(self._payload_bound),
            c.CODEC_SIZE(lambda _values, _n: 0),
            c.CODEC_ENCODE(self._encode),
            c.CODEC_DECODE(self._decode),
        )
        check, bound, scratch, encode, decode = functions
        return c.CodecOps(
            name=self.name.encode(),
            family=b"Python",
            summary=options["summary"].encode(),
            bits=options["bits"].encode(),
            origin=origin.encode(),
            wire_id=options["wire_id"],
            params=ctypes.cast(self._params, ctypes.POINTER(c.Param)),
            check=check,
            bound=bound,
            scratch=scratch,
            encode=encode,
            decode=decode,
            detail=b"what encode() returns, with a head of 3 bytes and 9 for each array",
        )

    # ---- Called by the library

    def _payload_bound(self, values: int | None, n: int) -> int:
        try:
            made = self._instance(values)
            bound = getattr(made, "bound", None) or self._bound
            return int(bound(n)) + _SPARE if bound else 4 * n + _SPARE
        except BaseException:  # there is no status to return here; what it gives is refused
            return ctypes.c_size_t(-1).value

    def _encode(self, values: int | None, src: Any, out: Any, _part: Any, ctx: Any) -> int:
        def encode() -> None:
            x = _loaded(src)
            if _numpy().isfinite(x).all():
                buffers = _packed(self._call(values, "encode", ctx, self._given(x)))
            else:  # as NaN to all ranks
                buffers = [bytes((_NOT_FINITE,))]
            views = [memoryview(buffer).cast("B") for buffer in buffers]
            size = sum(len(view) for view in views)
            if size > out.contents.capacity:
                raise PluginError(
                    f"encode returned {size} bytes for {src.n} values, and its bound is {out.contents.capacity}; "
                    "declare a larger one (bound=lambda n: …)"
                )
            at = out.contents.data
            for view in views:
                _memory(at, len(view))[:] = view
                at += len(view)
            out.contents.size = size

        return self._guarded("encode", encode, PluginError.status)

    def _decode(self, values: int | None, payload: Any, dst: Any, apply: int, ctx: Any) -> int:
        def decode() -> None:
            numpy = _numpy()
            if not payload.size:
                raise CorruptError("an empty payload")
            data = ctypes.string_at(payload.data, payload.size)
            if data == bytes((_NOT_FINITE,)):
                _stored(dst, numpy.full(dst.n, numpy.nan, numpy.float32), apply)
                return
            given = _unpacked(data, self._device)
            found = self._call(values, "decode", ctx, given, dst.n)
            if hasattr(found, "detach"):
                found = found.detach().float().cpu().numpy()
            decoded = numpy.asarray(found, numpy.float32).reshape(-1)
            if decoded.size != dst.n:
                raise PluginError(f"decode returned {decoded.size} values for a tensor of {dst.n}")
            if not numpy.isfinite(decoded).all():
                raise PluginError("decode returned NaN or infinite values for finite ones")
            _stored(dst, decoded, apply)

        return self._guarded("decode", decode, PluginError.status)

    def _given(self, x: Any) -> Any:
        return x if self._device is None else _as_tensor(x.copy(), self._device)

    def _call(self, values: int | None, what: str, ctx: Any, *arguments: Any) -> Any:
        if self._device is None:
            return super()._call(values, what, ctx, *arguments)
        with sys.modules["torch"].no_grad():
            return super()._call(values, what, ctx, *arguments)


# ---- Transforms and memories -----------------------------------------------------------------------------------------


def _floats(address: int | None, n: int) -> Any:
    """f32 values in memory."""
    return _memory(address, 4 * n).view(_numpy().float32)


class _Values(_Written):
    """What turns f32 values into as many others."""

    def _turned(self, what: str, values: int | None, ctx: Any, x: Any, *arguments: Any) -> Any:
        """What a function makes of values; of not finite ones NaN, without calling it."""
        numpy = _numpy()
        if not all(numpy.isfinite(given).all() for given in (x, *arguments)):
            return numpy.float32("nan")
        found = numpy.asarray(self._call(values, what, ctx, x, *arguments), numpy.float32)
        if found.size != x.size:
            raise PluginError(f"{what} returned {found.size} values for {x.size}")
        if not numpy.isfinite(found).all():
            raise PluginError(f"{what} returned NaN or infinite values for finite ones")
        return found.reshape(-1)


class _Transform(_Values):
    """What the C library calls of a transform."""

    def take(self, factory: Callable[..., Any], options: dict[str, Any]) -> None:
        super().take(factory, options)
        self._block = options["block"]

    def plugin(self, options: dict[str, Any], origin: str) -> Any:
        self._table = c.PluginTransform(
            name=self.name.encode(),
            summary=options["summary"].encode(),
            params=ctypes.cast(self._params, ctypes.POINTER(c.Param)),
            check=c.CODEC_CHECK(self._check),
            block=c.TRANSFORM_BLOCK(lambda _values: self._block),
            forward=c.TRANSFORM_RUN(functools.partial(self._run, "forward")),
            inverse=c.TRANSFORM_RUN(functools.partial(self._run, "inverse")),
        )
        self._tables = (ctypes.POINTER(c.PluginTransform) * 1)(ctypes.pointer(self._table))
        return c.Plugin(_ABI, origin.encode(), b"1", transforms=self._tables, transform_count=1)

    def _run(self, what: str, values: int | None, data: int, n: int, _index: int, ctx: Any) -> int:
        def run() -> None:
            x = _floats(data, n)
            x[:] = self._turned(what, values, ctx, x.copy())

        return self._guarded(what, run, PluginError.status)


class _Memory(_Values):
    """What the C library calls of a memory."""

    def plugin(self, options: dict[str, Any], origin: str) -> Any:
        self._table = c.PluginMemory(
            name=self.name.encode(),
            summary=options["summary"].encode(),
            params=ctypes.cast(self._params, ctypes.POINTER(c.Param)),
            check=c.CODEC_CHECK(self._check),
            keeps_all=int(options["keeps"] == "all"),
            compensate=c.MEMORY_COMPENSATE(self._compensate),
        )
        self._tables = (ctypes.POINTER(c.PluginMemory) * 1)(ctypes.pointer(self._table))
        return c.Plugin(_ABI, origin.encode(), b"1", memories=self._tables, memory_count=1)

    def _compensate(
        self, values: int | None, kept: Any, gradient: int, gamma: float, out: int, n: int
    ) -> int:
        def compensate() -> None:
            before = _floats(kept.contents.residual or kept.contents.momentum, n).copy()
            g = _floats(gradient, n) * _numpy().float32(gamma)
            _floats(out, n)[:] = self._turned("compensate", values, None, g, before)

        return self._guarded("compensate", compensate, PluginError.status)


@functools.lru_cache(maxsize=1024)
def _takes_ctx(function: Any) -> bool:
    return "ctx" in inspect.signature(function).parameters


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if frame.filename != __file__]
    return f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""


# ---- Registering -----------------------------------------------------------------------------------------------------

_methods: dict[str, _Written] = {}  # the library keeps pointers to their functions and texts


def method(
    name: str,
    *,
    tensors: str = "numpy",
    bound: Callable[[int], int] | None = None,
    summary: str = "",
    bits: str = "",
    wire_id: int = 0,
) -> Callable[[type[T]], type[T]]:
    """Registers a class as a method, on all ranks::

        @pith.method("mine", tensors="torch")
        class Mine:
            def __init__(self, ratio: float = 0.01): ...      # "mine:0.05", "mine,ratio=0.05"
            def encode(self, x): ...                          # n f32 values → bytes, an array, or a tuple of arrays
            def decode(self, payload, n): ...                 # what encode returned → n values

    ``tensors``: ``"numpy"`` arrays, ``"torch"`` tensors in main memory, or ``"cuda"`` tensors. Arrays come without a shape and may have any type,
    and ``x`` must not be changed. With a parameter ``ctx`` a function also gets :class:`Where`, which random numbers must follow from.
    ``bound``: the most bytes that n values can take, also as a method ``bound(self, n)`` of the class; without it four for each value.
    ``summary`` and ``bits`` (bits per value, as a formula) are for ``pith.methods()``. ``wire_id``: 0xc000 to 0xffff, where two names collide.

    Neither object nor functions may keep anything from one call to the next: they are called by several threads, and ``ef/`` and ``momentum/``
    keep what has to be kept. Values with NaN or Inf do not reach ``encode``; they arrive as NaN. An exception, a wrong number of values, a
    payload beyond the bound, and NaN out of finite values are :class:`pith.PluginError` with the name of the method.
    """

    def registered(factory: type[T]) -> type[T]:
        for function in ("encode", "decode"):
            if not callable(getattr(factory, function, None)):
                raise ArgumentError(f"{name}: {factory.__name__} has no {function}()")
        if tensors not in _KINDS:
            raise ArgumentError(f"{name}: tensors={tensors!r} is none of {', '.join(_KINDS)}")
        options = {
            "tensors": tensors,
            "bound": bound,
            "summary": summary or _first_line(factory),
            "bits": bits or "as encode() makes it",
            "wire_id": wire_id or _FOREIGN_IDS + zlib.crc32(name.encode()) % 0x4000,
        }
        _register(_Method, name, factory, options)
        return factory

    return registered


def _first_line(factory: type) -> str:
    return (inspect.getdoc(factory) or factory.__name__).splitlines()[0].rstrip(".")


def transform(name: str, *, block: int = 1024, summary: str = "") -> Callable[[type[T]], type[T]]:
    """Registers a class as a transform, which stands before a codec, on all ranks::

        @pith.transform("flip")
        class Flip:
            def forward(self, x): return x[::-1]     # n f32 values (block, or fewer at the end of a layer) → as many
            def inverse(self, y): return y[::-1]     # what decoding gave back → n values

    Both must be functions of the values, of the parameters, and of ``ctx`` (:class:`Where`) alone; ``inverse`` undoes ``forward``. Of blocks with
    NaN or Inf all values become NaN. Mistakes are errors with the name of the transform.
    """

    def registered(factory: type[T]) -> type[T]:
        for function in ("forward", "inverse"):
            if not callable(getattr(factory, function, None)):
                raise ArgumentError(f"{name}: {factory.__name__} has no {function}()")
        if not 1 <= block <= _MOST_OF_A_BLOCK:
            raise ArgumentError(f"{name}: block={block} is not from 1 to {_MOST_OF_A_BLOCK}")
        options = {"block": block, "summary": summary or _first_line(factory)}
        _register(_Transform, name, factory, options)
        return factory

    return registered


def memory(name: str, *, keeps: str = "lost", summary: str = "") -> Callable[[type[T]], type[T]]:
    """Registers a class as a memory, which stands before transform and codec, on all ranks::

        @pith.memory("leaky")
        class Leaky:
            def __init__(self, beta: float = 0.9): self.beta = beta
            def compensate(self, gradient, kept): return gradient + self.beta * kept      # what is encoded

    ``compensate`` gets the same piece of a gradient and of what was kept, and works value by value: a layer comes in pieces of any length. What is
    kept is the library's to store: with ``keeps="lost"`` what decoding does not give back of the encoded values, with ``keeps="all"`` all of
    them. Mistakes are errors with the name of the memory.
    """

    def registered(factory: type[T]) -> type[T]:
        if not callable(getattr(factory, "compensate", None)):
            raise ArgumentError(f"{name}: {factory.__name__} has no compensate()")
        if keeps not in ("lost", "all"):
            raise ArgumentError(f"{name}: keeps={keeps!r} is neither 'lost' nor 'all'")
        options = {"keeps": keeps, "summary": summary or _first_line(factory)}
        _register(_Memory, name, factory, options)
        return factory

    return registered


def register(
    name: str, encode: Callable[..., Any], decode: Callable[..., Any], **options: Any
) -> None:
    """Registers two functions as a method without parameters: ``encode(x)`` and ``decode(payload, n)``; see :func:`method`."""

    class Functions:
        pass

    Functions.encode = staticmethod(encode)  # type: ignore[attr-defined]
    Functions.decode = staticmethod(decode)  # type: ignore[attr-defined]
    doc = (inspect.getdoc(encode) or f"{encode.__name__} and {decode.__name__}").splitlines()[0]
    method(name, **({"summary": doc.rstrip(".")} | options))(Functions)


def _register(kind: type[_Written], name: str, factory: type, options: dict[str, Any]) -> None:
    known = _methods.get(name)
    if known is not None:
        if type(known) is not kind or known.parameters != _parameters(name, factory):
            raise ArgumentError(
                f"{name} is registered with other parameters; give the new one another name"
            )
        known.take(factory, options)
        return
    made = kind(name, factory, options)
    plugin = made.plugin(options, _origin(factory))
    c.check(c.lib.pith_plugin_add(ctypes.byref(plugin)))
    _methods[name] = made


def _origin(factory: type) -> str:
    try:
        return Path(inspect.getfile(factory)).name
    except (OSError, TypeError):
        return "Python"


def names() -> list[str]:
    """Methods that were registered."""
    return [name for name, made in _methods.items() if isinstance(made, _Method)]


def in_python(spec: str) -> bool:
    """Whether a part of a spec was written in Python."""
    return any(part.partition(":")[0].partition(",")[0] in _methods for part in spec.split("/"))


def import_methods(names: str) -> None:
    """Imports modules that register methods: names or paths of files, separated by commas."""
    for name in filter(None, names.split(",")):
        if not name.endswith(".py"):
            importlib.import_module(name)
            continue
        path = Path(name).resolve()
        module = f"pith_methods_{zlib.crc32(str(path).encode()):08x}"
        if module in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(module, path)
        if spec is None or spec.loader is None or not path.exists():
            raise ArgumentError(f"there is no {name} to import methods from")
        sys.modules[module] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[module])
        except BaseException:
            del sys.modules[module]  # else the next call would find it and register nothing
            raise


def import_wanted() -> None:
    """Those of the environment: launchers hand them on to ranks."""
    import_methods(os.environ.get("PITH_METHODS", ""))
