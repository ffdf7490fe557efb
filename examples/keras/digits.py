# SPDX-License-Identifier: Apache-2.0
"""A convolutional network on handwritten digits, in Keras 3: the same lines with TensorFlow, JAX or PyTorch below.

    KERAS_BACKEND=jax python examples/keras/digits.py                                      # alone
    KERAS_BACKEND=torch pith run -n 2 -- python examples/keras/digits.py --spec ef/q:4     # two ranks

The 1,797 images of 8×8 pixels come with scikit-learn.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import pith
import pith.keras


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


def make_model(width: int) -> keras.Model:
    conv = {"kernel_size": 3, "padding": "same", "activation": "relu"}
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, **conv),
            layers.Conv2D(64, **conv),
            layers.MaxPooling2D(),
            layers.Conv2D(64, **conv),
            layers.Flatten(),
            layers.Dense(width, activation="relu"),
            layers.Dense(width, activation="relu"),
            layers.Dense(10),
        ],
        name="digits",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spec", default="q:4", help="how gradients travel (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="on each rank (default: %(default)s)")
    parser.add_argument("--width", type=int, default=512, help="of the two large layers")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    try:
        pith.launch()
        rank, ranks = pith.keras.rank(), pith.keras.ranks()
    except pith.ArgumentError:  # no launcher
        rank, ranks = 0, 1

    keras.utils.set_random_seed(a.seed + rank)
    x, y = read_digits()
    held_out = len(x) // 5
    share = (len(x) - held_out) // ranks  # as many batches on every rank
    mine = slice(held_out + rank * share, held_out + (rank + 1) * share)
    model = make_model(a.width)
    optimizer = keras.optimizers.Adam(1e-3)
    callbacks = []
    if ranks > 1:
        optimizer = pith.keras.DistributedOptimizer(optimizer, a.spec)  # the new line
        callbacks = [
            pith.keras.BroadcastGlobalVariablesCallback(),  # the same start on all ranks
            pith.keras.MetricAverageCallback(),
        ]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, metrics=["accuracy"])
    found = model.fit(
        x[mine], y[mine], batch_size=a.batch, epochs=a.epochs, callbacks=callbacks, verbose=0
    )
    _, right = model.evaluate(x[:held_out], y[:held_out], verbose=0)
    if rank == 0:
        losses = found.history["loss"]
        print(
            f"CNN on digits with {keras.backend.backend()}: {model.count_params():,} parameters on {ranks} ranks"
        )
        print(
            f"  loss {losses[0]:.3f} → {losses[-1]:.3f}, {100 * right:.1f}% of {held_out} held-out digits right"
        )
        if ranks > 1:
            table = pith.keras.stats()
            print(
                f"  {table.wire_bytes / 1e6:.1f} MB sent by each rank, {table.ratio:.1f} times less"
            )


if __name__ == "__main__":
    main()
