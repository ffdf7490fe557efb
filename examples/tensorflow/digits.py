# SPDX-License-Identifier: Apache-2.0
"""A convolutional network on handwritten digits, in TensorFlow: a loop of one's own, with a tape and a tf.function.

    python examples/tensorflow/digits.py                                             # alone
    pith run -n 2 -- python examples/tensorflow/digits.py --spec ef/topk:0.01        # two ranks, 1% of the values

The 1,797 images of 8×8 pixels come with scikit-learn.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import pith
import pith.tensorflow


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
        ) from None
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = (digits.images[order, :, :, None] / 16).astype(np.float32)
    return x, digits.target[order].astype(np.int32)


class Net:
    """Variables and what is done with them. Their names are what rules match."""

    def __init__(self, width: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "conv3": (3, 3, 64, 64)}
        shapes |= {"dense1": (64 * 16, width), "dense2": (width, width), "out": (width, 10)}
        self.weights, self.biases = {}, {}
        for name, shape in shapes.items():
            scale = np.sqrt(2 / np.prod(shape[:-1]))
            values = (scale * random.normal(size=shape)).astype(np.float32)
            self.weights[name] = tf.Variable(values, name=f"{name}/kernel")
            self.biases[name] = tf.Variable(tf.zeros(shape[-1]), name=f"{name}/bias")
        self.variables = [*self.weights.values(), *self.biases.values()]

    def __call__(self, x: Any) -> Any:
        for name in ("conv1", "conv2", "conv3"):
            x = tf.nn.relu(tf.nn.conv2d(x, self.weights[name], 1, "SAME") + self.biases[name])
            x = tf.nn.max_pool2d(x, 2, 2, "VALID") if name == "conv2" else x
        x = tf.reshape(x, [len(x), -1])
        for name in ("dense1", "dense2"):
            x = tf.nn.relu(x @ self.weights[name] + self.biases[name])
        return x @ self.weights["out"] + self.biases["out"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spec", default="q:4", help="how gradients travel (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=int(os.environ.get("EXAMPLE_STEPS", 200)))
    parser.add_argument("--batch", type=int, default=16, help="on each rank (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--width", type=int, default=512, help="of the two large layers")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    try:
        pith.launch()
        rank, ranks = pith.tensorflow.rank(), pith.tensorflow.ranks()
    except pith.ArgumentError:  # no launcher
        rank, ranks = 0, 1

    x, y = read_digits()
    held_out = len(x) // 5
    net = Net(a.width, a.seed)
    moments = [tf.Variable(tf.zeros_like(v)) for v in net.variables]

    def loss_of(x: Any, y: Any) -> Any:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(x)))

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        if ranks > 1:
            tape = pith.tensorflow.DistributedGradientTape(tape, a.spec)  # the one new line
        gradients = tape.gradient(loss, net.variables)
        for variable, moment, gradient in zip(net.variables, moments, gradients, strict=True):
            moment.assign(0.9 * moment + gradient)
            variable.assign_sub(a.lr * moment)
        return loss

    if ranks > 1:
        pith.tensorflow.broadcast_variables(net.variables)
    random = np.random.default_rng(1000 * a.seed + rank)
    losses, started = [], time.perf_counter()
    for number in range(a.steps):
        at = random.integers(held_out, len(x), a.batch)
        losses.append(float(step(x[at], y[at])))
        if number == 4:
            started = time.perf_counter()
    seconds = (time.perf_counter() - started) / max(1, a.steps - 5)
    right = np.mean(np.argmax(net(x[:held_out]), 1) == y[:held_out])
    if rank == 0:
        count = sum(int(np.prod(v.shape)) for v in net.variables)
        print(f"CNN on digits: {count:,} parameters on {ranks} ranks, {a.steps} steps")
        tail = np.mean(losses[-max(1, a.steps // 10) :])
        print(
            f"  loss {losses[0]:.3f} → {tail:.3f}, {100 * right:.1f}% of {held_out} held-out digits right"
        )
        print(f"  {1e3 * seconds:.1f} ms a step")
        if ranks > 1:
            table = pith.tensorflow.stats()
            print(
                f"  {table.wire_bytes / 1e6:.1f} MB sent by each rank, {table.ratio:.1f} times less"
            )


if __name__ == "__main__":
    main()
