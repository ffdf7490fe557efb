# SPDX-License-Identifier: Apache-2.0
"""pith.keras on TensorFlow, JAX and PyTorch: the same steps from the same start, checkpoints, saved models, callbacks.

A backend belongs to a process, and takes seconds to import. So each has two ranks, which check everything.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import needs
from pages import blocks_of, commands_of
from ranks import run
from test_launchers import command

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("tensorflow", "jax", "torch")
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "CUDA_VISIBLE_DEVICES": "",
}


def needs_backend(name: str) -> None:
    for module in ("keras", name):
        if importlib.util.find_spec(module) is None:
            needs.lacks(module, f"pith.keras on {name} needs it (pip install keras)")


RULES = "*bias=none;*dense_1/*=ef/topk:0.1;*=ef/q:4"


def make_model(seed: int) -> Any:
    import keras

    layers = [keras.Input((32,)), keras.layers.Dense(64, "relu", name="dense")]
    layers += [keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(32, name="dense_1")]
    model = keras.Sequential(layers, name="net")
    random = np.random.default_rng(seed)
    model.set_weights([0.2 * random.normal(size=w.shape).astype("f") for w in model.get_weights()])
    return model


def data(rank: int) -> np.ndarray:
    return np.random.default_rng((5, rank)).normal(size=(64, 32)).astype("float32")


def fit(model: Any, rank: int, epochs: int, callbacks: Any = ()) -> Any:
    x = data(rank)
    options = {"batch_size": 16, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
    return model.fit(x, x, epochs=epochs, **options).history


def bits(model: Any) -> list[bytes]:
    """What all ranks have in common: statistics of batches are each rank's own."""
    import keras

    return [keras.ops.convert_to_numpy(v.value).tobytes() for v in model.trainable_variables]


def trained(rank: int, size: int, folder: str) -> dict[str, Any]:
    import keras

    import pith.keras

    found: dict[str, Any] = {}

    def compiled(seed: int = 0) -> Any:
        model = make_model(seed)
        optimizer = keras.optimizers.Adam(1e-2)
        found["same object"] = pith.keras.DistributedOptimizer(optimizer, RULES) is optimizer
        model.compile(optimizer, loss="mse", metrics=["mae"])
        return model

    # Other weights on every rank, until the callback gives all of them those of rank 1.
    model = compiled(rank)
    start = [pith.keras.BroadcastGlobalVariablesCallback(1), pith.keras.MetricAverageCallback()]
    found["history"] = fit(model, rank, 4, start)
    found["weights"] = [w.tolist() for w in model.get_weights()][:2]
    found["bits"] = bits(model)
    table = pith.keras.stats()
    found["specs"] = {layer.name: layer.spec for layer in table}
    found["sent"] = all(layer.wire_bytes > 0 for layer in table)

    # Two epochs, a checkpoint, two more: the bits of four.
    whole, half = compiled(), compiled()
    fit(whole, rank, 4)
    fit(half, rank, 2)
    weights = half.get_weights(), [v.numpy() for v in half.optimizer.variables]
    saved = pith.keras.save()
    fit(half, rank, 2)
    found["went on"] = bits(half) == bits(whole)
    half.set_weights(weights[0])
    for variable, value in zip(half.optimizer.variables, weights[1], strict=True):
        variable.assign(value)
    pith.keras.load(saved)
    fit(half, rank, 2)
    found["resumed"] = bits(half) == bits(whole)

    # A model that was saved by one rank is loaded by all, with a plain optimizer.
    path = f"{folder}/model.keras"
    if rank == 0:
        whole.save(path)
    pith.keras._backend.below().the_comm(None).barrier()
    loaded = keras.models.load_model(path)
    found["plain"] = not isinstance(loaded.optimizer, pith.keras._optimizer._Distributed)
    found["iterations"] = int(loaded.optimizer.iterations)
    pith.keras.DistributedOptimizer(loaded.optimizer, RULES)
    fit(loaded, rank, 1)
    found["loaded"] = bits(loaded)

    if keras.backend.backend() != "jax":
        found["scaled"] = scaled(rank, keras)

    texts = []
    for call in (
        lambda: pith.keras.DistributedOptimizer("adam"),
        lambda: pith.keras.DistributedOptimizer(loaded.optimizer),
        lambda: pith.keras.DistributedOptimizer(keras.optimizers.SGD(), "q:44"),
        lambda: half_precision(keras),
    ):
        with pytest.raises(pith.Error) as raised:
            call()
        texts.append(f"{type(raised.value).__name__}: {raised.value}")
    found["refused"] = texts
    return found


def scaled(rank: int, keras: Any) -> dict[str, Any]:
    """Half precision. Gradients of rank 1 overflow in the first steps: both ranks skip these, and the scale falls on both."""
    import pith.keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = make_model(0)
        scaler = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(1e-2), initial_scale=2.0**15
        )
        model.compile(pith.keras.DistributedOptimizer(scaler, RULES), loss="mse")
        start = bits(model)
        x = data(rank) * (60.0 if rank else 1.0)
        model.train_on_batch(x[:16], x[:16] * (1000.0 if rank else 1.0))
        skipped = bits(model) == start
        for number in range(12):
            batch = data(rank)[16 * (number % 4) : 16 * (number % 4) + 16]
            loss = float(model.train_on_batch(batch, batch))
        return {
            "skipped": skipped,
            "scale": float(scaler.dynamic_scale),
            "learned": bits(model) != start,
            "finite": bool(np.isfinite(loss)),
            "bits": bits(model),
        }
    finally:
        keras.config.set_dtype_policy(before)


def half_precision(keras: Any) -> None:
    import pith.keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        pith.keras.DistributedOptimizer(keras.optimizers.SGD())
    finally:
        keras.config.set_dtype_policy(before)


_histories: dict[str, Any] = {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_is_trained_saved_and_resumed(backend: str, tmp_path: Path) -> None:
    needs_backend(backend)
    found = run(trained, 2, str(tmp_path), env=QUIET | {"KERAS_BACKEND": backend})
    for what in ("bits", "loaded", "history"):
        assert found[0][what] == found[1][what], what
    for rank in found:
        expected = ["ArgumentError: str is no optimizer", "ArgumentError: gradients of this"]
        expected += ["RangeError: ", "ArgumentError: with the policy mixed_float16"]
        for text, begin in zip(rank["refused"], expected, strict=True):
            assert text.startswith(begin), text
        for what in ("same object", "sent", "went on", "resumed", "plain"):
            assert rank[what], what
        assert rank["iterations"] == 16
        assert rank["specs"] == {
            "net/dense/kernel": "ef/q:4",
            "net/dense/bias": "none",
            "net/norm/gamma": "none",
            "net/norm/beta": "none",
            "net/dense_1/kernel": "ef/topk:0.1",
            "net/dense_1/bias": "none",
        }
    if backend != "jax":
        assert found[0]["scaled"] == found[1]["scaled"]
        scaled = {key: value for key, value in found[0]["scaled"].items() if key != "bits"}
        assert scaled == {"skipped": True, "scale": 2.0**14, "learned": True, "finite": True}
    losses = found[0]["history"]["loss"]
    assert losses[-1] < losses[0]
    _histories[backend] = losses
    for other in _histories.values():
        np.testing.assert_allclose(losses, other, rtol=1e-2)


def test_the_lines_of_the_page_run(tmp_path: Path) -> None:
    needs_backend("jax")
    code, how = blocks_of("docs/keras.md", (ROOT / "docs" / "keras.md").read_text())
    assert commands_of(how.code) == ["KERAS_BACKEND=jax pith run -n 2 -- python train.py"]
    program = tmp_path / "train.py"
    program.write_text(code.code)
    out = output_of("jax", str(program))
    assert "net/dense/kernel    ef/q:4  rule *" in out
    assert "net/dense_1/bias    none    rule *bias" in out


def test_the_digits_of_the_examples_are_learned() -> None:
    needs_backend("torch")
    needs.module("sklearn", "the digits come with scikit-learn")
    out = output_of("torch", str(ROOT / "examples" / "keras" / "digits.py"), "--width", "128")
    assert "CNN on digits with torch" in out
    assert float(out.split("held-out")[0].split("% of")[0].split(", ")[-1]) > 80


def output_of(backend: str, *arguments: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    process = subprocess.run(
        [command(), "run", "-n", "2", "--", sys.executable, *arguments],
        env=kept | QUIET | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout
