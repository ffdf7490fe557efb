# SPDX-License-Identifier: Apache-2.0
"""What a rank keeps between steps is loaded by that rank and by no other, whoever keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import needs
import pith
from ranks import run

N = 4000


# ---- The core --------------------------------------------------------------------------------------------------------


def swapped_reducers(rank: int, size: int, folder: str) -> None:
    with pith.Comm() as comm:
        reducer = pith.Reducer(comm, "ef/q:2")
        reducer.add("fc.weight", (40, 100))
        reducer.start("fc.weight", np.full(N, rank + 1, np.float32))
        reducer.finish()
        mine = Path(folder) / f"{rank}"
        mine.write_bytes(reducer.save())
        comm.barrier()
        other = (Path(folder) / f"{1 - rank}").read_bytes()
        with pytest.raises(
            pith.StateError,
            match=f"saved by rank {1 - rank} of 2, and this is rank {rank}: .* each rank loads",
        ):
            reducer.load(other)
        reducer.load(mine.read_bytes())


def test_a_reducer_loads_its_own_checkpoint_only(tmp_path: Path) -> None:
    run(swapped_reducers, 2, str(tmp_path))


def swapped_states(rank: int, size: int, folder: str) -> None:
    codec, values = pith.Codec("ef/q:2"), np.full(N, rank + 1, np.float32)
    with pith.Comm() as comm:
        state = codec.state(N)
        comm.allreduce(values, codec=codec, state=state)
        (Path(folder) / f"{rank}").write_bytes(state.save())
        comm.barrier()
        other = (Path(folder) / f"{1 - rank}").read_bytes()
        what = f"the state was saved by rank {1 - rank} of 2, and this is rank {rank}"
        with pytest.raises(pith.StateError, match=what):
            state.load(other)  # this rank has used it
        fresh = codec.state(N)
        fresh.load(other)  # whose it is will be known when a comm uses it
        with pytest.raises(pith.StateError, match=what):
            comm.allreduce(values, codec=codec, state=fresh)
        fresh = codec.state(N)
        fresh.load((Path(folder) / f"{rank}").read_bytes())
        comm.allreduce(values, codec=codec, state=fresh)


def test_a_state_is_used_by_the_rank_that_saved_it(tmp_path: Path) -> None:
    run(swapped_states, 2, str(tmp_path))


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def handles(kind: str) -> Iterator[tuple[str, Any]]:
    """Compressed models or optimizers over both kinds of backends, after a step."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import pith.torch
    import small_model

    dist.init_process_group("pith")
    for backend in ("pith", "gloo"):
        group = dist.new_group(backend=backend)
        model: Any = small_model.make()
        if kind == "DDP":
            model = DistributedDataParallel(model, process_group=group)
            handle = pith.torch.compress(model, "ef/q:2")
        elif kind == "FSDP2":
            fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
            handle = pith.torch.compress(model, "ef/q:2")
        else:
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            handle = pith.torch.DistributedOptimizer(inner, model, "ef/q:2", group=group)
        small_model.loss_of(model, dist.get_rank(), 0).backward()
        if kind == "optimizer":
            handle.step()
        yield backend, handle
    dist.destroy_process_group()


def swapped(rank: int, size: int, kind: str, folder: str) -> list[str]:
    import torch
    import torch.distributed as dist

    found = []
    for backend, handle in handles(kind):
        files = [Path(folder) / f"{backend}-{r}" for r in range(size)]
        torch.save(handle.state_dict(), files[rank])
        dist.barrier()
        saved = [torch.load(file, weights_only=True) for file in files]
        with pytest.raises(pith.StateError) as caught:
            handle.load_state_dict(saved[1 - rank])
        found.append(str(caught.value))
        handle.load_state_dict(saved[rank])
        old = saved[1 - rank]["pith"] if kind == "optimizer" else saved[1 - rank]
        old["version"] = 1  # which did not say which rank has saved it
        del old["rank"]
        if backend == "gloo":
            with pytest.raises(pith.StateError, match="residuals differ from rank to rank"):
                handle.load_state_dict(saved[1 - rank])  # what the reducer has saved says it
        dist.barrier()
    return found


@pytest.mark.parametrize("kind", ["DDP", "FSDP2", "optimizer"])
def test_a_rank_loads_its_own_state_dict_only(kind: str, tmp_path: Path) -> None:
    needs.module("torch", "torch is not installed")
    found = run(swapped, 2, kind, str(tmp_path))
    for rank, messages in enumerate(found):
        assert len(messages) == 2
        for message in messages:
            assert f"saved by rank {1 - rank}, and rank {rank} loads it" in message
            assert "let every rank save and load a file of its own" in message
