# SPDX-License-Identifier: Apache-2.0
"""What torch builds on a process group works over pith, and gives the bits that gloo gives."""

from __future__ import annotations

import copy
from typing import Any

import needs
from ranks import run

torch = needs.module("torch", "the backend needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402

STEPS = 4


class Net(nn.Module):
    """With a layer that is not always used, and two types."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16, sparse=sparse)
        self.hidden = nn.Linear(16, 64)
        self.unused = nn.Linear(4, 4)
        self.out = nn.Linear(64, 8, dtype=torch.float64)

    def forward(self, x: Any, use_all: bool = True) -> Any:
        y = self.out(self.hidden(self.embed(x)).relu().double()).sum()
        return y + self.unused(torch.ones(4)).sum() if use_all else y


def train(
    group: Any,
    rank: int,
    *,
    hook: Any = None,
    accumulate: bool = False,
    sparse: bool = False,
    **options: Any,
) -> list[Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(sparse), process_group=group, bucket_cap_mb=0.01, **options)
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    for step in range(STEPS):
        batches = [torch.randint(0, 50, (8,)) for _ in range(2)]
        optimizer.zero_grad()
        use_all = not options.get("find_unused_parameters") or step % 2 == 0
        if accumulate:
            with model.no_sync():
                model(batches[0], use_all).backward()
        model(batches[1], use_all).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def with_both(rank: int, size: int) -> int:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    dist.init_process_group("pith")
    gloo = dist.new_group(backend="gloo")
    ways: list[dict[str, Any]] = [
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"accumulate": True},
        {"hook": default_hooks.allreduce_hook},
        {"sparse": True},
    ]
    for way in ways:
        found, expected = train(dist.group.WORLD, rank, **way), train(gloo, rank, **way)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b), way
    dist.destroy_process_group()
    return len(ways)


def test_data_parallel_training_gives_the_weights_of_gloo() -> None:
    assert run(with_both, 2) == [7, 7]  # two ranks: there is one order of addition only


def compressed_training(rank: int, size: int) -> list[bytes]:
    dist.init_process_group("pith")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Linear(200, 1))
    reference = copy.deepcopy(model)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    losses = []
    for _ in range(30):
        x = torch.randn(64, 20)
        loss = ((parallel(x) - x[:, :1]) ** 2).mean()
        optimizer.zero_grad()
        with pith.torch.compression("q:4"):
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert any("q:4" in name for name in pith.torch.stats().reductions)
    assert not torch.equal(model[0].weight, reference[0].weight)
    dist.destroy_process_group()
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def test_compressed_training_keeps_replicas_the_same_bits() -> None:
    found = run(compressed_training, 3)
    assert found[0] == found[1] == found[2]


def sharded(rank: int, size: int) -> int:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("pith")
    checks = 0
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 4))
    single = copy.deepcopy(whole)
    fully_shard(whole, mesh=init_device_mesh("cpu", (size,)))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (whole, single)]
    for step in range(STEPS):
        x = torch.randn(size * 4, 20, generator=torch.Generator().manual_seed(step))
        whole(x[4 * rank : 4 * rank + 4]).pow(2).mean().backward()
        single(x).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(whole.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(a.full_tensor(), b)
        checks += 1
    dist.destroy_process_group()
    return checks


def test_fully_sharded_training_is_that_of_one_process() -> None:
    assert run(sharded, 2) == [4, 4]


def zero_optimizer(rank: int, size: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("pith")
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    single = copy.deepcopy(model)
    parallel = DistributedDataParallel(model)
    mine = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    theirs = torch.optim.Adam(single.parameters(), lr=0.01)
    for step in range(STEPS):
        x = torch.randn(4, 10, generator=torch.Generator().manual_seed(step))
        parallel(x).pow(2).sum().backward()
        single(x).pow(2).sum().backward()
        mine.step(), theirs.step()
        mine.zero_grad(), theirs.zero_grad()
    torch.testing.assert_close(model.weight, single.weight)
    dist.destroy_process_group()


def test_the_zero_optimizer_works() -> None:
    run(zero_optimizer, 2)
