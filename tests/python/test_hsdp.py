# SPDX-License-Identifier: Apache-2.0
"""Models sharded by fully_shard over a mesh of two dimensions (HSDP): a compressed reduce-scatter inside shard groups and a compressed
allreduce between replicas, on 2 × 2 ranks over pith and over gloo."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

import needs
import pith
from ranks import run
from test_fsdp import Scale, steps, whole

torch = needs.module("torch", "FSDP2 needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import pith.torch  # noqa: E402

REPLICAS, SHARDS = 2, 2
RANKS = REPLICAS * SHARDS


def meshes() -> dict[str, Any]:
    """By backend; the first dimension is that of replicas."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    dist.init_process_group("pith")
    every = torch.arange(RANKS).view(REPLICAS, SHARDS)
    groups = []
    for rows in (every.T.tolist(), every.tolist()):
        made = [dist.new_group(ranks, backend="gloo") for ranks in rows]
        groups.append(next(g for g, r in zip(made, rows, strict=True) if dist.get_rank() in r))
    names = ("replicate", "shard")
    gloo = DeviceMesh.from_group(groups, "cpu", mesh=every, mesh_dim_names=names)
    return {
        "pith": init_device_mesh("cpu", (REPLICAS, SHARDS), mesh_dim_names=names),
        "gloo": gloo,
    }


def made(mesh: Any, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 101), nn.Tanh(), nn.Linear(101, 40), nn.Tanh(), nn.Linear(40, 1)
    )
    fully_shard(model[0], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


SPECS: tuple[tuple[str, str | None], ...] = (
    ("q:4", None),
    ("none", "q:4"),
    ("q:4", "ef/q:4"),
    ("ef/q:4", "ef,store=8/q:2"),
    ("ef/topk:0.05", "ef/powersgd:2"),
    ("2.*=terngrad;*=ef/q:2", "0.*=q:8;*=ef/topk:0.1"),
    ("q:4", "gq:8"),
)


def trained(rank: int, size: int) -> list[tuple[float, bytes]]:
    found = []
    by_name = meshes()
    plain = made(by_name["gloo"])
    exact = steps(plain, rank, 0, 12)
    for name, mesh in by_name.items():
        model = made(mesh)
        pith.torch.compress(model, "none")
        steps(model, rank, 0, 12)
        assert whole(model) == whole(plain), name  # of two there is one order of addition only
    for spec, replicas in SPECS:
        both = []
        for mesh in by_name.values():
            model = made(mesh)
            compressor = pith.torch.compress(model, spec, replicas=replicas)
            losses = steps(model, rank, 0, 12)
            assert compressor.exact == {}
            both.append((sum(losses[-3:]) / sum(exact[-3:]), whole(model)))
        assert both[0] == both[1], (spec, replicas)
        found.append(both[0])
    dist.destroy_process_group()
    return found


def test_replicas_hold_the_same_bits_and_train_as_without_compression() -> None:
    found = run(trained, RANKS)
    for (spec, replicas), of_ranks in zip(SPECS, zip(*found, strict=True), strict=True):
        assert len({weights for _, weights in of_ranks}) == 1
        if "topk" not in spec and "topk" not in str(replicas):
            assert sum(ratio for ratio, _ in of_ranks) / RANKS < 1.5, (spec, replicas, of_ranks)


class Seen:
    """What the allreduces of a compressed model are given and give, message by message."""

    def __init__(self, monkeypatch: Any) -> None:
        from pith.torch._replicas import ReplicaGroup

        self.messages: list[tuple[list[Any], torch.Tensor, torch.Tensor]] = []
        allreduce = ReplicaGroup.allreduce

        def recorded(group: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
            given = tensors[0].clone()
            work = allreduce(group, tensors, opts, timeout)
            self.messages.append((group._shards, given, tensors[0]))  # there at the end of the pass
            return work

        monkeypatch.setattr(ReplicaGroup, "allreduce", recorded)

    def shards(self) -> Any:
        """Number of the message, shard, what was given, what came back."""
        for number, (shards, given, got) in enumerate(self.messages):
            sizes = [shard.n for shard in shards]
            for shard, a, b in zip(shards, given.split(sizes), got.split(sizes), strict=True):
                yield number, shard, a, b


def direct(rank: int, size: int) -> int:
    checks = 0
    by_name = meshes()
    comm = by_name["pith"].get_group("replicate").comm
    for mesh in by_name.values():
        for inside, between in (("q:4", "ef/q:4"), ("none", "q:8"), ("ef/q:4", "topk:0.1")):
            with pytest.MonkeyPatch.context() as monkeypatch:
                seen = Seen(monkeypatch)
                model = made(mesh)
                pith.torch.compress(model, inside, replicas=between, seed=5)
                steps(model, rank, 0, 3)
            states: dict[str, pith.State] = {}
            for number, shard, given, got in seen.shards():
                name, spec, rows = shard.layer.name, shard.layer.spec, shard.shape[0]
                codec = pith.Codec(spec)
                if codec.has_memory and name not in states:
                    states[name] = codec.state(given.numel(), rows)
                comm.allreduce(
                    given,
                    "mean",
                    codec=codec,
                    state=states.get(name),
                    seed=5,
                    step=number // 2,  # two modules
                    layer=shard.layer.number,
                    rows=rows if len(shard.shape) > 1 else 0,
                )
                assert torch.equal(given, got), (name, spec)
                checks += 1
            assert len(seen.messages) == 6
    dist.destroy_process_group()
    return checks


def test_means_have_the_bits_of_an_allreduce_of_the_same_shards() -> None:
    # Over carriers values are encoded where this algorithm encodes them.
    assert run(direct, RANKS, env={"PITH_ALGO": "sra"}) == [2 * 3 * 3 * 6] * RANKS


def conserved(rank: int, size: int) -> int:
    checks = 0
    by_name = meshes()
    comm = by_name["pith"].get_group("replicate").comm
    for mesh in by_name.values():
        for between in ("ef/topk:0.1", "ef/q:2,encode=once"):
            with pytest.MonkeyPatch.context() as monkeypatch:
                seen = Seen(monkeypatch)
                model = made(mesh)
                compressor = pith.torch.compress(model, "q:4", replicas=between)
                steps(model, rank, 0, 6)
            sums: dict[Any, list[torch.Tensor]] = {}
            for _, shard, given, got in seen.shards():
                comm.allreduce(given, "mean")
                of_shard = sums.setdefault(shard, [torch.zeros_like(got), torch.zeros_like(got)])
                of_shard[0] += given
                of_shard[1] += got
            assert set(sums) == set(compressor._replicas)
            for shard, (given, got) in sums.items():
                reducer = shard.messages.reducer
                residual = torch.zeros(shard.n)
                if shard.layer.spec != "none":
                    assert reducer.array_sizes(shard.number)[0] == 4 * shard.n
                    reducer.copy_residual(shard.number, residual.data_ptr())
                    assert residual.abs().max() > 0
                    comm.allreduce(residual, "mean")
                torch.testing.assert_close(got + residual, given, rtol=1e-4, atol=1e-6)
                checks += 1
    dist.destroy_process_group()
    return checks


def test_error_feedback_loses_nothing_and_is_as_large_as_a_shard() -> None:
    assert run(conserved, RANKS) == [2 * 2 * 6] * RANKS


def resumed(rank: int, size: int) -> None:
    spec, between = "0.*=ef/q:2;*=ef/topk:0.05", "0.*=ef/q:4;*=ef,store=8/q:2"
    for name, mesh in meshes().items():
        model = made(mesh)
        compressor = pith.torch.compress(model, spec, replicas=between)
        steps(model, rank, 0, 4)
        file = io.BytesIO()
        torch.save(compressor.state_dict(), file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        assert len(saved["reducers"]) == 2
        weights = [p.to_local().clone() for p in model.parameters()]
        expected = steps(model, rank, 4, 8), whole(model)
        for reducers in (2, 1, 0):  # with both states; without that of the replicas; without any
            again = made(mesh)
            fresh = pith.torch.compress(again, spec, replicas=between)
            with torch.no_grad():
                for p, w in zip(again.parameters(), weights, strict=True):
                    p.to_local().copy_(w)
            states = saved["reducers"][:reducers] + fresh.state_dict()["reducers"][reducers:]
            fresh.load_state_dict({**saved, "reducers": states})
            found = steps(again, rank, 4, 8), whole(again)
            assert (found == expected) == (reducers == 2), (name, reducers)
        for other in ("q:4", "none"):
            compressed = pith.torch.compress(made(mesh), spec, replicas=other)
            with pytest.raises(pith.StateError, match="other layers or specs"):
                compressed.load_state_dict(saved)
    dist.destroy_process_group()


def test_a_run_goes_on_from_a_checkpoint_of_both_levels() -> None:
    run(resumed, RANKS)


def counted(rank: int, size: int) -> None:
    for mesh in meshes().values():
        model = made(mesh)
        compressor = pith.torch.compress(model, "q:8", replicas="q:4")
        steps(model, rank, 0, 8)
        table = pith.torch.stats(model)
        inside, between = table["0.weight"], table["0.weight (replicas)"]
        assert (inside.spec, between.spec) == ("q:8", "q:4")
        assert inside.steps == between.steps == 8
        assert 3.5 < inside.ratio < 4 < between.ratio < 8, (inside, between)
        assert math.isclose(between.raw_bytes, 8 * 4 * 51 * 20, rel_tol=0.05)  # of a shard
        assert 0 < inside.error < between.error < 1
        assert table["0.bias (replicas)"].spec == "none"
        assert len(table) == 12 and "0.weight (replicas)" in str(table)
        exact = sum(line.ratio * line.wire_bytes for line in table)
        assert math.isclose(table.ratio, exact / table.wire_bytes)
        assert len(pith_groups(model)) == 2
        compressor.remove()
        assert len(pith_groups(model)) == 0
        plain = made(mesh)
        pith.torch.compress(plain, "q:8", replicas="none")
        assert len(pith_groups(plain)) == 0
        assert len(pith.torch.stats(plain)) == 6
    dist.destroy_process_group()


def pith_groups(model: nn.Module) -> list[Any]:
    from pith.torch._fsdp import _groups_of
    from pith.torch._replicas import ReplicaGroup

    found = [group._all_reduce_process_group for _, group in _groups_of(model)]
    return [group for group in found if isinstance(group, ReplicaGroup)]


def test_statistics_list_both_levels() -> None:
    run(counted, RANKS)


def scaled(rank: int, size: int) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    for name, mesh in meshes().items():
        found = []
        for told, grows in ((True, False), (True, True), (False, True)):
            scale = Scale([1.0])
            model = made(mesh)
            pith.torch.compress(model, "none", replicas="ef/q:2", scaler=scale if told else None)
            for step in range(5):
                steps(model, rank, step, step + 1, scale)
                scale._scales[0] *= 4.0 if grows else 1.0
            found.append(whole(model))
        assert found[0] == found[1] != found[2], name
        # Halves are reduced as sums, and divided before and after.
        for dtype in (torch.float16, torch.bfloat16):
            low = made(mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, dtype))
            compressor = pith.torch.compress(low, "q:4", replicas="ef/q:4", all_gather="q:8")
            losses = steps(low, rank, 0, 12)
            assert losses[-1] < 0.5 * losses[0] and compressor.exact == {}, (name, dtype)
        # Some backward passes without an allreduce between replicas.
        model = made(mesh)
        compressor = pith.torch.compress(model, "none", replicas="q:8")
        exact = made(mesh)
        for each in (model, exact):
            for last in (False, True):
                each.set_requires_all_reduce(last)
                x = torch.randn(16, 20, generator=torch.Generator().manual_seed(rank))
                ((each(x) - x[:, :1]) ** 2).mean().backward()
        for p, q in zip(model.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(p.grad.to_local(), q.grad.to_local(), rtol=0.05, atol=0.01)
        assert compressor.stats()["0.weight (replicas)"].steps == 1
    dist.destroy_process_group()


def test_loss_scales_halves_and_accumulation() -> None:
    run(scaled, RANKS)


def adaptive(rank: int, size: int) -> list[Any]:
    """Plans for one level or the other; without a word on replicas these have the budget of the adaptive spec."""
    found = []
    adapts = "lgreco:ef/topk:0.1,warmup=4,period=32"
    for name, mesh in meshes().items():
        for spec, between in ((adapts, None), ("q:8", adapts)):
            model = made(mesh)
            pith.torch.compress(model, spec, replicas=between)
            losses = steps(model, rank, 0, 40)
            assert losses[-1] < 0.5 * losses[0], (name, spec)
            table = pith.torch.stats(model)
            inside, outside = table["0.weight"], table["0.weight (replicas)"]
            led, fixed = (inside, outside) if between is None else (outside, inside)
            assert "plan of step" in led.reason, (name, led)
            assert fixed.spec == ("ef/topk:0.1" if between is None else "q:8"), (name, fixed)
            found.append(whole(model))
    dist.destroy_process_group()
    return found


def test_one_of_both_levels_may_adapt() -> None:
    first, *others = run(adaptive, RANKS)
    assert all(other == first for other in others)
    assert first[:2] == first[2:]  # the same over pith and over gloo


def wrong(rank: int, size: int) -> int:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    checks = 0
    for mesh in meshes().values():
        model = made(mesh)
        cases: list[tuple[Any, dict[str, Any], str]] = [
            (pith.SpecError, {"replicas": "qq"}, "qq"),
            (pith.SpecError, {"replicas": "zero*=q:4"}, "matches none"),
            (pith.UnsupportedError, {"spec": "auto", "replicas": "auto"}, "cannot both adapt"),
            (
                pith.UnsupportedError,
                {"replicas": "moment/onebit"},
                "only the part of its own shards",
            ),
            (pith.MismatchError, {"replicas": f"q:{4 + rank % 2}"}, "q:5|rank 1"),
            (pith.MismatchError, {"replicas": f"q:{4 + rank // 2}"}, "replicas is q:4 on rank 0"),
        ]
        for error, arguments, message in cases:
            with pytest.raises(error, match=message):
                pith.torch.compress(model, **{"spec": "q:4", **arguments})
            checks += 1
    flat = fully_shard(nn.Linear(20, 60), mesh=init_device_mesh("cpu", (size,)))
    with pytest.raises(pith.ArgumentError, match="one replica only"):
        pith.torch.compress(flat, "q:4", replicas="q:4")
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(20, 60))
    with pytest.raises(pith.ArgumentError, match="mesh of two dimensions"):
        pith.torch.compress(ddp, "q:4", replicas="q:4")
    with pytest.MonkeyPatch.context() as monkeypatch:
        from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

        monkeypatch.setattr(FSDPParamGroup, "_all_reduce_process_group", None)
        with pytest.raises(pith.UnsupportedError, match="replicas=.none. leaves it exact"):
            pith.torch.compress(model, "q:4")
        pith.torch.compress(model, "q:4", replicas="none")
    dist.destroy_process_group()
    return checks


def test_wrong_use_is_an_error_on_all_ranks() -> None:
    assert run(wrong, RANKS) == [12] * RANKS


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(20, 96), nn.Linear(96, 20)

    def forward(self, x: Any) -> Any:
        return self.down(torch.tanh(self.up(x)))


def tensor_parallel(rank: int, size: int) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    dist.init_process_group("pith")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    found = []
    for spec in (None, "none", "q:4", "ef/q:4"):
        model = Block()
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(model, mesh["tensor"], plan)
        fully_shard(model, mesh=mesh["data"])
        if spec is not None:
            compressor = pith.torch.compress(model, spec, all_gather="delta/q:8")
        losses = steps(model, rank // 2, 0, 12)
        if spec is not None:
            assert compressor.exact == {}
            assert pith.torch.stats(model)["up.weight"].spec == spec
        found.append(losses[-1])
    dist.destroy_process_group()
    return found


def test_tensor_parallel_layers_are_sharded_and_compressed() -> None:
    for plain, *compressed in run(tensor_parallel, RANKS):
        for loss in compressed:
            assert abs(loss - plain) < 0.1 * plain


def in_time(rank: int, size: int) -> None:
    """Results are there when FSDP2 adds them to gradients, and when it calls somebody with them."""

    def backward(model: nn.Module, step: int) -> None:
        x = torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + rank))
        ((model(x) - x[:, :1]) ** 2).mean().backward()

    for name, mesh in meshes().items():
        exact, added, hooked = made(mesh), made(mesh), made(mesh)
        for model in (added, hooked):
            pith.torch.compress(model, "none", replicas="q:8")
        seen: dict[str, torch.Tensor] = {}
        for key, p in hooked.named_parameters():
            p.register_post_accumulate_grad_hook(
                lambda p, key=key, seen=seen: seen.update({key: p.grad.to_local().clone()})
            )
        for step in range(3):
            for model in (exact, added, hooked):
                backward(model, step)  # without zero_grad
        for p, q in zip(exact.parameters(), added.parameters(), strict=True):
            torch.testing.assert_close(q.grad.to_local(), p.grad.to_local(), rtol=0.05, atol=0.02)
        for key, p in hooked.named_parameters():
            assert torch.equal(seen[key], p.grad.to_local()), (name, key)
    dist.destroy_process_group()


def test_results_are_there_when_they_are_used() -> None:
    run(in_time, RANKS)
