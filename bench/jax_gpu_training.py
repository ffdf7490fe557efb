# SPDX-License-Identifier: Apache-2.0
"""Training a GPT of 124 million parameters in JAX on GPUs: JAX's own mean over NCCL, and Pith, in turns in one run.

    bench/gpu_lab.sh 4 10gbit bench/jax_gpu_training.py              # ranks that share one GPU, each behind a link of its own

Each rank is a process with one device. JAX's own way is pmean in a shard_map over all processes (jax.distributed); ways take turns, a few steps
each. The figure is the time of a step on the slowest rank: the median over rounds of their means. A way that fails on any rank is left out
of the run, and its error is printed; --only chooses ways, as in --only pith.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import pathlib
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # ranks may share a GPU

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pith
import pith.jax

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "jax")]
import gpt  # noqa: E402
from framework_speed import everyones, free_port, my_address  # noqa: E402

SYMBOLS = 50304
BASE = "JAX over NCCL, f32"
PATIENCE = 400  # seconds for the first step of a way, which compiles it, and for a round

Step = Callable[[], Any]  # one step of training, which has ended on return


def make_params(a: argparse.Namespace) -> Any:
    params = gpt.make_gpt(jax.random.key(1), SYMBOLS, a.width, a.layers, a.context)
    del params["head"]  # it is the embedding's
    return params


def loss_of(params: Any, window: Any, heads: int) -> Any:
    """Computed in bf16; the loss itself in f32."""
    p = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    x, y = window[:, :-1], window[:, 1:]
    h = p["token"][x] + p["place"][: x.shape[1]]
    for block in p["blocks"]:
        h = gpt.apply_block(block, h, heads)
    logits = (gpt.apply_norm(p["norm"], h) @ p["token"].T).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def train_by(optimizer: Any, heads: int, mean_of: Callable[[Any], Any]) -> Callable[..., Any]:
    """A step in which `mean_of` is done to the gradients."""

    def train(params: Any, state: Any, window: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, window, heads)
        updates, state = optimizer.update(mean_of(grads), state, params)
        return optax.apply_updates(params, updates), state, loss

    return train


def ways_of(a: argparse.Namespace, comm: pith.Comm) -> dict[str, Callable[[], Step]]:
    heads = max(1, a.width // 64)
    plain = optax.adamw(3e-4) if a.optimizer == "adamw" else optax.sgd(0.05)
    random = np.random.default_rng(comm.rank)
    data = random.integers(0, SYMBOLS, (a.batch, a.context + 1)).astype(np.int32)

    def stepper(compiled: Any, params: Any, state: Any, window: Any) -> Step:
        def step() -> None:
            nonlocal params, state
            params, state, loss = jax.block_until_ready(compiled(params, state, window))
            step.loss = float(np.asarray(loss.addressable_data(0)).ravel()[0])  # type: ignore[attr-defined]

        return step

    def local(mean_of: Callable[[Any], Any], optimizer: Any) -> Callable[[], Step]:
        def make() -> Step:
            params = make_params(a)
            compiled = jax.jit(train_by(optimizer, heads, mean_of), donate_argnums=(0, 1))
            return stepper(compiled, params, optimizer.init(params), jnp.asarray(data))

        return make

    def by_psum(dtype: Any) -> Callable[[], Step]:
        def mean_of(grads: Any) -> Any:
            sent = jax.tree.map(lambda g: g.astype(dtype), grads)
            means = jax.lax.pmean(sent, "ranks")
            return jax.tree.map(lambda m: m.astype(jnp.float32), means)

        def make() -> Step:
            from jax.sharding import NamedSharding
            from jax.sharding import PartitionSpec as P

            mesh = jax.make_mesh((comm.ranks,), ("ranks",), devices=jax.devices())
            everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("ranks"))

            def whole(tree: Any) -> Any:
                return jax.tree.map(
                    lambda v: jax.make_array_from_process_local_data(everywhere, np.asarray(v)),
                    tree,
                )

            def train(params: Any, state: Any, window: Any) -> Any:
                params, state, loss = train_by(plain, heads, mean_of)(params, state, window)
                return params, state, loss[None]

            mapped = jax.shard_map(
                train,
                mesh=mesh,
                in_specs=(P(), P(), P("ranks")),
                out_specs=(P(), P(), P("ranks")),
                check_vma=False,
            )
            params = make_params(a)
            state = whole(plain.init(params))
            window = jax.make_array_from_process_local_data(split, data)
            return stepper(jax.jit(mapped, donate_argnums=(0, 1)), whole(params), state, window)

        return make

    found = {
        BASE: by_psum(jnp.float32),
        "JAX over NCCL, bf16": by_psum(jnp.bfloat16),
        "no exchange": local(lambda grads: grads, plain),
    }
    for spec in a.spec or ["q:4", "ef/powersgd:4"]:
        chained = optax.chain(pith.jax.compress(spec), plain)
        found[f"pith {spec}"] = local(lambda grads: grads, chained)
    return found


def all_agree(comm: pith.Comm, mine: bool) -> bool:
    return all(answer == "yes" for answer in everyones(comm, "yes" if mine else "no"))


def first_step(name: str, make: Callable[[], Step], comm: pith.Comm) -> Step | None:
    """A way after its first step; None where a rank could not make it."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    begun, step = time.perf_counter(), None
    try:
        step = make()
        step()
    except Exception:
        print(f"rank {comm.rank}: {name} failed:\n{traceback.format_exc()}", flush=True)
        step = None
    is_there = all_agree(comm, step is not None)
    if comm.rank == 0:
        state = "ready" if is_there else "left out"
        print(f"# {name}: {state} after {time.perf_counter() - begun:.1f} s", flush=True)
    return step if is_there else None


def sent_again() -> int:
    """Segments of TCP that this rank's network has lost so far: what disturbs a round on a busy link."""
    names, values = (
        line.split()
        for line in pathlib.Path("/proc/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


def slowest(comm: pith.Comm, seconds: float) -> float:
    return max(float(text) for text in everyones(comm, f"{seconds:.9f}"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8, help="samples on each rank")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="in each round")
    parser.add_argument("--spec", action="append", help="q:4 and ef/powersgd:4 if none is given")
    parser.add_argument("--only", action="append", help="the ways whose names contain this")
    a = parser.parse_args()
    comm = pith.Comm()
    mine = my_address(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    addresses = everyones(comm, f"{mine}:{free_port(mine)}")
    platform = os.environ.get("JAX_PLATFORMS", "")
    if platform == "cpu":  # to try the program without a GPU
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(addresses[0], comm.ranks, comm.rank, local_device_ids=[0])
    pith.jax.initialize(comm)
    if comm.rank == 0:
        device = jax.local_devices()[0]
        print(f"# JAX {jax.__version__}, {device.device_kind}, {len(jax.devices())} devices of all")
    ways = {
        name: make
        for name, make in ways_of(a, comm).items()
        if not a.only or any(part in name for part in a.only)
    }
    made = {name: first_step(name, make, comm) for name, make in ways.items()}
    steps = {name: step for name, step in made.items() if step is not None}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(a.rounds + 1):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        for name, step in steps.items():
            found, before = [], sent_again()
            for _ in range(a.steps if turn else 1):
                comm.barrier()
                begun = time.perf_counter()
                step()
                found.append(time.perf_counter() - begun)
            if turn:
                times[name].append(statistics.mean(found))
            again = sent_again()
            if comm.rank == 0:
                steps_ms = " ".join(f"{1e3 * seconds:.1f}" for seconds in found)
                lost = f"; TCP has sent {again - before} segments again" if again > before else ""
                print(f"# round {turn} of {a.rounds}, {name}: {steps_ms} ms{lost}", flush=True)
    seconds = {name: slowest(comm, statistics.median(found)) for name, found in times.items()}
    if comm.rank == 0:
        report(seconds, steps, comm, a)
    comm.barrier()
    sys.stdout.flush()
    os._exit(0)  # the runtime of jax.distributed waits for others at the end, in no order


def report(
    seconds: dict[str, float], steps: dict[str, Any], comm: pith.Comm, a: argparse.Namespace
) -> None:
    shapes = jax.eval_shape(lambda: make_params(a))
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
    first, base = next(iter(seconds.values()), float("nan")), seconds.get(BASE)
    print(
        f"# {count / 1e6:.1f} million parameters, {comm.ranks} ranks, {a.batch} × {a.context} tokens on each, {a.optimizer}; "
        f"Pith's messages went over {pith.jax.stats().backend}"
    )
    print(f"{'way':<28}{'ms a step':>11}{'× ' + (BASE if base else 'the first'):>24}{'loss':>9}")
    for name, found in seconds.items():
        print(
            f"{name:<28}{1e3 * found:>11.1f}{(base or first) / found:>24.2f}{steps[name].loss:>9.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
