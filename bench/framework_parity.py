# SPDX-License-Identifier: Apache-2.0
"""The same network, data and seeds in PyTorch, JAX and TensorFlow: held-out losses with exact and with compressed gradients.

    pith run --no-prefix -n 4 -- python bench/framework_parity.py

An MLP on the handwritten digits of scikit-learn, with smoothed labels and SGD with momentum; each framework computes gradients, and Pith
reduces them. The last lines are AdamW in JAX: exact, and with its momentum at one bit after a quarter of the run (pith.jax.adamw).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf
import torch
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

import pith.jax
import pith.tensorflow
import pith.torch

SMOOTH = 0.1
MOMENT = "moment,freeze=0.25/onebit"
Values = list[np.ndarray]


class Task:
    """Data, start and batches of a seed: the same numbers for every framework."""

    def __init__(self, seed: int, rank: int, a: argparse.Namespace) -> None:
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        x = (digits.data[order] / 16).astype(np.float32)
        y = np.eye(10, dtype=np.float32)[digits.target[order]] * (1 - SMOOTH) + SMOOTH / 10
        held_out = len(x) // 5
        self.test, self.train = (x[:held_out], y[:held_out]), (x[held_out:], y[held_out:])
        random, widths = np.random.default_rng(seed), (64, a.width, a.width, 10)
        self.start: Values = []
        for inputs, outputs in zip(widths, widths[1:], strict=False):
            scale = np.sqrt(2 / inputs)
            self.start.append((scale * random.normal(size=(inputs, outputs))).astype(np.float32))
            self.start.append(np.zeros(outputs, np.float32))
        self.steps, self._batch = a.steps, a.batch
        self._random = np.random.default_rng((seed, rank))

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        x, y = self.train
        for _ in range(self.steps):
            at = self._random.integers(0, len(x), self._batch)
            yield x[at], y[at]

    def loss(self, values: Values) -> float:
        """Of held-out digits, in numpy for all frameworks."""
        h, y = self.test
        for k in (0, 2):
            h = np.maximum(h @ values[k] + values[k + 1], 0)
        scores = (h @ values[4] + values[5]).astype(np.float64)
        scores -= scores.max(1, keepdims=True)
        return float(
            -np.mean(np.sum(y * (scores - np.log(np.exp(scores).sum(1, keepdims=True))), 1))
        )


def with_torch(task: Task, spec: str) -> Values:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for k, value in enumerate(task.start):
                self.register_parameter(f"v{k}", torch.nn.Parameter(torch.tensor(value)))

        def forward(self, x: Any) -> Any:
            v = [getattr(self, f"v{k}") for k in range(6)]
            for k in (0, 2):
                x = torch.relu(x @ v[k] + v[k + 1])
            return torch.log_softmax(x @ v[4] + v[5], 1)

    model = DistributedDataParallel(Net())
    pith.torch.compress(model, spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for x, y in task.batches():
        optimizer.zero_grad()
        (-(torch.from_numpy(y) * model(torch.from_numpy(x))).sum(1).mean()).backward()
        optimizer.step()
    return [p.detach().numpy() for p in model.parameters()]


def loss_of_jax(values: Any, x: Any, y: Any) -> Any:
    for k in (0, 2):
        x = jax.nn.relu(x @ values[f"v{k}"] + values[f"v{k + 1}"])
    return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(x @ values["v4"] + values["v5"]), 1))


def by_optax(task: Task, optimizer: Any) -> Values:
    params = {f"v{k}": jnp.asarray(value) for k, value in enumerate(task.start)}
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss_of_jax)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    for x, y in task.batches():
        params, state = step(params, state, x, y)
    return [np.asarray(params[f"v{k}"]) for k in range(6)]


def with_jax(task: Task, spec: str) -> Values:
    return by_optax(task, optax.chain(pith.jax.compress(spec), optax.sgd(0.02, momentum=0.9)))


def with_adamw(task: Task, spec: str) -> Values:
    if spec == "none":
        return by_optax(task, optax.chain(pith.jax.compress("none"), optax.adamw(2e-3)))
    return by_optax(task, pith.jax.adamw(2e-3, spec, steps=task.steps))


def with_tensorflow(task: Task, spec: str) -> Values:
    values = [tf.Variable(value, name=f"v{k}") for k, value in enumerate(task.start)]
    moments = [tf.Variable(tf.zeros_like(value)) for value in task.start]

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            h = x
            for k in (0, 2):
                h = tf.nn.relu(h @ values[k] + values[k + 1])
            scores = tf.nn.log_softmax(h @ values[4] + values[5])
            loss = -tf.reduce_mean(tf.reduce_sum(y * scores, 1))
        tape = pith.tensorflow.DistributedGradientTape(tape, spec)
        for value, moment, g in zip(values, moments, tape.gradient(loss, values), strict=True):
            moment.assign(0.9 * moment + g)
            value.assign_sub(0.02 * moment)

    for x, y in task.batches():
        step(tf.constant(x), tf.constant(y))
    return [value.numpy() for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16, help="on each rank (default: %(default)s)")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    a = parser.parse_args()
    torch.set_num_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    torch.distributed.init_process_group("pith")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    ids = [pith.unique_id() if rank == 0 else None]
    torch.distributed.broadcast_object_list(ids)
    comm = pith.Comm(rank, ranks, id=ids[0])
    pith.jax.initialize(comm)
    pith.tensorflow.initialize(comm)
    rows: list[tuple[str, Callable[[Task, str], Values], str]] = [
        ("PyTorch", with_torch, "q:4"),
        ("JAX", with_jax, "q:4"),
        ("TensorFlow", with_tensorflow, "q:4"),
        ("JAX, AdamW", with_adamw, MOMENT),
    ]
    if rank == 0:
        print(f"{ranks} ranks, {a.steps} steps, {a.seeds} seeds: held-out losses, and their ratio")
    for name, train, spec in rows:
        losses = {
            chosen: [
                (task := Task(seed, rank, a)).loss(train(task, chosen))
                for seed in range(1, a.seeds + 1)
            ]
            for chosen in ("none", spec)
        }
        if rank == 0:
            exact, lossy = losses["none"], losses[spec]
            ratio = np.exp(np.mean(np.log(np.array(lossy) / np.array(exact))))
            texts = [" ".join(f"{loss:.4f}" for loss in found) for found in (exact, lossy)]
            print(f"{name:<12} exact {texts[0]}   {spec} {texts[1]}   {ratio:.4f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
