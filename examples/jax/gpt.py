# SPDX-License-Identifier: Apache-2.0
"""A small GPT on characters, in JAX: the model and the data of examples/pytorch/gpt.py.

    python examples/jax/gpt.py                                               # alone
    pith run -n 4 -- python examples/jax/gpt.py --spec ef/powersgd:4         # four ranks, low rank
    pith lab -n 4 --rate 1gbit -- python examples/jax/gpt.py --spec q:4      # four hosts behind 1 Gbit/s

Without --data it learns Python's own manual pages, which every Python has. Compression is the first link in the optimizer's chain.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pith
import pith.jax


def read_text(path: str | None) -> str:
    if path:
        given = pathlib.Path(path)
        files = sorted(given.rglob("*.txt")) if given.is_dir() else [given]
        return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


# ---- The model: parameters are a tree, whose paths are the names of layers -------------------------------------------


def linear(key: Any, inputs: int, outputs: int, std: float = 0.02) -> dict[str, Any]:
    return {"kernel": std * jax.random.normal(key, (inputs, outputs)), "bias": jnp.zeros(outputs)}


def norm(width: int) -> dict[str, Any]:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def make_gpt(key: Any, symbols: int, width: int, layers: int, context: int) -> dict[str, Any]:
    keys = iter(jax.random.split(key, 3 + 4 * layers))
    small = 0.02 / math.sqrt(2 * layers)

    def block() -> dict[str, Any]:
        return {
            "norm1": norm(width),
            "norm2": norm(width),
            "qkv": linear(next(keys), width, 3 * width),
            "out": linear(next(keys), width, width, small),
            "up": linear(next(keys), width, 4 * width),
            "down": linear(next(keys), 4 * width, width, small),
        }

    return {
        "token": 0.02 * jax.random.normal(next(keys), (symbols, width)),
        "place": 0.02 * jax.random.normal(next(keys), (context, width)),
        "blocks": [block() for _ in range(layers)],
        "norm": norm(width),
        "head": 0.02 * jax.random.normal(next(keys), (width, symbols)),
    }


def apply_linear(p: dict[str, Any], x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def apply_norm(p: dict[str, Any], x: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def apply_block(p: dict[str, Any], x: Any, heads: int) -> Any:
    b, t, w = x.shape
    parts = jnp.split(apply_linear(p["qkv"], apply_norm(p["norm1"], x)), 3, axis=-1)
    q, k, v = (part.reshape(b, t, heads, w // heads) for part in parts)
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, w)
    x = x + apply_linear(p["out"], mixed)
    up = apply_linear(p["up"], apply_norm(p["norm2"], x))
    return x + apply_linear(p["down"], jax.nn.gelu(up, approximate=False))


def loss_of(params: dict[str, Any], window: Any, heads: int) -> Any:
    x, y = window[:, :-1], window[:, 1:]
    h = params["token"][x] + params["place"][: x.shape[1]]
    for block in params["blocks"]:
        h = apply_block(block, h, heads)
    logits = apply_norm(params["norm"], h) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


# ---- Training --------------------------------------------------------------------------------------------------------


def batches(text: np.ndarray, batch: int, context: int, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    while True:
        at = generator.integers(len(text) - context - 1, size=batch)
        yield np.stack([text[i : i + context + 1] for i in at])


def is_launched() -> bool:
    try:
        return pith.launch().ranks > 1
    except pith.ArgumentError:
        return False


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = int(os.environ.get("EXAMPLE_STEPS", 300))
    parser.add_argument("--spec", default="q:4", help='a spec, rules, or "none" (%(default)s)')
    parser.add_argument("--steps", type=int, default=steps, help="%(default)s, or EXAMPLE_STEPS")
    parser.add_argument("--batch", type=int, default=8, help="samples on each rank (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", help="a text file, or a folder of them")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    return parser.parse_args()


def main() -> None:
    a = arguments()
    several = is_launched()
    rank, ranks = (pith.jax.rank(), pith.jax.ranks()) if several else (0, 1)
    text = read_text(a.data)
    symbols = {c: i for i, c in enumerate(sorted(set(text)))}
    encoded = np.array([symbols[c] for c in text], np.int32)
    key, heads = jax.random.key(a.seed), max(1, a.width // 64)
    params = make_gpt(key, len(symbols), a.width, a.layers, a.context)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    optimizer = optax.adamw(a.lr, b1=0.9, b2=0.95, weight_decay=0.01)
    if several:
        optimizer = optax.chain(pith.jax.compress(a.spec, seed=a.seed), optimizer)
    state = optimizer.init(params)

    def train(params: Any, state: Any, window: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, window, heads)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    step = jax.jit(train, donate_argnums=(0, 1))
    losses: list[Any] = []
    begun, warm = time.perf_counter(), min(5, a.steps - 1)
    source = batches(encoded, a.batch, a.context, 1000 * a.seed + rank)
    for number, window in zip(range(a.steps), source, strict=False):
        if number == warm:
            jax.block_until_ready(params)
            begun = time.perf_counter()
        params, state, loss = step(params, state, window)
        losses.append(loss)
    jax.block_until_ready(params)
    seconds = (time.perf_counter() - begun) / (a.steps - warm)
    tail = np.mean(losses[-max(1, a.steps // 10) :])
    if rank == 0:
        print(f"GPT on characters: {count:,} parameters on {ranks} ranks, {a.steps} steps")
        print(f"  loss {float(losses[0]):.3f} → {tail:.3f}, {1e3 * seconds:.1f} ms a step")
        if several:
            table = pith.jax.stats()
            sent, exact = table.wire_bytes / 1e6, table.wire_bytes * table.ratio / 1e6
            print(f"  {sent:.1f} MB sent by each rank instead of {exact:.1f}")


if __name__ == "__main__":
    main()
