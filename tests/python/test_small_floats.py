# SPDX-License-Identifier: Apache-2.0
"""Small floats byte for byte: those of ml_dtypes, which JAX brings, in the blocks that docs/format.md describes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pith
from needs import module

ml_dtypes: Any = module("ml_dtypes", "jax is not installed, which brings it")

# The type's name there, its bits, the exponent of its largest value.
TYPES = {
    "e4m3": ("float8_e4m3fn", 8, 8),
    "e5m2": ("float8_e5m2", 8, 15),
    "e2m3": ("float6_e2m3fn", 6, 2),
    "e3m2": ("float6_e3m2fn", 6, 4),
    "e2m1": ("float4_e2m1fn", 4, 2),
}


def values(kind: str, n: int) -> np.ndarray:
    generator = np.random.default_rng(n)
    x = generator.standard_normal(n).astype(np.float32)
    if kind == "wide":
        x *= np.exp2(generator.integers(-60, 60, n)).astype(np.float32)
    if kind == "halfway":  # between two codes, as often as not
        x = np.round(x * 8).astype(np.float32) / 4
    if kind == "tiny":
        x *= np.float32(1e-39)
    if kind == "huge":
        x = np.clip(x, -1, 1) * np.float32(3.4e38)
    return x


def packed(codes: np.ndarray, bits: int) -> bytes:
    """Codes of a few bits each, lowest bit first."""
    planes = (codes[:, None] >> np.arange(bits)) & 1
    return np.packbits(planes.astype(np.uint8).ravel(), bitorder="little").tobytes()


def nearest(x: np.ndarray, name: str, bits: int) -> np.ndarray:
    """Codes of the nearest values, at most the largest."""
    kind = getattr(ml_dtypes, name)
    largest = float(ml_dtypes.finfo(kind).max)
    codes = np.clip(x, -largest, largest).astype(kind).view(np.uint8)
    return codes & ((1 << bits) - 1)


def mx_block(x: np.ndarray, name: str, bits: int, largest: int) -> bytes:
    scales, codes = [], []
    for first in range(0, len(x), 32):
        row = x[first : first + 32]
        field = int(np.abs(row).max().view(np.uint32)) >> 23
        scale = max(field - largest, 0)
        scales.append(scale)
        codes.append(nearest(np.ldexp(row.astype(np.float64), 127 - scale), name, bits))
    return bytes(scales) + packed(np.concatenate(codes), bits)


@pytest.mark.parametrize("kind", ["usual", "wide", "halfway", "tiny", "huge"])
@pytest.mark.parametrize("kind_of_float", list(TYPES))
def test_microscaling_formats_are_those_of_the_specification(kind: str, kind_of_float: str) -> None:
    name, bits, largest = TYPES[kind_of_float]
    codec = pith.Codec(f"mx:{kind_of_float}")
    for n in (1, 17, 32, 33, 512, 513, 1200):
        x = values(kind, n)
        blocks = [
            mx_block(x[first : first + 512], name, bits, largest) for first in range(0, n, 512)
        ]
        assert codec.encode(x) == b"".join(blocks), (kind, n)


@pytest.mark.parametrize("kind", ["usual", "wide", "halfway", "tiny", "huge"])
@pytest.mark.parametrize("kind_of_float", ["e4m3", "e5m2"])
def test_fp8_has_the_bytes_of_the_specification_and_a_scale(kind: str, kind_of_float: str) -> None:
    name = TYPES[kind_of_float][0]
    largest = np.float32(ml_dtypes.finfo(getattr(ml_dtypes, name)).max)
    for bucket in (32, 512):
        codec = pith.Codec(f"fp8:{kind_of_float},bucket={bucket}")
        for n in (1, 17, 512, 513, 1200):
            x, blocks = values(kind, n), []
            for first in range(0, n, bucket):
                row = x[first : first + bucket]
                scale = np.abs(row).max() / largest
                scale = scale if scale >= np.float32(2) ** -119 else np.float32(0)
                inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
                blocks.append(scale.tobytes() + nearest(row * inverse, name, 8).tobytes())
            assert codec.encode(x) == b"".join(blocks), (kind, bucket, n)


def nv_block(x: np.ndarray) -> bytes:
    scale = np.abs(x).max() / np.float32(2688)
    inverse = np.float32(1) / (np.float32(6) * scale)
    scales, codes = [], []
    for first in range(0, len(x), 16):
        row = x[first : first + 16]
        byte = nearest(np.abs(row).max(keepdims=True) * inverse, "float8_e4m3fn", 8)
        factor = byte.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
        times = np.float32(1) / factor if factor[0] > 0 else np.float32(0)
        scales.append(byte.tobytes())
        codes.append(nearest(row * times, "float4_e2m1fn", 4))
    return scale.tobytes() + b"".join(scales) + packed(np.concatenate(codes), 4)


@pytest.mark.parametrize("kind", ["usual", "wide", "halfway"])
def test_nvfp4_has_scales_of_two_levels(kind: str) -> None:
    for n in (1, 17, 512, 513, 1200):
        x = values(kind, n)
        blocks = [nv_block(x[first : first + 512]) for first in range(0, n, 512)]
        assert pith.Codec("nvfp4").encode(x) == b"".join(blocks), (kind, n)


@pytest.mark.parametrize("kind_of_float", list(TYPES))
def test_every_code_decodes_to_its_value(kind_of_float: str) -> None:
    name, bits, _ = TYPES[kind_of_float]
    codes = np.arange(1 << bits, dtype=np.uint8)
    wanted = codes.view(getattr(ml_dtypes, name)).astype(np.float32)
    found = np.empty(len(codes), np.float32)
    data = bytes([130] * (-(-len(codes) // 32))) + packed(codes, bits)
    pith.Codec(f"mx:{kind_of_float}").decode(data, found)
    assert np.array_equal(found, wanted * 8, equal_nan=True)
