# SPDX-License-Identifier: Apache-2.0
"""Every object says in one line what it is."""

from __future__ import annotations

from typing import Any

import numpy as np

import needs
import pith
from ranks import run


def test_codecs_states_and_rules() -> None:
    codec = pith.Codec("ef/q:4,bucket=1024")
    assert repr(codec) == f"pith.Codec({codec.spec!r})"
    state = codec.state(5000)
    assert repr(state) == f"<pith.State of {codec.spec}, 5000 values>"
    state.adapt(pith.Codec("ef/q:2"))
    assert repr(state) == "<pith.State of ef/q:2, 5000 values>"
    assert repr(pith.Rules("embed*=q:2;*=q:4")) == "pith.Rules('embed*=q:2;*=q:4')"


def test_plans_profiles_and_adapters() -> None:
    layers = [("a.weight", (64, 64)), ("b.weight", (64, 64)), ("c.bias", (64,))]
    plan = pith.Plan.from_rules("q:4", layers)
    assert repr(plan) == "<pith.Plan of 3 layers: 2 × q:4, 1 × none; default none>"
    assert repr(pith.Plan()) == "<pith.Plan of 0 layers; default none>"
    profile = pith.Profile(layers, ["q:2", "q:4"])
    profile.update("a.weight", np.ones(4096, np.float32))
    assert repr(profile) == "<pith.Profile of 3 layers, 2 candidates, 1 samples>"
    assert (
        repr(pith.Adapter("lgreco:q:4", layers, 1, 2))
        == "<pith.Adapter lgreco:q:4, 3 layers, rank 1 of 2, step 0>"
    )


def of_a_comm(rank: int, size: int) -> list[str]:
    found = []
    with pith.Comm() as comm:
        found.append(repr(comm))
        reducer = pith.Reducer(comm, "*.bias=none;*=q:4")
        reducer.add("fc.weight", (10, 10))
        found.append(repr(reducer))
        request = comm.allreduce(np.ones(1000, np.float32), wait=False)
        found.append(repr(request))
        request.wait()
        found.append(repr(request))
    return [*found, repr(comm), repr(reducer)]


def test_comms_reducers_and_requests() -> None:
    for rank, found in enumerate(run(of_a_comm, 2)):
        assert found == [
            f"<pith.Comm rank {rank} of 2 over shm>",
            f"<pith.Reducer '*.bias=none;*=q:4', 1 layers, rank {rank} of 2>",
            f"<pith.Request in flight on <pith.Comm rank {rank} of 2 over shm>>",
            "<pith.Request complete>",
            f"<pith.Comm rank {rank} of 2, closed>",
            f"<pith.Reducer '*.bias=none;*=q:4', 1 layers, rank {rank} of 2, closed>",
        ]


def of_torch(rank: int, size: int, folder: str) -> list[str]:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import pith.torch
    import small_model

    dist.init_process_group("pith")
    model: Any = DistributedDataParallel(small_model.make())
    found = [repr(pith.torch.compress(model, "0.weight=q:2;*=ef/q:4"))]
    with pith.torch.record(model, f"{folder}/stats.json", steps=1, every=1) as recorder:
        found.append(repr(recorder))
        small_model.loss_of(model, rank, 0).backward()
        found.append(repr(recorder))
    whole = small_model.make()
    inner = torch.optim.SGD(whole.parameters(), lr=0.1)
    found.append(repr(pith.torch.DistributedOptimizer(inner, whole, "q:4")))
    sharded = small_model.make()
    fully_shard(sharded)
    found.append(repr(pith.torch.compress(sharded)))
    dist.destroy_process_group()
    return found


def test_compressors_optimizers_and_recorders(tmp_path: Any) -> None:
    needs.module("torch", "torch is not installed")
    for rank, found in enumerate(run(of_torch, 2, str(tmp_path))):
        where = f"over pith, rank {rank} of 2"
        assert (
            found[0]
            == f"<pith.torch.Compressor of 6 layers (3 × none, 2 × ef/q:4, 1 × q:2) {where}>"
        )
        assert (
            found[1]
            == f"<pith.torch.Recorder to {tmp_path}/stats.json: 0 of 1 samples of 6 layers, recording>"
        )
        assert (
            found[2]
            == f"<pith.torch.Recorder to {tmp_path}/stats.json: 1 of 1 samples of 6 layers, closed>"
        )
        assert found[3].startswith(
            f"<pith.torch.DistributedOptimizer of 6 layers (3 × q:4, 3 × none) {where}: SGD ("
        )
        assert (
            found[4]
            == f"<pith.torch.ShardedCompressor of 6 layers (3 × auto,budget=q:4, 3 × none) {where}>"
        )
