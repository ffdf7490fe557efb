"""Low rank for devices, whose matrix products run on the CPU as well: two pretended ranks, round by round."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import pith
from pith.torch._cuda import CudaState
from pith.torch._lowrank import LowRankParcel, Shape, orthonormal

CPU = torch.device("cpu")
RANKS = 2
SHAPES = {"a": (300, 257), "b": (300, 257), "c": (64, 64), "small": (6, 5)}


@dataclass
class Named:
    """What low rank wants to know of a layer."""

    name: str
    rows: int
    n: int
    number: int


LAYERS = [
    Named(name, rows, rows * cols, number)
    for number, (name, (rows, cols)) in enumerate(SHAPES.items())
]


def parcels(spec: str) -> list[LowRankParcel]:
    codec = pith.Codec(spec)
    return [
        LowRankParcel(LAYERS, [CudaState(layer, codec, CPU) for layer in LAYERS], 3, CPU, RANKS)  # type: ignore[arg-type]
        for _ in range(RANKS)
    ]


def gradients(step: int, rank: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Matrices of rank 2."""
    g = torch.Generator().manual_seed(10 * step + rank)
    return [
        (torch.randn(rows, 2, generator=g) @ torch.randn(2, cols, generator=g)).to(dtype)
        for rows, cols in SHAPES.values()
    ]


def reduce(ranks: list[LowRankParcel], given: list[list[torch.Tensor]]) -> None:
    for index in range(2):
        buffers = [torch.empty(max(1, p.counts[index])) for p in ranks]
        for parcel, mine, buffer in zip(ranks, given, buffers, strict=True):
            parcel.produce(index, mine, buffer)
        total = torch.stack(buffers).sum(0)
        for parcel, mine in zip(ranks, given, strict=True):
            parcel.consume(index, total.clone(), mine)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("spec", ["powersgd:4", "ef/powersgd:4"])
def test_a_mean_of_that_rank_is_exact_and_the_same_on_all_ranks(spec: str) -> None:
    ranks, given = parcels(spec), [gradients(0, r) for r in range(RANKS)]
    exact = [sum(layer) / RANKS for layer in zip(*given, strict=True)]
    reduce(ranks, given)
    for first, second, wanted in zip(*given, exact, strict=True):
        assert torch.equal(first, second)
        assert distance(first, wanted) < 1e-5


def test_what_is_lost_comes_later() -> None:
    ranks = parcels("ef/powersgd:1")
    sent, all_given = [torch.zeros(s) for s in SHAPES.values()], [torch.zeros(s) for s in SHAPES.values()]
    for step in range(3):
        given = [gradients(step, r) for r in range(RANKS)]
        for layer, total in enumerate(all_given):
            total += sum(g[layer] for g in given) / RANKS
        reduce(ranks, given)
        for total, mean in zip(sent, given[0], strict=True):
            total += mean
    for layer, (a, b) in enumerate(zip(sent, all_given, strict=True)):
        kept = sum(p._states[layer].tensors["memory"] for p in ranks) / RANKS
        assert distance(a.view(-1) + kept, b.view(-1)) < 1e-5


def test_halves_are_reduced_too() -> None:
    ranks, given = parcels("ef/powersgd:4"), [gradients(0, r, torch.bfloat16) for r in range(RANKS)]
    exact = [sum(g.float() for g in layer) / RANKS for layer in zip(*given, strict=True)]
    reduce(ranks, given)
    for mean, wanted in zip(given[0], exact, strict=True):
        assert distance(mean.float(), wanted) < 0.1  # rounding adds what has full rank


def test_what_is_not_finite_does_not_stay() -> None:
    ranks, given = parcels("ef/powersgd:4"), [gradients(0, r) for r in range(RANKS)]
    given[1][0][3, 4] = float("nan")
    reduce(ranks, given)
    assert not torch.isfinite(given[0][0]).all()
    for parcel in ranks:
        for state in parcel._states:
            assert torch.isfinite(state.tensors["memory"]).all()
    given = [gradients(1, r) for r in range(RANKS)]
    reduce(ranks, given)
    assert torch.isfinite(given[0][0]).all()


def test_a_checkpoint_resumes_with_the_same_bits() -> None:
    straight, resumed = parcels("ef/powersgd:2"), parcels("ef/powersgd:2")
    reduce(straight, [gradients(0, r) for r in range(RANKS)])
    for old, new in zip(straight, resumed, strict=True):
        for a, b in zip(old._states, new._states, strict=True):
            b.load(a.save())
    one, other = ([gradients(1, r) for r in range(RANKS)] for _ in range(2))
    reduce(straight, one)
    reduce(resumed, other)
    for a, b in zip(one[0], other[0], strict=True):
        assert torch.equal(a, b)


def test_directions_are_made_orthonormal() -> None:
    factors = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(1))
    factors[2] = 0
    made = orthonormal(factors)
    assert (made[:2] @ made[:2].mT - torch.eye(4)).abs().max() < 1e-5
    assert torch.equal(made[2], torch.zeros(4, 50))


def test_shapes_are_those_of_the_codec() -> None:
    codec = pith.Codec("powersgd:4")
    assert Shape.of(LAYERS[0], codec) == Shape(300, 257, 4, dense=False)  # type: ignore[arg-type]
    assert Shape.of(LAYERS[3], codec).dense  # type: ignore[arg-type]
