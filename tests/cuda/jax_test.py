# SPDX-License-Identifier: Apache-2.0
"""pith.jax on a GPU, beside a reducer on the CPU: means must have the same bits.

    bench/gpu_lab.sh 2 none tests/cuda/jax_test.py            # ranks that share a GPU
    …  topk                                                   # the tests whose names contain this

Everything runs over both carriers, NCCL and pinned memory. Prints a line for each test and ends with 1 if one of them failed; one that stands
still for two minutes shows where, and ends the run. The last test lets rank 1 die.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np

import pith
import pith.jax

SAME_BITS = ["none", "bf16", "q:4", "q:8", "ef/q:4", "ef,store=8/q:4", "signsgd", "efsignsgd"]
SAME_BITS += ["qsgd", "terngrad", "natural", "hadamard/q:4", "topk:0.01", "ef/topk:0.01"]
SAME_BITS += ["ef/randomk:0.1", "ef/threshold:0.1", "dgc:0.01", "momentum/topk:0.01"]
LOW_RANK = ["powersgd:4", "ef/powersgd:4"]
SHAPES = {"bias": (300,), "first": (300, 257), "second": (64, 64), "third": (1000, 33)}
STEPS, SEED, PATIENCE = 4, 3, 120
Tree = dict[str, Any]


def gradients(rank: int, step: int, dtype: Any = np.float32) -> Tree:
    random = np.random.default_rng((rank, step))
    return {name: random.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


def on_the_cpu(comm: pith.Comm, spec: str, dtype: Any = np.float32) -> list[Tree]:
    reducer = pith.Reducer(comm, spec, SEED)
    kind = "bf16" if dtype == jnp.bfloat16 else "f32"
    for name, shape in SHAPES.items():
        reducer.add(name, shape, kind)
    found = []
    for step in range(STEPS):
        means = gradients(comm.rank, step, dtype)
        for number, name in enumerate(SHAPES):
            reducer.start_at(number, means[name].ctypes.data)
        reducer.finish()
        found.append(means)
    reducer.close()
    return found


def step_of(spec: str) -> Any:
    return jax.jit(
        lambda grads, state: pith.jax.allreduce(grads, state, spec, seed=SEED),
        donate_argnums=(0, 1),
    )


def on_the_device(
    comm: pith.Comm, spec: str, dtype: Any = np.float32, saves: bool = False
) -> list[Tree]:
    """``saves``: after the second step the state goes to a file and back."""
    state = pith.jax.init(gradients(0, 0, dtype), spec, seed=SEED)
    step, found = step_of(spec), []
    for number in range(STEPS):
        grads = jax.tree.map(jnp.asarray, gradients(comm.rank, number, dtype))
        means, state = step(grads, state)
        found.append(jax.tree.map(np.asarray, means))
        if saves and number == 1:
            leaves, structure = jax.tree.flatten(state)
            with tempfile.TemporaryFile() as file:
                np.savez(file, *[np.asarray(leaf) for leaf in leaves])
                file.seek(0)
                kept = np.load(file)
                leaves = [jnp.asarray(kept[f"arr_{i}"]) for i in range(len(leaves))]
            state = jax.tree.unflatten(structure, leaves)
    return found


def differences(found: list[Tree], expected: list[Tree]) -> str:
    for step, (a, b) in enumerate(zip(found, expected, strict=True)):
        for name in SHAPES:
            if a[name].tobytes() != b[name].tobytes():
                x, y = (np.asarray(v[name], np.float64) for v in (a, b))
                wrong = int((x != y).sum())
                return f"step {step}, {name}: {wrong} of {x.size} differ, by at most {np.abs(x - y).max():.3g}"
    return ""


def same_everywhere(comm: pith.Comm, trees: Any) -> str:
    mine = np.concatenate([np.asarray(leaf, np.float32).ravel() for leaf in jax.tree.leaves(trees)])
    found = np.empty((comm.ranks, mine.size), np.float32)
    comm.all_gather(np.ascontiguousarray(mine), found)
    return (
        "" if all(row.tobytes() == found[0].tobytes() for row in found) else "ranks have other bits"
    )


# ---- Tests: each gives what is wrong ---------------------------------------------------------------------------------


def compare(comm: pith.Comm, spec: str) -> str:
    return differences(on_the_device(comm, spec), on_the_cpu(comm, spec))


def compare_low_rank(comm: pith.Comm, spec: str) -> str:
    found, expected = on_the_device(comm, spec), on_the_cpu(comm, spec)
    for a, b in zip(found, expected, strict=True):
        for name in SHAPES:
            error = np.linalg.norm(a[name] - b[name]) / np.linalg.norm(b[name])
            if not error < 1e-3:
                return f"{name}: a relative difference of {error:.3g}"
    return same_everywhere(comm, found)


def compare_bf16(comm: pith.Comm, spec: str) -> str:
    return differences(
        on_the_device(comm, spec, jnp.bfloat16), on_the_cpu(comm, spec, jnp.bfloat16)
    )


def compare_resumed(comm: pith.Comm, spec: str) -> str:
    return differences(on_the_device(comm, spec, saves=True), on_the_cpu(comm, spec))


def compare_scan(comm: pith.Comm, spec: str) -> str:
    state = pith.jax.init(gradients(0, 0), spec, seed=SEED)
    steps = [gradients(comm.rank, step) for step in range(STEPS)]
    given = {name: jnp.stack([step[name] for step in steps]) for name in SHAPES}

    def body(state: Any, grads: Any) -> Any:
        means, state = pith.jax.allreduce(grads, state, spec, seed=SEED)
        return state, means

    _, means = jax.jit(lambda state, given: jax.lax.scan(body, state, given))(state, given)
    found = [{name: np.asarray(means[name][step]) for name in SHAPES} for step in range(STEPS)]
    return differences(found, on_the_cpu(comm, spec))


def compare_twice(comm: pith.Comm, spec: str) -> str:
    """The same state, used again, gives the same bits, and stays as it was."""
    state = pith.jax.init(gradients(0, 0), spec, seed=SEED)
    grads = jax.tree.map(jnp.asarray, gradients(comm.rank, 0))
    step = jax.jit(lambda grads, state: pith.jax.allreduce(grads, state, spec, seed=SEED))
    _, state = step(grads, state)
    first, second = (
        [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(step(grads, state))]
        for _ in range(2)
    )
    return "" if first == second else "the second use of a state gives other bits"


def train_adamw(comm: pith.Comm, spec: str) -> str:
    import optax

    optimizer = pith.jax.adamw(1e-2, f"*bias=none;*={spec}", steps=20)
    params = {"kernel": jnp.zeros((64, 64)), "bias": jnp.zeros(64)}
    state = optimizer.init(params)
    x = jnp.asarray(np.random.default_rng(comm.rank).normal(size=(32, 64)).astype(np.float32))

    def loss_of(params: Any) -> Any:
        return jnp.mean((x @ params["kernel"] + params["bias"] - x) ** 2)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for _ in range(20):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    return (
        same_everywhere(comm, params)
        if losses[-1] < losses[0]
        else f"loss {losses[0]} → {losses[-1]}"
    )


def train_adaptively(comm: pith.Comm, spec: str) -> str:
    state = pith.jax.init(gradients(0, 0), spec, seed=SEED)
    step = step_of(spec)
    means: Any = None
    for number in range(60):
        means, state = step(jax.tree.map(jnp.asarray, gradients(comm.rank, number)), state)
    return same_everywhere(comm, means)


Test = Callable[[pith.Comm, str], str]


def tests() -> dict[str, tuple[Test, str]]:
    found: dict[str, tuple[Test, str]] = {spec: (compare, spec) for spec in SAME_BITS}
    found |= {spec: (compare_low_rank, spec) for spec in LOW_RANK}
    for spec in ("q:4", "ef/q:4", "ef/topk:0.01"):
        found[f"bf16: {spec}"] = compare_bf16, spec
        found[f"save and restore: {spec}"] = compare_resumed, spec
        found[f"lax.scan: {spec}"] = compare_scan, spec
    for spec in ("ef/q:4", "ef/powersgd:4", "qsgd"):
        found[f"a state used twice: {spec}"] = compare_twice, spec
    found["adamw: moment"] = train_adamw, "moment,freeze=0.25/onebit"
    found["adaptive: lgreco"] = train_adaptively, "lgreco:q:4"
    return found


def run_tests(comm: pith.Comm, over: str, wanted: list[str]) -> int:
    """Over one carrier."""
    group = comm.split(0)
    pith.jax.initialize(group, carrier=over)
    failed = 0
    for name, (test, spec) in tests().items():
        if wanted and not any(part in name for part in wanted):
            continue
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        begun = time.perf_counter()
        try:
            wrong = test(group, spec)
        except Exception:
            wrong = traceback.format_exc()
        carrier = pith.jax.stats().backend
        if over == "nccl" and carrier != "NCCL" and jax.default_backend() != "cpu" and not wrong:
            wrong = f"messages went over {carrier}"
        failed += bool(wrong)
        if comm.rank == 0 or wrong:
            seconds = time.perf_counter() - begun
            state = f"FAIL {name} (rank {comm.rank})" if wrong else f"ok   {name}"
            print(
                f"{state} over {carrier}, {seconds:.1f} s{': ' + wrong if wrong else ''}",
                flush=True,
            )
        if wrong and "gone" in wrong:
            break
    pith.jax.shutdown()
    return failed


def lose_a_rank(comm: pith.Comm, over: str) -> int:
    """Rank 1 dies: rank 0 hears of it in the same step, soon. No test comes behind it."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    pith.jax.initialize(comm, carrier=over)
    state = pith.jax.init(gradients(0, 0), "ef/q:4", seed=SEED)
    step, last = step_of("ef/q:4"), 3
    began, number = time.monotonic(), 0
    try:
        for number in range(10):  # noqa: B007
            began = time.monotonic()
            if comm.rank == 1 and number == last:
                os._exit(0)
            grads = jax.tree.map(jnp.asarray, gradients(comm.rank, number))
            means, state = step(grads, state)
            jax.block_until_ready(means)
    except Exception as error:
        seconds, text = time.monotonic() - began, str(error).splitlines()[0]
        is_right = "rank 1" in text and seconds < 2 and number == last
        print(
            f"{'ok  ' if is_right else 'FAIL'} a killed rank over {over}: step {number}, {seconds:.2f} s, "
            f"{type(error).__name__}: {text}",
            flush=True,
        )
        return int(not is_right)
    print("FAIL rank 0 went on without rank 1", flush=True)
    return 1


def main() -> None:
    comm, wanted = pith.Comm(), sys.argv[1:]
    failed = 0
    if comm.rank == 0:
        device = jax.local_devices()[0]
        print(f"JAX {jax.__version__}, {device.device_kind}, {comm.ranks} ranks", flush=True)
    for over in ("nccl", "comm"):
        failed += run_tests(comm, over, wanted)
    dies = os.environ.get("LAST_CARRIER", "nccl")
    if (not wanted or "killed" in wanted) and comm.ranks > 1:
        failed += lose_a_rank(comm, dies)
    print(f"rank {comm.rank}: {failed} failed", flush=True)
    sys.stdout.flush()
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
