"""pith.jax: the bits of pith.Comm and pith.torch, programs of all kinds, ranks that die or disagree, launchers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import needs
from ranks import free_port, run

jax = needs.module("jax", "pith.jax needs JAX (pip install jax)")
optax = needs.module("optax", "pith.jax.compress needs optax (pip install optax)")

import jax.numpy as jnp

import pith
import pith.jax
from pith import _library as c

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


def against_torch(rank: int, size: int) -> list[tuple[str, bool]]:
    """The same tree as parameters of a model, whose gradients DDP has reduced."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import pith.torch

    all_specs = [spec for spec in specs() if pith.Codec(spec).spec != "none"]
    names = [f"leaf{i}" for i in range(len(all_specs))]
    rules = ";".join(f"{name}={spec}" for name, spec in zip(names, all_specs, strict=True))

    class Product(torch.nn.Module):
        """Its gradients are what is put in."""

        def __init__(self) -> None:
            super().__init__()
            for name in names:
                self.register_parameter(name, torch.nn.Parameter(torch.zeros(48, 64)))

        def forward(self, *tensors: Any) -> Any:
            return sum((getattr(self, n) * x).sum() for n, x in zip(names, tensors, strict=True))

    torch.distributed.init_process_group("pith")
    model = DistributedDataParallel(Product())
    pith.torch.compress(model, rules=rules, seed=3)
    pith.jax.initialize(pith.Comm(port=int(os.environ["OTHER_PORT"])))
    state = pith.jax.init({name: gradient(rank, 0, 0) for name in names}, rules, seed=3)
    step = jax.jit(lambda tree, state: pith.jax.allreduce(tree, state, rules, seed=3))
    same = dict.fromkeys(all_specs, True)
    for number in range(3):
        tree = {name: gradient(rank, number, i) for i, name in enumerate(names)}
        means, state = step(tree, state)
        model.zero_grad()
        model(*(torch.from_numpy(tree[name]) for name in names)).backward()
        for name, spec in zip(names, all_specs, strict=True):
            reduced = getattr(model.module, name).grad.numpy()
            same[spec] &= np.asarray(means[name]).tobytes() == reduced.tobytes()
    torch.distributed.destroy_process_group()
    return list(same.items())


def test_means_of_every_codec_are_those_of_torch() -> None:
    pytest.importorskip("torch")
    env = {"OTHER_PORT": str(free_port()), "MASTER_PORT": str(free_port())} | ONE_CORE
    for rank in run(against_torch, 2, env=env):
        assert len(rank) > 40
        assert [spec for spec, same in rank if not same] == []


# ---- Programs --------------------------------------------------------------------------------------------------------

SPEC = "b*=none;*=ef/q:4"


def model_tree(dtype: Any = jnp.float32) -> dict[str, Any]:
    return {
        "layer": {
            "kernel": jnp.asarray(gradient(9, 9, 0), dtype),
            "bias": jnp.zeros(64, dtype),
        },
        "block": [jnp.asarray(gradient(9, 9, 1), dtype)],
    }


STEPS = 6


def noise(rank: int, number: Any, tree: Any) -> Any:
    """Gradients of a step, from a table, so that compilers and interpreters have nothing to round."""
    leaves, structure = jax.tree.flatten(tree)
    tables = [
        jnp.asarray(np.stack([gradient(rank, n, i, leaf.shape) for n in range(STEPS)]), leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, [table[number] for table in tables])


def kinds_of_programs(rank: int, size: int) -> dict[str, list[bytes]]:
    """Five steps of SGD, written in different ways: all give the same parameters and states."""
    params = model_tree()
    found: dict[str, list[bytes]] = {}

    def step(params: Any, state: Any, number: Any) -> Any:
        mean, state = pith.jax.allreduce(noise(rank, number, params), state, SPEC)
        return jax.tree.map(lambda p, g: p - 0.125 * g, params, mean), state

    def loop(step: Any) -> Any:
        p, s = jax.tree.map(jnp.copy, params), pith.jax.init(params, SPEC)
        for number in range(5):
            p, s = step(p, s, number)
        return p, s

    found["jit"] = bits(loop(jax.jit(step)))
    found["eager"] = bits(loop(step))
    found["donated"] = bits(loop(jax.jit(step, donate_argnums=(0, 1))))
    again = [jax.jit(lambda p, s, n: step(p, s, n)), jax.jit(lambda p, s, n: step(p, s, n + 0))]
    found["recompiled"] = bits(loop(lambda p, s, n: again[n % 2](p, s, n)))

    @jax.jit
    def scanned(params: Any, state: Any) -> Any:
        def body(carry: Any, number: Any) -> Any:
            return step(*carry, number), None

        return jax.lax.scan(body, (params, state), jnp.arange(5))[0]

    found["scan"] = bits(scanned(params, pith.jax.init(params, SPEC)))
    return found


def test_a_program_has_the_same_bits_however_it_is_written() -> None:
    found = run(kinds_of_programs, 2, env=ONE_CORE)
    for rank in found:
        for kind, outcome in rank.items():
            assert outcome == rank["jit"], kind
    parameters = len(jax.tree.leaves(model_tree()))
    assert found[0]["jit"][:parameters] == found[1]["jit"][:parameters]
    assert found[0]["jit"][parameters:] != found[1]["jit"][parameters:]  # residuals differ


def halves_and_corners(rank: int, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    step = jax.jit(lambda tree, state: pith.jax.allreduce(tree, state, SPEC))
    for dtype in (jnp.float16, jnp.bfloat16):
        params = model_tree(dtype)
        state = pith.jax.init(params, SPEC)
        tree = noise(rank, 0, params)
        means, state = step(tree, state)
        reducer = pith.Reducer(pith.jax._ranks.the_comm(), SPEC)
        jax.block_until_ready(means)
        expected = [np.array(leaf).view(np.uint16) for leaf in jax.tree.leaves(tree)]
        leaves, _, _ = pith.jax._programs.leaves_of(tree)
        for leaf in leaves:
            reducer.add(leaf.name, leaf.shape, leaf.dtype)
        for number, values in enumerate(expected):
            reducer.start_at(number, values.ctypes.data)
        reducer.finish()
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(means)} == {str(jnp.dtype(dtype))}
        found[str(jnp.dtype(dtype))] = bits(means) == [values.tobytes() for values in expected]
    for empty in ({}, [], (), {"a": None}):
        means, state = step(empty, pith.jax.init(empty, SPEC))
        assert means == empty and int(state.token[0]) == 1
    single, alone = jnp.float32(rank), pith.jax.init(jnp.float32(0), "none")
    found["scalar"] = float(pith.jax.allreduce(single, alone, "none")[0])
    nothing = {"zero": jnp.zeros((0, 5)), "one": jnp.full((3, 5), float(rank))}
    means, _ = pith.jax.allreduce(nothing, pith.jax.init(nothing, "ef/q:4"), "ef/q:4")
    found["no values"] = means["zero"].shape
    bad = noise(rank, 0, model_tree())
    bad["layer"]["kernel"] = bad["layer"]["kernel"].at[3, 5].set(jnp.nan if rank else 1.0)
    means, _ = step(bad, pith.jax.init(bad, SPEC))
    found["nan"] = bool(jnp.isnan(means["layer"]["kernel"][3, 5]))
    with jax.enable_x64(True):
        doubles = {"w": jnp.full((64, 64), 1.0 + rank, jnp.float64)}
        means, _ = pith.jax.allreduce(doubles, pith.jax.init(doubles, "q:4"), "q:4")
        found["double"] = str(means["w"].dtype), float(means["w"][0, 0])
    return found


def test_halves_doubles_scalars_empty_trees_and_nan() -> None:
    for found in run(halves_and_corners, 2, env=ONE_CORE):
        assert found == {
            "float16": True,
            "bfloat16": True,
            "scalar": 0.5,
            "no values": (0, 5),
            "nan": True,
            "double": ("float64", 1.5),
        }


def with_optax(rank: int, size: int, folder: str) -> dict[str, Any]:
    """Training by a chain, with gradients of several micro-batches; saved in the middle, and resumed."""
    params = model_tree()
    optimizer = optax.chain(pith.jax.compress("block/*=ef/topk:0.1;*=ef/q:4"), optax.adamw(1e-2))
    several = optax.MultiSteps(optimizer, every_k_schedule=2)

    def update(by: Any, params: Any, state: Any, number: Any) -> Any:
        updates, state = by.update(noise(rank, number, params), state, params)
        return optax.apply_updates(params, updates), state

    def train(by: Any, params: Any, state: Any, first: int, last: int) -> Any:
        step = jax.jit(lambda p, s, n: update(by, p, s, n), donate_argnums=(0, 1))
        params, state = jax.tree.map(jnp.copy, (params, state))
        for number in range(first, last):
            params, state = step(params, state, number)
        return params, state

    whole = train(optimizer, params, optimizer.init(params), 0, 6)
    half = train(optimizer, params, optimizer.init(params), 0, 3)
    leaves, structure = jax.tree.flatten(half)
    np.savez(f"{folder}/{rank}.npz", *leaves)
    saved = np.load(f"{folder}/{rank}.npz")
    loaded = jax.tree.unflatten(structure, [jnp.asarray(saved[name]) for name in saved.files])
    resumed = train(optimizer, *loaded, 3, 6)
    accumulated = train(several, params, several.init(params), 0, 6)
    table = pith.jax.stats()
    return {
        "resumed": bits(whole) == bits(resumed),
        "steps": int(accumulated[1].inner_opt_state[0].token[0]),
        "parameters": bits((whole[0], accumulated[0])),
        "specs": {layer.name: layer.spec for layer in table},
        "bytes": [(layer.raw_bytes, layer.wire_bytes) for layer in table],
        "table": str(table),
    }


def test_an_optimizer_of_optax_trains_accumulates_and_resumes_with_the_same_bits(
    tmp_path: Path,
) -> None:
    found = run(with_optax, 2, str(tmp_path), env=ONE_CORE)
    assert found[0]["parameters"] == found[1]["parameters"]
    for rank in found:
        assert rank["resumed"] and rank["steps"] == 3
        assert rank["specs"] == {
            "block/0": "ef/topk:0.1",
            "layer/bias": "none",
            "layer/kernel": "ef/q:4",
        }
        assert all(raw > 0 and wire > 0 for raw, wire in rank["bytes"])
        assert "layer/kernel  ef/q:4" in rank["table"]
