# SPDX-License-Identifier: Apache-2.0
"""Reducers over carriers: what a carrier is given, how it fails, and that gloo gives the bits of Pith's own transports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import needs
import pith
from ranks import free_port, run

SOON = 10.0  # seconds; much less than a wait for ranks that do not come, much more than a busy machine needs


# ---- Carriers in Python ----------------------------------------------------------------------------------------------


class Board:
    """Where ranks in threads of one process put what they send: by the number of the collective, and the rank."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sent: dict[tuple[int, int], Any] = {}

    def put(self, number: int, rank: int, values: Any) -> None:
        with self.changed:
            self.sent[number, rank] = values
            self.changed.notify_all()

    def all_of(self, number: int, ranks: int) -> list[Any]:
        def found() -> list[Any]:
            return [self.sent[number, p] for p in range(ranks) if (number, p) in self.sent]

        with self.changed:
            assert self.changed.wait_for(lambda: len(found()) == ranks, SOON)
            return found()


class BoardCarrier(pith.Carrier):
    """Collectives over a board, which write down what they are given."""

    name = "board"

    def __init__(self, board: Board, rank: int, ranks: int, threads: bool) -> None:
        self.board, self.rank, self.ranks, self.threads = board, rank, ranks, threads
        self.number = 0
        self.seen: list[str] = []
        self.called_by: set[int] = set()

    def _begin(self, what: str, views: list[memoryview], values: Any, finish: Any) -> Any:
        for view in views:
            assert isinstance(view, memoryview)
            assert (view.format, view.ndim, view.contiguous, view.readonly) == ("B", 1, True, False)
        self.seen.append(what)
        self.called_by.add(threading.get_ident())
        self.board.put(self.number, self.rank, values)
        self.number += 1
        return self.number - 1, finish

    def all_to_all(
        self, send: memoryview, recv: memoryview, send_bytes: list[int], recv_bytes: list[int]
    ) -> Any:
        assert send.nbytes == sum(send_bytes) and recv.nbytes == sum(recv_bytes)
        assert len(send_bytes) == len(recv_bytes) == self.ranks
        ends = np.cumsum(send_bytes).tolist()
        pieces = [bytes(send[e - n : e]) for n, e in zip(send_bytes, ends, strict=True)]

        def finish(everything: list[list[bytes]]) -> None:
            mine = [pieces[self.rank] for pieces in everything]
            assert [len(piece) for piece in mine] == recv_bytes
            recv[:] = b"".join(mine)

        return self._begin("all-to-all", [send, recv], pieces, finish)

    def all_gather(self, send: memoryview, recv: memoryview) -> Any:
        assert recv.nbytes == send.nbytes * self.ranks

        def finish(everything: list[bytes]) -> None:
            recv[:] = b"".join(everything)

        return self._begin("all-gather", [send, recv], bytes(send), finish)

    def allreduce(self, values: memoryview, dtype: str, op: str) -> Any:
        types = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16}
        target = np.frombuffer(values, types[dtype])

        def finish(everything: list[Any]) -> None:
            target[:] = (
                np.sum(everything, 0, target.dtype) if op == "sum" else np.max(everything, 0)
            )

        return self._begin(f"allreduce {dtype} {op}", [values], target.copy(), finish)

    def wait(self, handle: Any) -> None:
        number, finish = handle
        finish(self.board.all_of(number, self.ranks))


SHAPES = {"embed": (300, 40), "hidden": (64, 64), "bias": (5,), "empty": (0,)}


def reduce_on_board(carrier: BoardCarrier, rules: str, steps: int) -> list[bytes]:
    reducer = pith.Reducer(carrier, rules, seed=7)
    for name, shape in SHAPES.items():
        reducer.add(name, shape)
    reducer.add("wide", (3, 5), "f64", exact="f64")
    random = np.random.default_rng(carrier.rank)
    found = []
    for _ in range(steps):
        gradients = {name: random.standard_normal(s, np.float32) for name, s in SHAPES.items()}
        wide = random.standard_normal((3, 5))
        reducer.start("wide", wide)
        for name in reversed(SHAPES):
            reducer.start(name, gradients[name])
        reducer.finish()
        found.append(b"".join(g.tobytes() for g in (*gradients.values(), wide)))
    reducer.close()
    return found


EXPECTED = {  # beside that of exact layers
    "q:4": {"all-to-all", "all-gather"},
    "ef/topk:0.1": {"all-gather"},
    "ef/powersgd:2": {"allreduce f32 sum"},
    "gq:8": {"allreduce f32 max", "allreduce i8 sum"},
}


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("spec", EXPECTED)
def test_a_carrier_gets_writable_memory_of_the_right_size(spec: str, threads: bool) -> None:
    board, ranks = Board(), 3
    carriers = [BoardCarrier(board, rank, ranks, threads) for rank in range(ranks)]

    def work(carrier: BoardCarrier) -> tuple[int, list[bytes]]:
        return threading.get_ident(), reduce_on_board(carrier, spec, 3)

    with ThreadPoolExecutor(ranks) as pool:  # none of them ends before all have begun
        callers, found = zip(*pool.map(work, carriers), strict=True)
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 3  # steps differ
    for carrier, caller in zip(carriers, callers, strict=True):
        assert carrier.seen == carriers[0].seen  # the same collectives in the same order
        assert EXPECTED[spec] | {"allreduce f64 sum"} <= set(carrier.seen)
        assert (carrier.called_by == {caller}) == (not threads)


class BrokenError(Exception):
    pass


class BrokenCarrier(BoardCarrier):
    """Rank 0 of two, of which the other one sends the same, until one of the methods fails."""

    def __init__(self, threads: bool) -> None:
        super().__init__(Board(), 0, 2, threads)

    def wait(self, handle: Any) -> None:
        number, finish = handle
        finish([self.board.sent[number, 0]] * 2)

    def break_down(self, broken: str) -> None:
        def fail(*_: Any) -> Any:
            raise BrokenError(f"{broken} is broken")

        setattr(self, broken, fail)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(
    ("broken", "spec"),
    [
        ("all_to_all", "q:4"),
        ("all_gather", "topk:0.1"),
        ("allreduce", "powersgd:2"),
        ("wait", "q:4"),
    ],
)
def test_what_a_carrier_raises_is_raised_by_finish(broken: str, spec: str, threads: bool) -> None:
    carrier = BrokenCarrier(threads)
    reducer = pith.Reducer(carrier, spec)
    reducer.add("weight", (64, 64))
    gradient = np.ones((64, 64), np.float32)

    def step() -> None:
        try:
            reducer.start("weight", gradient)
        except BrokenError:
            assert not threads  # it was called right here
        reducer.finish()

    step()
    carrier.break_down(broken)
    with pytest.raises(BrokenError, match=f"^{broken} is broken$"):
        step()
    with pytest.raises(BrokenError, match=f"^{broken} is broken$"):  # the reducer is over
        step()
    reducer.close()


def test_random_numbers_of_a_layer_follow_from_its_name() -> None:
    """Who encodes by themselves, as models on devices do, gets the reducer's bits."""
    gradient = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    codec = pith.Codec("randomk:0.1")
    number = pith._library.lib.pith_layer_number(b"weight")
    payload = codec.encode(gradient, seed=7, step=0, layer=number)
    alone = np.zeros_like(gradient)
    codec.decode(payload, alone, seed=7, step=0, layer=number)
    reducer = pith.Reducer(BrokenCarrier(threads=False), codec.spec, seed=7)
    reducer.add("weight", gradient.shape)
    reducer.start("weight", gradient)
    reducer.finish()  # the mean of two ranks that have the same
    reducer.close()
    assert np.count_nonzero(alone) > 100
    assert gradient.tobytes() == alone.tobytes()


def test_a_collective_that_a_carrier_lacks_is_an_error_where_it_is_called() -> None:
    class Less(pith.Carrier):
        rank, ranks = 0, 2

    reducer = pith.Reducer(Less(), "q:4")
    reducer.add("weight", (64, 64))
    with pytest.raises(NotImplementedError):
        reducer.start("weight", np.ones((64, 64), np.float32))
    reducer.close()


# ---- The backends of torch -------------------------------------------------------------------------------------------

torch = needs.module("torch", "the rest of these tests train with torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import pith.torch  # noqa: E402
import small_model  # noqa: E402


def groups() -> list[Any]:
    dist.init_process_group("pith")
    return [dist.group.WORLD, dist.new_group(backend="gloo")]


def bits(model: nn.Module) -> bytes:
    return b"".join(
        torch.view_as_real(p.detach()).numpy().tobytes()
        if p.is_complex()
        else p.detach().numpy().tobytes()
        for p in model.parameters()
    )


def trained(group: Any, rank: int, spec: str, steps: int = 4) -> bytes:
    model = DistributedDataParallel(small_model.make(), process_group=group)
    pith.torch.compress(model, spec, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        small_model.loss_of(model, rank, step).backward()
        optimizer.step()
    return bits(model)


def over_both(rank: int, size: int, specs: list[str]) -> dict[str, bytes]:
    by_spec = {}
    both = groups()
    for spec in specs:
        pith_bits, gloo_bits = (trained(group, rank, spec) for group in both)
        assert pith_bits == gloo_bits, spec
        by_spec[spec] = pith_bits
    dist.destroy_process_group()
    return by_spec


# Parts for each rank. Over Pith's transports `auto` may choose another algorithm, with other points at which values are encoded.
IN_PARTS = [
    "qsgd", "q:4,round=stochastic", "terngrad", "natural", "hadamard/q:2", "ef/q:2", "signsgd", "fp16",
]  # fmt: skip
# Whole payloads, which have one algorithm.
AS_A_WHOLE = [
    "ef/topk:0.05", "randomk:0.1", "dgc:0.05", "ef/threshold:0.01", "qsgd,encode=once", "ef/q:2,encode=once",
]  # fmt: skip


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("specs", "algorithm"), [(IN_PARTS, "sra"), (AS_A_WHOLE, "")], ids=["parts", "whole"]
)
def test_every_method_gives_the_same_bits_over_pith_and_gloo(
    specs: list[str], algorithm: str, size: int
) -> None:
    env = {"PITH_ALGO": algorithm} if algorithm else {}
    found = run(over_both, size, specs, env=env)
    assert all(other == found[0] for other in found)
    assert len(set(found[0].values())) == len(specs)  # the methods do differ


def in_rounds(rank: int, size: int) -> tuple[bytes, bytes]:
    over_pith, over_gloo = (trained(group, rank, "ef/powersgd:2") for group in groups())
    dist.destroy_process_group()
    return over_pith, over_gloo


@pytest.mark.parametrize("size", [2, 3])
def test_rounds_are_summed_in_the_order_of_the_backend(size: int) -> None:
    """The same bits on two ranks, where there is one order only; with more of them the same values."""
    found = run(in_rounds, size)
    over_pith, over_gloo = (np.frombuffer(data, np.float32) for data in found[0])
    assert all(other == found[0] for other in found)  # replicas agree in any case
    np.testing.assert_allclose(over_pith, over_gloo, rtol=0, atol=0 if size == 2 else 1e-4)


class Mixed(nn.Module):
    """Parameters that no codec takes beside one that it does, one without values, and one that is not used in every step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.c64 = nn.Parameter(torch.randn(30, 40, dtype=torch.complex64))
        self.c128 = nn.Parameter(torch.randn(20, 30, dtype=torch.complex128))
        self.f64 = nn.Parameter(torch.randn(7, 20, dtype=torch.float64))
        self.f32 = nn.Parameter(torch.randn(40, 40))
        self.seldom = nn.Parameter(torch.randn(40, 40))
        self.empty = nn.Parameter(torch.randn(0, 40))

    def forward(self, x: Any, use_all: bool) -> Any:
        y = x @ self.f32 + (x @ self.seldom if use_all else 0.0)
        y = torch.cat([y, self.empty @ self.f32])
        z = (y.to(torch.complex64) @ self.c64.T).to(torch.complex128) @ self.c128.T
        return (z.abs() @ self.f64.T).mean()


def mixed(rank: int, size: int) -> list[bytes]:
    """f32 over gloo is q:4; what is exact has the bits of DDP without a hook."""
    both = groups()
    found = []
    for group, spec in ((both[1], None), (both[0], "none"), (both[1], "none"), (both[1], "q:4")):
        model = DistributedDataParallel(Mixed(), process_group=group, find_unused_parameters=True)
        if spec:
            pith.torch.compress(model, spec)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(4):
            torch.manual_seed(100 * step + rank)
            optimizer.zero_grad()
            model(torch.randn(8, 40), use_all=step % 2 == 0).backward()
            optimizer.step()
        found.append(bits(model))
    dist.destroy_process_group()
    return found


def test_parameters_of_every_type_and_without_values() -> None:
    found = run(mixed, 2)
    plain, over_pith, over_gloo, lossy = found[0]
    assert found[1] == found[0]
    assert plain == over_pith == over_gloo
    assert lossy != plain


def single(rank: int, size: int) -> tuple[bytes, bytes]:
    """One layer, alone in the model; on one rank its gradient stays as it is."""
    both, found = groups(), []
    for spec in (None, "q:4"):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(50, 60, bias=False), process_group=both[1])
        if spec:
            pith.torch.compress(model, spec)
        torch.manual_seed(rank)
        model(torch.randn(4, 50)).pow(2).mean().backward()
        found.append(model.module.weight.grad.numpy().tobytes())
    dist.destroy_process_group()
    return found[0], found[1]


@pytest.mark.parametrize("size", [1, 2])
def test_a_model_of_a_single_layer(size: int) -> None:
    found = run(single, size)
    exact, lossy = found[0]
    assert all(other == found[0] for other in found)
    assert (exact == lossy) == (size == 1)


def states_of_old(rank: int, size: int) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(small_model.make())
    compressor = pith.torch.compress(model, "ef/q:4")
    saved = compressor.state_dict()
    compressor.load_state_dict(saved)
    with pytest.raises(pith.StateError, match="saved over gloo by Pith 0.1"):
        compressor.load_state_dict(saved | {"engine": {"step": 3, "states": []}})
    dist.destroy_process_group()


def test_states_of_version_0_1_are_refused() -> None:
    run(states_of_old, 1)


# ---- Signals and ends in the middle of a step ------------------------------------------------------------------------

SCRIPT = """
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import pith.torch
import small_model

what = sys.argv[1]
dist.init_process_group("gloo", timeout=timedelta(seconds=120))
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(small_model.make(), bucket_cap_mb=0.001)
pith.torch.compress(model, "3.weight=ef/topk:0.1;2.weight=ef/powersgd:2;*=ef/q:4")  # each leaves as soon as it is there
for step in range(3):  # torch makes other buckets in the second one
    small_model.loss_of(model, rank, step).backward()
print("ready", flush=True)
if rank == 1:
    time.sleep(60)  # it does not come to the next step


def fail(gradient):
    # In the middle of the backward pass, when those of later layers are on their way: the reducer's thread waits.
    in_flight = pith.torch.compressor(model)._reduction.engine.reducer._bridge._handles
    while not in_flight:
        time.sleep(0.01)
    raise ZeroDivisionError


if what == "raise":
    list(model.parameters())[0].register_hook(fail)
small_model.loss_of(model, rank, 3).backward()
print("it went on", flush=True)
"""


@contextmanager
def two_ranks(what: str) -> Iterator[subprocess.Popen]:
    """Rank 0 of a script of which rank 1 stops after a step, when both have done that."""
    port, jobs = str(free_port()), []
    for rank in range(2):
        env = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": "2",
            "RANK": str(rank),
        }
        command = [sys.executable, "-c", SCRIPT, what]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
        jobs.append(subprocess.Popen(command, env=env, **pipes))
        signal.signal(signal.SIGINT, before)
    try:
        for job in jobs:
            assert job.stdout is not None and job.stdout.readline() == "ready\n", job.communicate()
        yield jobs[0]
    finally:
        for job in jobs:
            job.kill()
            job.communicate()


def test_ctrl_c_ends_a_wait_over_gloo_and_the_process() -> None:
    with two_ranks("wait") as job:
        time.sleep(1)
        assert job.poll() is None  # it waits
        start = time.monotonic()
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=60)
        assert time.monotonic() - start < SOON
        assert "KeyboardInterrupt" in err and "it went on" not in out
        assert job.returncode in (1, 130, -signal.SIGINT), err


def test_a_script_that_raises_in_the_middle_of_a_step_ends() -> None:
    with two_ranks("raise") as job:
        start = time.monotonic()
        out, err = job.communicate(timeout=60)
        assert time.monotonic() - start < SOON
        assert "ZeroDivisionError" in err and "it went on" not in out
        assert job.returncode == 1, err
