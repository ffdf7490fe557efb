# SPDX-License-Identifier: Apache-2.0
"""pith.jax: the bits of pith.Comm and pith.torch, programs of all kinds, ranks that die or disagree, launchers."""

from __future__ import annotations

import os
import re
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
from pages import blocks_of, commands_of
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
IN_PARTS = ONE_CORE | {"PITH_JAX_PART_BYTES": "9000"}  # leaves of these tests in calls of their own
FAILED = (jax.errors.JaxRuntimeError, ValueError)  # the latter where JAX runs a program at once


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
        for before in ("", "ef/", "ef,store=8/", "ef,store=bf16/", "momentum/", "dgc/"):
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


@pytest.mark.parametrize(
    ("size", "env"), [(2, ONE_CORE), (3, ONE_CORE), (4, ONE_CORE), (2, IN_PARTS)]
)
def test_means_of_every_codec_with_and_without_memory_are_those_of_a_comm(
    size: int, env: dict[str, str]
) -> None:
    found = run(against_comm, size, env=env)
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
    assert run(kinds_of_programs, 2, env=IN_PARTS) == found
    for rank in found:
        for kind, outcome in rank.items():
            assert outcome == rank["jit"], kind
    parameters = len(jax.tree.leaves(model_tree()))
    assert found[0]["jit"][:parameters] == found[1]["jit"][:parameters]
    assert found[0]["jit"][parameters:] != found[1]["jit"][parameters:]  # residuals differ


def parts_of_a_tied_model(rank: int, size: int) -> list[list[str]]:
    """Names of the leaves that each call of a step starts. The embedding comes first and last in the model."""
    params = {f"layer{i}": jnp.zeros((64, 64)) for i in range(3)} | {"token": jnp.zeros((64, 64))}

    def loss(params: Any, x: Any) -> Any:
        halves = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        h = x @ halves["token"]
        for i in range(3):
            h = jnp.tanh(h @ halves[f"layer{i}"])
        return jnp.sum(h @ halves["token"].T)

    def step(params: Any, state: Any, x: Any) -> Any:
        return pith.jax.allreduce(jax.grad(loss)(params, x), state, "q:4")

    state, x = pith.jax.init(params, "q:4"), jnp.ones((8, 64), jnp.bfloat16)
    text = jax.jit(step).lower(params, state, x).as_text()
    names = list(params)
    calls = re.findall(r"@pith_allreduce.*?layers = dense<\[?([\d, ]+)\]?>", text)

    def many(params: Any, state: Any) -> Any:
        return jax.lax.scan(lambda s, _: (step(params, s, x)[1], None), state, jnp.arange(3))

    assert jax.jit(many).lower(params, state).as_text().count("@pith_allreduce") == 1  # in loops
    return [[names[int(number)] for number in call.split(",")] for call in calls]


def test_layers_that_are_ready_first_start_first() -> None:
    env = ONE_CORE | {"PITH_JAX_PART_BYTES": str(64 * 64 * 4)}
    assert run(parts_of_a_tied_model, 1, env=env) == [
        [["layer2"], ["layer1"], ["layer0"], ["token"]]
    ]
    assert run(parts_of_a_tied_model, 1, env=ONE_CORE) == [[]]  # too small: one call


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


def shared_arguments(rank: int, size: int) -> dict[str, bool]:
    """Arrays that the program uses elsewhere, too, or has in another order: the call has copies of its own."""
    spec = "qsgd"  # random numbers differ from leaf to leaf
    values = gradient(rank, 0, 0, (64, 64))
    x, kept = jnp.asarray(values), pith.jax.init({"a": values, "b": values}, spec)
    plain = jax.jit(lambda a, b: pith.jax.allreduce({"a": a, "b": b}, kept, spec)[0])

    def same(made: Any, a: Any, b: Any) -> bool:
        return bits(made) == bits(plain(jnp.array(a), jnp.array(b)))

    twice = jax.jit(lambda x: pith.jax.allreduce({"a": x, "b": x}, kept, spec)[0])(x)
    turned = jax.jit(lambda x: pith.jax.allreduce({"a": x.T, "b": x[::-1]}, kept, spec)[0])(x)
    constant = jax.jit(lambda: pith.jax.allreduce({"a": x, "b": x}, kept, spec)[0])
    found = {
        "twice": same(twice, values, values),
        "turned": same(turned, values.T.copy(), values[::-1].copy()),
        "constant": same(constant(), values, values) and same(constant(), values, values),
    }

    def loss(w: Any) -> Any:
        return jnp.sum(jax.checkpoint(lambda w: jnp.tanh(x @ w))(w) ** 2)

    again = jax.jit(lambda w: pith.jax.allreduce({"a": jax.grad(loss)(w), "b": w}, kept, spec)[0])
    found["checkpoint"] = same(again(x), jax.jit(jax.grad(loss))(x), values)
    return found | {"unchanged": bits(x) == [values.tobytes()]}


@pytest.mark.parametrize("env", [ONE_CORE, IN_PARTS])
def test_arrays_that_are_used_elsewhere_are_not_changed(env: dict[str, str]) -> None:
    for found in run(shared_arguments, 2, env=env):
        assert list(found.values()) == 5 * [True], found


def compiled_before(rank: int, size: int, folder: str) -> tuple[list[bytes], int]:
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    params = model_tree()
    step = jax.jit(lambda tree, state: pith.jax.allreduce(tree, state, SPEC))
    means, _ = step(noise(rank, 0, params), pith.jax.init(params, SPEC))
    return bits(means), events.count("/jax/compilation_cache/cache_hits")


def test_programs_of_the_compilation_cache_are_valid_in_the_next_process(tmp_path: Path) -> None:
    first = run(compiled_before, 2, str(tmp_path), env=ONE_CORE)
    kept = sorted(path.name for path in tmp_path.iterdir() if "-cache" in path.name)
    second = run(compiled_before, 2, str(tmp_path), env=ONE_CORE)
    assert any(name.startswith("jit__lambda") for name in kept)
    assert sorted(path.name for path in tmp_path.iterdir() if "-cache" in path.name) == kept
    for before, after in zip(first, second, strict=True):
        assert before[0] == after[0] and after[1] > 0


ADAPTIVE = "block/*=none;*=lgreco:ef/q:4,warmup=4"


def adapting(rank: int, size: int) -> dict[str, Any]:
    """Layers change their specs in a program that was compiled once. It is saved in the middle, and resumed."""
    shapes = {"large": (256, 64), "small": (32, 64), "block": [(48, 64)]}
    numbered, structure = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
    trees = [
        jax.tree.unflatten(
            structure, [gradient(rank, n, i, shape) / 10**i for i, shape in enumerate(numbered)]
        )
        for n in range(16)
    ]
    comm, traces = pith.Comm(), []
    pith.jax.initialize(comm)

    @jax.jit
    def step(tree: Any, state: Any) -> Any:
        traces.append(tree)
        return pith.jax.allreduce(tree, state, ADAPTIVE)

    def train(state: Any, first: int, last: int) -> tuple[list[list[bytes]], Any]:
        made = []
        for number in range(first, last):
            means, state = step(trees[number], state)
            made.append(bits(means))
        return made, state

    first, state = train(pith.jax.init(trees[0], ADAPTIVE), 0, 12)
    saved, kept = pith.jax.save(), state
    last, state = train(state, 12, 16)
    specs = {layer.name: layer.spec for layer in pith.jax.stats()}
    pith.jax.init(trees[0], ADAPTIVE)  # as a new process would begin
    pith.jax.load(saved)
    assert pith.jax.save() == saved
    resumed, _ = train(kept, 12, 16)
    expected = reduced_by(pith.Reducer(comm, ADAPTIVE), trees)
    comm.barrier()  # the first rank that fails ends what the other is doing
    with pytest.raises(FAILED, match="the state is of step 12, and the reduc"):
        train(kept, 12, 13)
    return {
        "same": first + last == expected,
        "resumed": resumed == last,
        "specs": specs,
        "traces": len(traces),
    }


def reduced_by(reducer: pith.Reducer, trees: list[Any]) -> list[list[bytes]]:
    leaves, _, _ = pith.jax._programs.leaves_of(trees[0])
    numbers = [reducer.add(leaf.name, leaf.shape, leaf.dtype) for leaf in leaves]
    found = []
    for tree in trees:
        values = [np.array(leaf) for leaf in jax.tree.leaves(tree)]
        for number, array in zip(numbers, values, strict=True):
            reducer.start(number, array)
        reducer.finish()
        found.append([array.tobytes() for array in values])
    return found


def test_adaptive_specs_have_the_bits_of_the_reducer_and_resume() -> None:
    found = run(adapting, 2, env=ONE_CORE)
    assert found[0] == found[1]
    assert found[0]["same"] and found[0]["resumed"] and found[0]["traces"] == 1
    specs = found[0]["specs"]
    assert specs["block/0"] == "none"
    assert specs["large"] != specs["small"]  # the plan has come


# ---- What is refused -------------------------------------------------------------------------------------------------


def refused_at_once(rank: int, size: int) -> dict[str, str]:
    """Mistakes that are told where they are made, before anything is sent."""
    params = model_tree()
    state = pith.jax.init(params, SPEC)
    alone = pith.jax.init(1.0, "none")
    texts: dict[str, str] = {}

    def note(what: str, call: Any) -> None:
        try:
            jax.block_until_ready(call())
            texts[what] = "no error"
        except pith.Error as error:
            texts[what] = f"{type(error).__name__}: {error}"

    whole = {"n": jnp.arange(3)}
    note("integer", lambda: pith.jax.init(whole, "q:4"))
    note("float0", lambda: pith.jax.init(jax.grad(lambda t: 0.0, allow_int=True)(whole), "q:4"))
    note("key", lambda: pith.jax.init({"k": jax.random.key(0)}, "q:4"))
    note("complex", lambda: pith.jax.init({"z": jnp.zeros(3, jnp.complex64)}, "q:4"))
    note("tree", lambda: pith.jax.allreduce({"block": jnp.zeros(3)}, state, SPEC))
    note("spec", lambda: pith.jax.allreduce(params, state, "b*=none;*=q:4"))
    note("shape", lambda: jax.jit(lambda t: pith.jax.allreduce(t, state, SPEC))(_wider(params)))
    note("state", lambda: pith.jax.allreduce(params, None, SPEC))
    note("range", lambda: pith.jax.init(params, "q:44"))
    note("rule", lambda: pith.jax.init(params, "kernel=none;*=q:4"))
    note("moment", lambda: pith.jax.init(params, "moment/onebit"))
    note("vmap", lambda: jax.vmap(lambda g: pith.jax.allreduce(g, alone, "none")[0])(jnp.ones(3)))
    note("grad", lambda: jax.grad(lambda g: pith.jax.allreduce(g, alone, "none")[0])(1.0))
    note("twice", lambda: pith.jax.initialize())
    return texts


def _wider(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.concatenate([x, x]), tree)


def test_mistakes_are_told_where_they_are_made() -> None:
    expected = {
        "integer": "ArgumentError: leaf n of the tree is int32: gradients are float32, float16, bfloat16",
        "float0": "ArgumentError: leaf n of the tree is ",
        "key": "ArgumentError: leaf k of the tree is key<fry>",
        "complex": "ArgumentError: leaf z of the tree is complex64",
        "tree": "ArgumentError: the state is of another tree than the gradients",
        "spec": "ArgumentError: the state has for the residual of leaf layer/kernel float32[48, 64], and its spec keeps nothing",
        "shape": "ArgumentError: the state has for the residual of leaf layer/kernel float32[48, 64], and its spec keeps float32[96, 64]",
        "state": "ArgumentError: the state is a NoneType: pith.jax.init() makes one",
        "range": "RangeError: ",
        "rule": 'SpecError: the rule "kernel=none" matches none of the 3 layers',
        "moment": "UnsupportedError: layer block/0: moment/onebit sends the momentum of an optimizer",
        "vmap": "UnsupportedError: pith.jax.allreduce cannot be batched",
        "grad": "UnsupportedError: pith.jax.allreduce cannot be differentiated",
        "twice": "ArgumentError: pith.jax is initialized",
    }
    for texts in run(refused_at_once, 2, env=ONE_CORE):
        for what, text in expected.items():
            assert texts[what].startswith(text), (what, texts[what])
        assert set(texts) == set(expected)


def different(rank: int, size: int, what: str) -> None:
    tree: Any = {"a": jnp.ones((64, 64)), "b": jnp.ones((64, 64))}
    spec, seed = "ef/q:4", 0
    if rank == 1:
        if what == "shape":
            tree["b"] = jnp.ones((64, 32))
        elif what == "name":
            tree = {"a": tree["a"], "c": tree["b"]}
        elif what == "type":
            tree["a"] = tree["a"].astype(jnp.bfloat16)
        elif what == "number":
            tree = {"a": tree["a"]}
        elif what == "empty":
            tree = {}
        elif what == "spec":
            spec = "ef/q:2"
        elif what == "seed":
            seed = 5
    state = pith.jax.init(tree, spec, seed=seed)
    if what == "rank":
        state = state._replace(token=jnp.asarray([0, 0, 0, size], jnp.uint32))
    if what == "step" and rank == 1:
        state = state._replace(token=state.token.at[0].set(7))
    jax.block_until_ready(pith.jax.allreduce(tree, state, spec, seed=seed))


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("shape", "layer 1, b on this rank, has another name, shape, type or spec on rank 1"),
        ("name", "has another name, shape, type or spec on rank 1 than on rank 0"),
        ("type", "layer 0, a on this rank, has another name, shape, type or spec on rank 1"),
        ("number", "rank 0 has 2 layers, rank 1 has 1"),
        ("empty", "rank 0 has 2 layers, rank 1 has 0"),
        ("spec", "rank 0 has the spec *=ef/q:4, rank 1 has *=ef/q:2"),
        ("seed", "rank 0 has the seed 0, rank 1 has 5"),
        ("rank", "the state is of rank 0 of 2, and this is rank 1"),
        ("step", "step"),
    ],
)
def test_ranks_that_disagree_are_an_error_on_all_of_them(what: str, text: str) -> None:
    for outcome in outcomes(different, 2, what, env=ONE_CORE):
        assert outcome.error is not None
        assert "pith: " in str(outcome.error)
        assert text in str(outcome.error), outcome.error


def on_two_devices(rank: int, size: int) -> None:
    devices = jax.local_devices()
    assert len(devices) == 2
    over = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, "x"), jax.P("x"))
    tree = jax.device_put(jnp.ones((64, 64)), over)
    state = pith.jax.init(tree, "q:4")
    jax.block_until_ready(jax.jit(lambda t, s: pith.jax.allreduce(t, s, "q:4"))(tree, state))


def test_more_than_one_device_of_a_process_is_an_error() -> None:
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    for outcome in outcomes(on_two_devices, 2, env=env):
        assert isinstance(outcome.error, pith.UnsupportedError)
        assert "the program is for 2 devices" in str(outcome.error)


def two_trees(rank: int, size: int) -> list[float]:
    """Two states in one program: the one waits for the other."""
    first, second = jnp.full((64, 64), rank + 1.0), jnp.full((32, 64), rank + 3.0)
    states = pith.jax.init(first, "none"), pith.jax.init(second, "none")

    @jax.jit
    def step(states: Any) -> Any:
        a, one = pith.jax.allreduce(first, states[0], "none")
        b, two = pith.jax.allreduce(second, states[1], "none", after=one)
        return (a[0, 0], b[0, 0]), (one._replace(token=one.token), two)

    for _ in range(20):
        means, states = step(states)
        jax.block_until_ready(states)
    return [float(mean) for mean in means]


def test_calls_with_different_states_can_be_ordered() -> None:
    assert run(two_trees, 2) == [[1.5, 3.5], [1.5, 3.5]]


# ---- Ranks that end --------------------------------------------------------------------------------------------------


def die_in_the_middle(rank: int, size: int) -> float:
    params = model_tree()
    state = pith.jax.init(params, SPEC)
    step = jax.jit(lambda t, s: pith.jax.allreduce(t, s, SPEC))
    for _ in range(3):
        state = step(params, state)[1]
    jax.block_until_ready(state)
    if rank == 2:
        time.sleep(0.5)  # the others wait for this rank
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(FAILED, match="rank 2"):
        jax.block_until_ready(step(params, state))
    waited = time.monotonic() - begun
    with pytest.raises(FAILED, match="rank 2"):  # and ever after
        jax.block_until_ready(step(params, state))
    return waited


@pytest.mark.parametrize("env", [ONE_CORE, IN_PARTS])
def test_a_rank_that_is_killed_is_an_exception_that_names_it_on_every_rank(
    env: dict[str, str],
) -> None:
    found = outcomes(die_in_the_middle, 3, env=env)
    assert found[2].ended == -signal.SIGKILL
    for outcome in found[:2]:
        assert outcome.error is None, outcome.trace
        assert outcome.value < 0.5 + 2


SCRIPT = """
import os, sys
import jax, jax.numpy as jnp
if "COORDINATOR" in os.environ:
    jax.distributed.initialize(os.environ["COORDINATOR"], 2, int(os.environ["PROCESS"]))
import pith.jax
tree = {"w": jnp.full((64, 64), 1.0 + pith.jax.rank())}
state = pith.jax.init(tree, "q:8")
step = jax.jit(lambda t, s: pith.jax.allreduce(t, s, "q:8"))
mean, state = step(tree, state)
print(f"rank {pith.jax.rank()} of {pith.jax.ranks()}: {float(mean['w'][0, 0]):g}", flush=True)
if sys.argv[1:] == ["raise"] and pith.jax.rank() == 1:
    raise ValueError("no more data")
for _ in range(5):
    mean, state = step(tree, state)  # and nobody waits for it
"""

EXPECTED = ["rank 0 of 2: 1.5", "rank 1 of 2: 1.5"]
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC")


def clean_environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_LAUNCHERS)}
    return kept | ONE_CORE | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}  # to compile quickly


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def lines_of(started: list[Any]) -> list[str]:
    """What all of them printed, where all of them end well and say nothing else."""
    found = []
    for process in started:
        out, error = process.communicate(timeout=90)
        assert process.returncode == 0 and "Traceback" not in error, out + error
        found += [line[-len(EXPECTED[0]) :] for line in out.split("\n") if line]
    return sorted(found)


def start(*command: str, **env: str) -> Any:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=clean_environment() | env, **pipes)


def test_ranks_of_pith_run_end_cleanly_with_steps_under_way(script: str) -> None:
    assert lines_of([start(command(), "run", "-n", "2", "--", sys.executable, script)]) == EXPECTED


def test_mpirun(script: str) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        needs.lacks("mpi", "there is no mpirun")
    found = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    is_open = "Open MPI" in found.stdout or "OpenRTE" in found.stdout
    as_root = ["--allow-run-as-root", "--oversubscribe"] if is_open else []
    assert lines_of([start(mpirun, *as_root, "-n", "2", sys.executable, script)]) == EXPECTED


def test_variables_of_srun(script: str) -> None:
    job = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_STEP_NODELIST": "localhost",
    }
    job |= {"PITH_PORT": str(free_port()), "MASTER_ADDR": "127.0.0.1"}
    ranks = [start(sys.executable, script, SLURM_PROCID=str(rank), **job) for rank in range(2)]
    assert lines_of(ranks) == EXPECTED


def test_processes_of_jax_distributed(script: str) -> None:
    job = {"COORDINATOR": f"127.0.0.1:{free_port()}"}
    ranks = [start(sys.executable, script, PROCESS=str(rank), **job) for rank in range(2)]
    assert lines_of(ranks) == EXPECTED


def test_without_a_launcher_the_error_says_what_to_do(script: str) -> None:
    process = start(sys.executable, script)
    _, error = process.communicate(timeout=90)
    assert process.returncode == 1 and "pith run" in error


def test_an_exception_of_one_rank_ends_the_others_and_is_told_to_them(script: str) -> None:
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PITH_PORT": str(free_port())}
    ranks = [start(sys.executable, script, "raise", RANK=str(rank), **job) for rank in range(2)]
    texts = [process.communicate(timeout=90)[1] for process in ranks]
    assert "ValueError: no more data" in texts[1]
    assert "rank 1 gave up: ValueError: no more data" in texts[0]


# ---- Momentum in place of gradients ----------------------------------------------------------------------------------

MOMENT = "*bias=none;*=moment,freeze=2/q:4"


def lost(state: pith.jax.State, name: str) -> np.ndarray:
    """What all ranks together have not sent yet of a layer: the mean of residuals, and what results have lost."""
    residual, result = np.array(state.residual[name]), np.array(state.result[name])
    comm = pith.jax._ranks.the_comm()
    comm.allreduce(residual, "mean")
    comm.allreduce(result, "sum")
    return residual + result


def momentum_travels(rank: int, size: int) -> dict[str, Any]:
    params = model_tree()
    sends = pith.jax.adamw(1e-2, MOMENT)
    plain = optax.chain(pith.jax.compress("none"), optax.adamw(1e-2))
    means = jax.jit(lambda g, s: pith.jax.allreduce(g, s, "none"))
    found: dict[str, Any] = {"conserved": [], "frozen": []}

    def step(optimizer: Any, params: Any, state: Any, number: Any) -> Any:
        updates, state = optimizer.update(noise(rank, number, params), state, params)
        return optax.apply_updates(params, updates), state

    ours, exact = (jax.jit(lambda p, s, n, o=o: step(o, p, s, n)) for o in (sends, plain))
    p, s = params, sends.init(params)
    q, t, u = params, plain.init(params), pith.jax.init(params, "none")
    for number in range(STEPS):
        before, had = s, lost(s.sent, "layer/kernel")
        p, s = jax.block_until_ready(ours(p, s, number))  # programs with other states have no order
        if number < 2:
            q, t = jax.block_until_ready(exact(q, t, number))
        mean, u = jax.block_until_ready(means(noise(rank, number, params), u))
        found["frozen"].append(int(s.frozen))
        if number >= 2:
            kernel = 0.9 * before.mu["layer"]["kernel"] + 0.1 * mean["layer"]["kernel"]
            expected = kernel + had - lost(s.sent, "layer/kernel")
            found["conserved"].append(
                bool(jnp.allclose(s.mu["layer"]["kernel"], expected, atol=1e-5))
            )
            found["constant"] = bits(s.nu["layer"]["kernel"]) == bits(before.nu["layer"]["kernel"])
        if number == 1:
            flat = zip(jax.tree.leaves(p), jax.tree.leaves(q), strict=True)
            found["adamw before"] = all(bool(jnp.allclose(a, b, atol=1e-6)) for a, b in flat)
            nu = s.nu["layer"]["kernel"]
            found["floor"] = bool(nu.min() >= 0.09 * nu.mean())
    found["parameters"] = bits(p)

    def scanned(params: Any, state: Any) -> Any:
        return jax.lax.scan(
            lambda c, n: (step(sends, *c, n), None), (params, state), jnp.arange(STEPS)
        )[0]

    found["scan"] = bits(jax.jit(scanned)(params, sends.init(params))[0]) == bits(p)

    settles = pith.jax.adamw(1e-2, "*=moment/onebit", b2=0.5)  # v looks back two steps
    state, same = settles.init(params), jax.jit(lambda s: settles.update(params, s, params)[1])
    for _ in range(12):
        state = same(state)
    found["settled after"] = int(state.frozen)
    texts = []
    for spec in ("moment:4/onebit", "moment,freeze=0.5/onebit", "q:4"):
        with pytest.raises(pith.Error) as raised:
            pith.jax.adamw(1e-2, spec).init(params)
        texts.append(str(raised.value))
    found["refused"] = texts
    return found


def test_momentum_travels_once_the_variance_is_frozen_and_nothing_of_it_is_lost() -> None:
    ranks = run(momentum_travels, 2, env=ONE_CORE)
    assert ranks[0].pop("parameters") == ranks[1].pop("parameters")
    for found in ranks:
        every, share, none = found.pop("refused")
        assert "exchanges in every step" in every
        assert "say how many steps that has" in share
        assert "no leaf has a spec that begins with moment" in none
        assert found == {
            "conserved": [True] * 4,
            "frozen": [0, 2, 2, 2, 2, 2],
            "constant": True,
            "adamw before": True,
            "floor": True,
            "scan": True,
            "settled after": 9,
        }


# ---- XLA's interface -------------------------------------------------------------------------------------------------

FIELDS = {
    ("xla_api", "XLA_FFI_Api"): {
        "version": "api_version",
        "error_create": "XLA_FFI_Error_Create",
        "error_message": "XLA_FFI_Error_GetMessage",
        "error_destroy": "XLA_FFI_Error_Destroy",
        "stream": "XLA_FFI_Stream_Get",
        "device_ordinal": "XLA_FFI_DeviceOrdinal_Get",
    },
    ("xla_frame", "XLA_FFI_CallFrame"): {
        "api": "api",
        "context": "ctx",
        "stage": "stage",
        "arguments": "args",
        "results": "rets",
        "attributes": "attrs",
    },
    ("xla_buffer", "XLA_FFI_Buffer"): {f: f for f in ("data", "rank", "dims")} | {"type": "dtype"},
    ("xla_list", "XLA_FFI_Args"): {"count": "size", "kinds": "types", "items": "args"},
    ("xla_list", "XLA_FFI_Rets"): {"count": "size", "kinds": "types", "items": "rets"},
    ("xla_attributes", "XLA_FFI_Attrs"): {"count": "size", "names": "names", "items": "attrs"},
    ("xla_metadata", "XLA_FFI_Metadata"): {"version": "api_version", "traits": "traits"},
    ("xla_metadata_extension", "XLA_FFI_Metadata_Extension"): {"metadata": "metadata"},
    ("xla_error_request", "XLA_FFI_Error_Create_Args"): {"message": "message", "code": "errc"},
    ("xla_error_message_request", "XLA_FFI_Error_GetMessage_Args"): {"message": "message"},
    ("xla_stream_request", "XLA_FFI_Stream_Get_Args"): {"context": "ctx", "stream": "stream"},
    ("xla_error_destroy_request", "XLA_FFI_Error_Destroy_Args"): {"error": "error"},
    ("xla_ordinal_request", "XLA_FFI_DeviceOrdinal_Get_Args"): {"ordinal": "device_ordinal"},
    ("xla_scalar", "XLA_FFI_Scalar"): {"type": "dtype", "value": "value"},
    ("xla_bytes", "XLA_FFI_ByteSpan"): {"data": "ptr", "size": "len"},
    ("xla_version", "XLA_FFI_Api_Version"): {"major": "major_version", "minor": "minor_version"},
}
NUMBERS = {
    "XLA_S64": "XLA_FFI_DataType_S64",
    "XLA_U8": "XLA_FFI_DataType_U8",
    "XLA_U32": "XLA_FFI_DataType_U32",
    "XLA_F16": "XLA_FFI_DataType_F16",
    "XLA_F32": "XLA_FFI_DataType_F32",
    "XLA_F64": "XLA_FFI_DataType_F64",
    "XLA_BF16": "XLA_FFI_DataType_BF16",
    "XLA_STAGE_EXECUTE": "XLA_FFI_ExecutionStage_EXECUTE",
    "XLA_KIND_BUFFER": "XLA_FFI_ArgType_BUFFER",
    "XLA_KIND_SCALAR": "XLA_FFI_AttrType_SCALAR",
    "XLA_EXTENSION_METADATA": "XLA_FFI_Extension_Metadata",
    "XLA_MAJOR": "XLA_FFI_API_MAJOR",
    "XLA_UNAVAILABLE": "XLA_FFI_Error_Code_UNAVAILABLE",
    "XLA_UNIMPLEMENTED": "XLA_FFI_Error_Code_UNIMPLEMENTED",
}


def test_structs_of_the_handler_are_those_of_the_header_of_jaxlib(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to ask")
    checks = [
        f"offsetof({ours}, {a}) == offsetof({theirs}, {b})"
        for (ours, theirs), fields in FIELDS.items()
        for a, b in fields.items()
    ]
    checks += [f"(int){ours} == (int){theirs}" for ours, theirs in NUMBERS.items()]
    checks += ["XLA_FFI_API_MINOR >= XLA_MINOR_FIRST"]
    source = tmp_path / "check.c"
    lines = [f'_Static_assert({check}, "{check}");' for check in checks]
    headers = '#include "xla/ffi/api/c_api.h"\n#include "xla_abi.h"\n'
    source.write_text(headers + "\n".join(lines))
    folders = [f"-I{jax.ffi.include_dir()}", f"-I{ROOT / 'src' / 'xla'}"]
    subprocess.run([compiler, "-std=c11", "-fsyntax-only", *folders, str(source)], check=True)


# ---- As a user has it ------------------------------------------------------------------------------------------------


def output_of(*arguments: str) -> str:
    process = start(command(), "run", "-n", "2", "--", sys.executable, *arguments)
    out, error = process.communicate(timeout=90)
    assert process.returncode == 0, out + error
    return out


def test_the_lines_of_the_page_run(tmp_path: Path) -> None:
    code, how = blocks_of("docs/jax.md", (ROOT / "docs" / "jax.md").read_text())
    assert commands_of(how.code) == ["pith run -n 2 -- python train.py"]
    program = tmp_path / "train.py"
    program.write_text(code.code)
    out = output_of(str(program))
    assert "hidden/kernel  ef/q:4  rule *" in out
    assert "out/bias       none    rule *bias" in out


def test_the_gpt_of_the_examples_learns() -> None:
    small = ["--width", "32", "--layers", "1", "--context", "16", "--steps", "20", "--lr", "1e-2"]
    out = output_of(str(ROOT / "examples" / "jax" / "gpt.py"), *small)
    found = re.search(
        r"loss (\S+) → (\S+), .*\n.*  (\S+) MB sent by each rank instead of (\S+)", out
    )
    assert found, out
    first, last, sent, exact = map(float, found.groups())
    assert last < first - 0.3
    assert exact > 3 * sent
