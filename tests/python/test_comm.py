# SPDX-License-Identifier: Apache-2.0
"""Comms and reducers with numpy arrays, ranks as processes."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import pith
from ranks import outcomes, run

N = 3000


def values(rank: int, n: int = N, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(rank).integers(-8, 9, n).astype(dtype)


def every_collective(rank: int, size: int) -> int:
    checks = 0

    def equal(found: np.ndarray, expected: np.ndarray) -> None:
        nonlocal checks
        np.testing.assert_array_equal(found, expected)
        checks += 1

    everybody = [values(r) for r in range(size)]
    with pith.Comm() as comm:
        assert (comm.rank, comm.ranks) == (rank, size)
        total = np.sum(everybody, axis=0)
        equal(comm.allreduce(values(rank)), total)
        equal(
            comm.allreduce(values(rank), "max", np.empty(N, np.float32)), np.max(everybody, axis=0)
        )
        equal(comm.allreduce(values(rank, dtype=np.int64), "sum"), total.astype(np.int64))
        np.testing.assert_allclose(comm.allreduce(values(rank), "mean"), total / size, rtol=1e-6)
        reduced = comm.reduce_to(values(rank), size - 1)
        if rank == size - 1:
            equal(reduced, total)
        counts = [r + 1 for r in range(size)]
        ends = np.cumsum([0, *counts])
        piece = comm.reduce_scatter(
            values(rank, ends[-1]), np.empty(counts[rank], np.float32), "sum", counts
        )
        equal(
            piece,
            np.sum([values(r, ends[-1]) for r in range(size)], axis=0)[ends[rank] : ends[rank + 1]],
        )
        gathered = comm.all_gather(
            values(rank, counts[rank]), np.empty(ends[-1], np.float32), counts
        )
        equal(gathered, np.concatenate([values(r, counts[r]) for r in range(size)]))
        equal(comm.broadcast(values(rank), size - 1), values(size - 1))
        exchanged = comm.all_to_all(
            np.arange(size, dtype=np.int32) + 10 * rank, np.empty(size, np.int32)
        )
        equal(exchanged, 10 * np.arange(size, dtype=np.int32) + rank)
        on_root = comm.gather(values(rank), np.empty(size * N, np.float32) if rank == 0 else None)
        if rank == 0:
            equal(on_root, np.concatenate(everybody))
        source = np.arange(size * 4, dtype=np.int16) if rank == 0 else None
        equal(comm.scatter(np.empty(4, np.int16), source), np.arange(4, dtype=np.int16) + 4 * rank)
        comm.barrier()
        requests = [comm.allreduce(values(rank, 100 + i), wait=False) for i in range(50)]
        for i, request in enumerate(requests):
            equal(request.wait(), np.sum([values(r, 100 + i) for r in range(size)], axis=0))
            assert request.done()
        if size > 1:
            to, frm = (rank + 1) % size, (rank - 1) % size
            sent = comm.send(values(rank), to, 7, wait=False)
            equal(comm.receive(np.empty(N, np.float32), frm, 7), values(frm))
            sent.wait()
        comm.allreduce(values(rank), wait=False)  # nobody waits for it
        assert comm.stats.operations > 50
        assert comm.traffic("allreduce").operations >= 50
    assert comm.closed
    return checks


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_collective_gives_what_numpy_says(size: int) -> None:
    assert min(run(every_collective, size)) > 50


def compressed(rank: int, size: int) -> bytes:
    with pith.Comm() as comm:
        x = np.random.default_rng(rank).standard_normal(N).astype(np.float32)
        exact = comm.allreduce(x.copy(), "mean")
        found = comm.allreduce(x.copy(), "mean", codec="q:8", seed=1, step=2)
        assert 0 < np.linalg.norm(found - exact) < 0.02 * np.linalg.norm(exact)
        state = pith.Codec("ef/powersgd:2").state(N, 50)
        comm.allreduce(x, "mean", codec="ef/powersgd:2", state=state, rows=50)
        return found.tobytes() + x.tobytes()


def test_compressed_results_are_the_same_bits_on_all_ranks() -> None:
    found = run(compressed, 3)
    assert found[0] == found[1] == found[2]


def split(rank: int, size: int) -> list[float] | None:
    with pith.Comm() as comm:
        group = comm.split(-1 if rank == 4 else rank % 2, -rank)
        if group is None:
            return None
        with group:
            return [group.rank, *group.allreduce(np.array([rank], np.float32)).tolist()]


def test_splits_are_ranked_by_key() -> None:
    assert run(split, 5) == [[1, 2], [1, 4], [0, 2], [0, 4], None]


# ---- Reducer ---------------------------------------------------------------------------------------------------------

SHAPES = {"fc.weight": (60, 50), "fc.bias": (60,), "out.weight": (10, 60)}


def steps(reducer: pith.Reducer, rank: int, first: int, last: int) -> list[bytes]:
    found = []
    for step in range(first, last):
        grads = {
            name: np.random.default_rng([step, rank, i]).standard_normal(shape).astype(np.float32)
            for i, (name, shape) in enumerate(SHAPES.items())
        }
        for name, gradient in grads.items():
            reducer.start(name, gradient)
        reducer.finish()
        found.append(b"".join(g.tobytes() for g in grads.values()))
    return found


def training(rank: int, size: int) -> list[bytes]:
    with pith.Comm() as comm:

        def make() -> pith.Reducer:
            reducer = pith.Reducer(comm, "out*=none;*=ef/q:2", seed=3)
            for name, shape in SHAPES.items():
                reducer.add(name, shape)
            return reducer

        reducer = make()
        begun = steps(reducer, rank, 0, 3)
        saved = reducer.save()
        rest = steps(reducer, rank, 3, 5)
        again = make()
        again.load(saved)
        assert steps(again, rank, 3, 5) == rest  # a checkpoint continues bit by bit
        layers = {layer.name: layer for layer in reducer.layers}
        assert layers["fc.weight"].spec == "ef/q:2"
        assert layers["fc.weight"].steps == 5
        assert layers["fc.bias"].spec == "none"
        assert layers["fc.weight"].traffic.sent_bytes < layers["fc.weight"].bytes
        with pytest.raises(pith.ArgumentError, match="fc.wieght"):
            reducer.start("fc.wieght", np.zeros(3000, np.float32))
        with pytest.raises(pith.ArgumentError, match="3000"):
            reducer.start("fc.weight", np.zeros(10, np.float32))
        return begun + rest


def test_a_reducer_trains_and_resumes() -> None:
    found = run(training, 3)
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 5


def rule_that_matches_nothing(rank: int, size: int) -> None:
    with pith.Comm() as comm:
        reducer = pith.Reducer(comm, "conv*=q:4;*=q:8")
        reducer.add("fc.weight", (60, 50))
        reducer.check()


def test_a_rule_that_matches_no_layer_is_an_error_before_the_first_step() -> None:
    for outcome in outcomes(rule_that_matches_nothing, 2):
        assert isinstance(outcome.error, pith.SpecError)
        assert "conv*" in str(outcome.error)


# ---- What goes wrong -------------------------------------------------------------------------------------------------


def other_sizes(rank: int, size: int) -> None:
    with pith.Comm(timeout=20) as comm:
        comm.allreduce(np.zeros(10 + (rank == 1), np.float32))


def other_types(rank: int, size: int) -> None:
    with pith.Comm(timeout=20) as comm:
        comm.allreduce(np.zeros(10, np.int32 if rank == 1 else np.float32))


def other_codec(rank: int, size: int) -> None:
    with pith.Comm(timeout=20) as comm:
        comm.allreduce(np.zeros(N, np.float32), codec="q:5" if rank == 1 else "q:4")


@pytest.mark.parametrize("wrong", [other_sizes, other_types, other_codec])
def test_ranks_that_disagree_are_told_so(wrong: object) -> None:
    for outcome in outcomes(wrong, 3):
        assert isinstance(outcome.error, pith.Error), outcome
        assert outcome.error.status in (
            pith.MismatchError.status,
            pith.AbortedError.status,
            pith.PeerError.status,
        )
        assert "rank" in str(outcome.error)


def test_ranks_with_other_codecs_are_told_both() -> None:
    for outcome in outcomes(other_codec, 3):
        assert "q:4" in str(outcome.error) and "q:5" in str(outcome.error), outcome
        assert "0x" not in str(outcome.error), outcome


def killed(rank: int, size: int) -> str:
    comm = pith.Comm(timeout=60)
    comm.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(
        (pith.PeerError, pith.AbortedError)
    ) as caught:  # seen by itself, or heard from another
        comm.allreduce(np.zeros(1 << 20, np.float32))
    assert time.monotonic() - started < 30
    with pytest.raises(type(caught.value), match="rank 1"):  # and for good
        comm.barrier()
    return str(caught.value)


def test_a_killed_rank_is_named_on_every_survivor() -> None:
    found = outcomes(killed, 4)
    assert found[1].ended == -signal.SIGKILL
    for rank in (0, 2, 3):
        assert found[rank].error is None, found[rank].trace
        assert "rank 1" in found[rank].value


def too_late(rank: int, size: int) -> None:
    comm = pith.Comm(timeout=60)
    if rank == 0:
        with pytest.raises(pith.TimeoutError, match="0.2 s"):
            comm.allreduce(np.zeros(10, np.float32), wait=False).wait(timeout=0.2)
    else:
        with pytest.raises(pith.AbortedError, match="Timed out waiting 0.2 s .* seen by rank 0"):
            time.sleep(1)
            for _ in range(3):  # rank 0 sent its part of the first before it gave up
                comm.allreduce(np.zeros(10, np.float32))


def test_a_wait_can_have_a_shorter_timeout() -> None:
    run(too_late, 2)


def fails_inside(rank: int, size: int) -> None:
    with pith.Comm(timeout=60) as comm:
        if rank == 1:
            raise KeyError("data")
        comm.barrier()


def test_an_exception_inside_the_block_ends_the_others_at_once() -> None:
    found = outcomes(fails_inside, 2)
    assert isinstance(found[1].error, KeyError)
    assert isinstance(found[0].error, pith.AbortedError)
    assert "KeyError" in str(found[0].error)


def test_arguments_are_checked_before_anything_travels() -> None:
    with pith.Comm(0, 1) as comm:
        with pytest.raises(pith.ArgumentError, match="avg"):
            comm.allreduce(np.zeros(3, np.float32), "avg")
        with pytest.raises(pith.ArgumentError, match="counts"):
            comm.all_gather(np.zeros(3, np.float32), np.zeros(3, np.float32), [1, 2])
        with pytest.raises(pith.ArgumentError, match="dst"):
            comm.gather(np.zeros(3, np.float32))
        with pytest.raises(pith.Error):
            comm.broadcast(np.zeros(3, np.float32), 5)
    with pytest.raises(pith.ArgumentError, match="closed"):
        comm.barrier()
