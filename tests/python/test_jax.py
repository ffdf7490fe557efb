"""pith.jax: the bits of pith.Comm and pith.torch, programs of all kinds, ranks that die or disagree, launchers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import needs
from ranks import free_port, outcomes, run

jax = needs.module("jax", "pith.jax needs JAX (pip install jax)")
optax = needs.module("optax", "pith.jax.compress needs optax (pip install optax)")

import jax.numpy as jnp

import pith
import pith.jax
from pith import _library as c
from test_launchers import command

ROOT = Path(__file__).resolve().parents[2]
ONE_CORE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def gradient(rank: int, step: int, number: int, shape: tuple[int, ...] = (48, 64)) -> np.ndarray:
    return np.random.default_rng((rank, step, number)).normal(size=shape).astype(np.float32)


# ---- The same bits ---------------------------------------------------------------------------------------------------


def specs() -> list[str]:
    """Every codec and preset as it is, and behind every memory that takes it."""
    found = []
    for method in pith.methods():
        if method.kind not in ("codec", "preset"):
            continue
        for before in ("", "ef/", "momentum/", "dgc/"):
            name = {"topk": "topk:0.1", "randomk": "randomk:0.1", "dgc": "dgc:0.1"}.get(method.name)
            spec = before + (name or method.name)
            try:
                pith.Codec(spec)
            except pith.Error:
                continue
            found.append(spec)
    return found


def against_comm(rank: int, size: int) -> list[tuple[str, bool]]:
    """One tree with a leaf for each spec, and the same by single allreduces of a comm."""
    all_specs = specs()
    names = [f"leaf{i}" for i in range(len(all_specs))]
    rules = ";".join(f"{name}={spec}" for name, spec in zip(names, all_specs, strict=True))
    comm = pith.Comm()
    pith.jax.initialize(comm)
    tree = {name: gradient(rank, 0, 0) for name in names}
    state = pith.jax.init(tree, rules, seed=3)
    step = jax.jit(lambda tree, state: pith.jax.allreduce(tree, state, rules, seed=3))
    kept = {spec: pith.State(pith.Codec(spec), 48 * 64, 48) for spec in all_specs}
    same = dict.fromkeys(all_specs, True)
    for number in range(3):
        tree = {name: gradient(rank, number, i) for i, name in enumerate(names)}
        means, state = step(tree, state)
        jax.block_until_ready(means)
        for name, spec in zip(names, all_specs, strict=True):
            where = {"seed": 3, "step": number, "layer": c.lib.pith_layer_number(name.encode())}
            comm.allreduce(tree[name], "mean", codec=spec, state=kept[spec], **where)
            same[spec] &= np.asarray(means[name]).tobytes() == tree[name].tobytes()
    return list(same.items())


@pytest.mark.parametrize("size", [2, 3, 4])
def test_means_of_every_codec_with_and_without_memory_are_those_of_a_comm(size: int) -> None:
    found = run(against_comm, size, env=ONE_CORE)
    assert len(found[0]) > 40
    for rank in found:
        assert [spec for spec, same in rank if not same] == []
