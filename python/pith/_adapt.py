# SPDX-License-Identifier: Apache-2.0
"""Adaptive specs ("auto", "lgreco:q:4"): specs of layers that change while a model is trained (include/pith/adapt.h)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from typing import Any

from . import _library as c
from ._codec import Rules, saved
from ._errors import SpecError
from ._profile import shapes_of
from ._tensors import view_of


def is_adaptive(spec: str) -> bool:
    """Whether a text is meant as an adaptive spec: "auto", "lgreco:…", "accordion:…" and others."""
    return bool(c.lib.pith_adapter_is(spec.encode()))


def option_of(spec: str, key: str) -> str:
    """What an option of an adaptive spec is, given or by default; "" if it has none."""
    text = ctypes.create_string_buffer(256)
    c.check(c.lib.pith_adapter_option(spec.encode(), key.encode(), text, len(text)))
    return text.value.decode()


class AdaptiveRules(Rules):
    """Rules of which the last, for all layers that no other names, has an adaptive spec: ``"embed*=none;*=auto"``.

    ``find`` gives layers of that rule the spec "none", which they have at first.
    """

    def __init__(self, text: str) -> None:
        rules, self.adaptive = _split(text)
        c.check(c.lib.pith_adapter_check(self.adaptive.encode()))
        super().__init__(";".join([*rules, "*=none"]))

    @property
    def text(self) -> str:
        """The text of the rules, with the adaptive spec."""
        return super().text.removesuffix("none") + self.adaptive

    def adapts(self, layer: str, shape: Sequence[int]) -> bool:
        """Whether the layer's spec changes."""
        return self.find(layer, shape).rule == len(self) - 1


def _split(text: str) -> tuple[list[str], str]:
    """The other rules, and the adaptive spec."""
    rules = [rule.strip() for rule in text.split(";") if rule.strip()]
    if rules and is_adaptive(rules[0]):
        if len(rules) > 1:
            raise SpecError(
                f"several specs need patterns: embed*=none;*={rules[0]}, with the adaptive one last"
            )
        return [], rules[0]
    for rule in rules[:-1]:
        if is_adaptive(rule.partition("=")[2]):
            raise SpecError(
                f'"{rule}": an adaptive spec is for all layers that no other rule names; write it last, as in embed*=none;*=auto'
            )
    pattern, _, spec = rules[-1].partition("=")
    if pattern.strip() != "*":
        raise SpecError(
            f'"{rules[-1]}": an adaptive spec is for all layers that no other rule names; write *={spec}'
        )
    return rules[:-1], spec.strip()


def rules_from(text: str) -> Rules:
    """Rules from a text, with or without an adaptive spec."""
    found = any(
        is_adaptive(rule.partition("=")[2]) or is_adaptive(rule) for rule in text.split(";")
    )
    return AdaptiveRules(text) if found else Rules(text)


class Adapter:
    """Chooses the specs of layers, for programs that do the exchange themselves::

        adapter = pith.Adapter("lgreco:q:4", [("fc1.weight", (512, 784)), …], rank, ranks)

        if adapter.wants(0):                              # every step
            adapter.observe(0, gradient)                  # before it is reduced
        numbers = adapter.finish(seconds, span, waiting)  # all gradients are means now
        if numbers is not None:
            …                                             # all ranks add them up, exactly and in place
        if adapter.advance(seconds_of_that):
            specs = [adapter.spec(i) for i in …]          # from the next step on

    An adapter does not communicate. Its choices depend only on the number of the step and on numbers that the ranks
    have summed. ``pith.Reducer(comm, "auto")`` has an adapter of its own.
    """

    def __init__(
        self,
        spec: str,
        layers: Iterable[tuple[str, Sequence[int]]],
        rank: int,
        ranks: int,
        seed: int = 0,
    ) -> None:
        entries, count = shapes_of(layers)
        pointer = ctypes.c_void_p()
        status = c.lib.pith_adapter_create(
            spec.encode(), entries, count, rank, ranks, seed, ctypes.byref(pointer)
        )
        c.check(status)
        self._pointer = pointer
        self._said = f"{spec}, {count} layers, rank {rank} of {ranks}"
        self.count = count

    def __del__(self) -> None:
        if getattr(self, "_pointer", None):
            c.lib.pith_adapter_destroy(self._pointer)

    def __repr__(self) -> str:
        return f"<pith.Adapter {self._said}, step {self.step}>"

    def wants(self, layer: int) -> bool:
        """Whether to call ``observe`` with this layer's gradient in this step."""
        return bool(c.lib.pith_adapter_wants(self._pointer, layer))

    def observe(self, layer: int, gradient: Any) -> None:
        """Copies a gradient."""
        c.check(c.lib.pith_adapter_observe(self._pointer, layer, view_of(gradient).span))

    def finish(self, seconds: float = 0.0, span: float = 0.0, waiting: float = 0.0) -> Any:
        """Ends a step that took ``seconds`` (0: not known). Returns an array of doubles that all ranks must sum, or
        None.

        ``span`` is the time from the first ready gradient to the end of the exchange, ``waiting`` the part of it after
        the last gradient was ready.
        """
        numbers, count = ctypes.POINTER(ctypes.c_double)(), ctypes.c_size_t()
        step = c.AdapterStep(seconds, span, waiting)
        status = c.lib.pith_adapter_finish(
            self._pointer, ctypes.byref(step), ctypes.byref(numbers), ctypes.byref(count)
        )
        c.check(status)
        if not count.value:
            return None
        return (ctypes.c_double * count.value).from_address(ctypes.addressof(numbers.contents))

    def advance(self, seconds: float = 0.0) -> bool:
        """Begins the next step; ``seconds`` is the time that summing took. Returns whether specs of layers have changed."""
        changed = ctypes.c_int()
        c.check(c.lib.pith_adapter_advance(self._pointer, seconds, ctypes.byref(changed)))
        return bool(changed.value)

    def spec(self, layer: int) -> str:
        """The layer's spec in the next step."""
        return c.text(c.lib.pith_adapter_spec(self._pointer, layer))

    def reason(self, layer: int) -> str:
        """The reason for the layer's spec."""
        return c.text(c.lib.pith_adapter_reason(self._pointer, layer))

    @property
    def candidates(self) -> list[str]:
        """The specs that the adapter chooses from."""
        found: list[str] = []
        while spec := c.text(c.lib.pith_adapter_candidate(self._pointer, len(found))):
            found.append(spec)
        return found

    @property
    def step(self) -> int:
        """The number of the next step."""
        return c.lib.pith_adapter_step_number(self._pointer)

    @property
    def next_plan(self) -> int:
        """The step at which the next plan takes effect; 0 during trials."""
        return c.lib.pith_adapter_next_plan(self._pointer)

    def write_profile(self, path: str | os.PathLike[str]) -> None:
        """Writes the statistics of the last plan, over all ranks, for ``pith plan`` and ``pith.Profile``."""
        c.check(c.lib.pith_adapter_profile(self._pointer, os.fsencode(path)))

    def save(self) -> bytes:
        """Returns the state for a checkpoint. Call it between two steps."""
        return saved(c.lib.pith_adapter_save_size, c.lib.pith_adapter_save, self._pointer)

    def load(self, data: Any) -> None:
        """Loads the state from a checkpoint of the same rank. It is checked before anything changes."""
        view = view_of(data)
        c.check(c.lib.pith_adapter_load(self._pointer, c.Bytes(view.data, view.n)))
