# SPDX-License-Identifier: Apache-2.0
"""Codecs, states, rules and plans, with tensors of several libraries."""

from __future__ import annotations

import array
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import needs
import pith

N = 5000


@pytest.fixture
def gradient() -> np.ndarray:
    return np.random.default_rng(7).standard_normal(N).astype(np.float32)


class Exporter:
    """A tensor of a library that nobody knows: all it has is DLPack."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __dlpack__(self, **_: Any) -> Any:
        return self._values.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


def test_round_trip_is_within_the_error_of_the_codec(gradient: np.ndarray) -> None:
    payload = pith.encode(gradient, "q:8")
    back = pith.decode(payload, "q:8", n=N)
    assert len(payload) < gradient.nbytes / 3.8
    assert 0 < np.linalg.norm(back - gradient) < 0.01 * np.linalg.norm(gradient)


def test_decoding_adds_when_asked(gradient: np.ndarray) -> None:
    payload = pith.encode(gradient, "fp16")
    total = np.ones(N, np.float32)
    pith.decode(payload, "fp16", total, add=True)
    np.testing.assert_array_equal(
        total, np.float32(1) + gradient.astype(np.float16).astype(np.float32)
    )


def test_all_kinds_of_tensors_give_the_same_bytes(gradient: np.ndarray) -> None:
    expected = pith.encode(gradient, "q:4")
    assert pith.encode(Exporter(gradient), "q:4") == expected
    assert pith.encode(array.array("f", gradient.tolist()), "q:4") == expected
    assert pith.encode(gradient.reshape(50, 100), "q:4") == expected
    frozen = gradient.copy()
    frozen.flags.writeable = False
    assert pith.encode(frozen, "q:4") == expected
    torch = needs.module("torch", "the tests here use it")
    assert pith.encode(torch.from_numpy(gradient), "q:4") == expected


def test_half_types_of_torch_and_numpy_agree(gradient: np.ndarray) -> None:
    torch = needs.module("torch", "the tests here use it")
    half = gradient.astype(np.float16)
    assert pith.encode(half, "q:4") == pith.encode(torch.from_numpy(half), "q:4")
    brain = torch.from_numpy(gradient).bfloat16()
    assert pith.encode(brain, "bf16") == brain.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (np.zeros((10, 10), np.float32)[:, ::2], "contiguous"),
        (np.zeros(10, np.uint32), "uint32"),
        (np.zeros(10, ">f4"), "byte order"),
        (Exporter(np.zeros((10, 10), np.float32).T), "contiguous"),
        (object(), "not a tensor"),
        ([1.0, 2.0], "not a tensor"),
    ],
)
def test_what_is_no_tensor_is_refused_with_the_reason(tensor: Any, what: str) -> None:
    with pytest.raises(pith.ArgumentError, match=what):
        pith.encode(tensor, "q:4")


@pytest.mark.parametrize(
    ("spec", "kind"), [("qq:4", pith.SpecError), ("q:99", pith.RangeError), ("", pith.SpecError)]
)
def test_wrong_specs_are_errors_of_their_own(spec: str, kind: type[pith.Error]) -> None:
    with pytest.raises(kind) as caught:
        pith.Codec(spec)
    assert caught.value.status == kind.status
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) > 10


def test_damaged_payloads_are_refused_and_change_nothing(gradient: np.ndarray) -> None:
    payload = pith.encode(gradient, "q:4")
    target = np.full(N, 3, np.float32)
    with pytest.raises(pith.CorruptError):
        pith.decode(payload[:-1], "q:4", target)
    assert (target == 3).all()


def test_a_codec_describes_itself() -> None:
    codec = pith.Codec("signum:0.9")
    assert (codec.spec, codec.parts) == ("signum:0.9", "momentum:0.9/sign")
    assert pith.Caps.VOTE in codec.caps
    assert codec.has_memory
    assert not pith.Codec("q:4").has_memory
    assert pith.Codec("powersgd:4").has_memory
    assert pith.Codec("q:4").bound(1024) == len(pith.encode(np.zeros(1024, np.float32), "q:4"))
    assert (
        pith.Codec("q:4").fingerprint
        == pith.Codec("q:4,bucket=512").fingerprint
        != pith.Codec("q:5").fingerprint
    )


def test_error_feedback_keeps_what_was_not_sent(gradient: np.ndarray) -> None:
    codec = pith.Codec("ef/topk:0.01")
    state = codec.state(N)
    sent = np.zeros(N, np.float32)
    codec.decode(codec.encode(gradient, state=state), sent)
    np.testing.assert_allclose(np.array(state.residual), gradient - sent, atol=1e-6)
    before = np.array(state.residual)
    state.scale(0.5)
    np.testing.assert_array_equal(np.array(state.residual), before / 2)
    with pytest.raises(pith.StateError):
        codec.encode(gradient[:100], state=state)


@pytest.mark.parametrize(
    ("store", "size", "step"), [("f32", 4, 0), ("bf16", 2, 2**-7), ("8", 1.016, 0.01)]
)
def test_a_residual_can_be_kept_in_fewer_bits(
    store: str, size: float, step: float, gradient: np.ndarray
) -> None:
    codec = pith.Codec(f"ef,store={store}/topk:0.01")
    state = codec.state(N)
    sent = np.zeros(N, np.float32)
    codec.decode(codec.encode(gradient, state=state), sent)
    left = gradient - sent
    assert np.abs(np.array(state.residual) - left).max() <= step * np.abs(left).max()
    assert codec.residual_size(N) <= len(state.save()) <= size * N + 100
    assert pith.Codec("q:4").residual_size(N) == 0
    assert pith.Codec("q:4").state(N).residual is None


def test_a_saved_state_continues_with_the_same_bytes(gradient: np.ndarray) -> None:
    codec = pith.Codec("ef/q:2,round=stochastic")
    state = codec.state(N)
    codec.encode(gradient, state=state, seed=1, step=0)
    copy = codec.state(N)
    copy.load(state.save())
    assert codec.encode(gradient, state=state, seed=1, step=1) == codec.encode(
        gradient, state=copy, seed=1, step=1
    )
    with pytest.raises(pith.Error):
        codec.state(N - 1).load(state.save())


def test_rules_choose_and_say_why() -> None:
    rules = pith.Rules("embed*=ef/topk:0.01;*=q:4")
    assert len(rules) == 2
    assert rules.find("embed.weight", (100, 100)).spec == "ef/topk:0.01"
    assert rules.find("fc.weight", (100, 100)).spec == "q:4"
    bias = rules.find("fc.bias", (4096,))
    assert (bias.spec, bias.rule) == ("none", None)
    assert "dimension" in bias.reason
    assert rules.matches(0, "embed.weight")
    assert not rules.matches(0, "fc.weight")
    with pytest.raises(pith.Error):
        pith.Rules("*=q:4;fc*=nonsense")


def test_methods_are_complete() -> None:
    methods = {method.name: method for method in pith.methods()}
    assert sum(method.survey for method in methods.values()) == 16
    assert methods["q"].params[0].key == "bits"
    assert methods["ef"].kind == "memory"
    assert methods["dgc"].summary


def test_the_doctor_knows_the_library_and_the_transports() -> None:
    report = pith.doctor()
    assert report["library"] == report["package"] == pith.__version__
    assert report["transports"]["tcp"] == "ok"
    assert report["cpu"] in report["instruction_sets"]


# ---- Plans -----------------------------------------------------------------------------------------------------------

LAYERS = [("embed.weight", (500, 64)), ("fc.weight", (64, 64)), ("fc.bias", (64,))]


def test_a_plan_is_rules_for_each_layer(tmp_path: Path) -> None:
    plan = pith.Plan.from_rules("embed*=ef/topk:0.01;*=q:4", LAYERS, note="by hand")
    plan.save(tmp_path / "plan.json")
    again = pith.Plan.load(tmp_path / "plan.json")
    assert again == plan
    rules = pith.Rules(again.text)
    assert [rules.find(name, shape).spec for name, shape in LAYERS] == [
        "ef/topk:0.01",
        "q:4",
        "none",
    ]
    lines = (tmp_path / "plan.json").read_text().splitlines()
    assert sum("fc.weight" in line and "q:4" in line for line in lines) == 1  # one line to edit


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda plan: plan["layers"][1].update(spec="q:44"), "layer fc.weight"),
        (lambda plan: plan["layers"].append(plan["layers"][0]), "twice"),
        (lambda plan: plan["layers"][0].update(bits=4), "bits"),
        (lambda plan: plan["layers"][0].update(name="embed*"), r"embed\*"),
        (lambda plan: plan.update(defualt="q:4"), "defualt"),
        (lambda plan: plan.update(pith_plan=9), "pith_plan"),
        (lambda plan: plan["layers"][0].pop("spec"), "no spec"),
    ],
)
def test_slips_in_a_plan_file_are_named(change: Any, what: str, tmp_path: Path) -> None:
    data = json.loads(pith.Plan.from_rules("q:4", LAYERS).to_json())
    change(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(pith.SpecError, match=what) as caught:
        pith.Plan.load(path)
    assert "plan.json" in str(caught.value)


def test_the_least_size_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pith.minimal_size() == 1024
    monkeypatch.setenv("PITH_MINIMAL_SIZE", "64")
    assert pith.minimal_size() == 64
    try:
        pith.set_minimal_size(16)
        assert pith.Rules("q:4").find("a", (4, 4)).spec == "q:4"
        assert pith.Rules("q:4").find("a", (3, 5)).reason == "under 16 values"
    finally:
        pith.set_minimal_size(None)
    assert pith.Rules("q:4").find("a", (7, 9)).reason == "under 64 values"
    monkeypatch.setenv("PITH_MINIMAL_SIZE", "few")
    with pytest.raises(pith.ArgumentError, match="PITH_MINIMAL_SIZE=few is not a number"):
        pith.Rules("q:4")
    with pytest.raises(pith.ArgumentError):
        pith.set_minimal_size(-1)
