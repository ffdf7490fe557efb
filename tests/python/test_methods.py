# SPDX-License-Identifier: Apache-2.0
"""Methods written in Python: specs as any other, on one rank and on several; and their mistakes, which name them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

import needs
import pith
from ranks import outcomes, run

np = needs.module("numpy", "methods in Python need numpy")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register_all()


def register_all() -> None:
    """As a user's module does it, on every rank."""

    @pith.method("cut", bits="16")
    class Cut:
        """halves, times a factor."""

        def __init__(self, factor: float = 1.0, k: int = 3, way: Literal["a", "b"] = "a") -> None:
            if factor <= 0:
                raise ValueError("the factor must be positive")
            self.factor = factor

        def encode(self, x: Any) -> Any:
            return (x * self.factor).astype("float16")

        def decode(self, payload: Any, n: int) -> Any:
            return payload.astype("float32") / self.factor

    def dither(x: Any, ctx: Any) -> Any:
        return np.floor(x + ctx.rng().random(x.size, np.float32)).astype("int32")

    def undither(payload: Any, n: int, ctx: Any) -> Any:
        assert isinstance(ctx, pith.Where)
        return payload

    pith.register("dither", dither, undither)
    pith.register("two", lambda x: (x[:1], x[1:]), lambda p, n: np.concatenate(p))
    pith.register("raw", lambda x: x.tobytes(), lambda p, n: np.frombuffer(p, "float32"))
    pith.register("boom", lambda x: 1 / 0, lambda p, n: p)
    pith.register("short", lambda x: x, lambda p, n: p[:-1])
    pith.register("nan", lambda x: x, lambda p, n: p * np.nan)
    pith.register("long", lambda x: (x, x), lambda p, n: p[0])
    pith.register("odd", lambda x: x.astype("complex64"), lambda p, n: p)

    @pith.transform("flip", block=256)
    class Flip:
        """the other way round, times signs that follow from the place in the run."""

        def forward(self, x: Any, ctx: Any) -> Any:
            return x[::-1] * self.signs(x.size, ctx)

        def inverse(self, y: Any, ctx: Any) -> Any:
            return (y * self.signs(y.size, ctx))[::-1]

        def signs(self, n: int, ctx: Any) -> Any:
            return np.random.default_rng((ctx.seed, ctx.layer)).choice((-1, 1), n)

    @pith.memory("leaky")
    class Leaky:
        """a part of what was lost."""

        def __init__(self, beta: float = 0.9) -> None:
            self.beta = beta

        def compensate(self, gradient: Any, kept: Any) -> Any:
            return gradient + self.beta * kept

    @pith.memory("running", keeps="all")
    class Running:
        """a running mean."""

        def compensate(self, gradient: Any, kept: Any) -> Any:
            return 0.5 * kept + 0.5 * gradient

    @pith.transform("shorter")
    class Shorter:
        def forward(self, x: Any) -> Any:
            return x[:-1]

        def inverse(self, y: Any) -> Any:
            return y

    @pith.transform("stuck")
    class Stuck:
        def forward(self, x: Any) -> Any:
            return x

        def inverse(self, y: Any) -> Any:
            return 1 / 0

    @pith.memory("overflows")
    class Overflows:
        def compensate(self, gradient: Any, kept: Any) -> Any:
            return gradient * np.inf


def values(n: int = 1000) -> Any:
    return np.random.default_rng(0).standard_normal(n).astype("float32")


# ---- One rank


@pytest.mark.parametrize("spec", ["cut", "cut:2", "cut,k=7,way=b", "hadamard/cut", "two", "raw"])
def test_what_is_encoded_comes_back(spec: str) -> None:
    for n in (1, 7, 1000):
        x = values(n)
        y = pith.decode(pith.encode(x, spec), spec, n=n)
        assert np.abs(x - y).max() < 2e-3


@pytest.mark.parametrize("spec", ["ef/dither", "ef/hadamard/dither", "ef,store=8/dither"])
def test_error_feedback_keeps_what_is_lost(spec: str) -> None:
    codec, x = pith.Codec(spec), values() / 3
    state, sent = codec.state(x.size), np.zeros(x.size, np.float32)
    for step in range(20):
        codec.decode(codec.encode(x, state=state, step=step), sent, add=True, step=step)
    assert np.abs(sent - 20 * x).max() < 8  # 20 steps lose no more than one or two


def test_momentum_is_sent() -> None:
    codec, x = pith.Codec("momentum:0.5/cut"), values()
    state, first, second = codec.state(x.size), np.zeros_like(x), np.zeros_like(x)
    codec.decode(codec.encode(x, state=state), first)
    codec.decode(codec.encode(x, state=state), second)
    assert np.linalg.norm(second) > 1.2 * np.linalg.norm(first)


def test_random_numbers_follow_from_the_place_in_the_run() -> None:
    x = values() / 3
    assert pith.encode(x, "dither", step=1) == pith.encode(x, "dither", step=1)
    assert pith.encode(x, "dither", step=1) != pith.encode(x, "dither", step=2)
    assert pith.encode(x, "dither", rank=1) != pith.encode(x, "dither", rank=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_decoded_and_added(dtype: str) -> None:
    torch = needs.module("torch", "half types come from torch")
    x = torch.from_numpy(values()).to(getattr(torch, dtype))
    total = torch.ones_like(x)
    pith.decode(pith.encode(x, "cut"), "cut", total, add=True)
    assert torch.allclose(total.float(), x.float() + 1, atol=0.03)


def test_torch_tensors_are_given_where_they_are_wanted() -> None:
    torch = needs.module("torch", "methods on tensors of torch need it")

    @pith.method("tensors", tensors="torch")
    class Tensors:
        def encode(self, x: Any) -> Any:
            assert isinstance(x, torch.Tensor) and not torch.is_grad_enabled()
            return x.bfloat16(), torch.tensor([x.numel()])

        def decode(self, payload: Any, n: int) -> Any:
            assert payload[0].dtype == torch.bfloat16 and int(payload[1]) == n
            return payload[0].float()

    x = values()
    assert np.abs(pith.decode(pith.encode(x, "tensors"), "tensors", n=1000) - x).max() < 0.02


def test_rules_and_the_list_of_methods_know_it() -> None:
    rules = pith.Rules("embed*=ef/cut:2;*=q:4")
    assert rules.find("embed.weight", (100, 50)).spec == "ef/cut:2"
    found = next(m for m in pith.methods() if m.name == "cut")
    assert (found.family, found.summary) == ("Python", "halves, times a factor")
    assert [p.key for p in found.params] == ["factor", "k", "way"]


def test_a_cell_that_runs_again_replaces_the_functions() -> None:
    pith.register("again", lambda x: x, lambda p, n: p)
    pith.register("again", lambda x: x, lambda p, n: p + 1)
    assert np.allclose(pith.decode(pith.encode(values(), "again"), "again", n=1000), values() + 1)


# ---- Transforms and memories


@pytest.mark.parametrize("spec", ["flip/q:8", "flip/cut", "hadamard/q:8"])
@pytest.mark.parametrize("n", [1, 255, 256, 257, 5000])
def test_a_transform_is_undone(spec: str, n: int) -> None:
    x = values(n)
    y = pith.decode(pith.encode(x, spec, layer=3), spec, n=n, layer=3)
    assert np.abs(x - y).max() < 0.05


def test_a_transform_of_python_sees_blocks_and_the_place_in_the_run() -> None:
    x = values()
    assert pith.encode(x, "flip/q:8", layer=1) != pith.encode(x, "flip/q:8", layer=2)
    assert np.abs(pith.decode(pith.encode(x, "flip/q:8", layer=1), "q:8", n=1000) - x).max() > 1


@pytest.mark.parametrize("codec", ["q:2", "hadamard/q:2", "flip/q:2", "topk:0.05", "cut"])
def test_a_memory_that_forgets_nothing_is_error_feedback(codec: str) -> None:
    mine, theirs = pith.Codec(f"leaky:1/{codec}"), pith.Codec(f"ef/{codec}")
    a, b = mine.state(9000), theirs.state(9000)
    for step in range(5):
        x = values(9000) * (step + 1)
        assert mine.encode(x, state=a, step=step) == theirs.encode(x, state=b, step=step)


@pytest.mark.parametrize("codec", ["q:2", "flip/q:2", "topk:0.2"])
def test_nothing_of_a_gradient_is_lost_by_a_memory(codec: str) -> None:
    made, x = pith.Codec(f"leaky:1/{codec}"), values()
    state, sent = made.state(x.size), np.zeros(x.size, np.float32)
    for step in range(60):
        made.decode(made.encode(x, state=state, step=step), sent, add=True, step=step)
    assert np.abs(sent / 60 - x).max() < 0.35 * np.abs(x).max()
    assert np.linalg.norm(sent / 60 - x) < 0.1 * np.linalg.norm(x)


def test_a_memory_can_keep_all() -> None:
    made, x = pith.Codec("running/cut"), values()
    state, sent = made.state(x.size), np.zeros_like(x)
    for share in (0.5, 0.75, 0.875):
        made.decode(made.encode(x, state=state), sent)
        assert np.abs(sent - share * x).max() < 5e-3


def test_half_types_go_through_them() -> None:
    torch = needs.module("torch", "half types come from torch")
    x = torch.from_numpy(values()).bfloat16()
    made = pith.Codec("leaky/flip/q:8")
    y = torch.zeros_like(x)
    made.decode(made.encode(x, state=made.state(1000)), y)
    assert torch.allclose(x.float(), y.float(), atol=0.05)


@pytest.mark.parametrize("spec", ["leaky/flip/q:4", "leaky/q:4", "leaky/topk:0.1"])
def test_nan_goes_past_them_and_does_not_stay(spec: str) -> None:
    made, x = pith.Codec(spec), values()
    state, bad = made.state(1000), values()
    bad[7] = np.nan
    y = np.zeros_like(x)
    made.decode(made.encode(bad, state=state), y)
    assert np.isnan(y).any()
    made.decode(made.encode(x, state=state, step=1), y, step=1)
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    "spec, says",
    [
        ("shorter/q:4", "shorter: forward returned 999 values for 1000"),
        ("stuck/q:4", "stuck: inverse failed: ZeroDivisionError"),
        ("overflows/q:4", "overflows: compensate returned NaN"),
        ("overflows/topk:0.1", "overflows: compensate returned NaN"),
    ],
)
def test_mistakes_of_transforms_and_memories_name_them(spec: str, says: str) -> None:
    made = pith.Codec(spec)
    with pytest.raises(pith.PluginError, match=says):
        made.decode(made.encode(values(), state=made.state(1000)), values())


def test_what_they_lack_is_said_when_they_are_registered() -> None:
    empty = type("Empty", (), {})
    for register in (pith.transform, pith.memory):
        with pytest.raises(pith.ArgumentError, match="Empty has no"):
            register("empty")(empty)
    whole = type("Whole", (), {"forward": abs, "inverse": abs, "compensate": abs})
    with pytest.raises(pith.ArgumentError, match="block=0"):
        pith.transform("empty", block=0)(whole)
    with pytest.raises(pith.ArgumentError, match="keeps='some'"):
        pith.memory("empty", keeps="some")(whole)
    with pytest.raises(pith.PluginError, match="already a method"):
        pith.memory("ef")(whole)
    with pytest.raises(pith.UnsupportedError, match="a vote has no magnitude"):
        pith.Codec("leaky/signsgd")


# ---- Mistakes


def test_not_finite_values_arrive_as_nan_without_the_method() -> None:
    for bad in (np.nan, np.inf):
        x = values()
        x[3] = bad
        assert np.isnan(pith.decode(pith.encode(x, "boom"), "boom", n=1000)).all()


@pytest.mark.parametrize(
    "spec, says",
    [
        ("boom", "boom: encode failed: ZeroDivisionError"),
        ("short", "short: decode returned 999 values for a tensor of 1000"),
        ("nan", "nan: decode returned NaN"),
        ("long", "long: encode returned 8021 bytes for 1000 values, and its bound is 5024"),
        ("odd", "odd: encode failed: TypeError: encode returned values of type complex64"),
    ],
)
def test_a_mistake_names_the_method(spec: str, says: str) -> None:
    with pytest.raises(pith.PluginError, match=says.replace("(", r"\(")):
        pith.decode(pith.encode(values(), spec), spec, n=1000)


def test_parameters_are_checked() -> None:
    with pytest.raises(pith.RangeError, match="cut: a parameter failed: ValueError: the factor"):
        pith.Codec("cut:-1")
    with pytest.raises(pith.SpecError, match="did you mean"):
        pith.Codec("cut,wey=a")
    with pytest.raises(pith.PluginError, match="already a method"):
        pith.register("q", lambda x: x, lambda p, n: p)
    with pytest.raises(pith.ArgumentError, match="has no decode"):
        pith.method("half")(type("Half", (), {"encode": lambda self, x: x}))


@pytest.mark.parametrize(
    "payload", [b"", b"\2", b"\2\0\2", b"\7" * 40, b"\2\0\1\x0c" + b"\xff" * 8]
)
def test_bytes_from_elsewhere_are_refused(payload: bytes) -> None:
    x = values()
    before = x.copy()
    with pytest.raises(pith.CorruptError, match="two: "):
        pith.decode(payload, "two", x)
    assert (x == before).all()


# ---- Training


def _train(rank: int, size: int, spec: str, backend: str, through_host: bool = False) -> Any:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import pith.torch

    register_all()
    if through_host:  # as models on GPUs do it
        from pith.torch import _hook
        from pith.torch._host_engine import HostEngine

        _hook.engine_for = lambda *given: HostEngine(*given, in_order=False)
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    pith.torch.compress(model, spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(1 + rank)
    for _ in range(60):
        x = torch.randn(32, 64)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    table = pith.torch.stats(model)
    dist.destroy_process_group()
    return model.module.weight.detach().numpy(), loss.item(), table["weight"].spec


@pytest.mark.parametrize(
    "spec",
    ["leaky/q:2", "leaky:1/flip/q:4", "ef/flip/cut:4", "leaky/topk:0.05", "leaky:1/powersgd:2"],
)
def test_two_ranks_train_behind_a_memory_and_a_transform(spec: str) -> None:
    needs.module("torch", "training needs torch")
    (one, loss, _), (two, _, _) = run(_train, 2, spec, "pith")
    assert (one == two).all() and loss < 0.8


@pytest.mark.parametrize("codec", ["q:2", "powersgd:2"])
def test_two_ranks_get_the_bits_of_error_feedback(codec: str) -> None:
    needs.module("torch", "training needs torch")
    mine, theirs = (run(_train, 2, f"{memory}/{codec}", "pith")[0] for memory in ("leaky:1", "ef"))
    assert (mine[0] == theirs[0]).all()


def test_a_mistake_of_a_transform_in_training_names_it() -> None:
    needs.module("torch", "training needs torch")
    for outcome in outcomes(_train, 2, "ef/shorter/q:4", "pith"):
        assert outcome.error is not None and "shorter" in str(outcome.error)


@pytest.mark.parametrize("backend", ["pith", "gloo"])
def test_two_ranks_train_behind_error_feedback(backend: str) -> None:
    needs.module("torch", "training needs torch")
    (one, loss, spec), (two, _, _) = run(_train, 2, "ef/cut:4", backend)
    assert (one == two).all() and loss < 0.7 and spec == "ef/cut:4"


def test_the_way_of_gpu_gradients_through_main_memory_gives_the_same_bits() -> None:
    needs.module("torch", "training needs torch")
    (plain, _, _), _ = run(_train, 2, "ef/cut:4", "gloo")
    (copied, _, _), _ = run(_train, 2, "ef/cut:4", "gloo", True)
    assert (plain == copied).all()


def test_a_mistake_in_training_is_an_error_that_names_it() -> None:
    needs.module("torch", "training needs torch")
    for outcome in outcomes(_train, 2, "ef/boom", "pith"):
        assert outcome.error is not None and "boom" in str(outcome.error)


# ---- The command and the example


def test_bench_measures_a_method_of_a_file() -> None:
    command = [sys.executable, "-m", "pith", "bench", "codec", "-b", "64K", "-n", "2"]
    command += ["--import", str(ROOT / "examples/methods/sbc.py"), "--codec", "ef/sbc:0.02"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "ef/sbc:0.02" in found and "bits/value" in found


def test_a_module_that_failed_is_imported_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import pith\nraise ValueError('a slip')\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="a slip"):
            pith.import_methods(str(path))
    path.write_text("import pith\npith.register('after_a_slip', lambda x: x, lambda p, n: p)\n")
    pith.import_methods(str(path))
    assert pith.Codec("after_a_slip").spec == "after_a_slip"
