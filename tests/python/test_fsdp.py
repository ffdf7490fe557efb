# SPDX-License-Identifier: Apache-2.0
"""Models sharded by fully_shard (FSDP2) on CPUs: compressed reduce-scatter and all-gather, over pith and over gloo."""

from __future__ import annotations

import io
from typing import Any

import pytest

import needs
import pith
from ranks import run

torch = needs.module("torch", "FSDP2 needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import pith.torch  # noqa: E402


def meshes(size: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    dist.init_process_group("pith")
    gloo = dist.new_group(backend="gloo")
    return {"pith": init_device_mesh("cpu", (size,)), "gloo": DeviceMesh.from_group(gloo, "cpu")}


def sharded(mesh: Any, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 101), nn.Tanh(), nn.Linear(101, 40), nn.Tanh(), nn.Linear(40, 1)
    )
    fully_shard(model[0], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def steps(model: nn.Module, rank: int, first: int, last: int, scaler: Any = None) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(first, last):
        x = torch.randn(16, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = ((model(x) - x[:, :1]) ** 2).mean()
        optimizer.zero_grad()
        (loss if scaler is None else loss * scaler.get_scale()).backward()
        for p in model.parameters():
            if scaler is not None and p.grad is not None:
                p.grad /= scaler.get_scale()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(model: nn.Module) -> bytes:
    return b"".join(p.full_tensor().detach().float().numpy().tobytes() for p in model.parameters())


SPECS = (
    "q:4",
    "ef/topk:0.05",
    "ef,store=8/q:2",
    "ef/powersgd:2",
    "2.*=terngrad;*=ef/q:2",
    "gq:8",
    "ef/randomk:0.2",
)


def trained(rank: int, size: int) -> list[tuple[float, bytes]]:
    found = []
    by_name = meshes(size)
    plain = sharded(by_name["gloo"])
    steps(plain, rank, 0, 12)
    for name, mesh in by_name.items():
        model = sharded(mesh)
        pith.torch.compress(model, "none")
        steps(model, rank, 0, 12)
        if size == 2:  # there is one order of addition only
            assert whole(model) == whole(plain), name
    for spec in SPECS:
        both = []
        for mesh in by_name.values():
            model = sharded(mesh)
            pith.torch.compress(model, spec)
            losses = steps(model, rank, 0, 12)
            both.append((sum(losses[-3:]) / sum(losses[:3]), whole(model)))
        assert both[0] == both[1], spec
        found.append(both[0])
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_sharded_training_works_with_every_kind_of_codec(size: int) -> None:
    found = run(trained, size)
    for of_ranks in zip(*found, strict=True):
        assert len({weights for _, weights in of_ranks}) == 1
        assert sum(ratio for ratio, _ in of_ranks) < 0.8 * size, of_ranks


def gathered(rank: int, size: int) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    for name, mesh in meshes(size).items():
        model = sharded(mesh)
        compressor = pith.torch.compress(model, "q:4", all_gather="q:8")
        losses = steps(model, rank, 0, 12)
        assert losses[-1] < 0.5 * losses[0], name
        table = pith.torch.stats(model)
        line = table["0.weight (gathered)"]
        assert line.spec == "q:8" and 3.5 < line.ratio <= 4 and 0 < line.error < 0.1
        assert table["0.weight"].spec == "q:4" and 6 < table["0.weight"].ratio < 8
        assert 0.01 < table["0.weight"].error < 1
        assert table["0.bias"].reason == "one dimension" and table["0.bias"].ratio == 1
        assert compressor.exact == {}
        low = sharded(mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float16))
        pith.torch.compress(low, "q:4", all_gather="q:8")
        losses = steps(low, rank, 0, 12)
        assert losses[-1] < 0.5 * losses[0], name
    dist.destroy_process_group()


def test_parameters_are_gathered_with_eight_bits() -> None:
    run(gathered, 2)


DELTAS = ("delta/q:4", "delta:3,fresh=8/q:4", "delta:0,store=bf16/0.*=q:8;*=q:4")


def differences(rank: int, size: int) -> list[tuple[float, ...]]:
    """Of each kind of gather: the largest error of a gathered parameter in the last steps, and the last losses."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from pith.torch._fsdp import _AllGather

    found = []
    by_name = meshes(size)
    for spec in (None, "q:4", *DELTAS):
        both = []
        for name, mesh in by_name.items():
            with pytest.MonkeyPatch.context() as monkeypatch:
                messages: list[tuple[torch.Tensor, torch.Tensor]] = []
                gather = _AllGather.__call__

                def seen(
                    self: Any,
                    output_tensor: Any,
                    input_tensor: Any,
                    messages: Any = messages,
                    gather: Any = gather,
                    **options: Any,
                ) -> Any:
                    source = input_tensor.clone()  # FSDP2 has it in the place of its results
                    gather(self, output_tensor, input_tensor, **options)
                    messages.append((source, output_tensor.clone()))

                monkeypatch.setattr(_AllGather, "__call__", seen)
                model = sharded(mesh)
                compressor = pith.torch.compress(model, "none", all_gather=spec)
                losses = steps(model, rank, 0, 20)
            assert compressor.exact == {}, name
            error, every_rank = 0.0, []
            for source, output in messages[-10:]:
                ours = output.view(size, -1)[rank]
                error = max(error, float((ours - source).abs().max()))
                every_rank.append(output)
            both.append((error, *losses[-3:], *(float(x.double().sum()) for x in every_rank)))
            if spec in DELTAS:
                line = pith.torch.stats(model)["0.weight (gathered)"]
                assert line.spec.startswith("delta") and line.spec.endswith(("/q:4", "/q:8"))
                assert line.steps == 20  # the backward pass is given what the forward pass had
                assert 0 < line.error < 0.02 and line.ratio > 2, line
                assert pith.torch.stats(model)["2.bias (gathered)"].error == 0
        assert both[0] == both[1], spec
        found.append(both[0])
    low = sharded(by_name["gloo"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    pith.torch.compress(low, "q:4", all_gather="delta,store=bf16/q:4")
    losses = steps(low, rank, 0, 12)
    assert losses[-1] < 0.5 * losses[0]
    dist.destroy_process_group()
    return found


def test_parameters_are_gathered_as_differences() -> None:
    for of_ranks in zip(*run(differences, 2), strict=True):
        assert of_ranks[0][4:] == of_ranks[1][4:]  # the same bits on all ranks
    exact, plain, *deltas = run(differences, 2)[0]
    for delta in deltas:
        assert delta[0] < 0.2 * plain[0]
        for loss, wanted in zip(delta[1:4], exact[1:4], strict=True):
            assert abs(loss - wanted) < 0.02 * wanted + 1e-3


def resumed_differences(rank: int, size: int) -> None:
    for name, mesh in meshes(size).items():
        for spec in DELTAS:
            model = sharded(mesh)
            compressor = pith.torch.compress(model, "ef/q:4", all_gather=spec)
            steps(model, rank, 0, 4)
            file = io.BytesIO()
            torch.save(compressor.state_dict(), file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            values = sum(p.numel() for p in model.parameters())
            assert saved["reducers"][1].numel() < 4 * values / size + 4096  # of its own shards
            weights = [p.to_local().clone() for p in model.parameters()]
            expected = steps(model, rank, 4, 8)
            again = sharded(mesh)
            fresh = pith.torch.compress(again, "ef/q:4", all_gather=spec)
            with torch.no_grad():
                for p, w in zip(again.parameters(), weights, strict=True):
                    p.to_local().copy_(w)
            fresh.load_state_dict(saved)
            assert steps(again, rank, 4, 8) == expected, (name, spec)
            for other in ("delta:9/q:4", "q:4", None):
                compressed = pith.torch.compress(sharded(mesh), "ef/q:4", all_gather=other)
                with pytest.raises(pith.StateError, match="other layers or specs"):
                    compressed.load_state_dict(saved)
    dist.destroy_process_group()


def test_a_run_with_differences_goes_on_with_the_same_bits() -> None:
    run(resumed_differences, 2)


def resumed(rank: int, size: int) -> None:
    spec = "0.*=ef/q:2;*=ef/topk:0.05"
    for name, mesh in meshes(size).items():
        model = sharded(mesh)
        compressor = pith.torch.compress(model, spec)
        steps(model, rank, 0, 4)
        file = io.BytesIO()
        torch.save(compressor.state_dict(), file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        weights = [p.to_local().clone() for p in model.parameters()]
        expected = steps(model, rank, 4, 8)
        for with_state in (True, False):
            again = sharded(mesh)
            fresh = pith.torch.compress(again, spec)
            with torch.no_grad():
                for p, w in zip(again.parameters(), weights, strict=True):
                    p.to_local().copy_(w)
            if with_state:
                fresh.load_state_dict(saved)
            assert (steps(again, rank, 4, 8) == expected) == with_state, name
        other = pith.torch.compress(sharded(mesh), "q:4")
        with pytest.raises(pith.StateError, match="other layers or specs"):
            other.load_state_dict(saved)
        with pytest.raises(pith.StateError, match=r"saved by Pith 0\.1"):
            other.load_state_dict({**saved, "states": []})
        damaged = {**saved, "reducers": [saved["reducers"][0][:-1]]}
        before = other.state_dict()["reducers"][0]
        with pytest.raises(pith.StateError):
            other.load_state_dict({**damaged, "layers": other.state_dict()["layers"]})
        assert torch.equal(other.state_dict()["reducers"][0], before)
    dist.destroy_process_group()


def test_a_run_goes_on_from_a_checkpoint() -> None:
    run(resumed, 2)


def adaptive(rank: int, size: int) -> list[Any]:
    """Plans change specs between steps; a checkpoint in the middle goes on with the same bits and plans."""
    found = []
    spec = "*.bias=none;*=lgreco:ef/topk:0.1,warmup=4,period=32"
    for name, mesh in meshes(size).items():
        model = sharded(mesh)
        compressor = pith.torch.compress(model, spec, all_gather="q:8")
        losses = []
        for step in range(40):
            losses += steps(model, rank, step, step + 1)
            if step == 29:
                saved = compressor.state_dict()
                weights = [p.to_local().clone() for p in model.parameters()]
        layer = next(layer for layer in compressor.layers if layer.name == "0.weight")
        assert layer.adaptive and "plan of step" in layer.reason, (name, layer.reason)
        assert pith.torch.stats(model)["0.weight"].spec == layer.spec
        assert pith.torch.stats(model)["0.bias"].spec == "none"
        assert losses[-1] < 0.5 * losses[0]
        again = sharded(mesh)
        fresh = pith.torch.compress(again, spec, all_gather="q:8")
        with torch.no_grad():
            for p, w in zip(again.parameters(), weights, strict=True):
                p.to_local().copy_(w)
        fresh.load_state_dict(saved)
        assert steps(again, rank, 30, 40) == losses[30:], name
        assert [x.spec for x in fresh.layers] == [x.spec for x in compressor.layers]
        found.append(whole(model))
    assert found[0] == found[1], "over pith and over gloo"
    dist.destroy_process_group()
    return found


def test_plans_change_the_specs_of_shards() -> None:
    first, *others = run(adaptive, 2)
    assert all(other == first for other in others)


def default(rank: int, size: int) -> tuple[str, ...]:
    """Without a spec: measured, tried, and settled, on all ranks alike."""
    mesh = meshes(size)["pith"]
    model = sharded(mesh)
    compressor = pith.torch.compress(model)
    reasons: set[str] = set()
    for step in range(400):
        steps(model, rank, step, step + 1)
        reasons.update(layer.reason for layer in compressor.layers if layer.adaptive)
        if any("since step" in reason for reason in reasons):
            break
    assert any("trial of" in reason for reason in reasons), reasons
    assert any("since step" in reason for reason in reasons), reasons
    chosen = tuple(layer.spec for layer in compressor.layers)
    dist.destroy_process_group()
    return chosen


def test_the_default_measures_tries_and_settles() -> None:
    assert len(set(run(default, 2))) == 1


class Scale:
    """A loss scale that grows."""

    def __init__(self, scales: list[float]) -> None:
        self._scales, self._calls = scales, 0

    def is_enabled(self) -> bool:
        return True

    def get_scale(self) -> float:
        return self._scales[0]


def scaled(rank: int, size: int) -> None:
    for name, mesh in meshes(size).items():
        found = []
        for told, grows in ((True, False), (True, True), (False, True)):
            scale = Scale([1.0])
            model = sharded(mesh)
            pith.torch.compress(model, "ef/q:2", scaler=scale if told else None)
            for step in range(5):
                steps(model, rank, step, step + 1, scale)
                scale._scales[0] *= 4.0 if grows else 1.0
            found.append(whole(model))
        assert found[0] == found[1] != found[2], name
    dist.destroy_process_group()


def test_memories_follow_the_loss_scale() -> None:
    run(scaled, 2)


class Sometimes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(20, 60), nn.Linear(60, 60)
        self.frozen = nn.Linear(60, 60).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.frozen(self.used(x)).pow(2).mean()


def odd(rank: int, size: int) -> int:
    from torch.distributed.fsdp import fully_shard

    checks = 0
    for mesh in meshes(size).values():
        model = fully_shard(Sometimes(), mesh=mesh)
        compressor = pith.torch.compress(model, "q:4")
        model(torch.ones(4, 20)).backward()
        assert compressor.exact == {"some parameters of a module had no gradient": 1}
        plain = sharded(mesh)
        cases: list[tuple[Any, dict[str, Any], str]] = [
            (pith.SpecError, {"spec": "qq"}, "qq"),
            (pith.SpecError, {"spec": "zero*=q:4"}, "matches none"),
            (pith.UnsupportedError, {"all_gather": "ef/q:8"}, "without memory"),
            (pith.UnsupportedError, {"all_gather": "topk:0.1"}, "fixed size"),
            (pith.MismatchError, {"all_gather": f"q:{4 + rank}"}, "all_gather is q:4 on rank 0"),
            (pith.MismatchError, {"all_gather": f"delta:{4 + rank}/q:4"}, "delta:4/q:4 on rank 0"),
            (pith.UnsupportedError, {"all_gather": "delta/ef/q:8"}, "without memory"),
            (pith.SpecError, {"all_gather": "delta,store=8/q:8"}, "store"),
            (pith.SpecError, {"all_gather": "delta"}, "delta"),
            (pith.UnsupportedError, {"all_gather": "auto"}, "is for gradients"),
            (pith.UnsupportedError, {"spec": "moment/onebit"}, "only the part of its own shards"),
        ]
        for error, arguments, message in cases:
            with pytest.raises(error, match=message):
                pith.torch.compress(plain, **arguments)
            checks += 1
        pith.torch.compress(plain)
        with pytest.raises(pith.ArgumentError, match="already"):
            pith.torch.compress(plain)
    dist.destroy_process_group()
    return checks


def test_odd_models_and_wrong_use() -> None:
    assert run(odd, 2) == [22, 22]
