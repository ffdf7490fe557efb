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
