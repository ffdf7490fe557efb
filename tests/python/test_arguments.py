# SPDX-License-Identifier: Apache-2.0
"""Every operation, every wrong argument: an exception with a message, nothing written, and a comm that still works.

The law of tests/prop/arguments_test.c for the package. Nothing may crash, be cut to another number, or succeed in silence.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pith

N = 24
FILL = 7.0


class World:
    """What calls are made with: two comms of one rank, a closed one, and tensors."""

    def __init__(self) -> None:
        self.comm, self.other = pith.Comm(0, 1), pith.Comm(0, 1)
        self.closed = pith.Comm(0, 1)
        self.closed.close()
        self.whole = np.full(4 * N, FILL, np.float32)
        self.values = np.full(N, FILL, np.float32)
        self.target = np.full(N, FILL, np.float32)
        self.codec, self.ef = pith.Codec("q:4"), pith.Codec("ef/q:4")
        self.payload = bytes(pith.encode(self.values, "q:4"))
        self.frozen = np.full(N, FILL, np.float32)
        self.frozen.flags.writeable = False
        self.reducer = self.make_reducer("ef/q:4")

    def make_reducer(self, rules: str) -> pith.Reducer:
        reducer = pith.Reducer(self.comm, rules)
        reducer.add("layer", (N,))
        return reducer

    def closed_reducer(self) -> pith.Reducer:
        reducer = self.make_reducer("q:4")
        reducer.close()
        return reducer

    def tensors(self) -> list[np.ndarray]:
        return [self.whole, self.values, self.target, self.frozen]

    def check(self) -> None:
        """Nothing was written, and the comm works."""
        for tensor in self.tensors():
            assert (tensor == FILL).all()
        assert (self.comm.allreduce(np.full(N, 2, np.float32)) == 2).all()
        gradient = np.full(N, 3, np.float32)
        self.reducer.start("layer", gradient)
        self.reducer.finish()
        assert np.isfinite(gradient).all()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.reducer.close()
    made.comm.close()
    made.other.close()


Case = Callable[[World], Any]
cases: dict[str, Case] = {}

# ---- Tensors that cannot be used, for every place of one ------------------------------------------------------------

bad_tensors: dict[str, Callable[[World], Any]] = {
    "nothing": lambda w: None,
    "a number": lambda w: 3.5,
    "a text": lambda w: "tensor",
    "a list": lambda w: [1.0] * N,
    "an object": lambda w: object(),
    "not contiguous": lambda w: w.whole[::2][:N],
    "reversed": lambda w: w.values[::-1],
    "complex": lambda w: np.zeros(N, np.complex64),
    "texts": lambda w: np.array(["a"] * N),
    "objects": lambda w: np.array([None] * N),
    "another byte order": lambda w: np.zeros(N, ">f4"),
    "unsigned": lambda w: np.zeros(N, np.uint32),
}
bad_targets: dict[str, Callable[[World], Any]] = {
    "read-only": lambda w: w.frozen,
    "bytes": lambda w: b"\0" * (4 * N),
}
sources: dict[str, Callable[[World, Any], Any]] = {
    "allreduce src": lambda w, x: w.comm.allreduce(x, dst=w.target),
    "reduce_to src": lambda w, x: w.comm.reduce_to(x, dst=w.target),
    "reduce_scatter src": lambda w, x: w.comm.reduce_scatter(x, w.target),
    "all_gather src": lambda w, x: w.comm.all_gather(x, w.target),
    "all_to_all src": lambda w, x: w.comm.all_to_all(x, w.target),
    "gather src": lambda w, x: w.comm.gather(x, w.target),
    "scatter src": lambda w, x: w.comm.scatter(w.target, x),
    "encode": lambda w, x: pith.encode(x, "q:4"),
    "Codec.encode": lambda w, x: w.codec.encode(x),
    "Reducer.load": lambda w, x: w.reducer.load(x),
    "State.load": lambda w, x: pith.State(pith.Codec("ef/q:4"), N).load(x),
}
targets: dict[str, Callable[[World, Any], Any]] = {
    "allreduce dst": lambda w, x: w.comm.allreduce(w.values, dst=x if x is not None else "none"),
    "reduce_to dst": lambda w, x: w.comm.reduce_to(w.values, dst=x if x is not None else "none"),
    "reduce_scatter dst": lambda w, x: w.comm.reduce_scatter(w.values, x),
    "all_gather dst": lambda w, x: w.comm.all_gather(w.values, x),
    "broadcast": lambda w, x: w.comm.broadcast(x),
    "all_to_all dst": lambda w, x: w.comm.all_to_all(w.values, x),
    "gather dst": lambda w, x: w.comm.gather(w.values, x),
    "scatter dst": lambda w, x: w.comm.scatter(x, w.values),
    "receive": lambda w, x: w.comm.receive(x, 0),
    "decode": lambda w, x: pith.decode(w.payload, "q:4", x if x is not None else "none"),
    "Codec.aggregate": lambda w, x: w.codec.aggregate(x, 2),
    "Reducer.start": lambda w, x: w.reducer.start("layer", x),
}
for place, call in {**sources, **targets}.items():
    for what, make in {**bad_tensors, **(bad_targets if place in targets else {})}.items():
        cases[f"{place}: {what}"] = lambda w, call=call, make=make: call(w, make(w))

# ---- Sizes, types, overlap ------------------------------------------------------------------------------------------

HUGE = 1 << 64


def small(n: int = N - 1) -> np.ndarray:
    return np.zeros(n, np.float32)


cases |= {
    "allreduce: sizes differ": lambda w: w.comm.allreduce(w.values, dst=small()),
    "allreduce: types differ": lambda w: w.comm.allreduce(w.values, dst=np.zeros(N, np.float64)),
    "allreduce: overlap": lambda w: w.comm.allreduce(w.whole[:N], dst=w.whole[5 : 5 + N]),
    "reduce_to: overlap": lambda w: w.comm.reduce_to(w.whole[:N], dst=w.whole[1 : 1 + N]),
    "reduce_scatter: overlap": lambda w: w.comm.reduce_scatter(w.whole[:N], w.whole[1 : 1 + N]),
    "reduce_scatter: sizes": lambda w: w.comm.reduce_scatter(w.values, small()),
    "all_gather: overlap": lambda w: w.comm.all_gather(w.whole[1 : 1 + N], w.whole[:N]),
    "all_gather: sizes": lambda w: w.comm.all_gather(w.values, small()),
    "all_to_all: overlap": lambda w: w.comm.all_to_all(w.whole[:N], w.whole[3 : 3 + N]),
    "all_to_all: in place": lambda w: w.comm.all_to_all(w.values, w.values),
    "gather: overlap": lambda w: w.comm.gather(w.whole[1 : 1 + N], w.whole[:N]),
    "gather: types": lambda w: w.comm.gather(np.zeros(N, np.float64), np.zeros(N, np.uint8)),
    "scatter: types": lambda w: w.comm.scatter(np.zeros(N, np.uint8), np.zeros(N, np.float64)),
    "scatter: overlap": lambda w: w.comm.scatter(w.whole[1 : 1 + N], w.whole[:N]),
    "broadcast: codec of integers": lambda w: w.comm.broadcast(np.zeros(N, np.int32), codec="q:4"),
    "allreduce: codec of a maximum": lambda w: w.comm.allreduce(w.values, "max", codec="q:4"),
    "allreduce: bits of floats": lambda w: w.comm.allreduce(w.values, "bxor"),
    "Reducer.start: size": lambda w: w.reducer.start("layer", small()),
    "Reducer.start: type": lambda w: w.reducer.start("layer", np.zeros(N, np.float16)),
    "decode: size": lambda w: pith.decode(w.payload, "q:4", small(N // 2)),
    "decode: damaged": lambda w: pith.decode(w.payload[:-1], "q:4", w.target),
    "decode: no bytes": lambda w: pith.decode(b"", "q:4", w.target),
    "decode: another spec": lambda w: pith.decode(w.payload, "topk:0.1", w.target),
    "decode: not bytes": lambda w: pith.decode(17, "q:4", w.target),
}

# ---- Names, numbers, ranks -------------------------------------------------------------------------------------------

for bad in (1, -1, 99, 1 << 31, 1 << 32, -(1 << 32), 0.5, "0", None):
    cases |= {
        f"reduce_to: root {bad!r}": lambda w, bad=bad: w.comm.reduce_to(
            w.values, bad, dst=w.target
        ),
        f"broadcast: root {bad!r}": lambda w, bad=bad: w.comm.broadcast(w.target, bad),
        f"gather: root {bad!r}": lambda w, bad=bad: w.comm.gather(w.values, w.target, None, bad),
        f"scatter: root {bad!r}": lambda w, bad=bad: w.comm.scatter(w.target, w.values, None, bad),
        f"send: peer {bad!r}": lambda w, bad=bad: w.comm.send(w.values, bad),
    }
    if bad != -1:  # from any rank
        cases[f"receive: peer {bad!r}"] = lambda w, bad=bad: w.comm.receive(w.target, bad)
    if bad not in (1, 99, 1 << 31, 1 << 32):
        cases[f"allreduce: step {bad!r}"] = lambda w, bad=bad: w.comm.allreduce(
            w.values, dst=w.target, step=bad if bad is not None else "none"
        )
for bad in ((N, N), (-1,), (N + 1,), (0.5,), ("1",), 3, (HUGE + N,)):
    cases |= {
        f"reduce_scatter: counts {bad!r}": lambda w, bad=bad: w.comm.reduce_scatter(
            w.values, w.target, "sum", bad
        ),
        f"all_gather: counts {bad!r}": lambda w, bad=bad: w.comm.all_gather(
            w.values, w.target, bad
        ),
        f"all_to_all: counts {bad!r}": lambda w, bad=bad: w.comm.all_to_all(
            w.values, w.target, bad, None
        ),
        f"gather: counts {bad!r}": lambda w, bad=bad: w.comm.gather(w.values, w.target, bad),
        f"scatter: counts {bad!r}": lambda w, bad=bad: w.comm.scatter(w.target, w.values, bad),
    }
for bad in (-1, HUGE, 0.5, "1", None):
    cases |= {
        f"Codec.bound {bad!r}": lambda w, bad=bad: w.codec.bound(bad),
        f"State of {bad!r}": lambda w, bad=bad: pith.State(w.codec, bad),
        f"encode: seed {bad!r}": lambda w, bad=bad: pith.encode(w.values, "q:4", seed=bad),
        f"encode: layer {bad!r}": lambda w, bad=bad: pith.encode(w.values, "q:4", layer=bad),
        f"Codec.aggregate: ranks {bad!r}": lambda w, bad=bad: w.codec.aggregate(small(), bad),
        f"Reducer.layer {bad!r}": lambda w, bad=bad: w.reducer.layer(bad),
        f"Reducer: seed {bad!r}": lambda w, bad=bad: pith.Reducer(w.comm, "q:4", bad),
        f"send: tag {bad!r}": lambda w, bad=bad: w.comm.send(w.values, 0, bad),
    }
for bad in ((-1,), (HUGE,), (0.5,), ("1",), 3, None, (1 << 40, 1 << 40)):
    cases[f"Reducer.add: shape {bad!r}"] = lambda w, bad=bad: w.reducer.add("another", bad)
for bad in ("", "nothing", "q:99", "q:4\0", "q:4;q:2", None, 4, b"q:4"):
    cases |= {
        f"Codec {bad!r}": lambda w, bad=bad: pith.Codec(bad),
        f"encode: spec {bad!r}": lambda w, bad=bad: pith.encode(w.values, bad),
        f"decode: spec {bad!r}": lambda w, bad=bad: pith.decode(w.payload, bad, w.target),
    }
    if bad not in ("q:4;q:2", ""):
        cases[f"Rules {bad!r}"] = lambda w, bad=bad: pith.Rules(bad)
    if bad not in (None, ""):
        cases[f"allreduce: codec {bad!r}"] = lambda w, bad=bad: w.comm.allreduce(
            w.values, dst=w.target, codec=bad
        )
for bad in ("SUM", "", "average", None, 0, b"sum"):
    cases |= {
        f"allreduce: reduce {bad!r}": lambda w, bad=bad: w.comm.allreduce(w.values, bad, w.target),
        f"reduce_to: reduce {bad!r}": lambda w, bad=bad: w.comm.reduce_to(
            w.values, 0, bad, w.target
        ),
        f"reduce_scatter: reduce {bad!r}": lambda w, bad=bad: w.comm.reduce_scatter(
            w.values, w.target, bad
        ),
    }

# ---- Handles: closed, foreign, of another kind -----------------------------------------------------------------------

operations: dict[str, Callable[[World, Any], Any]] = {
    "allreduce": lambda w, comm: comm.allreduce(w.values, dst=w.target),
    "reduce_to": lambda w, comm: comm.reduce_to(w.values, dst=w.target),
    "reduce_scatter": lambda w, comm: comm.reduce_scatter(w.values, w.target),
    "all_gather": lambda w, comm: comm.all_gather(w.values, w.target),
    "broadcast": lambda w, comm: comm.broadcast(w.target),
    "all_to_all": lambda w, comm: comm.all_to_all(w.values, w.target),
    "gather": lambda w, comm: comm.gather(w.values, w.target),
    "scatter": lambda w, comm: comm.scatter(w.target, w.values),
    "barrier": lambda w, comm: comm.barrier(),
    "send": lambda w, comm: comm.send(w.values, 0),
    "receive": lambda w, comm: comm.receive(w.target, 0),
    "split": lambda w, comm: comm.split(0),
    "stats": lambda w, comm: comm.stats(),
    "traffic": lambda w, comm: comm.traffic("allreduce"),
    "timeout": lambda w, comm: comm.timeout,
    "abort": lambda w, comm: comm.abort("why"),
    "Reducer": lambda w, comm: pith.Reducer(comm, "q:4"),
}
for name, call in operations.items():
    cases[f"{name} of a closed comm"] = lambda w, call=call: call(w, w.closed)
reducer_calls: dict[str, Callable[[World, pith.Reducer], Any]] = {
    "add": lambda w, r: r.add("x", (3,)),
    "start": lambda w, r: r.start("layer", w.target),
    "flush": lambda w, r: r.flush(),
    "finish": lambda w, r: r.finish(),
    "check": lambda w, r: r.check(),
    "scale": lambda w, r: r.scale(2.0),
    "layers": lambda w, r: r.layers,
    "layer": lambda w, r: r.layer(0),
    "save": lambda w, r: r.save(),
    "load": lambda w, r: r.load(w.reducer.save()),
}
for name, call in reducer_calls.items():
    cases[f"Reducer.{name} of a closed one"] = lambda w, call=call: call(w, w.closed_reducer())

cases |= {
    "Reducer of nothing": lambda w: pith.Reducer(None, "q:4"),
    "Reducer: rules of nothing": lambda w: pith.Reducer(w.comm, None),
    "Reducer.start: no such layer": lambda w: w.reducer.start("none", small()),
    "Reducer.start: number": lambda w: w.reducer.start(-1, small()),
    "Reducer.start: kind": lambda w: w.reducer.start(0.5, small()),
    "Reducer.add: twice": lambda w: w.reducer.add("layer", (N,)),
    "Reducer.add: name": lambda w: w.reducer.add(None, (N,)),
    "Reducer.add: zero byte": lambda w: w.make_reducer("q:4").add("a\0b", (N,)),
    "Reducer.add: type": lambda w: w.make_reducer("q:4").add("x", (N,), "c64"),
    "Reducer.scale: infinite": lambda w: w.reducer.scale(float("nan")),
    "Reducer.scale: kind": lambda w: w.reducer.scale("2"),
    "Reducer.load: of other layers": lambda w: w.reducer.load(pith.Reducer(w.comm, "q:4").save()),
    "Reducer.load: cut": lambda w: w.reducer.load(w.reducer.save()[:-1]),
    "allreduce: no state": lambda w: w.comm.allreduce(w.values, dst=w.target, codec=w.ef),
    "allreduce: state that is too small": lambda w: w.comm.allreduce(
        w.values, dst=w.target, codec=w.ef, state=pith.State(w.ef, N - 1)
    ),
    "allreduce: state of another spec": lambda w: w.comm.allreduce(
        w.values, dst=w.target, codec=w.ef, state=pith.State(pith.Codec("signum:0.9"), N)
    ),
    "allreduce: algorithm": lambda w: w.comm.allreduce(w.values, dst=w.target, algorithm="fast"),
    "allreduce: unknown argument": lambda w: w.comm.allreduce(w.values, dst=w.target, steps=1),
    "State.load: of another spec": lambda w: pith.State(w.ef, N).load(
        pith.State(pith.Codec("signum:0.9"), N).save()
    ),
    "State.load: cut": lambda w: pith.State(w.ef, N).load(pith.State(w.ef, N).save()[:-1]),
    "State of nothing": lambda w: pith.State(None, N),
    "State.adapt to nothing": lambda w: pith.State(w.ef, N).adapt(None),
    "Comm: rank beyond": lambda w: pith.Comm(1, 1),
    "Comm: no ranks": lambda w: pith.Comm(0, 0),
    "Comm: cut rank": lambda w: pith.Comm(1 << 32, 1),
    "Comm: cut size": lambda w: pith.Comm(0, (1 << 32) + 1),
    "Comm: kind of rank": lambda w: pith.Comm("0", 1),
    "Comm: port": lambda w: pith.Comm(0, 1, port=70000),
    "Comm: negative port": lambda w: pith.Comm(0, 1, port=-1),
    "Comm: kind of port": lambda w: pith.Comm(0, 1, port="http"),
    "Comm: algorithm": lambda w: pith.Comm(0, 1, algorithm="fast"),
    "Comm: inside": lambda w: pith.Comm(0, 1, inside="nothing"),
    "Comm: zero byte": lambda w: pith.Comm(0, 1, inside="q:4\0"),
    "Comm: threads": lambda w: pith.Comm(0, 1, threads=-1),
    "Comm: many threads": lambda w: pith.Comm(0, 1, threads=10000),
    "Comm: id": lambda w: pith.Comm(0, 1, id=b"short"),
    "Comm: another id": lambda w: pith.Comm(0, 1, id=b"\0" * 512),
    "Comm: kind of id": lambda w: pith.Comm(0, 1, id=17),
    "Comm.timeout: zero": lambda w: setattr(w.comm, "timeout", 0),
    "Comm.timeout: not a number": lambda w: setattr(w.comm, "timeout", float("nan")),
    "Comm.timeout: kind": lambda w: setattr(w.comm, "timeout", "1"),
    "Comm.traffic: operation": lambda w: w.comm.traffic("walk"),
    "Comm.split: colour": lambda w: w.comm.split(1 << 40),
    "Comm.split: kind": lambda w: w.comm.split("red"),
    "load_plugin": lambda w: pith.load_plugin("/nowhere.so"),
    "candidates": lambda w: pith.candidates("nothing"),
    "Plan.load: no file": lambda w: pith.Plan.load("/nowhere.json"),
    "Profile.load: no file": lambda w: pith.Profile.load("/nowhere.json"),
    "Adapter: spec": lambda w: pith.Adapter("nothing", [("a", (4,))], 0, 1),
}


@pytest.mark.parametrize("name", cases)
def test_a_wrong_argument_is_an_exception_with_a_message(name: str, world: World) -> None:
    with pytest.raises(Exception) as caught:
        cases[name](world)
    assert str(caught.value).strip(), name
    assert not isinstance(caught.value, AssertionError), name
    world.check()


def test_ranks_that_make_the_same_mistake_go_on(tmp_path: Any) -> None:
    """Two ranks as threads: what the law says of one rank holds while others wait."""
    results: list[Any] = [None, None]
    port = 20000 + ctypes.c_uint16(id(results) >> 4).value % 10000

    def run(rank: int) -> None:
        with pith.Comm(rank, 2, port=port, transport="inproc", timeout=20) as comm:
            values = np.full(N, rank + 1, np.float32)
            with pytest.raises(pith.ArgumentError):
                comm.broadcast(values, 2)
            with pytest.raises(pith.Error):
                comm.send(values, rank)  # to itself
            with pytest.raises(pith.Error):
                comm.all_gather(values, np.zeros(N, np.float32))
            results[rank] = comm.allreduce(values)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result is not None and (result == 3).all() for result in results)


def test_steps_of_uncompressed_values_are_compared() -> None:
    """A step that is given is part of the call, also without a codec: ranks at different ones are told so."""
    errors: list[str] = ["", ""]
    port = 20000 + ctypes.c_uint16(id(errors) >> 4).value % 10000

    def run(rank: int) -> None:
        with pith.Comm(rank, 2, port=port, transport="inproc", timeout=20) as comm:
            try:
                comm.allreduce(np.ones(N, np.float32), step=5 + rank)
            except pith.Error as error:
                errors[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("is at step" in text for text in errors), errors
