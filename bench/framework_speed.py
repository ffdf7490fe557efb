# SPDX-License-Identifier: Apache-2.0
"""Steps of JAX and of TensorFlow behind a slow link: their own allreduce, and Pith, in turns in one run.

    pith lab --no-prefix -n 4 --rate 1gbit -- python bench/framework_speed.py --framework jax
    pith lab --no-prefix -n 4 --rate 1gbit -- python bench/framework_speed.py --framework tensorflow

The model is the MLP of bench/training_speed.py: wide layers with little to compute. JAX's own way is pmean over gloo (jax.distributed),
TensorFlow's the ring of MultiWorkerMirroredStrategy. Ways take turns, a few steps each, so that a machine that is slow for a while is slow
for all of them. The figure is the median time of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pith

Step = Callable[[np.ndarray, np.ndarray], Any]  # one step of training, which has ended on return


def shapes(a: argparse.Namespace) -> list[tuple[int, int]]:
    inner = [(a.width, a.width)] * (a.layers - 1)
    return [(64, a.width), *inner, (a.width, 10)]


def start_values(a: argparse.Namespace) -> list[np.ndarray]:
    """Kernels and biases, the same on all ranks."""
    random, found = np.random.default_rng(0), []
    for inputs, outputs in shapes(a):
        found.append((random.normal(size=(inputs, outputs)) / np.sqrt(inputs)).astype(np.float32))
        found.append(np.zeros(outputs, np.float32))
    return found


def my_address(master: str) -> str:
    """The address of this host towards rank 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))
        return str(probe.getsockname()[0])


def free_port(address: str) -> int:
    with socket.socket() as s:
        s.bind((address, 0))
        return int(s.getsockname()[1])


def everyones(comm: pith.Comm, text: str) -> list[str]:
    mine = np.frombuffer(text.encode().ljust(64), np.uint8)
    found = np.empty((comm.ranks, 64), np.uint8)
    comm.all_gather(mine, found)
    return [bytes(row).decode().strip() for row in found]


# ---- JAX -------------------------------------------------------------------------------------------------------------


def name_host(address: str) -> None:
    """Gloo in JAX takes the address of the host's name, which need not be that of the link. JAX has no setting for it."""
    from jax._src import xla_bridge

    make = xla_bridge._jax.make_gloo_tcp_collectives
    xla_bridge._jax.make_gloo_tcp_collectives = lambda **given: make(hostname=address, **given)


def ways_of_jax(a: argparse.Namespace, comm: pith.Comm, addresses: list[str]) -> dict[str, Step]:
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    name_host(addresses[comm.rank].split(":")[0])
    jax.distributed.initialize(addresses[0], comm.ranks, comm.rank)
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import pith.jax

    pith.jax.initialize(comm)
    mesh = jax.make_mesh((comm.ranks,), ("ranks",))

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        for k in range(0, len(params) - 2, 2):
            x = jax.nn.relu(x @ params[k] + params[k + 1])
        scores = jax.nn.log_softmax(x @ params[-2] + params[-1])
        return -jnp.mean(jnp.take_along_axis(scores, y[:, None], 1))

    def moved(params: Any, grads: Any) -> Any:
        return [p - 0.01 * g for p, g in zip(params, grads, strict=True)]

    def own(params: Any, x: Any, y: Any) -> Any:
        return moved(params, jax.lax.pmean(jax.grad(loss_of)(params, x, y), "ranks"))

    by_psum = jax.jit(
        jax.shard_map(
            own,
            mesh=mesh,
            in_specs=(P(), P("ranks"), P("ranks")),
            out_specs=P(),
            check_vma=False,
        ),
        donate_argnums=0,
    )
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("ranks"))

    def with_psum() -> Step:
        params = [jax.make_array_from_process_local_data(everywhere, v) for v in start_values(a)]

        def step(x: np.ndarray, y: np.ndarray) -> None:
            nonlocal params
            x, y = (jax.make_array_from_process_local_data(split, v) for v in (x, y))
            params = jax.block_until_ready(by_psum(params, x, y))

        return step

    def with_pith(spec: str) -> Step:
        params = [jnp.asarray(v) for v in start_values(a)]
        state = pith.jax.init(params, spec)

        def whole(params: Any, state: Any, x: Any, y: Any) -> Any:
            grads, state = pith.jax.allreduce(jax.grad(loss_of)(params, x, y), state, spec)
            return moved(params, grads), state

        compiled = jax.jit(whole, donate_argnums=(0, 1))

        def step(x: np.ndarray, y: np.ndarray) -> None:
            nonlocal params, state
            params, state = jax.block_until_ready(compiled(params, state, x, y))

        return step

    def alone() -> Step:
        params = [jnp.asarray(v) for v in start_values(a)]
        compiled = jax.jit(lambda p, x, y: moved(p, jax.grad(loss_of)(p, x, y)), donate_argnums=0)

        def step(x: np.ndarray, y: np.ndarray) -> None:
            nonlocal params
            params = jax.block_until_ready(compiled(params, x, y))

        return step

    found: dict[str, Step] = {"psum over gloo": with_psum(), "no exchange": alone()}
    return found | {f"pith {spec}": with_pith(spec) for spec in a.specs.split(",")}


# ---- TensorFlow ------------------------------------------------------------------------------------------------------


def ways_of_tensorflow(
    a: argparse.Namespace, comm: pith.Comm, addresses: list[str]
) -> dict[str, Step]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    task = {"type": "worker", "index": comm.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    import tensorflow as tf

    import pith.tensorflow

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    ring = tf.distribute.experimental.CollectiveCommunication.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    pith.tensorflow.initialize(comm)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        for k in range(0, len(params) - 2, 2):
            x = tf.nn.relu(x @ params[k] + params[k + 1])
        scores = x @ params[-2] + params[-1]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))

    def make(reduce: Callable[[Any, Any], Any]) -> Step:
        params = [tf.Variable(v, name=f"v{k}") for k, v in enumerate(start_values(a))]

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(params, x, y)
            for p, g in zip(params, reduce(tape.gradient(loss, params), params), strict=True):
                p.assign_sub(0.01 * g)

        return lambda x, y: step(tf.constant(x), tf.constant(y))

    def with_ring() -> Step:
        with strategy.scope():
            params = [tf.Variable(v) for v in start_values(a)]

        def replica(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(params, x, y)
            grads = tape.gradient(loss, params)
            context = tf.distribute.get_replica_context()
            grads = context.all_reduce(tf.distribute.ReduceOp.MEAN, grads, options=options)
            for p, g in zip(params, grads, strict=True):
                p.assign_sub(0.01 * g)

        @tf.function
        def step(x: Any, y: Any) -> None:
            strategy.run(replica, (x, y))

        return lambda x, y: step(tf.constant(x), tf.constant(y))

    def with_pith(spec: str) -> Step:
        return make(lambda grads, params: pith.tensorflow.allreduce(grads, params, spec))

    found = {"MultiWorkerMirroredStrategy, ring": with_ring(), "no exchange": make(lambda g, p: g)}
    return found | {f"pith {spec}": with_pith(spec) for spec in a.specs.split(",")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=("jax", "tensorflow"), required=True)
    parser.add_argument("--specs", default="none,q:4", help="default: %(default)s")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1, help="on each rank (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each way in a round")
    a = parser.parse_args()
    comm = pith.Comm()
    mine = my_address(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    addresses = everyones(comm, f"{mine}:{free_port(mine)}")
    make = ways_of_jax if a.framework == "jax" else ways_of_tensorflow
    ways = make(a, comm, addresses)
    random = np.random.default_rng(comm.rank)
    x = random.normal(size=(a.batch, 64)).astype(np.float32)
    y = random.integers(0, 10, a.batch).astype(np.int32)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(a.rounds + 1):
        for name, step in ways.items():
            comm.barrier()
            for _ in range(a.steps):
                begun = time.perf_counter()
                step(x, y)
                if turn:  # the first compiles
                    times[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(found) for name, found in times.items()}
    if comm.rank == 0:
        count = sum(i * o + o for i, o in shapes(a))
        print(f"{a.framework}: {count / 1e6:.1f} million parameters, {comm.ranks} ranks")
        first = next(iter(medians.values()))
        for name, seconds in medians.items():
            print(f"{name:<36} {1e3 * seconds:8.1f} ms a step   {first / seconds:5.2f}", flush=True)
    comm.barrier()
    os._exit(0)  # runtimes of both frameworks wait for others at the end, in no order


if __name__ == "__main__":
    main()
