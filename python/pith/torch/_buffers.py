# SPDX-License-Identifier: Apache-2.0
"""Tensors as the C library wants them: dense pieces of memory of a type it knows.

Contiguous tensors are used where they lie. Others are copied, and results are copied back, so that strides never matter. Tensors on CUDA
devices travel through pinned memory: they are read behind what the current stream has been given so far, and results are there when the
operation has been waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._errors import ArgumentError
from .._library import Span
from .._tensors import BF16, F16, F32, F64, U8, dtype_of

Finish = Callable[[], None]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_TYPES = {dtype: (dtype_of(dtype), 1) for dtype in _FLOATS + _INTEGERS} | {torch.bool: (U8, 1)}
_PAIRS = {torch.complex32: (F16, 2), torch.complex64: (F32, 2), torch.complex128: (F64, 2)}
COMPRESSIBLE = (F32, F16, BF16)

SUM, MAX, MIN, PROD, MEAN, BAND, BOR, BXOR = range(8)  # pith_reduce_op
_Op: Any = dist.ReduceOp.RedOpType
PREMUL_SUM = _Op.PREMUL_SUM
_REDUCTIONS = {
    _Op.SUM: SUM,
    _Op.AVG: MEAN,
    _Op.PRODUCT: PROD,
    _Op.MIN: MIN,
    _Op.MAX: MAX,
    _Op.BAND: BAND,
    _Op.BOR: BOR,
    _Op.BXOR: BXOR,
    _Op.PREMUL_SUM: SUM,
}
# Bits have no sums: true if any is, true if all are.
_BOOLEAN = {SUM: MAX, BOR: MAX, MAX: MAX, PROD: MIN, BAND: MIN, MIN: MIN, BXOR: BXOR}


def check(tensor: torch.Tensor) -> None:
    """Raises unless it is a dense tensor in main memory or on a CUDA device."""
    if not tensor.is_cpu and not tensor.is_cuda:
        raise ArgumentError(
            f"the tensor is on {tensor.device}; the backend pith takes tensors on CPUs and CUDA devices"
        )
    if tensor.layout is not torch.strided:
        raise ArgumentError(f"the tensor is {tensor.layout}; this operation takes dense tensors")


def moved(dtype: torch.dtype) -> tuple[int, int]:
    """How values of any type travel unchanged: a type of the C library, and how many of them make a value."""
    return _TYPES.get(dtype) or _PAIRS.get(dtype) or (U8, dtype.itemsize)


def reduced(dtype: torch.dtype, kind: Any) -> tuple[int, int, int]:
    """The same for values that are reduced; and the reduction."""
    known = _reduced.get((dtype, kind))
    if known is None:
        known = _reduced[dtype, kind] = _find_reduced(dtype, kind)
    return known


_reduced: dict[tuple[torch.dtype, Any], tuple[int, int, int]] = {}


def _find_reduced(dtype: torch.dtype, kind: Any) -> tuple[int, int, int]:
    reduction = _REDUCTIONS.get(kind)
    if reduction is None:
        raise ArgumentError(f"the reduction {kind} is not known to the backend pith")
    if dtype == torch.bool:
        if reduction not in _BOOLEAN:
            raise ArgumentError(f"{kind} has no meaning for torch.bool")
        return U8, 1, _BOOLEAN[reduction]
    if dtype in _PAIRS:
        if reduction not in (SUM, MEAN):
            raise ArgumentError(f"{kind} has no meaning for {dtype}")
        return *_PAIRS[dtype], reduction
    if dtype not in _TYPES:
        raise ArgumentError(f"{dtype} cannot be reduced; convert it, for instance to torch.float32")
    if reduction == MEAN and not dtype.is_floating_point:
        raise ArgumentError(f"the mean of {dtype} values is no {dtype}; use SUM")
    if reduction in (BAND, BOR, BXOR) and dtype.is_floating_point:
        raise ArgumentError(f"{kind} works on integers, not on {dtype}")
    return *_TYPES[dtype], reduction


def kind_of(op: Any) -> Any:
    """The kind of a reduction, which torch gives as such or in an object with a factor."""
    return getattr(op, "op", op)


def factor_of(op: Any) -> Any:
    """What PREMUL_SUM multiplies by; None for all other reductions."""
    return op.__getstate__()[1] if kind_of(op) == _Op.PREMUL_SUM else None


def span(tensor: torch.Tensor, unit: tuple[int, int]) -> Span:
    """A contiguous tensor's memory."""
    return Span(tensor.data_ptr(), tensor.numel() * unit[1], unit[0])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether memory has the values as they are, one after another."""
    check(tensor)
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it is contiguous, else a copy."""
    if _is_plain(tensor):
        return tensor
    copy = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return copy if copy.is_cpu else _memory(copy.shape, copy).copy_(copy)


def _memory(shape: Any, like: torch.Tensor) -> torch.Tensor:
    """Main memory for such a tensor, pinned where it will be copied from or to a device."""
    return torch.empty(shape, dtype=like.dtype, pin_memory=like.is_cuda)


def in_place(tensor: torch.Tensor, factor: Any = None) -> tuple[torch.Tensor, Finish | None]:
    """Memory with the tensor's values, multiplied if there is a factor, and how the result gets into the tensor if that is not its own."""
    memory = dense(tensor) if factor is None else dense(tensor).detach().clone().mul_(factor)
    return memory, _back_to(tensor, memory)


def output(tensor: torch.Tensor) -> tuple[torch.Tensor, Finish | None]:
    """Memory for a result of the tensor's shape; old values do not matter."""
    memory = tensor if _is_plain(tensor) else _memory(tensor.shape, tensor)
    return memory, _back_to(tensor, memory)


def _back_to(tensor: torch.Tensor, memory: torch.Tensor) -> Finish | None:
    return None if memory is tensor else lambda: _assign(tensor, memory)


def _assign(tensor: torch.Tensor, values: torch.Tensor) -> None:
    tensor.detach().copy_(values.view(tensor.shape))


def same_type(tensors: Sequence[torch.Tensor], operation: str) -> torch.dtype:
    """The type of all of them."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) != 1:
        names = ", ".join(sorted(str(kind) for kind in kinds)) or "no tensor at all"
        raise ArgumentError(f"{operation}: tensors of one type are expected, not {names}")
    return kinds.pop()


def _is_one_piece(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether they are contiguous and follow each other in memory of one storage."""
    plain = [_is_plain(tensor) for tensor in tensors]  # each is checked
    if not all(plain):
        return False
    at = tensors[0].data_ptr()
    storage = tensors[0].untyped_storage().data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != at or tensor.untyped_storage().data_ptr() != storage:
            return False
        at += tensor.numel() * tensor.itemsize
    return True


def _join_views(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    total = sum(tensor.numel() for tensor in tensors)
    return tensors[0].detach().as_strided((total,), (1,))


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values of all of them, one after another; without a copy where they lie so already."""
    if _is_one_piece(tensors):
        return _join_views(tensors)
    return torch.cat([dense(tensor).detach().view(-1) for tensor in tensors])


def joined_output(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Finish | None]:
    """Memory for results that belong into several tensors, and how they get there."""
    if _is_one_piece(tensors):
        return _join_views(tensors), None
    counts = [tensor.numel() for tensor in tensors]
    fresh = _memory((sum(counts),), tensors[0])

    def hand_out() -> None:
        for tensor, values in zip(tensors, fresh.split(counts), strict=True):
            _assign(tensor, values)

    return fresh, hand_out
