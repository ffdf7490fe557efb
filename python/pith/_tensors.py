# SPDX-License-Identifier: Apache-2.0
"""Tensors of any library as spans of the C library, without copies.

numpy arrays, torch CPU tensors, objects with ``__dlpack__`` and plain buffers are understood. Neither numpy nor torch is imported here:
what a tensor offers decides. Dense, contiguous and in main memory is what all of them must be.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._errors import ArgumentError
from ._library import Span

# ---- Types -----------------------------------------------------------------------------------------------------------

F32, F16, BF16, I8, I16, I32, F64, I64, U8 = range(9)

SIZES = {F32: 4, F16: 2, BF16: 2, I8: 1, I16: 2, I32: 4, F64: 8, I64: 8, U8: 1}
NAMES = {
    F32: "f32",
    F16: "f16",
    BF16: "bf16",
    I8: "i8",
    I16: "i16",
    I32: "i32",
    F64: "f64",
    I64: "i64",
    U8: "u8",
}

# What numpy, torch and people call them.
_BY_NAME = {name: number for number, name in NAMES.items()} | {
    "float32": F32,
    "float16": F16,
    "half": F16,
    "bfloat16": BF16,
    "int8": I8,
    "int16": I16,
    "int32": I32,
    "float64": F64,
    "int64": I64,
    "uint8": U8,
    "bool": U8,
}


def dtype_of(dtype: Any) -> int:
    """The number of a type, given as "f32", numpy.float32, torch.bfloat16, …"""
    if isinstance(dtype, int) and dtype in NAMES:
        return dtype
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type):  # numpy.float32
        name = dtype.__name__
    else:  # numpy.dtype("float32"), torch.float32
        name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ArgumentError(f"{name} is not a type of Pith: {', '.join(NAMES.values())}") from None


# ---- Views -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """A tensor's memory. ``owner`` keeps it alive; ``read_only`` says why it must not be written to, "" where it may be."""

    data: int
    n: int
    dtype: int
    shape: tuple[int, ...]
    read_only: str
    owner: Any

    @property
    def span(self) -> Span:
        return Span(self.data, self.n, self.dtype)


def count(shape: Sequence[int]) -> int:
    """How many values a shape has."""
    n = 1
    for size in shape:
        n *= int(size)
    return n


def _refuse_strides(what: str, hint: str) -> ArgumentError:
    return ArgumentError(f"{what} is not contiguous; {hint}")


def _of_torch(tensor: Any) -> View:
    if tensor.device.type != "cpu":
        raise ArgumentError(f"the tensor is on {tensor.device}; only CPU tensors can be used here")
    if str(tensor.layout) != "torch.strided":
        raise ArgumentError(f"the tensor is {tensor.layout}; only dense tensors can be used here")
    if not tensor.is_contiguous():
        raise _refuse_strides(f"a tensor of shape {tuple(tensor.shape)}", "use tensor.contiguous()")
    shape = tuple(tensor.shape)
    return View(tensor.data_ptr(), tensor.numel(), dtype_of(tensor.dtype), shape, "", tensor)


def _of_array(array: Any) -> View:
    interface = array.__array_interface__
    shape = tuple(interface["shape"])
    n = count(shape)
    flags = getattr(array, "flags", None)
    contiguous = flags.c_contiguous if flags is not None else interface.get("strides") is None
    if n and not contiguous:
        raise _refuse_strides(f"an array of shape {shape}", "use numpy.ascontiguousarray()")
    if interface["typestr"][0] == ">":
        raise ArgumentError("an array of the other byte order cannot be used here")
    address, fixed = interface["data"]
    read_only = f"{type(array).__name__} is read-only" if fixed else ""
    return View(address, n, dtype_of(array.dtype), shape, read_only, array)


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_CPU = 1
_DL_TYPES = {  # (code, bits): kDLInt 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4, kDLBool 6
    (0, 8): I8,
    (0, 16): I16,
    (0, 32): I32,
    (0, 64): I64,
    (1, 8): U8,
    (2, 16): F16,
    (2, 32): F32,
    (2, 64): F64,
    (4, 16): BF16,
    (6, 8): U8,
}


class _DLVersioned(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_DL_READ_ONLY, _DL_COPIED = 1, 2  # flags

_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype = ctypes.c_int
_capsule_is.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _capsule_of(tensor: Any) -> Any:
    """What a tensor exports. Nobody consumes the capsule: while it lives so does the memory, and when it goes it gives the tensor back."""
    try:
        try:
            return tensor.__dlpack__(max_version=(1, 0))
        except TypeError:  # from before DLPack 1.0
            return tensor.__dlpack__()
    except BufferError as error:
        raise ArgumentError(
            f"{type(tensor).__name__} cannot be exported by DLPack: {error}"
        ) from None


def _is_writable_buffer(tensor: Any) -> bool:
    try:
        return not memoryview(tensor).readonly
    except (TypeError, ValueError, BufferError, RuntimeError):
        return False


def _open_capsule(capsule: Any, tensor: Any) -> tuple[_DLTensor, str]:
    """The tensor in a capsule, and why it must not be written to.

    A capsule from before DLPack 1.0 does not say whether it may be, and JAX's arrays, which must not, come in such ones. So these are
    written to only where the buffer protocol says that they may be.
    """
    kind = type(tensor).__name__
    if not _capsule_is(capsule, b"dltensor_versioned"):
        found = ctypes.cast(_capsule_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor))
        unknown = f"{kind} is exported by DLPack without the flags of version 1.0, as immutable arrays (JAX's) are"
        return found.contents, "" if _is_writable_buffer(tensor) else unknown
    address = _capsule_pointer(capsule, b"dltensor_versioned")
    versioned = ctypes.cast(address, ctypes.POINTER(_DLVersioned)).contents
    if versioned.major != 1:
        raise ArgumentError(
            f"{kind} is exported by DLPack {versioned.major}.{versioned.minor}, and 1.x is understood"
        )
    if versioned.flags & _DL_COPIED:
        return versioned.tensor, f"DLPack exports a copy of {kind}"
    return (
        versioned.tensor,
        f"{kind} is exported by DLPack as read-only" if versioned.flags & _DL_READ_ONLY else "",
    )


def _of_dlpack(tensor: Any) -> View:
    device, _ = tensor.__dlpack_device__()
    if device != _DL_CPU:
        raise ArgumentError(f"the tensor is on DLPack device {int(device)}, not in main memory")
    capsule = _capsule_of(tensor)
    dl, read_only = _open_capsule(capsule, tensor)
    shape = tuple(dl.shape[i] for i in range(dl.ndim))
    dtype = _DL_TYPES.get((dl.dtype.code, dl.dtype.bits))
    if dtype is None or dl.dtype.lanes != 1:
        raise ArgumentError(
            f"a DLPack tensor of type {dl.dtype.code} with {dl.dtype.bits} bits cannot be used"
        )
    expected = 1
    for i in reversed(range(dl.ndim)):
        if dl.strides and shape[i] != 1 and dl.strides[i] != expected and count(shape):
            raise _refuse_strides(f"a tensor of shape {shape}", "make a contiguous copy")
        expected *= shape[i]
    address = (dl.data or 0) + dl.byte_offset
    return View(address, count(shape), dtype, shape, read_only, (capsule, tensor))


_FORMATS = {"f": F32, "e": F16, "d": F64, "b": I8, "h": I16, "i": I32, "B": U8, "c": U8, "?": U8}


def _of_buffer(buffer: Any) -> View:
    memory = memoryview(buffer)
    dtype = _FORMATS.get(memory.format) if memory.format else U8
    if dtype is None and memory.format in ("l", "q"):
        dtype = I64 if memory.itemsize == 8 else I32
    if dtype is None:
        raise ArgumentError(f"a buffer of format {memory.format!r} cannot be used")
    if not memory.c_contiguous:
        raise _refuse_strides("the buffer", "make a contiguous copy")
    return View(
        address_of(memory),
        memory.nbytes // SIZES[dtype],
        dtype,
        memory.shape or (),
        f"{type(buffer).__name__} is read-only" if memory.readonly else "",
        memory,
    )


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.restype = None
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]


def address_of(buffer: Any) -> int:
    """Where a buffer's bytes are, read-only ones too. The caller keeps the buffer alive."""
    view = _PyBuffer()
    _get_buffer(buffer, ctypes.byref(view), 0)
    try:
        return view.buf or 0
    finally:
        _release_buffer(ctypes.byref(view))


def view_of(tensor: Any) -> View:
    """The memory of a tensor."""
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "layout"):
        return _of_torch(tensor)
    if hasattr(tensor, "__array_interface__"):
        return _of_array(tensor)
    if hasattr(tensor, "__dlpack__"):
        return _of_dlpack(tensor)
    try:
        memoryview(tensor)
    except TypeError:
        kind = type(tensor).__name__
        raise ArgumentError(
            f"{kind} is not a tensor: numpy arrays, torch tensors, objects with __dlpack__ and buffers are"
        ) from None
    return _of_buffer(tensor)


def target_of(tensor: Any) -> View:
    """The memory of a tensor that will be written to."""
    view = view_of(tensor)
    if view.read_only:
        raise ArgumentError(
            f"{view.read_only}: it cannot take a result; give a numpy array or a torch tensor, and make the other of that"
        )
    return view
