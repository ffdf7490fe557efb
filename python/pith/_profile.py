# SPDX-License-Identifier: Apache-2.0
"""Statistics of gradients, and the plans that are made of them (include/pith/plan.h)."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import _library as c
from ._codec import context
from ._errors import ArgumentError, StateError
from ._plan import Plan
from ._tensors import view_of

_METHODS = {
    name: number
    for number, name in enumerate(
        (
            "lgreco",
            "kmeans",
            "accordion",
            "uniform",
            "cgxkmeans",
            "linear",
            "best",
            "bayes",
            "global",
        )
    )
}
_METRICS = {"l2sq": 0, "l2": 1}
_OBJECTIVES = {"bytes": 0, "time": 1}
_CANDIDATES_SIZE = 1 << 16


def shapes_of(layers: Iterable[tuple[str, Sequence[int]]]) -> tuple[Any, int]:
    """Names and shapes as the C library takes them. The array keeps alive what it points to."""
    named = [(name.encode(), tuple(shape)) for name, shape in layers]
    entries = c.array(c.Layer, len(named))
    for entry, (name, shape) in zip(entries, named, strict=True):
        entry.name = name
        entry.shape = c.numbers(shape)
        entry.dimensions = len(shape)
    return entries, len(named)


def candidates(spec: str) -> list[str]:
    """Strengths of a method around the given one that are worth measuring; ``"mix"``: strengths of all families."""
    text = ctypes.create_string_buffer(_CANDIDATES_SIZE)
    c.check(c.lib.pith_plan_candidates(spec.encode(), text, len(text)))
    return c.text(text.value).split(";")


@dataclass(frozen=True)
class ProfileLayer:
    """A layer of a profile."""

    name: str
    shape: tuple[int, ...]
    fixed: bool  # travels uncompressed whatever the plan, and is not measured
    samples: int  # gradients measured
    skipped: int  # gradients with NaN or Inf
    norm: float  # mean of the squared norm


class Profile:
    """Measures how much each candidate would lose of each layer's gradient, and how many bytes it would take::

        profile = pith.Profile([("fc1.weight", (512, 784)), …], pith.candidates("q:4"))
        profile.update("fc1.weight", gradient)          # in some steps
        plan = profile.plan("q:4")                      # distributes the error of q:4 among the layers
        pith.torch.compress(model, plan)

    Gradients of one dimension or under ``pith.minimal_size()`` values are sent uncompressed and are not measured.
    """

    def __init__(
        self, layers: Iterable[tuple[str, Sequence[int]]], specs: str | Iterable[str] = "mix"
    ) -> None:
        listed = candidates(specs) if specs == "mix" else specs
        text = listed if isinstance(listed, str) else ";".join(listed)
        entries, count = shapes_of(layers)
        pointer = ctypes.c_void_p()
        c.check(c.lib.pith_profile_create(entries, count, text.encode(), ctypes.byref(pointer)))
        self._adopt(pointer)

    def _adopt(self, pointer: ctypes.c_void_p) -> None:
        self._pointer = pointer
        self._index = {name: index for index, name in enumerate(self.names)}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Reads a statistics file written by ``pith plan stats``, ``pith.torch.record`` or PITH_PROFILE."""
        pointer = ctypes.c_void_p()
        c.check(c.lib.pith_profile_load(os.fsencode(path), ctypes.byref(pointer)))
        made = cls.__new__(cls)
        made._adopt(pointer)
        return made

    def __del__(self) -> None:
        if getattr(self, "_pointer", None):
            c.lib.pith_profile_destroy(self._pointer)

    def __repr__(self) -> str:
        layers = self.layers
        samples = max((layer.samples for layer in layers), default=0)
        return f"<pith.Profile of {len(layers)} layers, {len(self.candidates)} candidates, {samples} samples>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a statistics file atomically."""
        c.check(c.lib.pith_profile_save(self._pointer, os.fsencode(path)))

    @property
    def layers(self) -> list[ProfileLayer]:
        """The layers, with their samples."""
        return [self._layer(i) for i in range(c.lib.pith_profile_layers(self._pointer))]

    def _layer(self, index: int) -> ProfileLayer:
        entry = c.ProfileLayer()
        c.check(c.lib.pith_profile_layer_get(self._pointer, index, ctypes.byref(entry)))
        shape = tuple(entry.shape[i] for i in range(entry.dimensions))
        return ProfileLayer(
            c.text(entry.name), shape, bool(entry.fixed), entry.samples, entry.skipped, entry.norm
        )

    @property
    def names(self) -> list[str]:
        """The names of the layers."""
        return [layer.name for layer in self.layers]

    @property
    def values(self) -> Any:
        """All sums as one array of doubles, without a copy. If ranks sum their arrays, the means are over all ranks."""
        count = ctypes.c_size_t()
        values = c.lib.pith_profile_values(self._pointer, ctypes.byref(count))
        found: Any = (ctypes.c_double * count.value).from_address(ctypes.addressof(values.contents))
        found._profile = self  # whose memory it is
        return found

    @property
    def candidates(self) -> list[str]:
        """The specs that are measured, in canonical form."""
        count = c.lib.pith_profile_candidates(self._pointer)
        return [c.text(c.lib.pith_profile_candidate(self._pointer, i)) for i in range(count)]

    def update(self, layer: str, gradient: Any, **where: Any) -> None:
        """Measures a gradient with every candidate. With error feedback, give gradient plus residual."""
        view, ctx = view_of(gradient), context(**where)
        c.check(
            c.lib.pith_profile_update(
                self._pointer, self._number(layer), view.span, ctypes.byref(ctx)
            )
        )

    def _number(self, layer: str) -> int:
        if layer not in self._index:
            raise ArgumentError(f"there is no layer {layer!r} in this profile")
        return self._index[layer]

    def measured(self) -> Profile:
        """A copy without layers that could have been measured but never were, because no plan can be made of those. A
        plan leaves layers that it does not name exact.
        """
        kept = [i for i, layer in enumerate(self.layers) if layer.fixed or layer.samples]
        if not any(self._layer(i).samples for i in kept):
            raise StateError("no gradient has been measured")
        made = Profile([(self._layer(i).name, self._layer(i).shape) for i in kept], self.candidates)
        mine, copy = self.values, made.values
        stride = len(copy) // len(kept)
        for place, index in enumerate(kept):
            copy[place * stride : (place + 1) * stride] = mine[
                index * stride : (index + 1) * stride
            ]
        return made

    def reset(self) -> None:
        """Removes all samples."""
        c.lib.pith_profile_reset(self._pointer)

    def mean(self, layer: str, spec: str) -> tuple[float, float]:
        """Bytes of a payload and squared error, as means over samples."""
        if spec not in self.candidates:
            raise ArgumentError(f"{spec} is none of the candidates of this profile")
        size, error = ctypes.c_double(), ctypes.c_double()
        place = self.candidates.index(spec)
        status = c.lib.pith_profile_get(
            self._pointer, self._number(layer), place, ctypes.byref(size), ctypes.byref(error)
        )
        c.check(status)
        return size.value, error.value

    def plan(
        self,
        uniform: str | None = None,
        *,
        budget: float = 0.0,
        method: str = "lgreco",
        objective: str = "bytes",
        alpha: float = 1.0,
        families: str | None = None,
        floor: float = 0.0,
        metric: str = "l2sq",
        cap: float = 0.0,
        tolerance: float = 0.0,
        ranks: int = 2,
        bandwidth: float = 0.0,
        latency: float = 0.0,
        compute: float = 0.0,
    ) -> Plan:
        """The smallest plan that loses no more than ``uniform`` on all layers, or with the objective "time" the
        fastest.

        ``budget``: a sum of squared errors instead of ``uniform``. ``families``: names of methods, "q,topk"; "mix" for
        all. ``floor``: no layer gets less than this share of the bytes that ``uniform`` gives it. ``metric``: what is
        summed over layers, squared errors ("l2sq") or errors ("l2"). ``cap``: no layer gets more than this times the
        strength of ``uniform``. ``tolerance``: the share of a step's progress that may be lost, instead of ``alpha``.
        ``bandwidth`` (bytes per second), ``latency`` (seconds of an exchange) and ``compute`` (seconds of the backward
        pass) are for the objective "time".
        """
        for what, value, known in (
            ("method", method, _METHODS),
            ("objective", objective, _OBJECTIVES),
            ("metric", metric, _METRICS),
        ):
            if value not in known:
                raise ArgumentError(f"there is no {what} {value!r}: {', '.join(known)}")
        cost = c.PlanCost(ranks, latency, bandwidth, compute, None, None)
        request = c.PlanRequest(
            method=_METHODS[method],
            objective=_OBJECTIVES[objective],
            uniform=uniform.encode() if uniform is not None else None,
            budget=budget,
            alpha=alpha,
            families=families.encode() if families is not None else None,
            cost=ctypes.pointer(cost),
            floor=floor,
            metric=_METRICS[metric],
            cap=cap,
            tolerance=tolerance,
        )
        pointer = ctypes.c_void_p()
        c.check(c.lib.pith_plan_make(self._pointer, ctypes.byref(request), ctypes.byref(pointer)))
        try:
            return Plan._from_json(json.loads(c.text(c.lib.pith_plan_text(pointer))))
        finally:
            c.lib.pith_plan_destroy(pointer)
