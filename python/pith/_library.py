# SPDX-License-Identifier: Apache-2.0
"""The C library: where it is, and what its header declares.

Structures and functions here follow the headers in include/pith line by line; tests/python/test_header.py compares them with what a
C compiler makes of the header. Nothing else in the package knows about ctypes declarations.
"""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Generator, Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from ._errors import ArgumentError, error_of

INTERRUPTED = ctypes.CFUNCTYPE(c_int, c_void_p)  # pith_config.interrupted
_ERR_INTERRUPTED = 15

# ---- Numbers and texts -----------------------------------------------------------------------------------------------

# ctypes cuts numbers that do not fit, and C ends a text at its first zero byte: root=2**32 would be rank 0.


def whole(kind: Any, value: Any, name: str = "a number") -> int:
    """A whole number that fits a type of C."""
    number = operator.index(value)
    bits = 8 * ctypes.sizeof(kind)
    low, high = (
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind is c_int else (0, (1 << bits) - 1)
    )
    if not low <= number <= high:
        raise ArgumentError(f"{name} is {number}, which is not between {low} and {high}")
    return number


def encoded(value: str | None, name: str = "a text") -> bytes | None:
    """A text for C; None, and an empty one, for none."""
    if not value:
        return None
    text = value.encode()
    if b"\0" in text:
        raise ArgumentError(f"{name} is {value!r}, with a zero byte in it")
    return text


def numbers(values: Sequence[int]) -> Any:
    """Sizes or a shape for C."""
    return (c_size_t * len(values))(*(whole(c_size_t, value) for value in values))


class _Number:
    """An argument that is a whole number."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def from_param(self, value: Any) -> Any:
        return value if isinstance(value, self._kind) else self._kind(whole(self._kind, value))


class _Text:
    """An argument that is a text."""

    @staticmethod
    def from_param(value: Any) -> Any:
        if isinstance(value, bytes) and b"\0" in value:
            raise ArgumentError(f"{value!r} has a zero byte in it")
        return c_char_p.from_param(value)


# ---- Structures ------------------------------------------------------------------------------------------------------


class Sized(Structure):
    """A structure that can grow: its first field is its size, which is set here (include/pith/types.h)."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        super().__init__(ctypes.sizeof(type(self)), *values, **fields)


def array(kind: type[Sized], count: int) -> Any:
    """Structures one after another, each with its size."""
    return (kind * count)(*(kind() for _ in range(count)))


class Span(Structure):
    """pith_span and pith_cspan: n values in memory."""

    _fields_ = [("data", c_void_p), ("n", c_size_t), ("dtype", c_int)]


class Bytes(Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class Out(Structure):
    _fields_ = [("data", c_void_p), ("capacity", c_size_t), ("size", c_size_t)]


class Ctx(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("seed", c_uint64),
        ("step", c_uint64),
        ("layer", c_uint64),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("offset", c_uint64),
        ("rows", c_uint64),
        ("gamma", c_float),
        ("scratch", c_void_p),
        ("scratch_size", c_size_t),
    ]


class Match(Sized):
    _fields_ = [("size", c_size_t), ("codec", c_void_p), ("rule", c_size_t), ("reason", c_char_p)]


class Param(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("key", c_char_p),
        ("type", c_int),
        ("min", c_double),
        ("max", c_double),
        ("initial", c_char_p),
        ("choices", c_char_p),
        ("help", c_char_p),
    ]


class Round(Sized):
    _fields_ = [("size", c_size_t), ("dtype", c_int), ("reduce", c_int), ("count", c_size_t)]


class CudaItem(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("codec", c_void_p),
        ("dtype", c_int),
        ("n", c_size_t),
        ("values", c_void_p),
        ("payload", c_void_p),
        ("memory", c_void_p),
        ("momentum", c_void_p),
        ("payload_size", c_void_p),
        ("part", c_void_p),
        ("seed", c_uint64),
        ("step", c_uint64),
        ("layer", c_uint64),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("offset", c_uint64),
        ("rows", c_uint64),
        ("gamma", c_float),
    ]


class Method(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("family", c_char_p),
        ("summary", c_char_p),
        ("made_of", c_char_p),
        ("bits", c_char_p),
        ("kind", c_int),
        ("caps", c_uint32),
        ("wire_id", c_uint16),
        ("survey", c_int),
        ("origin", c_char_p),
        ("params", POINTER(Param)),
    ]


class UniqueId(Structure):
    _fields_ = [("bytes", c_ubyte * 512)]


class Config(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int),
        ("ranks", c_int),
        ("host", c_char_p),
        ("port", c_int),
        ("transport", c_char_p),
        ("interface", c_char_p),
        ("host_id", c_char_p),
        ("secret", c_char_p),
        ("timeout", c_double),
        ("chunk", c_size_t),
        ("algorithm", c_char_p),
        ("inside", c_char_p),
        ("connections", c_int),
        ("threads", c_int),
        ("id", POINTER(UniqueId)),
        ("liveness", c_double),
        ("interrupted", INTERRUPTED),
        ("context", c_void_p),
        ("tls", c_char_p),
        ("tls_cert", c_char_p),
        ("tls_key", c_char_p),
        ("tls_ca", c_char_p),
        ("eager", c_int),
    ]


class Launch(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("launcher", c_char_p),
        ("rank", c_int),
        ("ranks", c_int),
        ("local_rank", c_int),
        ("local_ranks", c_int),
        ("host", c_char * 256),
        ("port", c_int),
    ]


class SimTopology(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("ranks", c_int),
        ("hosts", c_int),
        ("rate", c_double),
        ("latency", c_double),
        ("inside_rate", c_double),
        ("inside_latency", c_double),
        ("oversubscription", c_double),
        ("mtu", c_size_t),
        ("cores", c_size_t),
        ("shared_cores", c_int),
        ("message", c_double),
        ("inside_message", c_double),
        ("byte", c_double),
        ("inside_byte", c_double),
        ("encode_call", c_double),
        ("encode_value", c_double),
        ("decode_call", c_double),
        ("decode_value", c_double),
        ("sum_value", c_double),
        ("pack_value", c_double),
        ("pack_entry", c_double),
        ("unpack_entry", c_double),
        ("straggler", c_int),
        ("straggler_factor", c_double),
        ("slow_host", c_int),
        ("slow_rate", c_double),
        ("chunk", c_size_t),
        ("most_tasks", c_uint64),
        ("rack_hosts", c_int),
        ("rack_oversubscription", c_double),
        ("rack_latency", c_double),
        ("poll", c_double),
        ("burst", c_size_t),
        ("segment", c_size_t),
        ("look", c_double),
    ]


class SimResult(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("algorithm", c_char_p),
        ("may_be_chosen", c_int),
        ("seconds", c_double),
        ("messages", c_uint64),
        ("rank_bytes", c_uint64),
        ("inside_bytes", c_uint64),
        ("nic_bytes", c_uint64),
        ("switch_bytes", c_uint64),
        ("steps", c_uint),
        ("encodings", c_uint),
        ("rank_memory", c_uint64),
        ("tasks", c_uint64),
        ("events", c_uint64),
        ("rack_bytes", c_uint64),
        ("peers", c_uint),
    ]


class Call(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("codec", c_void_p),
        ("state", c_void_p),
        ("seed", c_uint64),
        ("step", c_uint64),
        ("layer", c_uint64),
        ("rows", c_uint64),
        ("gamma", c_float),
        ("algorithm", c_char_p),
    ]


class Traffic(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("operations", c_uint64),
        ("uncompressed", c_uint64),
        ("messages", c_uint64),
        ("raw_bytes", c_uint64),
        ("sent_bytes", c_uint64),
        ("encode", c_double),
        ("decode", c_double),
        ("wire", c_double),
    ]


class LayerStats(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("spec", c_char_p),
        ("reason", c_char_p),
        ("n", c_size_t),
        ("bytes", c_size_t),
        ("steps", c_uint64),
    ]


class Exchange(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("send", c_void_p),
        ("recv", c_void_p),
        ("send_bytes", POINTER(c_size_t)),
        ("recv_bytes", POINTER(c_size_t)),
        ("bytes", c_size_t),
        ("count", c_size_t),
        ("dtype", c_int),
        ("op", c_int),
        ("stream", c_void_p),
        ("step", c_uint64),
    ]


CARRIER_START = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(Exchange), POINTER(c_uint64))
CARRIER_WAIT = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64)
CARRIER_CHECK = ctypes.CFUNCTYPE(c_int, c_void_p, c_double)
CARRIER_ABORT = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
CARRIER_RELEASE = ctypes.CFUNCTYPE(None, c_void_p)


class Carrier(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("self", c_void_p),
        ("rank", c_int),
        ("ranks", c_int),
        ("caps", c_uint32),
        ("start", CARRIER_START),
        ("wait", CARRIER_WAIT),
        ("interrupted", INTERRUPTED),
        ("check", CARRIER_CHECK),
        ("abort", CARRIER_ABORT),
        ("release", CARRIER_RELEASE),
    ]


ALLOCATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t)
RELEASE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)


class Allocator(Structure):
    _fields_ = [("self", c_void_p), ("allocate", ALLOCATE), ("release", RELEASE)]


class ReducerOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("group_bytes", c_size_t),
        ("in_order", c_int),
        ("cuda", c_int),
        ("stream", c_void_p),
        ("chunk_bytes", c_size_t),
        ("allocator", c_void_p),
        ("capturable", c_int),
        ("sharded", c_int),
        ("lent", c_int),
        ("carrier", c_char_p),
        ("in_parts", c_int),
    ]


class Stats(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("operations", c_uint64),
        ("messages", c_uint64),
        ("raw_bytes", c_uint64),
        ("sent_bytes", c_uint64),
        ("encode", c_double),
        ("decode", c_double),
        ("wait", c_double),
        ("links", c_uint64),
    ]


class Layer(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("shape", POINTER(c_size_t)),
        ("dimensions", c_size_t),
        ("dtype", c_int),
        ("exact", c_char_p),
    ]


class ProfileLayer(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("shape", POINTER(c_size_t)),
        ("dimensions", c_size_t),
        ("n", c_size_t),
        ("fixed", c_int),
        ("samples", c_uint64),
        ("skipped", c_uint64),
        ("norm", c_double),
        ("top", c_double),
    ]


class PlanCost(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("ranks", c_uint32),
        ("latency", c_double),
        ("bandwidth", c_double),
        ("compute", c_double),
        ("ready", POINTER(c_double)),
        ("codec", POINTER(c_double)),
        ("topology", POINTER(SimTopology)),
    ]


class PlanRequest(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("method", c_int),
        ("objective", c_int),
        ("uniform", c_char_p),
        ("budget", c_double),
        ("alpha", c_double),
        ("families", c_char_p),
        ("cost", POINTER(PlanCost)),
        ("before", c_void_p),
        ("threshold", c_double),
        ("critical", c_char_p),
        ("otherwise", c_char_p),
        ("floor", c_double),
        ("metric", c_int),
        ("cap", c_double),
        ("tolerance", c_double),
    ]


class PlanLayer(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("spec", c_char_p),
        ("shape", POINTER(c_size_t)),
        ("dimensions", c_size_t),
        ("n", c_size_t),
        ("bytes", c_double),
        ("error", c_double),
    ]


class PlanInfo(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("method", c_char_p),
        ("objective", c_char_p),
        ("reference", c_char_p),
        ("note", c_char_p),
        ("fallback", c_char_p),
        ("budget", c_double),
        ("bytes", c_double),
        ("error", c_double),
        ("layers", c_size_t),
        ("metric", c_char_p),
    ]


class AdapterStep(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("seconds", c_double),
        ("span", c_double),
        ("waiting", c_double),
    ]


class Moment(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("beta", c_double),
        ("freeze", c_double),
        ("every", c_uint),
        ("warm", c_uint),
    ]


class Update(Sized):
    """pith_update. Without values it changes nothing: decay, root and pass are 1."""

    _fields_ = [
        ("size", c_size_t),
        ("index", c_size_t),
        ("gradient", c_void_p),
        ("moment", c_void_p),
        ("variance", c_void_p),
        ("parameter", c_void_p),
        ("start", c_void_p),
        ("keep", c_float),
        ("take", c_float),
        ("decay", c_float),
        ("rate", c_float),
        ("root", c_float),
        ("epsilon", c_float),
        ("pass", c_float),
        ("fold", c_float),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"decay": 1.0, "root": 1.0, "pass": 1.0} | fields)


# Functions of a codec table that Python fills in; the others are NULL.
CODEC_CHECK = ctypes.CFUNCTYPE(c_int, c_void_p)
CODEC_SIZE = ctypes.CFUNCTYPE(c_size_t, c_void_p, c_size_t)
CODEC_ENCODE = ctypes.CFUNCTYPE(c_int, c_void_p, Span, POINTER(Out), c_void_p, POINTER(Ctx))
CODEC_DECODE = ctypes.CFUNCTYPE(c_int, c_void_p, Bytes, Span, c_int, POINTER(Ctx))


class CodecOps(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("family", c_char_p),
        ("summary", c_char_p),
        ("bits", c_char_p),
        ("origin", c_char_p),
        ("wire_id", c_uint16),
        ("caps", c_uint32),
        ("survey", c_int),
        ("params", POINTER(Param)),
        ("check", CODEC_CHECK),
        ("caps_of", c_void_p),
        ("block", c_void_p),
        ("block_bound", c_void_p),
        ("encode_block", c_void_p),
        ("check_block", c_void_p),
        ("decode_block", c_void_p),
        ("bound", CODEC_SIZE),
        ("scratch", CODEC_SIZE),
        ("encode", CODEC_ENCODE),
        ("decode", CODEC_DECODE),
        ("part_size", c_void_p),
        ("rounds", c_void_p),
        ("admit", c_void_p),
        ("describe", c_void_p),
        ("produce", c_void_p),
        ("consume", c_void_p),
        ("own", c_void_p),
        ("linear", c_void_p),
        ("strip", c_void_p),
        ("detail", c_char_p),
        ("use", c_char_p),
        ("traits", c_void_p),
    ]


TRANSFORM_BLOCK = ctypes.CFUNCTYPE(c_size_t, c_void_p)
TRANSFORM_RUN = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_uint64, POINTER(Ctx))


class PluginTransform(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("summary", c_char_p),
        ("params", POINTER(Param)),
        ("check", CODEC_CHECK),
        ("block", TRANSFORM_BLOCK),
        ("forward", TRANSFORM_RUN),
        ("inverse", TRANSFORM_RUN),
    ]


class Kept(Structure):
    _fields_ = [("residual", c_void_p), ("momentum", c_void_p)]


MEMORY_COMPENSATE = ctypes.CFUNCTYPE(
    c_int, c_void_p, POINTER(Kept), c_void_p, ctypes.c_float, c_void_p, c_size_t
)


class PluginMemory(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("summary", c_char_p),
        ("params", POINTER(Param)),
        ("check", CODEC_CHECK),
        ("keeps_all", c_int),
        ("compensate", MEMORY_COMPENSATE),
    ]


class Plugin(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("abi", c_uint32),
        ("name", c_char_p),
        ("version", c_char_p),
        ("codecs", POINTER(POINTER(CodecOps))),
        ("codec_count", c_size_t),
        ("transforms", POINTER(POINTER(PluginTransform))),
        ("transform_count", c_size_t),
        ("memories", POINTER(POINTER(PluginMemory))),
        ("memory_count", c_size_t),
    ]


# By their names in the header, for the test that compares them with it.
STRUCTURES: dict[str, type[Structure]] = {
    "pith_span": Span,
    "pith_cspan": Span,
    "pith_bytes": Bytes,
    "pith_out": Out,
    "pith_ctx": Ctx,
    "pith_match": Match,
    "pith_param": Param,
    "pith_round": Round,
    "pith_cuda_item": CudaItem,
    "pith_method": Method,
    "pith_sim_topology": SimTopology,
    "pith_sim_result": SimResult,
    "pith_unique_id": UniqueId,
    "pith_config": Config,
    "pith_launch": Launch,
    "pith_call": Call,
    "pith_exchange": Exchange,
    "pith_carrier": Carrier,
    "pith_reducer_options": ReducerOptions,
    "pith_allocator": Allocator,
    "pith_traffic": Traffic,
    "pith_layer_stats": LayerStats,
    "pith_stats": Stats,
    "pith_layer": Layer,
    "pith_profile_layer": ProfileLayer,
    "pith_plan_cost": PlanCost,
    "pith_plan_request": PlanRequest,
    "pith_plan_layer": PlanLayer,
    "pith_plan_info": PlanInfo,
    "pith_adapter_step": AdapterStep,
    "pith_moment": Moment,
    "pith_update": Update,
    "pith_codec_ops": CodecOps,
    "pith_plugin": Plugin,
    "pith_plugin_transform": PluginTransform,
    "pith_plugin_memory": PluginMemory,
    "pith_kept": Kept,
}

# ---- Functions -------------------------------------------------------------------------------------------------------

_P = c_void_p  # an object of the library
_SIZES = POINTER(c_size_t)
_DOUBLES = POINTER(c_double)
_REQUEST = POINTER(c_void_p)
_STATUS = c_int  # a pith_status: check() turns it into an exception

# name: (result, arguments)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "pith_version": (c_char_p, []),
    "pith_status_string": (c_char_p, [c_int]),
    "pith_error": (c_char_p, []),
    "pith_dtype_size": (c_size_t, [c_int]),
    "pith_dtype_name": (c_char_p, [c_int]),
    "pith_codec_create": (_STATUS, [c_char_p, POINTER(_P)]),
    "pith_codec_destroy": (None, [_P]),
    "pith_codec_spec": (c_char_p, [_P]),
    "pith_codec_parts": (c_char_p, [_P]),
    "pith_codec_fingerprint": (c_uint64, [_P]),
    "pith_codec_caps": (c_uint32, [_P]),
    "pith_codec_wire_id": (c_uint16, [_P]),
    "pith_codec_granule": (c_size_t, [_P]),
    "pith_codec_bound": (c_size_t, [_P, c_size_t]),
    "pith_codec_scratch": (c_size_t, [_P, c_size_t]),
    "pith_codec_rounds": (c_size_t, [_P]),
    "pith_state_create": (_STATUS, [_P, c_size_t, c_size_t, POINTER(_P)]),
    "pith_state_destroy": (None, [_P]),
    "pith_state_adapt": (_STATUS, [_P, _P]),
    "pith_state_save_size": (c_size_t, [_P]),
    "pith_state_save": (_STATUS, [_P, POINTER(Out)]),
    "pith_state_load": (_STATUS, [_P, Bytes]),
    "pith_state_scale": (_STATUS, [_P, c_float]),
    "pith_state_scale_residual": (_STATUS, [_P, c_float]),
    "pith_state_residual": (POINTER(c_float), [_P]),
    "pith_state_copy_residual": (c_size_t, [_P, POINTER(c_float)]),
    "pith_codec_residual_size": (c_size_t, [_P, c_size_t]),
    "pith_encode": (_STATUS, [_P, _P, Span, POINTER(Out), POINTER(Ctx)]),
    "pith_decode": (_STATUS, [_P, Bytes, Span, c_int, POINTER(Ctx)]),
    "pith_aggregate": (_STATUS, [_P, Span, POINTER(Ctx)]),
    "pith_round_describe": (_STATUS, [_P, _P, c_size_t, POINTER(Round)]),
    "pith_round_produce": (_STATUS, [_P, _P, c_size_t, Span, _P, POINTER(Ctx)]),
    "pith_round_consume": (_STATUS, [_P, _P, c_size_t, _P, Span, POINTER(Ctx)]),
    "pith_minimal_size": (_STATUS, [POINTER(c_size_t)]),
    "pith_minimal_size_set": (None, [c_size_t]),
    "pith_rules_create": (_STATUS, [c_char_p, POINTER(_P)]),
    "pith_rules_destroy": (None, [_P]),
    "pith_rules_text": (c_char_p, [_P]),
    "pith_rules_count": (c_size_t, [_P]),
    "pith_rules_find": (_STATUS, [_P, c_char_p, c_size_t, c_size_t, POINTER(Match)]),
    "pith_rules_matches": (c_int, [_P, c_size_t, c_char_p]),
    "pith_method_count": (c_size_t, []),
    "pith_method_get": (_STATUS, [c_size_t, POINTER(Method)]),
    "pith_method_detail": (c_char_p, [c_size_t]),
    "pith_method_use": (c_char_p, [c_size_t]),
    "pith_algorithm_suits": (_STATUS, [c_char_p, c_void_p]),
    "pith_algorithm_get": (c_char_p, [c_size_t]),
    "pith_plugin_load": (_STATUS, [c_char_p]),
    "pith_plugin_add": (_STATUS, [POINTER(Plugin)]),
    "pith_isa_name": (c_char_p, [c_int]),
    "pith_isa_available": (c_int, [c_int]),
    "pith_isa_current": (c_int, []),
    "pith_isa_select": (_STATUS, [c_int]),
    "pith_sim_allreduce": (
        _STATUS,
        [POINTER(SimTopology), _P, c_size_t, c_int, c_char_p, POINTER(SimResult)],
    ),
    "pith_sim_barrier": (_STATUS, [POINTER(SimTopology), POINTER(SimResult)]),
    "pith_sim_export": (
        _STATUS,
        [POINTER(SimTopology), _P, c_size_t, c_int, c_char_p, c_char_p],
    ),
    "pith_sim_choose": (_STATUS, [POINTER(SimTopology), _P, c_size_t, c_int, POINTER(c_char_p)]),
    "pith_sim_estimate": (
        _STATUS,
        [POINTER(SimTopology), _P, c_size_t, c_int, POINTER(c_char_p), POINTER(c_double)],
    ),
    "pith_launch_find": (_STATUS, [POINTER(Launch)]),
    "pith_unique_id_create": (_STATUS, [POINTER(Config), POINTER(UniqueId)]),
    "pith_tls_probe": (_STATUS, [POINTER(Config), POINTER(c_char_p)]),
    "pith_comm_create": (_STATUS, [POINTER(Config), POINTER(_P)]),
    "pith_comm_split": (_STATUS, [_P, c_int, c_int, POINTER(_P)]),
    "pith_comm_abort": (None, [_P, c_char_p]),
    "pith_comm_destroy": (None, [_P]),
    "pith_comm_rank": (c_int, [_P]),
    "pith_comm_size": (c_int, [_P]),
    "pith_comm_transport": (c_char_p, [_P, c_int]),
    "pith_comm_stats": (_STATUS, [_P, POINTER(Stats)]),
    "pith_comm_traffic": (_STATUS, [_P, c_char_p, POINTER(Traffic)]),
    "pith_transport_probe": (_STATUS, [c_char_p]),
    "pith_allreduce": (_STATUS, [_P, Span, Span, c_int, POINTER(Call), _REQUEST]),
    "pith_reduce": (_STATUS, [_P, Span, Span, c_int, c_int, POINTER(Call), _REQUEST]),
    "pith_reduce_scatter": (_STATUS, [_P, Span, Span, _SIZES, c_int, POINTER(Call), _REQUEST]),
    "pith_all_gather": (_STATUS, [_P, Span, Span, _SIZES, POINTER(Call), _REQUEST]),
    "pith_broadcast": (_STATUS, [_P, Span, c_int, POINTER(Call), _REQUEST]),
    "pith_all_to_all": (_STATUS, [_P, Span, _SIZES, Span, _SIZES, _REQUEST]),
    "pith_gather": (_STATUS, [_P, Span, Span, _SIZES, c_int, _REQUEST]),
    "pith_scatter": (_STATUS, [_P, Span, _SIZES, Span, c_int, _REQUEST]),
    "pith_barrier": (_STATUS, [_P, _REQUEST]),
    "pith_send": (_STATUS, [_P, Span, c_int, c_uint32, _REQUEST]),
    "pith_recv": (_STATUS, [_P, Span, c_int, c_uint32, _REQUEST]),
    "pith_wait": (_STATUS, [_P]),
    "pith_wait_source": (_STATUS, [_P, POINTER(c_int)]),
    "pith_comm_timeout": (c_double, [_P]),
    "pith_comm_set_timeout": (_STATUS, [_P, c_double]),
    "pith_test": (_STATUS, [_P, POINTER(c_int)]),
    "pith_reducer_create": (_STATUS, [_P, c_char_p, c_uint64, POINTER(_P)]),
    "pith_reducer_create_with": (
        _STATUS,
        [_P, c_char_p, c_uint64, POINTER(ReducerOptions), POINTER(_P)],
    ),
    "pith_reducer_create_over": (
        _STATUS,
        [POINTER(Carrier), c_char_p, c_uint64, POINTER(ReducerOptions), POINTER(_P)],
    ),
    "pith_fail": (_STATUS, [c_int, c_char_p, c_char_p]),
    "pith_reducer_destroy": (None, [_P]),
    "pith_layer_number": (c_uint64, [c_char_p]),
    "pith_reducer_add": (_STATUS, [_P, POINTER(Layer), _SIZES]),
    "pith_reducer_add_as": (_STATUS, [_P, POINTER(Layer), c_char_p, _SIZES]),
    "pith_reducer_add_shards": (_STATUS, [_P, POINTER(Layer), c_char_p, _SIZES]),
    "pith_reducer_reduce_scatter": (_STATUS, [_P, _SIZES, c_size_t, Span, Span, c_int]),
    "pith_reducer_all_gather": (_STATUS, [_P, _SIZES, c_size_t, Span, Span]),
    "pith_reducer_gathered": (_STATUS, [_P, _SIZES, c_size_t, Span]),
    "pith_reducer_array_sizes": (_STATUS, [_P, c_size_t, _SIZES]),
    "pith_reducer_lend": (_STATUS, [_P, c_size_t, POINTER(_P)]),
    "pith_reducer_set_step": (_STATUS, [_P, c_uint64]),
    "pith_xla_bind": (_STATUS, [c_uint64, _P, _P]),
    "pith_xla_check": (_STATUS, [_P]),
    "pith_xla_unbind": (None, [c_uint64]),
    "pith_xla_allreduce_host": (_P, [_P]),
    "pith_xla_allreduce_cuda": (_P, [_P]),
    "pith_xla_cuda_reducer": (
        _STATUS,
        [_P, c_int, c_char_p, c_char_p, c_uint64, c_int, POINTER(_P)],
    ),
    "pith_xla_carrier": (c_char_p, [_P]),
    "pith_xla_version": (_STATUS, [POINTER(c_int), POINTER(c_int)]),
    "pith_reducer_start": (_STATUS, [_P, c_size_t, _P]),
    "pith_reducer_flush": (_STATUS, [_P]),
    "pith_reducer_finish": (_STATUS, [_P]),
    "pith_reducer_check": (_STATUS, [_P]),
    "pith_reducer_scale": (_STATUS, [_P, c_float]),
    "pith_reducer_scale_residual": (_STATUS, [_P, c_size_t, c_float]),
    "pith_reducer_layers": (c_size_t, [_P]),
    "pith_reducer_layer_stats": (_STATUS, [_P, c_size_t, POINTER(LayerStats)]),
    "pith_reducer_layer_traffic": (_STATUS, [_P, c_size_t, POINTER(Traffic)]),
    "pith_codec_moment": (c_int, [_P, POINTER(Moment)]),
    "pith_reducer_set_spec": (_STATUS, [_P, c_size_t, c_char_p]),
    "pith_reducer_update": (_STATUS, [_P, POINTER(Update), c_size_t, _P]),
    "pith_reducer_residual": (_STATUS, [_P, c_size_t, POINTER(_P)]),
    "pith_reducer_copy_residual": (_STATUS, [_P, c_size_t, _P, _P]),
    "pith_reducer_profile": (_STATUS, [_P, c_char_p]),
    "pith_reducer_save_size": (c_size_t, [_P]),
    "pith_reducer_owed": (_STATUS, [_P, c_size_t, _P, _P]),
    "pith_reducer_owe": (_STATUS, [_P, c_size_t, _P, _P]),
    "pith_reducer_resume": (_STATUS, [_P, c_uint64]),
    "pith_reducer_save": (_STATUS, [_P, POINTER(Out)]),
    "pith_reducer_load": (_STATUS, [_P, Bytes]),
    "pith_profile_create": (_STATUS, [POINTER(Layer), c_size_t, c_char_p, POINTER(_P)]),
    "pith_profile_destroy": (None, [_P]),
    "pith_profile_update": (_STATUS, [_P, c_size_t, Span, POINTER(Ctx)]),
    "pith_profile_reset": (None, [_P]),
    "pith_profile_values": (POINTER(c_double), [_P, _SIZES]),
    "pith_profile_layers": (c_size_t, [_P]),
    "pith_profile_candidates": (c_size_t, [_P]),
    "pith_profile_candidate": (c_char_p, [_P, c_size_t]),
    "pith_profile_layer_get": (_STATUS, [_P, c_size_t, POINTER(ProfileLayer)]),
    "pith_profile_get": (_STATUS, [_P, c_size_t, c_size_t, _DOUBLES, _DOUBLES]),
    "pith_profile_save": (_STATUS, [_P, c_char_p]),
    "pith_profile_load": (_STATUS, [c_char_p, POINTER(_P)]),
    "pith_profile_parse": (_STATUS, [Bytes, POINTER(_P)]),
    "pith_plan_candidates": (_STATUS, [c_char_p, _P, c_size_t]),
    "pith_plan_make": (_STATUS, [_P, POINTER(PlanRequest), POINTER(_P)]),
    "pith_plan_uniform": (_STATUS, [_P, c_char_p, POINTER(_P)]),
    "pith_plan_destroy": (None, [_P]),
    "pith_plan_info_get": (_STATUS, [_P, POINTER(PlanInfo)]),
    "pith_plan_layer_get": (_STATUS, [_P, c_size_t, POINTER(PlanLayer)]),
    "pith_plan_rules": (c_char_p, [_P]),
    "pith_plan_price": (_STATUS, [_P, _P]),
    "pith_plan_seconds": (_STATUS, [_P, _P, POINTER(PlanCost), _DOUBLES]),
    "pith_plan_gains": (c_int, [_P, _P, _P, POINTER(PlanCost), c_double]),
    "pith_plan_save": (_STATUS, [_P, c_char_p]),
    "pith_plan_load": (_STATUS, [c_char_p, POINTER(_P)]),
    "pith_plan_parse": (_STATUS, [Bytes, POINTER(_P)]),
    "pith_plan_text": (c_char_p, [_P]),
    "pith_adapter_is": (c_int, [c_char_p]),
    "pith_adapter_check": (_STATUS, [c_char_p]),
    "pith_adaptive_get": (_STATUS, [c_size_t, POINTER(Method)]),
    "pith_adaptive_use": (c_char_p, [c_size_t]),
    "pith_adapter_option": (_STATUS, [c_char_p, c_char_p, c_char_p, c_size_t]),
    "pith_adapter_create": (
        _STATUS,
        [c_char_p, POINTER(Layer), c_size_t, c_int, c_int, c_uint64, POINTER(_P)],
    ),
    "pith_adapter_destroy": (None, [_P]),
    "pith_adapter_wants": (c_int, [_P, c_size_t]),
    "pith_adapter_observe": (_STATUS, [_P, c_size_t, Span]),
    "pith_adapter_finish": (_STATUS, [_P, POINTER(AdapterStep), POINTER(_DOUBLES), _SIZES]),
    "pith_adapter_advance": (_STATUS, [_P, c_double, POINTER(c_int)]),
    "pith_adapter_spec": (c_char_p, [_P, c_size_t]),
    "pith_adapter_reason": (c_char_p, [_P, c_size_t]),
    "pith_adapter_candidate": (c_char_p, [_P, c_size_t]),
    "pith_adapter_step_number": (c_uint64, [_P]),
    "pith_adapter_next_plan": (c_uint64, [_P]),
    "pith_adapter_profile": (_STATUS, [_P, c_char_p]),
    "pith_adapter_save_size": (c_size_t, [_P]),
    "pith_adapter_save": (_STATUS, [_P, POINTER(Out)]),
    "pith_adapter_load": (_STATUS, [_P, Bytes]),
    "pith_nccl_probe": (_STATUS, [POINTER(c_int)]),
    "pith_cuda_ipc_probe": (_STATUS, [POINTER(c_char_p)]),
    "pith_nccl_carrier": (_STATUS, [_P, c_double, POINTER(Carrier)]),
    "pith_cuda_probe": (_STATUS, [POINTER(c_char_p)]),
    "pith_cuda_supports": (_STATUS, [_P]),
    "pith_cuda_part": (c_size_t, [_P, c_size_t, c_size_t]),
    "pith_cuda_produce": (_STATUS, [POINTER(CudaItem), c_size_t, c_size_t, _P, c_size_t, _P]),
    "pith_cuda_consume": (_STATUS, [POINTER(CudaItem), c_size_t, c_size_t, _P, c_size_t, _P]),
    "pith_cuda_workspace": (c_size_t, [POINTER(CudaItem), c_size_t]),
    "pith_cuda_encode": (_STATUS, [POINTER(CudaItem), c_size_t, _P, c_size_t, _P]),
    "pith_cuda_decode": (_STATUS, [POINTER(CudaItem), c_size_t, c_int, _P, c_size_t, _P]),
    "pith_cuda_aggregate": (_STATUS, [POINTER(CudaItem), c_size_t, _P]),
}

# ---- Finding and loading ---------------------------------------------------------------------------------------------

SONAME = "libpith.so.0.2"
NATIVE = Path(__file__).resolve().parent / "_native"


def _candidates() -> list[str]:
    given = os.environ.get("PITH_LIBRARY")
    if given:
        return [given]
    packaged = NATIVE / SONAME
    return [str(packaged)] if packaged.exists() else [SONAME]


def _load() -> tuple[ctypes.CDLL, str]:
    reasons = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path), path
        except OSError as error:
            reasons.append(str(error))
    raise ImportError(
        f"libpith cannot be loaded ({'; '.join(reasons)}). Install the package with pip install . in Pith's "
        "repository, or set PITH_LIBRARY to a libpith.so"
    )


_CHECKED: dict[Any, Any] = {kind: _Number(kind) for kind in (c_int, c_size_t, c_uint32, c_uint64)}
_CHECKED[c_char_p] = _Text


def _declare(library: ctypes.CDLL, path: str) -> None:
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path} has no {name}(): it is of another version of Pith") from None
        function.restype = result
        function.argtypes = [_CHECKED.get(kind, kind) for kind in arguments]


lib, path = _load()
_declare(lib, path)


def text(value: bytes | None) -> str:
    """A string of the library, which speaks UTF-8."""
    return value.decode("utf-8", "replace") if value else ""


def version() -> str:
    """The version of the library that is loaded."""
    return text(lib.pith_version())


class _Signals:
    """Handles signals while the C library waits.

    Python runs handlers between two instructions of the main thread, and there are none while it is in C. So the library asks now and
    then. What a handler raises (KeyboardInterrupt) is kept, the wait ends, and :func:`last_error` gives it to whoever waited.

    The library calls ``send`` of a generator: Python handles signals when it resumes one, inside of its ``try``. A function would be
    interrupted before its first line, and ctypes would only print what was raised.
    """

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        handler = self._handle()
        next(handler)
        self.callback = INTERRUPTED(handler.send)

    def _handle(self) -> Generator[int, object, None]:
        answer = 0
        while True:
            try:
                while True:
                    yield answer
                    answer = 0
            except GeneratorExit:
                return
            except BaseException as error:
                self._raised = error
                answer = 1

    def take(self) -> BaseException | None:
        raised, self._raised = self._raised, None
        return raised


signals = _Signals()


def last_error(status: int) -> BaseException:
    """The exception for a call that has just failed in this thread."""
    raised = signals.take() if status == _ERR_INTERRUPTED else None
    if raised is not None:
        return raised
    message = text(lib.pith_error()) or text(lib.pith_status_string(status))
    return error_of(status, message)


def check(status: int) -> None:
    """Raises what went wrong, if something did."""
    if status:
        raise last_error(status)
