# SPDX-License-Identifier: Apache-2.0
"""What encoding loses of a gradient, for the table of layers: the same on a device as on the CPU. The device is made up here: its calls are done by
the CPU. A real one is in tests/cuda/torch_test.py."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import pith
from pith import _library as c
from pith.torch import _table


@dataclass
class FakeLayer:
    spec: str
    number: int = 3

    @property
    def codec(self) -> pith.Codec:
        return pith.Codec(self.spec)


class FakeDevice:
    """``pith_cuda_encode`` and ``pith_cuda_decode`` of one item, in main memory."""

    def __init__(self) -> None:
        self.memories: list[bool] = []

    def pith_cuda_workspace(self, items: Any, count: int) -> int:
        return 64

    def pith_cuda_encode(self, items: Any, count: int, space: int, size: int, stream: Any) -> int:
        item, ctx = items.contents, self._ctx(items.contents)
        assert count == 1 and size == 64 and space
        self.memories.append(bool(item.memory and item.momentum))
        out = c.Out(item.payload, c.lib.pith_codec_bound(item.codec, item.n), 0)
        span = c.Span(item.values, item.n, item.dtype)
        status = c.lib.pith_encode(item.codec, None, span, ctypes.byref(out), ctypes.byref(ctx))
        ctypes.c_uint64.from_address(item.payload_size).value = out.size
        return status

    def pith_cuda_decode(
        self, items: Any, count: int, mode: int, space: int, size: int, stream: Any
    ) -> int:
        item, ctx = items.contents, self._ctx(items.contents)
        assert not item.memory and not item.momentum
        sent = c.Bytes(item.payload, ctypes.c_uint64.from_address(item.payload_size).value)
        span = c.Span(item.values, item.n, item.dtype)
        return c.lib.pith_decode(item.codec, sent, span, mode, ctypes.byref(ctx))

    @staticmethod
    def _ctx(item: Any) -> Any:
        names = ("seed", "step", "layer", "rank", "ranks", "rows", "gamma")
        return c.Ctx(**{name: getattr(item, name) for name in names})


@pytest.mark.parametrize(
    "spec", ["q:4", "qsgd", "hadamard/q:4", "topk:0.01", "powersgd:4", "q:8", "threshold:1"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_loses_what_the_cpu_loses(
    spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, layer = FakeDevice(), FakeLayer(spec)
    values = torch.randn(64, 257, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = float(_table._error(layer, values, 64))  # type: ignore[arg-type]
    for name in ("pith_cuda_workspace", "pith_cuda_encode", "pith_cuda_decode"):
        monkeypatch.setattr(c.lib, name, getattr(device, name))
    received = _table.through_there(layer, values, 64, None)  # type: ignore[arg-type]
    assert expected > 0
    assert float(_table._difference(values, received)) == pytest.approx(expected, rel=1e-6)
    assert device.memories == [layer.codec.has_memory]


def test_what_has_a_memory_gets_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device, layer = FakeDevice(), FakeLayer("ef/q:4")
    monkeypatch.setattr(c.lib, "pith_encode", lambda *a: 0)  # the CPU would want a state
    monkeypatch.setattr(c.lib, "pith_cuda_workspace", device.pith_cuda_workspace)
    monkeypatch.setattr(c.lib, "pith_cuda_encode", device.pith_cuda_encode)
    monkeypatch.setattr(c.lib, "pith_cuda_decode", lambda *a: 0)
    _table.through_there(layer, torch.ones(100), 0, None)  # type: ignore[arg-type]
    assert device.memories == [True]


def test_a_change_of_specs_forgets_what_was_measured() -> None:
    meter, layer = _table.Meter(), FakeLayer("q:4")
    meter.begin()
    meter.look(layer_of(layer), torch.randn(1000), 0)
    assert meter.line(layer_of(layer), 1, 4000, 500, 2).error is not None
    meter.forget()
    assert meter.line(layer_of(layer), 1, 4000, 500, 2).error is None


def layer_of(fake: FakeLayer) -> Any:
    return type(
        "L",
        (),
        {
            "spec": fake.spec,
            "codec": fake.codec,
            "number": 3,
            "name": "one",
            "reason": "",
            "n": 1000,
        },
    )()
