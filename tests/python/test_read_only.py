# SPDX-License-Identifier: Apache-2.0
"""Memory that must not be written to never is, whatever way a tensor is handed over."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import needs
import pith

N = 5000


class Exporter:
    """A tensor that offers nothing but DLPack. ``max_version`` reaches the array, or does not, as in libraries from before DLPack 1.0."""

    def __init__(self, values: np.ndarray, versioned: bool) -> None:
        self._values, self._versioned = values, versioned

    def __dlpack__(self, **arguments: Any) -> Any:
        return (
            self._values.__dlpack__(**arguments) if self._versioned else self._values.__dlpack__()
        )

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


class OldExporter(Exporter):
    """One that does not know the argument."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self._values.__dlpack__()


class OldBuffer(np.ndarray):
    """An exporter without flags whose buffer protocol says that it may be written to."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__array_interface__":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def __dlpack__(self, **_: Any) -> Any:
        return super().__dlpack__()


@pytest.fixture
def gradient() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(N, np.float32)


def frozen() -> np.ndarray:
    values = np.zeros(N, np.float32)
    values.flags.writeable = False
    return values


def assert_never_written(target: Any, values: np.ndarray, what: str) -> None:
    """By no call of the package that writes."""
    payload = pith.encode(np.ones(N, np.float32), "q:4")
    source = np.ones(N, np.float32)
    before = values.copy()
    with pith.Comm(0, 1) as comm:
        reducer = pith.Reducer(comm, "q:4")
        reducer.add("layer", (N,))
        for write in (
            lambda: pith.decode(payload, "q:4", target),
            lambda: pith.decode(payload, "q:4", target, add=True),
            lambda: pith.Codec("q:4").aggregate(target, 2),
            lambda: comm.allreduce(target),
            lambda: comm.allreduce(source, dst=target),
            lambda: comm.reduce_to(target),
            lambda: comm.reduce_scatter(source, target),
            lambda: comm.all_gather(source, target),
            lambda: comm.broadcast(target),
            lambda: comm.all_to_all(source, target),
            lambda: comm.gather(source, target),
            lambda: comm.scatter(target, source),
            lambda: comm.receive(target, 0),
            lambda: reducer.start("layer", target),
        ):
            with pytest.raises(pith.ArgumentError, match=what):
                write()
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize(
    "kind", ["numpy", "bytes", "DLPack", "DLPack without flags", "DLPack of old"]
)
def test_read_only_memory_is_never_written_to(kind: str) -> None:
    values = frozen() if kind in ("numpy", "DLPack") else np.zeros(N, np.float32)
    if kind == "bytes":
        raw = bytes(4 * N)
        values = np.frombuffer(raw, np.float32)
        assert_never_written(memoryview(raw).cast("f"), values, "read-only")
        return
    made = {
        "numpy": lambda: values,
        "DLPack": lambda: Exporter(values, versioned=True),
        "DLPack without flags": lambda: Exporter(values, versioned=False),
        "DLPack of old": lambda: OldExporter(values, versioned=False),
    }[kind]()
    assert_never_written(made, values, "without the flags" if " " in kind else "read-only")


def test_memory_that_may_be_written_to_takes_results(gradient: np.ndarray) -> None:
    payload = pith.encode(gradient, "q:4")
    expected = pith.decode(payload, "q:4", n=N)
    values = np.zeros(N, np.float32)
    pith.decode(payload, "q:4", Exporter(values, versioned=True))
    np.testing.assert_array_equal(values, expected)
    buffer = np.zeros(N, np.float32).view(OldBuffer)
    pith.decode(payload, "q:4", buffer)
    np.testing.assert_array_equal(np.frombuffer(memoryview(buffer), np.float32), expected)


def test_read_only_memory_can_be_read(gradient: np.ndarray) -> None:
    expected = pith.encode(gradient, "q:4")
    for versioned in (False, True):
        assert pith.encode(Exporter(gradient, versioned), "q:4") == expected
    gradient.flags.writeable = False
    assert pith.encode(Exporter(gradient, versioned=True), "q:4") == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_of_jax_are_read_and_never_written_to(gradient: np.ndarray, dtype: str) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax = needs.module("jax", "JAX is not installed (pip install jax)")
    array = jax.numpy.asarray(gradient).astype(dtype)
    same = np.asarray(array.astype("float32"))
    assert pith.encode(array, "q:8") == pith.encode(same, "q:8")
    assert_never_written(array, np.asarray(array).astype(np.float32), "immutable arrays")
    np.testing.assert_array_equal(np.asarray(array.astype("float32")), same)
