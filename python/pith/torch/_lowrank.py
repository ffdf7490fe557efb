"""Low rank on GPUs: powersgd's two rounds by torch's matrix products, layers of one shape at a time.

The mathematics is that of src/codec/powersgd.c. What a layer keeps (the residual, the last factor) is a view of a tensor for all layers of
its shape, so that a step takes a few launches whatever the number of layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._codec import Codec
from ._layers import Layer


def is_low_rank(codec: Codec) -> bool:
    return codec.parts.split("/")[-1].startswith("powersgd")


@dataclass(frozen=True)
class Shape:
    """A layer as a matrix. One that rank r would not make half as small travels as it is."""

    rows: int
    cols: int
    rank: int
    dense: bool

    @staticmethod
    def of(layer: Layer, codec: Codec) -> Shape:
        rank = int(codec.parts.split("/")[-1].partition(":")[2] or 4)
        rows = layer.rows if 0 < layer.rows <= layer.n else max(1, math.isqrt(layer.n))
        cols = -(-layer.n // rows)
        return Shape(rows, cols, rank, rows * cols != layer.n or 2 * rank * (rows + cols) > layer.n)

    def counts(self) -> tuple[int, int]:
        """Values of the two rounds."""
        return (0, self.rows * self.cols) if self.dense else (self.rank * self.rows, self.rank * self.cols)


def orthonormal(factors: torch.Tensor) -> torch.Tensor:
    """The same directions, at right angles and of length 1, for each of many (rank × n): L⁻¹P with LLᵀ = PPᵀ."""
    wide = factors.double()
    gram = wide @ wide.mT
    size = gram.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    gram += (1e-12 * size + 1e-60) * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    lower = torch.linalg.cholesky_ex(gram).L
    return torch.linalg.solve_triangular(lower, wide, upper=False).float()


class Stack:
    """Layers of one shape in a parcel: numbers in it, and their common tensors."""

    def __init__(self, shape: Shape, members: list[int], first: tuple[int, int]) -> None:
        self.shape, self.members, self.first = shape, members, first
        self.memory: torch.Tensor | None = None  # layers × rows × cols
        self.factor, self.drawn, self.left = torch.empty(0), torch.empty(0), torch.empty(0)

    def piece(self, buffer: torch.Tensor, index: int) -> torch.Tensor:
        """Of a round's buffer: one matrix for each layer; of layers as they are, their values."""
        width = self.shape.counts()[index]
        part = buffer[self.first[index] : self.first[index] + width * len(self.members)]
        return part.view(len(self.members), -1) if self.shape.dense else part.view(len(self.members), self.shape.rank, -1)


class LowRankParcel:
    """The layers of a parcel. States are those of :mod:`._cuda`; their tensors become views of the stacks'."""

    def __init__(self, layers: Sequence[Layer], states: Sequence[Any], seed: int, device: torch.device, ranks: int) -> None:
        self._layers, self._states, self._seed, self._device, self._ranks = layers, states, seed, device, ranks
        self._beta, self._share = _weights(states[0].codec)
        self._keeps_lost = states[0].kind == "ef"
        self.stacks: list[Stack] = []
        by_shape: dict[Shape, list[int]] = {}
        for index, (layer, state) in enumerate(zip(layers, states, strict=True)):
            by_shape.setdefault(Shape.of(layer, state.codec), []).append(index)
        first = (0, 0)
        for shape, members in by_shape.items():
            self.stacks.append(self._stack(shape, members, first))
            first = tuple(a + b * len(members) for a, b in zip(first, shape.counts(), strict=True))  # type: ignore[assignment]
        self.counts = first

    def _stack(self, shape: Shape, members: list[int], first: tuple[int, int]) -> Stack:
        stack = Stack(shape, members, first)
        states = [self._states[i] for i in members]
        if states[0].get("memory") is not None:
            stack.memory = torch.stack([state.tensors["memory"] for state in states]).view(len(members), shape.rows, -1)
            _point(states, "memory", stack.memory.view(len(members), -1))
        if not shape.dense:
            stack.drawn = torch.stack([self._drawn(shape, self._layers[i]) for i in members])
            known = all("factor" in state.tensors for state in states)
            stack.factor = torch.stack([state.tensors["factor"] for state in states]) if known else stack.drawn.clone()
            _point(states, "factor", stack.factor)
        return stack

    def _drawn(self, shape: Shape, layer: Layer) -> torch.Tensor:
        """Random, the same on every rank."""
        generator = torch.Generator().manual_seed((self._seed ^ layer.number) & (2**63 - 1))
        return (2.0 * torch.rand(shape.rank, shape.cols, generator=generator) - 1.0).to(self._device)

    # ---- Rounds

    def produce(self, index: int, gradients: Sequence[torch.Tensor], buffer: torch.Tensor) -> None:
        if index == 0:
            self._meet(gradients)
        for stack in self.stacks:
            piece = stack.piece(buffer, index)
            if stack.shape.dense:
                if index == 1:
                    for at, i in enumerate(stack.members):
                        piece[at].copy_(self._values(stack, at, gradients[i]).view(-1))
                continue
            side = stack.factor if index == 0 else stack.left
            if stack.memory is not None:
                torch.bmm(side, stack.memory.mT if index == 0 else stack.memory, out=piece)
                continue
            for at, i in enumerate(stack.members):
                matrix = gradients[i].reshape(stack.shape.rows, -1).float()
                torch.mm(side[at], matrix.T if index == 0 else matrix, out=piece[at])

    def consume(self, index: int, buffer: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
        if index == 0:
            for stack in self.stacks:
                if not stack.shape.dense:
                    stack.left = orthonormal(stack.piece(buffer, 0))
            return
        buffer.mul_(1.0 / self._ranks)
        for stack in self.stacks:
            piece = stack.piece(buffer, 1)
            if not stack.shape.dense:
                _renew(stack, piece)
            for at, i in enumerate(stack.members):
                _write(stack, at, piece, gradients[i])
            self._settle(stack, piece)

    def _values(self, stack: Stack, at: int, gradient: torch.Tensor) -> torch.Tensor:
        return gradient if stack.memory is None else stack.memory[at]

    def _meet(self, gradients: Sequence[torch.Tensor]) -> None:
        """Gradients join what was kept."""
        kept = [state.get("memory") for state in self._states]
        if kept[0] is None:
            return
        if self._beta != 1.0:
            torch._foreach_mul_(kept, self._beta)
        torch._foreach_add_(kept, [g.reshape(-1).float() for g in gradients], alpha=self._share)

    def _settle(self, stack: Stack, piece: torch.Tensor) -> None:
        """What was lost stays; what is not finite does not."""
        if stack.memory is None:
            return
        if self._keeps_lost and stack.shape.dense:
            stack.memory.sub_(piece.view_as(stack.memory))
        elif self._keeps_lost:
            stack.memory.baddbmm_(stack.left.mT, piece, alpha=-1)
        stack.memory.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _point(states: Sequence[Any], name: str, tensors: torch.Tensor) -> None:
    for state, tensor in zip(states, tensors, strict=True):
        state.tensors[name] = tensor


def _weights(codec: Codec) -> tuple[float, float]:
    """By what the memory multiplies what was kept, and the gradient."""
    name, _, rest = codec.parts.split("/")[0].partition(":")
    if name == "momentum":
        beta = float(rest.split(",")[0]) if rest else 0.9
        return beta, 1.0 - beta
    return (float(rest.split(",")[0]) if name == "ef" and rest else 1.0), 1.0


def _renew(stack: Stack, factor: torch.Tensor) -> None:
    """A column of zeros, or one that is not finite, could never come to life again: it is drawn anew."""
    norm = factor.norm(dim=2, keepdim=True)
    alive = torch.isfinite(norm) & (norm > 0)
    stack.factor.copy_(torch.where(alive, factor, stack.drawn))


def _write(stack: Stack, at: int, piece: torch.Tensor, gradient: torch.Tensor) -> None:
    if stack.shape.dense:
        gradient.copy_(piece[at].view_as(gradient))
    elif gradient.dtype == torch.float32 and gradient.is_contiguous():
        torch.mm(stack.left[at].T, piece[at], out=gradient.view(stack.shape.rows, -1))
    else:
        gradient.copy_(torch.mm(stack.left[at].T, piece[at]).view_as(gradient))
