# SPDX-License-Identifier: Apache-2.0
"""pith.tensorflow: the bits of pith.Comm and pith.torch, tapes in eager mode and in functions, ranks that die or disagree.

TensorFlow takes seconds to import, so a few processes check many things each.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import needs
import pith
from pages import blocks_of, commands_of
from pith import _library as c
from ranks import free_port, outcomes, run
from test_launchers import command

ROOT = Path(__file__).resolve().parents[2]
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@pytest.fixture(scope="module", autouse=True)
def tensorflow() -> None:
    """Ranks import it; here it is enough that they can."""
    import importlib.util

    if importlib.util.find_spec("tensorflow") is None:
        needs.lacks("tensorflow", "pith.tensorflow needs it (pip install tensorflow-cpu)")


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


def product_of(names: list[str]) -> Any:
    """A model of torch in DDP whose gradients are what is put in."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in names:
                self.register_parameter(name, torch.nn.Parameter(torch.zeros(48, 64)))

        def forward(self, *tensors: Any) -> Any:
            return sum((getattr(self, n) * x).sum() for n, x in zip(names, tensors, strict=True))

    return DistributedDataParallel(Product())


def against_others(comm: pith.Comm, with_torch: bool) -> list[tuple[str, bool, bool]]:
    """A gradient for each spec in one call, single allreduces of a comm, and gradients that DDP has reduced."""
    import tensorflow as tf

    import pith.tensorflow

    all_specs = [spec for spec in specs() if pith.Codec(spec).spec != "none" or not with_torch]
    names = [f"leaf{i}" for i in range(len(all_specs))]
    rules = ";".join(f"{name}={spec}" for name, spec in zip(names, all_specs, strict=True))
    variables = [tf.Variable(tf.zeros((48, 64)), name=name) for name in names]
    options: dict[str, Any] = {"rules": rules, "seed": 3, "comm": comm}
    step = tf.function(lambda g: pith.tensorflow.allreduce(g, variables, **options))
    kept = {spec: pith.State(pith.Codec(spec), 48 * 64, 48) for spec in all_specs}
    model = None
    if with_torch:
        import torch

        import pith.torch

        os.environ |= {"WORLD_SIZE": str(comm.ranks), "MASTER_PORT": os.environ["OTHER_PORT"]}
        torch.distributed.init_process_group("pith")
        model = product_of(names)
        pith.torch.compress(model, rules=rules, seed=3)
    same = {spec: [True, True] for spec in all_specs}
    for number in range(3):
        arrays = [gradient(comm.rank, number, i) for i in range(len(names))]
        means = [mean.numpy().tobytes() for mean in step([tf.constant(a) for a in arrays])]
        if model is not None:
            model.zero_grad()
            model(*map(torch.from_numpy, arrays)).backward()
        for i, spec in enumerate(all_specs):
            if model is not None:
                reduced = getattr(model.module, names[i]).grad.numpy()
                same[spec][1] &= means[i] == reduced.tobytes()
            where = {"seed": 3, "step": number, "layer": c.lib.pith_layer_number(names[i].encode())}
            comm.allreduce(arrays[i], "mean", codec=spec, state=kept[spec], **where)
            same[spec][0] &= means[i] == arrays[i].tobytes()
    if model is not None:
        torch.distributed.destroy_process_group()
    return [(spec, *found) for spec, found in same.items()]


def on_fewer_and_fewer_ranks(rank: int, size: int) -> dict[int, list[tuple[str, bool, bool]]]:
    comm, found = pith.Comm(), {}
    for ranks in (4, 3, 2):
        part = comm.split(int(rank >= ranks), rank)
        if rank < ranks:
            found[ranks] = against_others(part, with_torch=ranks == 2)
    comm.barrier()
    return found


def test_means_of_every_codec_with_and_without_memory_are_those_of_a_comm_and_of_torch() -> None:
    ranks = run(on_fewer_and_fewer_ranks, 4, env=QUIET | {"OTHER_PORT": str(free_port())})
    assert sorted(ranks[0]) == [2, 3, 4]
    for found in ranks:
        for size, outcome in found.items():
            assert len(outcome) > 40
            assert [(size, spec) for spec, *same in outcome if not all(same)] == []


# ---- Tapes -----------------------------------------------------------------------------------------------------------

SPEC = "*b=none;*=ef/q:4"


class Net:
    """Two layers whose gradients are the numbers of a table, so that compilers have nothing to round."""

    def __init__(self, dtype: str = "float32") -> None:
        import tensorflow as tf

        self.w = tf.Variable(tf.cast(gradient(9, 9, 0), dtype), name="layer/w")
        self.b = tf.Variable(tf.zeros(64, dtype), name="layer/b")
        self.out = tf.Variable(tf.cast(gradient(9, 9, 1), dtype), name="out/w")
        self.variables = [self.w, self.b, self.out]

    def loss(self, tables: Any) -> Any:
        import tensorflow as tf

        parts = zip(self.variables, tables, strict=True)
        return tf.add_n([tf.reduce_sum(v * t) for v, t in parts])

    def tables(self, rank: int, step: int) -> list[Any]:
        import tensorflow as tf

        shapes = [tuple(v.shape) for v in self.variables]
        found = [gradient(rank, step, i, shape) for i, shape in enumerate(shapes)]
        return [tf.cast(table, self.w.dtype) for table in found]

    def bits(self) -> list[bytes]:
        return [variable.numpy().tobytes() for variable in self.variables]


def train(net: Net, rank: int, first: int, last: int, how: str, spec: str = SPEC) -> None:
    import tensorflow as tf

    import pith.tensorflow

    def step(tables: Any) -> None:
        if how == "context":
            with pith.tensorflow.DistributedGradientTape(tf.GradientTape(), spec) as tape:
                loss = net.loss(tables)
        else:
            with tf.GradientTape(persistent=how == "persistent") as tape:
                loss = net.loss(tables)
            tape = pith.tensorflow.DistributedGradientTape(tape, spec)
        sources = dict(enumerate(net.variables)) if how == "structure" else net.variables
        means = tf.nest.flatten(tape.gradient(loss, sources))
        for variable, mean in zip(net.variables, means, strict=True):
            variable.assign_sub(0.125 * tf.cast(mean, variable.dtype))

    chosen = step if how == "eager" else tf.function(step)
    for number in range(first, last):
        chosen(net.tables(rank, number))


def tapes_and_corners(rank: int, size: int) -> dict[str, Any]:
    import tensorflow as tf

    import pith.tensorflow

    found: dict[str, Any] = {}
    nets = {}
    for how in ("function", "eager", "context", "persistent", "structure"):
        nets[how] = Net()
        train(nets[how], rank, 0, 4, how)
    found["however written"] = len({tuple(net.bits()) for net in nets.values()})
    found["parameters"] = nets["function"].bits()

    # A checkpoint in the middle: a new model with the values and states of then has the same bits at the end.
    half = Net()
    train(half, rank, 0, 2, "function")
    values, saved = [v.numpy() for v in half.variables], pith.tensorflow.save()
    train(half, rank, 2, 4, "function")
    found["went on"] = half.bits() == nets["function"].bits()
    for variable, value in zip(half.variables, values, strict=True):
        variable.assign(value)
    pith.tensorflow.load(saved)
    train(half, rank, 2, 4, "eager")
    found["resumed"] = half.bits() == nets["function"].bits()

    for dtype in ("float16", "bfloat16", "float64"):
        net = Net(dtype)
        reducer = pith.Reducer(pith.tensorflow._ranks.the_comm(), SPEC)
        means = tf.function(
            lambda t, net=net: pith.tensorflow.allreduce(t, net.variables, SPEC, seed=0)
        )(net.tables(rank, 0))
        arrays = [np.array(table) for table in net.tables(rank, 0)]
        for variable, name in zip(net.variables, ("layer/w", "layer/b", "out/w"), strict=True):
            exact = "float64" if dtype == "float64" else None
            reducer.add(name, variable.shape, dtype, exact=exact)
        for number, array in enumerate(arrays):
            reducer.start_at(number, array.ctypes.data)
        reducer.finish()
        assert {mean.dtype.name for mean in means} == {dtype}
        found[dtype] = [m.numpy().tobytes() for m in means] == [a.tobytes() for a in arrays]

    scalar, unused = tf.Variable(0.0, name="scalar"), tf.Variable(tf.zeros((64, 64)), name="unused")
    for run_it in (lambda f: f(), lambda f: tf.function(f)()):
        means = run_it(
            lambda: pith.tensorflow.allreduce([tf.constant(float(rank)), None], [scalar, unused])
        )
        found.setdefault("scalar and none", []).append((float(means[0]), means[1]))
    assert pith.tensorflow.allreduce([], []) == []
    bad = Net()
    tables = bad.tables(rank, 0)
    tables[0] = tf.where(tf.range(64) == 5, float("nan") if rank else 1.0, tables[0])
    means = pith.tensorflow.allreduce(tables, bad.variables, SPEC)
    found["nan"] = bool(np.isnan(means[0][0, 5]))
    return found | rows(rank) | adaptive(rank) | refused(rank)


def rows(rank: int) -> dict[str, Any]:
    """Rows of an embedding, of which ranks have different numbers: gathered, or made dense."""
    import tensorflow as tf

    import pith.tensorflow

    table = tf.Variable(tf.ones((100, 32)), name="table")
    found = []
    for dense in (False, True):

        def step(indices: Any, dense: bool = dense) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, indices)) * (rank + 1)
            tape = pith.tensorflow.DistributedGradientTape(tape, "q:8", sparse_as_dense=dense)
            return tape.gradient(loss, [table])[0]

        mine = tf.constant([3, 5] if rank else [3, 7, 7])
        for call in (step, tf.function(step, input_signature=[tf.TensorSpec([None], tf.int32)])):
            mean = call(mine)
            assert isinstance(mean, tf.IndexedSlices) != dense
            whole = tf.convert_to_tensor(mean).numpy()
            found.append([round(float(whole[k, 0]), 2) for k in (3, 5, 7, 9)])
    layer = pith.tensorflow.stats()["table"]
    return {"rows": found, "rows in the table": (layer.spec, layer.reason, layer.steps)}


def adaptive(rank: int) -> dict[str, Any]:
    """A spec that plans while the model is trained."""
    import pith.tensorflow

    net = Net()
    train(net, rank, 0, 12, "function", "lgreco:q:4,warmup=4,period=32")
    return {"adaptive": net.bits(), "layers": len(pith.tensorflow.stats()) > 10}


def refused(rank: int) -> dict[str, Any]:
    """Mistakes in the arguments."""
    import tensorflow as tf

    import pith.tensorflow

    net, texts = Net(), []
    tables = net.tables(rank, 0)
    calls = [
        lambda: pith.tensorflow.allreduce(tables, net.variables, "q:44"),
        lambda: pith.tensorflow.allreduce(tables, net.variables, "kernel=none;*=q:4"),
        lambda: pith.tensorflow.allreduce(tables, net.variables[:2]),
        lambda: pith.tensorflow.allreduce(tables, tables),
        lambda: pith.tensorflow.allreduce(tables, net.variables, "moment/onebit"),
        lambda: pith.tensorflow.allreduce([tables[0]], [tf.Variable([1], name="n")]),
        lambda: pith.tensorflow.initialize(),
    ]
    for call in calls:
        with pytest.raises(pith.Error) as raised:
            call()
        texts.append(f"{type(raised.value).__name__}: {raised.value}")
    return {"refused": texts}


def test_tapes_checkpoints_types_rows_and_adaptive_specs() -> None:
    ranks = run(tapes_and_corners, 2, env=QUIET)
    assert ranks[0].pop("parameters") == ranks[1].pop("parameters")
    assert ranks[0].pop("adaptive") == ranks[1].pop("adaptive")
    for found in ranks:
        begins = found.pop("refused")
        for text, expected in zip(
            begins,
            [
                "RangeError: ",
                'SpecError: the rule "kernel=none" matches none of the 3 layers',
                "ArgumentError: 3 gradients for 2 variables",
                "ArgumentError: EagerTensor is no variable",
                "UnsupportedError: layer ",
                "ArgumentError: variable n is int32",
                "ArgumentError: pith.tensorflow is initialized",
            ],
            strict=True,
        ):
            assert text.startswith(expected), text
        assert found == {
            "however written": 1,
            "went on": True,
            "resumed": True,
            "float16": True,
            "bfloat16": True,
            "float64": True,
            "scalar and none": [(0.5, None)] * 2,
            "nan": True,
            "rows": [[1.5, 1.0, 1.0, 0.0]] * 4,
            "rows in the table": ("none", "rows (IndexedSlices) are gathered exactly", 2),
            "layers": True,
        }


# ---- Ranks that disagree or end --------------------------------------------------------------------------------------

DIFFERENCES = {
    "shape": "layer 1, b on this rank, has another name, shape, type or spec on rank 1",
    "name": "has another name, shape, type or spec on rank 1 than on rank 0",
    "type": "layer 0, a on this rank, has another name, shape, type or spec on rank 1",
    "number": "rank 0 has 2 layers, rank 1 has 1",
    "spec": "rank 0 has the spec *=ef/q:4, rank 1 has *=ef/q:2",
    "seed": "rank 0 has the seed 0, rank 1 has 5",
    "none": "rank",
    "broadcast": "rank",
}


def different(rank: int, size: int, ports: dict[str, int]) -> dict[str, str]:
    """All in one process, each on a comm of its own, which ends with the error."""
    import tensorflow as tf

    import pith.tensorflow

    texts = {}
    for what, port in ports.items():
        comm = pith.Comm(port=port)
        shape, name, dtype, spec, seed = (64, 64), "b", tf.float32, "ef/q:4", 0
        if rank == 1:
            shape = (64, 32) if what in ("shape", "broadcast") else shape
            name = "c" if what == "name" else name
            dtype = tf.bfloat16 if what == "type" else dtype
            spec = "ef/q:2" if what == "spec" else spec
            seed = 5 if what == "seed" else seed
        variables = [
            tf.Variable(tf.zeros((64, 64), dtype), name="a"),
            tf.Variable(tf.zeros(shape), name=name),
        ]
        variables = variables[:1] if what == "number" and rank == 1 else variables
        gradients: list[Any] = [tf.ones_like(variable) for variable in variables]
        if what == "none" and rank == 1:
            gradients[1] = None
        options = {"spec": spec, "seed": seed, "comm": comm}

        @tf.function
        def step(
            gradients: Any = gradients, variables: Any = variables, options: Any = options
        ) -> Any:
            return pith.tensorflow.allreduce(gradients, variables, **options)

        with pytest.raises((tf.errors.OpError, pith.Error)) as raised:
            if what == "broadcast":
                pith.tensorflow.broadcast_variables(variables, comm=comm)
            step()
        texts[what] = str(raised.value)
    return texts


def test_ranks_that_disagree_are_an_error_on_all_of_them() -> None:
    ports = {what: free_port() for what in DIFFERENCES}
    for texts in run(different, 2, ports, env=QUIET):
        for what, text in DIFFERENCES.items():
            assert text in texts[what], (what, texts[what])


def die_in_the_middle(rank: int, size: int) -> float:
    import tensorflow as tf

    import pith.tensorflow

    net = Net()
    pith.tensorflow.broadcast_variables(net.variables)
    step = tf.function(lambda t: pith.tensorflow.allreduce(t, net.variables, SPEC))
    for number in range(3):
        step(net.tables(rank, number))
    if rank == 2:
        time.sleep(0.5)  # the others wait for this rank
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(tf.errors.OpError, match="rank 2"):
        step(net.tables(rank, 3))
    waited = time.monotonic() - begun
    with pytest.raises(pith.Error, match="rank 2"):  # and ever after
        pith.tensorflow.allreduce(net.tables(rank, 4), net.variables, SPEC)
    return waited


def test_a_rank_that_is_killed_is_an_exception_that_names_it_on_every_rank() -> None:
    found = outcomes(die_in_the_middle, 3, env=QUIET)
    assert found[2].ended == -signal.SIGKILL
    for outcome in found[:2]:
        assert outcome.error is None, outcome.trace
        assert outcome.value < 0.5 + 2


# ---- As a user has it ------------------------------------------------------------------------------------------------


def output_of(*arguments: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    process = subprocess.run(
        [command(), "run", "-n", "2", "--", sys.executable, *arguments],
        env=kept | QUIET,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_the_lines_of_the_page_run(tmp_path: Path) -> None:
    code, how = blocks_of("docs/tensorflow.md", (ROOT / "docs" / "tensorflow.md").read_text())
    assert commands_of(how.code) == ["pith run -n 2 -- python train.py"]
    program = tmp_path / "train.py"
    program.write_text(code.code)
    out = output_of(str(program))
    assert "layer/kernel  ef/q:4  rule *" in out
    assert "layer/bias    none    rule *bias" in out


def test_the_digits_of_the_examples_are_learned() -> None:
    needs.module("sklearn", "the digits come with scikit-learn")
    example = ROOT / "examples" / "tensorflow" / "digits.py"
    out = output_of(str(example), "--steps", "60", "--width", "128")
    found = re.search(r"loss (\S+) → (\S+), (\S+)% of .*\n.*\n.* (\S+) times less", out)
    assert found, out
    first, last, right, less = map(float, found.groups())
    assert last < first / 3 and right > 80 and less > 5
