# SPDX-License-Identifier: Apache-2.0
"""Wrong use of the torch backend gives an exception with the reason, on every rank, and never a hang."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest

import needs
from ranks import outcomes, run

torch = needs.module("torch", "the backend needs torch")

import torch.distributed as dist  # noqa: E402

import pith.torch  # noqa: E402

DISAGREE = (pith.MismatchError, pith.AbortedError, pith.PeerError)


def start(seconds: float = 30) -> None:
    dist.init_process_group("pith", timeout=timedelta(seconds=seconds))


# ---- Ranks that disagree ---------------------------------------------------------------------------------------------


def other_size(rank: int, size: int) -> None:
    start()
    dist.all_reduce(torch.zeros(10 + (rank == 1)))


def other_type(rank: int, size: int) -> None:
    start()
    dist.all_reduce(torch.zeros(10, dtype=torch.float64 if rank == 1 else torch.float32))


def other_operation(rank: int, size: int) -> None:
    start()
    if rank == 1:
        dist.barrier()
    else:
        dist.all_reduce(torch.zeros(10))


def other_reduction(rank: int, size: int) -> None:
    start()
    dist.all_reduce(torch.zeros(10), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


def other_root(rank: int, size: int) -> None:
    start()
    dist.broadcast(torch.zeros(10), int(rank == 1))
    dist.barrier()  # a root only sends; it hears of it here


def other_spec(rank: int, size: int) -> None:
    start()
    with pith.torch.compression("q:4" if rank == 1 else "q:5"):
        dist.all_reduce(torch.zeros(5000))


@pytest.mark.parametrize(
    "wrong", [other_size, other_type, other_operation, other_reduction, other_root, other_spec]
)
def test_ranks_that_disagree_are_told_so(wrong: Any) -> None:
    found = outcomes(wrong, 3)
    for rank, outcome in enumerate(found):
        assert isinstance(outcome.error, DISAGREE), (rank, outcome)
        assert "rank" in str(outcome.error)
    assert any(isinstance(outcome.error, pith.MismatchError) for outcome in found)


def other_environment(rank: int, size: int) -> None:
    os.environ["PITH_SPEC"] = "q:5" if rank == 1 else "q:4"
    start()


def test_another_spec_in_the_environment_is_an_error_before_the_first_step() -> None:
    for outcome in outcomes(other_environment, 3):
        assert isinstance(outcome.error, DISAGREE), outcome
        assert "PITH_SPEC is q:5 on rank 1 and q:4 on rank 0" in str(outcome.error)


@pytest.mark.parametrize(("spec", "what"), [("qq:4", "qq"), ("ef/q:4", "between steps")])
def test_a_wrong_spec_in_the_environment_is_an_error_before_the_first_step(
    spec: str, what: str
) -> None:
    for outcome in outcomes(start_only, 2, env={"PITH_SPEC": spec}):
        assert isinstance(outcome.error, pith.Error), outcome
        assert what in str(outcome.error)


def start_only(rank: int, size: int) -> None:
    start()


# ---- Wrong arguments, found before anything travels: the group still works afterwards --------------------------------


def wrong_arguments(rank: int, size: int) -> int:
    start()
    cases: list[tuple[str, Any]] = [
        ("mean", lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG)),
        ("integers", lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)),
        ("float8", lambda: dist.group.WORLD.allreduce(torch.ones(3).to(torch.float8_e4m3fn))),
        ("one tensor", lambda: dist.group.WORLD.allreduce([torch.ones(3), torch.ones(3)])),
        (
            "one type",
            lambda: dist.group.WORLD.all_to_all_single(torch.ones(4), torch.ones(4).int()),
        ),
        ("rows", lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3))),
        ("splits", lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 3], [3, 3])),
        (
            "one part for each rank",
            lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(2)),
        ),
        (
            "one part for each rank",
            lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(5)),
        ),
        ("meta", lambda: dist.all_reduce(torch.ones(3, device="meta"))),
        ("sparse", lambda: dist.broadcast(torch.eye(3).to_sparse(), 0)),
    ]
    for what, wrong in cases:
        with pytest.raises((pith.Error, ValueError, RuntimeError), match=what):
            wrong()
    x = torch.ones(3)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((3,), float(size)))
    dist.destroy_process_group()
    with pytest.raises(ValueError):
        dist.all_reduce(x)
    return len(cases)


def test_wrong_arguments_are_refused_with_the_reason_and_harm_nothing() -> None:
    assert run(wrong_arguments, 2) == [11, 11]


# ---- Ranks that die or stall -----------------------------------------------------------------------------------------


def die(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def killed_before(rank: int, size: int) -> None:
    start(120)
    dist.barrier()
    die(rank)
    dist.all_reduce(torch.ones(1 << 20))


def killed_while_async(rank: int, size: int) -> None:
    start(120)
    works = [dist.all_reduce(torch.ones(1 << 18), async_op=True) for _ in range(4)]
    for work in works:
        work.wait()
    die(rank)
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    with pytest.raises(RuntimeError, match="rank 1"):
        work.get_future().wait()
    assert not work.is_success()
    assert "rank 1" in str(work.exception())
    work.wait()


def killed_in_backward(rank: int, size: int) -> None:
    start(120)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
    model(torch.ones(2, 300)).sum().backward()
    die(rank)
    model(torch.ones(2, 300)).sum().backward()


@pytest.mark.parametrize("function", [killed_before, killed_while_async, killed_in_backward])
def test_a_killed_rank_is_named_on_every_survivor(function: Any) -> None:
    started = time.monotonic()
    found = outcomes(function, 3)
    assert time.monotonic() - started < 60  # long before the time-out
    assert found[1].ended == -signal.SIGKILL
    for rank in (0, 2):
        assert found[rank].error is not None
        assert "rank 1" in str(found[rank].error), found[rank].trace


def subgroup(rank: int, size: int) -> None:
    start(120)
    group = dist.new_group([1, 2])
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        dist.all_reduce(torch.ones(10), group=group)


def test_errors_of_a_subgroup_say_which_ranks_it_has() -> None:
    found = outcomes(subgroup, 3)
    assert "rank 1" in str(found[1].error)
    assert "[1, 2]" in str(found[1].error)


def stalled(rank: int, size: int) -> None:
    start(2)
    dist.barrier()
    if rank == 1:
        time.sleep(8)
        return
    dist.all_reduce(torch.ones(10))


def test_a_rank_that_does_not_come_is_named_after_the_timeout() -> None:
    found = outcomes(stalled, 2)
    assert isinstance(found[0].error, pith.TimeoutError)
    assert "rank 1" in str(found[0].error)


def missing(rank: int, size: int) -> None:
    if rank == 1:
        time.sleep(6)
        return
    store = dist.HashStore()
    from pith.torch._rendezvous import rendezvous

    rendezvous(store, 0, 2, 2.0, None)


def test_a_rank_that_never_joins_is_named() -> None:
    found = outcomes(missing, 2)
    assert isinstance(found[0].error, pith.TimeoutError)
    assert "rank 1" in str(found[0].error)


def own_timeout(rank: int, size: int) -> None:
    start(60)
    if rank == 0:
        with pytest.raises(pith.TimeoutError, match="0.3 s"):
            dist.all_reduce(torch.ones(10), async_op=True).wait(timedelta(seconds=0.3))
    else:
        time.sleep(2)
        with pytest.raises(pith.AbortedError, match="Timed out waiting 0.3 s .* seen by rank 0"):
            for _ in range(3):  # rank 0 sent its part of the first before it gave up
                dist.all_reduce(torch.ones(10))


def test_wait_takes_a_timeout() -> None:
    run(own_timeout, 2)


def leaves_early(rank: int, size: int) -> None:
    start(60)
    if rank == 0:
        dist.destroy_process_group()
        time.sleep(1)
    else:
        dist.all_reduce(torch.ones(10))


def test_a_rank_that_left_is_named() -> None:
    found = outcomes(leaves_early, 2)
    assert isinstance(found[1].error, pith.Error)
    assert "rank 0" in str(found[1].error)
