# SPDX-License-Identifier: Apache-2.0
"""What PyTorch builds on a process group works on the backend pith: compiled functions, tensor parallelism, sharded training, checkpoints, pipelines,
meshes, groups of other backends beside it, the profiler, and a second life after destroy_process_group."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ranks import outcomes, run

torch = pytest.importorskip("torch", reason="the backend needs torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402


def start(seconds: float = 60) -> None:
    torch.manual_seed(0)
    dist.init_process_group("pith", timeout=timedelta(seconds=seconds))


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def batch(rank: int) -> Any:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(100 + rank))


def mean_gradients(model: nn.Module, size: int) -> list[Any]:
    """What every rank must have: computed here alone."""
    model.zero_grad()
    for rank in range(size):
        (model(batch(rank)).pow(2).mean() / size).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


# ---- Futures and works ------------------------------------------------------------------------------------------------


def power_sgd(rank: int, size: int) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    start()
    model = DistributedDataParallel(network())
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    model.register_comm_hook(state, powersgd.powerSGD_hook)
    for _ in range(4):
        model.zero_grad()
        model(batch(rank)).pow(2).mean().backward()
    dist.destroy_process_group()
    return [parameter.grad.numpy().tobytes() for parameter in model.parameters()]


def test_a_callback_of_a_future_may_wait_for_another_as_in_power_sgd() -> None:
    first, second = run(power_sgd, 2)
    assert first == second


def nested_futures(rank: int, size: int) -> list[float]:
    """Callbacks that start operations and wait for them, several deep; one that waits for a later future; and the order of those that do not."""
    start()
    order: list[int] = []

    def deeper(left: int) -> Any:
        def callback(future: Any) -> Any:
            total = future.value()[0]
            if left == 0:
                return total
            again = dist.all_reduce(total / size, async_op=True).get_future()
            return again.then(deeper(left - 1)).wait()

        return callback

    values = []
    for k in range(4):
        first = dist.all_reduce(torch.full((3,), float(k)), async_op=True).get_future()
        values.append(first.then(deeper(3)).wait()[0].item())
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
    futures = [work.get_future() for work in works]
    assert futures[0].then(lambda _: futures[2].wait()[0]).wait().tolist() == [float(size)] * 3
    plain = [
        dist.all_reduce(torch.ones(3), async_op=True)
        .get_future()
        .then(lambda _, k=k: order.append(k))
        for k in range(50)
    ]
    for future in plain:
        future.wait()
    assert order == list(range(50))
    dist.destroy_process_group()
    return values


def test_callbacks_wait_for_other_futures_several_deep() -> None:
    for values in run(nested_futures, 2):
        assert values == [0.0, 2.0, 4.0, 6.0]


def uneven(rank: int, size: int) -> None:
    start()
    model = DistributedDataParallel(network())
    with model.join(divide_by_initial_world_size=False):
        for _ in range(3 + 2 * rank):
            model.zero_grad()
            model(batch(rank)).pow(2).mean().backward()
    dist.destroy_process_group()


def test_join_divides_by_the_ranks_that_are_left() -> None:
    run(uneven, 2)


# ---- torch.compile ----------------------------------------------------------------------------------------------------


def compiled(rank: int, size: int) -> None:
    start()
    for spec, tolerance in ((None, 1e-5), ("q:8", 0.1)):
        inner = network()
        wrapped = DistributedDataParallel(inner)
        if spec:
            pith.torch.compress(wrapped, spec)
        fast = torch.compile(wrapped, backend="aot_eager")
        for _ in range(2):
            wrapped.zero_grad()
            fast(batch(rank)).pow(2).mean().backward()
        found = [parameter.grad.clone() for parameter in inner.parameters()]
        plain = network()
        for got, expected in zip(found, mean_gradients(plain, size), strict=True):
            assert (got - expected).norm() <= tolerance * expected.norm()

    @torch.compile(backend="aot_eager")
    def exchange(x: Any) -> Any:
        out = torch.empty_like(x)
        if rank == 0:
            dist.send(2 * x, 1)
            dist.recv(out, 1)
        else:
            dist.recv(out, 0)
            dist.send(2 * x, 0)
        return out + 1

    for _ in range(2):
        assert exchange(torch.full((3,), float(rank))).tolist() == [2.0 * (1 - rank) + 1] * 3

    @torch.compile(backend="aot_eager")
    def collectives(x: Any) -> Any:
        x = 2 * x
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.barrier()
        return x + 1

    assert collectives(torch.full((3,), float(rank + 1))).tolist() == [7.0] * 3
    dist.destroy_process_group()


def test_compiled_models_and_functions_communicate_as_others() -> None:
    run(compiled, 2, seconds=200)


def inductor(rank: int, size: int) -> None:
    start()
    world = dist.group.WORLD

    # Otherwise torch precompiles its headers and tries the C++ compiler for each instruction set, which takes a minute.
    plain = {"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": False}

    @torch.compile(fullgraph=True, options=plain)
    def several(x: Any) -> Any:
        total = functional.all_reduce(2 * x, "sum", world)
        gathered = functional.all_gather_tensor(total + 1, 0, world)
        part = functional.reduce_scatter_tensor(gathered, "sum", 0, world)
        return 2 * part, functional.all_to_all_single(gathered, None, None, world)

    part, exchanged = several(torch.full((4,), float(rank + 1)))
    assert part.tolist() == [28.0] * 4 and exchanged.tolist() == [7.0] * 8
    dist.destroy_process_group()


def test_functional_collectives_go_through_inductor_as_one_graph() -> None:
    run(inductor, 2, seconds=200)


# ---- What torch builds on groups --------------------------------------------------------------------------------------


def check_functional_autograd(rank: int, size: int) -> None:
    world = dist.group.WORLD
    x = torch.full((4,), float(rank + 1), requires_grad=True)
    y = functional.all_gather_tensor_autograd(x, 0, world)
    (y * torch.arange(4.0 * size)).sum().backward()
    assert torch.equal(x.grad, size * torch.arange(4.0 * size)[4 * rank : 4 * rank + 4])
    from torch.distributed.nn.functional import all_reduce

    x = torch.full((2,), float(rank + 1), requires_grad=True)
    all_reduce(x * x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0 * (rank + 1) * size))


def check_dtensor(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(6.0 * size).view(-1, 2)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert sharded.to_local().shape == (3, 2)
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole) or size > 2
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    torch.testing.assert_close(sharded.sum().full_tensor(), whole.sum())
    model, plain = network(), network()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    given = batch(0)
    torch.testing.assert_close(model(given), plain(given))
    model(given).pow(2).mean().backward()
    plain(given).pow(2).mean().backward()
    weight = model[0].weight.grad.full_tensor()
    torch.testing.assert_close(weight, plain[0].weight.grad)


def check_sharded(rank: int, size: int) -> None:
    """FSDP1 and FSDP2 give the gradients of one rank with all data; and save and load through a distributed checkpoint."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    expected = mean_gradients(network(), size)
    model = network()
    fully_shard(model)
    model(batch(rank)).pow(2).mean().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), gradient)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = FullyShardedDataParallel(
            network(), device_id=torch.device("cpu"), use_orig_params=True
        )
        old(batch(rank)).pow(2).mean().backward()
        with FullyShardedDataParallel.summon_full_params(old, with_grads=True):
            for parameter, gradient in zip(old.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, gradient)


def check_checkpoint(rank: int, size: int, folder: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    dcp.save(get_model_state_dict(model), checkpoint_id=folder)
    other = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    fully_shard(other)
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(other, state)
    for got, expected in zip(other.parameters(), network().parameters(), strict=True):
        torch.testing.assert_close(got.full_tensor(), expected)


def check_mesh(rank: int, size: int) -> None:
    """Two dimensions: replicas of shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=mesh.get_group("shard"))
    row = [r for r in range(size) if r // (size // 2) == rank // (size // 2)]
    assert x.item() == sum(row)
    model = network()
    fully_shard(model, mesh=mesh)
    model(batch(rank)).pow(2).mean().backward()
    for parameter, gradient in zip(
        model.parameters(), mean_gradients(network(), size), strict=True
    ):
        torch.testing.assert_close(parameter.grad.full_tensor(), gradient)


def check_pipeline(rank: int, size: int) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(3)
    layers = [nn.Linear(16, 16) for _ in range(size)]
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).pow(2).mean())
    given, target = batch(0), batch(1)
    losses: list[Any] = []
    if rank == 0:
        schedule.step(given)
    elif rank == size - 1:
        found = schedule.step(target=target, losses=losses)
        torch.testing.assert_close(found, nn.Sequential(*layers)(given))
    else:
        schedule.step()
    if rank == size - 1:
        assert len(losses) == 4
    assert layers[rank].weight.grad is not None
    dist.barrier()


def check_mixed(rank: int, size: int) -> None:
    """Groups of gloo in a world of pith."""
    other = dist.new_group(backend="gloo")
    for group in (other, None, other):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=group)
        assert x.item() == sum(range(size))
    assert dist.get_backend(other) == "gloo" and dist.get_backend() == "pith"
    dist.destroy_process_group(other)


def check_profiler(rank: int, size: int) -> None:
    """Events as gloo's, for what is waited for and what is not."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        x = torch.ones(1000)
        dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        dist.all_reduce(x, async_op=True).get_future().wait()
        dist.broadcast(x, 0)
        dist.all_gather([torch.empty(2) for _ in range(size)], torch.ones(2))
        dist.barrier()
        if rank == 0:
            dist.send(x, 1)
        elif rank == 1:
            dist.recv(x, 0)
    names = [event.name for event in found.events()]
    counts = {name: names.count(name) for name in names if name.startswith("pith:")}
    expected = {"pith:all_reduce": 3, "pith:broadcast": 1, "pith:all_gather": 1, "pith:barrier": 1}
    if rank < 2:
        expected["pith:send" if rank == 0 else "pith:recv"] = 1
    assert counts == expected, counts


def check_set_timeout(rank: int, size: int) -> None:
    from torch.distributed.distributed_c10d import _set_pg_timeout

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _set_pg_timeout(timedelta(seconds=200))
    assert dist.group.WORLD.comm.timeout == 200
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    dist.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=True)
    dist.barrier()


def everything(rank: int, size: int, folder: Path) -> list[str]:
    start()
    done = []
    for check in (
        check_functional_autograd,
        check_dtensor,
        check_sharded,
        check_checkpoint,
        check_mesh,
        check_pipeline,
        check_mixed,
        check_profiler,
        check_set_timeout,
    ):
        if check is not check_mesh or size % 2 == 0:
            check(rank, size, *([folder] if check is check_checkpoint else []))
            done.append(check.__name__)
    dist.destroy_process_group()
    return done


@pytest.mark.parametrize("size", [2, 4])
def test_what_torch_builds_on_groups_works(size: int, tmp_path: Path) -> None:
    for done in run(everything, size, tmp_path, seconds=200):
        assert len(done) == 9


def pith_in_gloo(rank: int, size: int) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    ours = dist.new_group(backend="pith")
    for group in (None, ours):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=group)
        assert x.item() == sum(range(size))
    model = DistributedDataParallel(network(), process_group=ours)
    model(batch(rank)).pow(2).mean().backward()
    for parameter, gradient in zip(
        model.parameters(), mean_gradients(network(), size), strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient)
    dist.monitored_barrier(timeout=timedelta(seconds=60))  # torch's own, of gloo
    dist.destroy_process_group()


def test_a_group_of_pith_in_a_world_of_gloo() -> None:
    run(pith_in_gloo, 2)


# ---- Again and again --------------------------------------------------------------------------------------------------


def many_lives(rank: int, size: int) -> int:
    for life in range(20):
        dist.init_process_group("pith")
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [float(size)] * 3
        if rank == 0:
            time.sleep(0.05 * (life % 3))  # the others leave first
        dist.destroy_process_group()
    return life


def test_a_group_is_destroyed_and_initialized_again_over_the_same_port() -> None:
    assert run(many_lives, 3) == [19] * 3


# ---- Time-outs and their messages -------------------------------------------------------------------------------------


def missing_rank(rank: int, size: int, how: str) -> None:
    from torch.distributed.distributed_c10d import _set_pg_timeout

    start(60 if how != "init_process_group" else 1)
    dist.barrier()
    if rank == 1:
        time.sleep(3)
        return
    if how == "_set_pg_timeout":
        _set_pg_timeout(timedelta(seconds=0.5))
    elif how == "zero":
        _set_pg_timeout(timedelta(0))
    dist.all_reduce(torch.ones(10))


@pytest.mark.parametrize("how", ["init_process_group", "_set_pg_timeout", "zero"])
def test_a_timeout_says_that_it_is_one_and_what_set_it(how: str) -> None:
    error = outcomes(missing_rank, 2, how)[0].error
    assert isinstance(error, pith.TimeoutError) and isinstance(error, RuntimeError)
    setting = (
        "init_process_group(timeout=…)" if how == "init_process_group" else "_set_pg_timeout()"
    )
    assert "Timed out" in str(error) and " timeout " in str(error)
    assert f"set by {setting}" in str(error)
    assert "rank 1" in str(error)


def monitored(rank: int, size: int) -> str:
    start()
    dist.barrier()
    text = ""
    if rank in (0, 3):
        with pytest.raises(RuntimeError) as found:
            dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=rank == 0)
        text = str(found.value)
    dist.barrier()  # the group is as good as before
    dist.destroy_process_group()
    return text


def test_a_monitored_barrier_names_the_ranks_that_did_not_come() -> None:
    first, _, _, last = run(monitored, 4)
    assert first == "Ranks 1, 2 failed to pass monitoredBarrier in 500 ms"
    assert last.startswith("Rank 3 successfully reached monitoredBarrier, but received errors")


def no_store(rank: int, size: int) -> None:
    from pith.torch._rendezvous import rendezvous

    if rank == 1:
        rendezvous(dist.HashStore(), 1, 2, 0.3, None)


def test_a_rank_that_never_hears_from_rank_0_says_how_long_it_waited() -> None:
    error = outcomes(no_store, 2)[1].error
    assert isinstance(error, pith.TimeoutError)
    assert "Timed out waiting 0.3 s for rank 0" in str(error)


def test_errors_are_runtime_errors() -> None:
    kinds = [k for k in vars(pith).values() if isinstance(k, type) and issubclass(k, pith.Error)]
    assert len(kinds) > 10 and all(issubclass(kind, RuntimeError) for kind in kinds)
    assert issubclass(pith.TimeoutError, TimeoutError) and issubclass(pith.PeerError, OSError)
    with pytest.raises(RuntimeError):
        pith.Codec("qq:4")
