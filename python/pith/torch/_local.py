# SPDX-License-Identifier: Apache-2.0
"""Local steps, for links that are far too slow for an exchange in every step (DiLoCo, Streaming DiLoCo).

Every rank trains by itself. After ``every`` steps, what each has moved since the common start x (its pseudo-gradient Δ = x − x_local) is
averaged by the reducer, an outer optimizer takes one step from x with the mean as its gradient, and all go on from there. Parameters can
be split into fragments that take turns, and an exchange can go on in the background while training does.

When something happens follows from the number of the step alone, never from time. So all ranks do the same in the same order.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from .._adapt import AdaptiveRules
from .._codec import Rules
from .._errors import ArgumentError, StateError, UnsupportedError
from .._plan import Plan
from .._spec import Spec, rules_of
from .._table import Table
from ._engine import engine_for
from ._find import distributed_modules
from ._layers import (
    agree,
    layers_of,
    plain_name,
    refuse_moments,
    sparse_names,
    summary_of,
)
from ._optimizer import DistributedOptimizer, broadcast_parameters, optimized
from ._outer import Outer, make_outer
from ._rates import plain_optimizer
from ._reduction import Reduction
from ._states import fingerprint

Named = list[tuple[str, torch.nn.Parameter]]

_in_use: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


@dataclass(frozen=True)
class _Settings:
    """What all ranks, and a checkpoint and the run that goes on from it, must have in common."""

    every: int
    fragments: int
    overlap: int  # steps
    mix: float | None

    def summary(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class _Exchange:
    """Layers whose pseudo-gradients are under way, or are means that wait for their step."""

    first: int
    last: int  # behind the last one
    at: int  # the step after which they were sent
    due: int  # the step after which the means are applied
    means: list[torch.Tensor]
    sent: list[torch.Tensor] = field(default_factory=list)  # parameters when they were sent
    complete: bool = False

    @property
    def layers(self) -> range:
        return range(self.first, self.last)


class LocalSteps:
    """Ranks train by themselves and synchronize after every so many steps of the optimizer::

        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        local = pith.torch.LocalSteps(model, optimizer, every=16, spec="ef/q:2", outer="nesterov")
        …
        optimizer.zero_grad(); loss.backward(); optimizer.step()   # as on one rank
        …
        local.synchronize()                                        # at the end

    The model must not be in DistributedDataParallel. If several optimizers share its parameters, ``optimizer`` is their
    list, ending with the one that steps last. All ranks begin with parameters and buffers of rank 0. Optimizer,
    scheduler and clipping stay as they are, and each rank has its own.

    ``spec``, ``rules``, ``plan`` and ``seed`` are those of ``pith.torch.compress``, without adaptive specs; they apply
    to the pseudo-gradients. ``outer`` is ``"average"``, ``"nesterov"`` (``"nesterov,lr=0.7,momentum=0.9"``), or a
    function that gets a list of parameters and returns a torch optimizer for them; the attribute ``outer`` is that
    optimizer.

    ``fragments``: the parameters are split into that many parts of similar size, in the order of the model. Each is
    synchronized every ``every`` steps, one after another. ``overlap``: the number of steps that training continues
    during an exchange, at most ``every // fragments``; ``True`` is half of that. ``mix`` decides about the steps that
    were made during the exchange. ``None`` keeps them, on top of the new start: x_local += x_new − x_sent. A number α
    keeps that share: x_local = α·x_local + (1−α)·x_new.

    A hook of the optimizer counts steps. With ``hook=False`` the training loop calls ``step`` instead. This is needed
    if ranks may skip different steps, as with a GradScaler.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        every: int,
        spec: Spec | None = None,
        outer: Outer = "average",
        fragments: int = 1,
        overlap: bool | int = False,
        mix: float | None = None,
        rules: str | Rules | None = None,
        plan: Plan | str | None = None,
        seed: int = 0,
        hook: bool = True,
        group: Any = None,
    ) -> None:
        group = group if group is not None else dist.group.WORLD

        def look() -> tuple[Any, dict[str, Any]]:
            optimizers = _optimizers(optimizer)
            named = _trained(model, optimizers)
            settings = _settings(every, fragments, overlap, mix, len(named))
            chosen = rules_of(spec if spec is not None else "q:4", rules, plan)
            if isinstance(chosen, AdaptiveRules):
                raise UnsupportedError(
                    f"{chosen.text} chooses specs by the time and the gradients of every step, and local steps exchange neither: name a spec"
                )
            start = [(name, _start_of(p)) for name, p in named]
            layers = layers_of(start, chosen)
            refuse_moments(layers, "LocalSteps sends something else")
            made = make_outer(outer, [s for _, s in start])
            more = {"outer": str(made), **settings.summary()}
            found = (optimizers, named, settings, chosen, layers, made)
            return found, summary_of(layers, chosen, seed, **more)

        found = agree(group, look)
        self._optimizers, named, self._settings, chosen, layers, self.outer = found
        _make_same(model, group)
        self._parameters = [p for _, p in named]
        self._start = [layer.parameter for layer in layers]
        for parameter, start in zip(self._parameters, self._start, strict=True):
            start.data.copy_(parameter.detach())
        self._reduction = Reduction(layers, engine_for(group, chosen, layers, seed))
        self._parts = fragments_of([layer.n for layer in layers], fragments)
        self._turns = {  # step of a round → the fragment that leaves after it
            (i + 1) * every // fragments % every: i for i in range(fragments)
        }
        self._left = [0] * fragments  # the step after which each was last sent
        self._steps = 0
        self._exchange: _Exchange | None = None
        _in_use.update(self._optimizers)
        self._hook = (
            self._optimizers[-1].register_step_post_hook(lambda *_: self.step()) if hook else None
        )

    def __repr__(self) -> str:
        s = self._settings
        return f"<pith.torch.LocalSteps every {s.every} of {self._reduction!r}, step {self._steps}>"

    # ---- Steps

    @property
    def steps(self) -> int:
        """The number of steps of the optimizer so far."""
        return self._steps

    @torch.no_grad()
    def step(self) -> None:
        """Call it after each step of the optimizer if ``hook=False``: applies results that are due, and sends the next fragment."""
        self._steps += 1
        if self._exchange is not None and self._steps >= self._exchange.due:
            self._apply()
        turn = self._turns.get(self._steps % self._settings.every)
        if turn is not None:
            self._send(turn, self._settings.overlap)
            if not self._settings.overlap:
                self._apply()

    @torch.no_grad()
    def synchronize(self) -> None:
        """Applies what is under way and synchronises all fragments that have moved since. Replicas are then identical.

        All ranks call it after the same step: at the end of training, or before an evaluation.
        """
        if self._exchange is not None:
            self._apply()
        for turn, left in enumerate(self._left):
            if left != self._steps:
                self._send(turn, overlap=0)
                self._apply()

    def _send(self, turn: int, overlap: int) -> None:
        """The pseudo-gradients of a fragment leave."""
        part, now = self._parts[turn], self._steps
        self._left[turn] = now
        moved = [_moved(self._start[i], self._parameters[i]) for i in part]
        exchange = _Exchange(part.start, part.stop, now, now + overlap, moved)
        if overlap and self._settings.mix is None:
            exchange.sent = [self._parameters[i].detach().clone() for i in part]
        self._exchange = exchange
        for i in reversed(part):
            self._reduction.put(i, moved[i - part.start])
        self._reduction.flush()

    def wait(self) -> None:
        """Waits for the exchange in flight, if any. Its result is still applied at its step."""
        if self._exchange is not None and not self._exchange.complete:
            self._reduction.finish()
            self._exchange.complete = True

    def _apply(self) -> None:
        """The outer step of the layers whose means have come; parameters go on from there."""
        self.wait()
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        for i, mean in zip(exchange.layers, exchange.means, strict=True):
            self._start[i].grad = mean
        self.outer.step()
        for k, i in enumerate(exchange.layers):
            start, parameter = self._start[i], self._parameters[i]
            start.grad = None
            new = start.data
            if exchange.at == self._steps:
                pass  # no step was made meanwhile
            elif self._settings.mix is None:
                new = parameter.detach() + (new - exchange.sent[k])
            else:
                new = torch.lerp(new, parameter.detach().to(new.dtype), self._settings.mix)
            parameter.copy_(new)

    # ---- Checkpoints and statistics

    def state_dict(self) -> dict[str, Any]:
        """The common start, the outer optimizer, residuals, counters, and the exchange in flight. Every rank saves its own."""
        self.wait()
        exchange = self._exchange
        return {
            "reduction": self._reduction.state_dict(),
            "settings": self._settings.summary(),
            "outer": self.outer.state_dict(),
            "start": [start.detach() for start in self._start],
            "steps": self._steps,
            "left": list(self._left),
            "exchange": dict(vars(exchange)) if exchange is not None else None,
            "weights": fingerprint(self._parameters),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Loads a checkpoint of the same rank. Load the model and the optimizer first."""
        if not isinstance(saved, dict) or "reduction" not in saved or "start" not in saved:
            raise StateError("this is no state of pith.torch.LocalSteps")
        self._reduction.check_saved(saved["reduction"])
        for name, value in self._settings.summary().items():
            if saved["settings"].get(name) != value:
                raise StateError(
                    f"the state was saved with {name}={saved['settings'].get(name)}, and now it is {value}"
                )
        if saved["weights"] != fingerprint(self._parameters):
            raise StateError(
                "the state is of other weights than the model has: make LocalSteps first, which takes the weights of rank 0, then load model "
                "and optimizer, which every rank saves and loads by itself, then this state"
            )
        self.wait()
        self.outer.load_state_dict(saved["outer"])
        self._reduction.load_state_dict(saved["reduction"])
        for start, value in zip(self._start, saved["start"], strict=True):
            start.data.copy_(value)
        self._steps, self._left = saved["steps"], list(saved["left"])
        self._exchange = _Exchange(**saved["exchange"]) if saved["exchange"] is not None else None

    def stats(self) -> Table:
        """A table of the layers. ``steps`` counts exchanges; the ratio compares bytes with the same number of exact exchanges."""
        return self._reduction.stats()

    def remove(self) -> None:
        """Ends synchronization: ranks then train by themselves. An exchange in flight is dropped."""
        if self._hook is not None:
            self._hook.remove()
        self.wait()
        self._exchange = None
        for optimizer in self._optimizers:
            _in_use.discard(optimizer)
        self._reduction.engine.close()


# ---- Parameters ------------------------------------------------------------------------------------------------------


def _start_of(parameter: torch.Tensor) -> torch.nn.Parameter:
    """A copy for the outer step. Halves are kept in f32, in which small outer steps are not lost."""
    kind = torch.float32 if parameter.dtype in (torch.float16, torch.bfloat16) else parameter.dtype
    copy = torch.empty(parameter.shape, dtype=kind, device=parameter.device)
    return torch.nn.Parameter(copy, requires_grad=False)


def _moved(start: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """x − x_local, with x as the parameter could hold it: what rounding x to a half has changed is no movement."""
    return start.detach().to(parameter.dtype).to(start.dtype, copy=True).sub_(parameter.detach())


def _make_same(model: torch.nn.Module, group: Any) -> None:
    """Parameters, frozen ones too, and buffers of rank 0 on all ranks."""
    tensors = [t.detach() for t in (*model.parameters(), *model.buffers())]
    copies = [t.contiguous() for t in tensors]
    broadcast_parameters({str(i): t for i, t in enumerate(copies)}, group=group)
    for tensor, copy in zip(tensors, copies, strict=True):
        if copy is not tensor:
            tensor.copy_(copy)


def fragments_of(sizes: Sequence[int], count: int) -> list[range]:
    """Layers in their order in so many parts, none of them empty, of about the same number of values."""
    before = [0]
    for size in sizes:
        before.append(before[-1] + size)
    cuts = [0]
    for i in range(1, count):
        possible = range(cuts[-1] + 1, len(sizes) - (count - i) + 1)
        cuts.append(min(possible, key=lambda at: abs(before[at] * count - before[-1] * i)))
    return [range(a, b) for a, b in zip(cuts, [*cuts[1:], len(sizes)], strict=True)]


# ---- Mistakes --------------------------------------------------------------------------------------------------------


def _settings(every: int, fragments: int, overlap: bool | int, mix: Any, layers: int) -> _Settings:
    for name, value in (("every", every), ("fragments", fragments)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ArgumentError(f"{name}={value!r}: it is a whole number, at least 1")
    if fragments > min(every, layers):
        raise ArgumentError(
            f"fragments={fragments} is too many: each leaves after another one of every={every} steps and has at least one of "
            f"{layers} parameters"
        )
    most = every // fragments
    steps = max(1, most // 2) if overlap is True else overlap
    if not isinstance(steps, int) or not 0 <= steps <= most:
        raise ArgumentError(
            f"overlap={overlap!r}: it is at most every // fragments = {most} steps, so that one fragment is under way at a time"
        )
    if mix is not None and not 0 <= mix < 1:
        raise ArgumentError(
            f"mix={mix!r}: it is the share of local steps that is kept, 0 ≤ mix < 1"
        )
    if mix is not None and not steps:
        raise ArgumentError("mix is for overlap: without it no step is made during an exchange")
    return _Settings(every, fragments, int(steps), mix)


def _optimizers(given: Any) -> list[torch.optim.Optimizer]:
    """One, or several that share the parameters of the model."""
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    if not found:
        raise ArgumentError("LocalSteps needs an optimizer")
    for optimizer in found:
        if isinstance(optimizer, DistributedOptimizer):
            raise ArgumentError(
                "DistributedOptimizer averages gradients in every step: give LocalSteps the optimizer in it"
            )
    plain = [plain_optimizer(optimizer) for optimizer in found]
    if any(optimizer in _in_use for optimizer in plain):
        raise ArgumentError("this optimizer is in LocalSteps already: remove() ends that")
    return plain


def _trained(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Named:
    """The parameters of the model, in its order, which are those of the optimizers."""
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"{type(model).__name__} is no torch.nn.Module")
    inside, sparse = distributed_modules(model), sorted(sparse_names(model))
    if inside:
        raise ArgumentError(
            f"{type(inside[0]).__name__} exchanges in every step, which local steps are to avoid: give LocalSteps the plain model"
        )
    if any(hasattr(p, "device_mesh") for p in model.parameters()):
        raise ArgumentError(
            "parameters of the model are sharded (DTensor): local steps need whole ones"
        )
    if sparse:
        raise ArgumentError(
            f"{', '.join(sparse[:3])} has sparse gradients, and what it has moved would travel as a whole: make the embedding with sparse=False"
        )
    mine = {id(p) for optimizer in optimizers for _, p in optimized(optimizer, model)}
    named = [(plain_name(name), p) for name, p in model.named_parameters() if id(p) in mine]
    missing = [
        name for name, p in model.named_parameters() if p.requires_grad and id(p) not in mine
    ]
    if missing:
        raise ArgumentError(
            f"the optimizer does not have {len(missing)} parameters of the model ({', '.join(missing[:3])}): add them, or freeze them by "
            "requires_grad_(False)"
        )
    devices = sorted({str(p.device) for _, p in named})
    if len(devices) > 1:
        raise UnsupportedError(f"the model is on several devices ({', '.join(devices)})")
    return named
