# SPDX-License-Identifier: Apache-2.0
"""Layers whose specs begin with ``moment``: first their gradients travel, then the momentum of the optimizer.

In the warm-up such a layer is like any other: its gradient travels, exactly or by ``q:N``, and the optimizer makes its own step. When the
optimizer's variance is frozen, the layer gets its spec, and momentum travels (_moment_steps.py, _moment_adam.py). _freeze.py has the rules that say when, and
when gradients travel again. All ranks decide the same: by the number of the step, or by figures of all ranks.

Layers of ``auto`` have the specs of the adapter until then. Their momentum travels for a trial of some steps, and stays if that is faster
(_moment_trial.py); else the adapter goes on.

What is to be done in a step is done by hooks of the optimizer, before and after its own step.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .._errors import StateError
from .._table import MomentStats
from ._bytes import all_gather_bytes
from ._freeze import PERIOD, Watch, earliest_again, is_settled
from ._moment_plan import Plan, Plans, plans_of
from ._moment_steps import Member, Scales
from ._moment_trial import CANDIDATE, GRADIENTS, MOMENTUM, Trial, is_calm
from ._rates import plain_optimizers
from ._reduction import Reduction


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


# ---- One optimizer ---------------------------------------------------------------------------------------------------


class Driver:
    """The phases of an optimizer, and the hooks around its steps."""

    def __init__(self, owner: Moments, plan: Plan) -> None:
        self._owner, self._plan = owner, plan
        self.optimizer, self.members = plan.optimizer, plan.members
        self._steps = plan.kind(plan.optimizer, owner.engine)
        self._watch = Watch()
        self._trial = Trial(plan.members[0].parameter.device) if plan.adaptive else None
        self.step = 0  # that the optimizer has made
        self.frozen = False
        self._since, self._why = 0, ""  # the step of the last change, and its reason
        self._earliest = 0  # the first step at which momentum may travel
        self._norms: list[float] = []
        self._looked = 0  # the step of the last look
        self._fresh = False  # momentum has come and was not used yet
        self._skips = False  # this step changes nothing
        self._weights: dict[int, tuple[float, float]] = {}  # beta and carry of each group
        self._hidden: list[tuple[dict[str, Any], list[Any]]] = []
        self._warned = False
        self.is_local = False  # whether this step is
        self.measures = False  # whether there is a look after it, for which gradients are measured
        self._handles = [
            self.optimizer.register_step_pre_hook(self._pre_hook),
            self.optimizer.register_step_post_hook(self._post_hook),
            self.optimizer.register_load_state_dict_post_hook(lambda _: self._steps.release()),
        ]
        self._set_warm_up("warm-up of {}")

    def close(self) -> None:
        """The optimizer goes on by itself."""
        if self.frozen:
            self._steps.thaw(self.step)
        if self._trial is not None:
            self._owner.engine.leave_to_adapter(member.index for member in self.members)
        for handle in self._handles:
            handle.remove()

    @property
    def phase(self) -> str:
        if self._trial is not None:
            return self._phase_of_trial(self._trial)
        if self.frozen:
            return f"frozen at step {self._since}"
        return f"exact again since step {self._since}: {self._why}" if self._why else "warm-up"

    def _phase_of_trial(self, trial: Trial) -> str:
        if trial.confirms:
            return f"gradients are timed again since step {self._since}: {trial.times} so far"
        if trial.stage == GRADIENTS:
            return f"{CANDIDATE} is tried next; steps with gradients are timed before"
        if trial.stage == MOMENTUM:
            return f"trial of {CANDIDATE} since step {self._since}"
        if self.frozen:
            return f"{CANDIDATE}, frozen at step {self._since}: {trial.times}"
        if self._why:
            return f"gradients since step {self._since}: {self._why}; {CANDIDATE} is tried again after step {self._earliest} at the earliest"
        return f"{CANDIDATE} is tried when the variance has settled"

    @property
    def travelling(self) -> list[Member]:
        """Layers whose momentum travels now."""
        return self._steps.members

    @property
    def is_common(self) -> bool:
        """Whether all ranks have the same parameters now."""
        if not self.frozen or self.step == self._since:
            return True
        return all(member.is_common(self.step) for member in self._steps.members)

    def report(self, loss: float | torch.Tensor) -> None:
        self._watch.report(loss)

    # ---- What the backward pass calls

    def begin(self) -> None:
        """Before the first gradient of a step."""
        self.is_local = self.measures = False
        if not self.frozen:
            return
        if self._fresh:
            self._skip()
        self._follow_weights()
        self.is_local = not all(m.is_common(self.step + 1) for m in self._steps.members)
        self.measures = self._looks_after(self.step + 1)

    def exchanged(self) -> None:
        """Momentum has come, or a local gradient."""
        self._fresh = self.frozen

    def _skip(self) -> None:
        """There was a backward pass, and no step followed. Momentum is what it was before."""
        self._fresh = False
        if any(m.moment.every > 1 for m in self._steps.members):
            raise StateError(
                "a backward pass was not followed by optimizer.step(), and with local steps every rank makes every step: accumulate gradients "
                "within no_sync(), or use every=1"
            )
        self._steps.fold(lambda member, group: self._steps.carry(group), self._owner.kept)
        if not self._owner.has_scaler and not self._warned:
            self._warned = True
            warnings.warn(
                "pith: a backward pass was not followed by optimizer.step(), and what it sent is dropped. To accumulate gradients, use no_sync(); with "
                "a GradScaler, compress(…, scaler=scaler)",
                stacklevel=2,
            )

    def _follow_weights(self) -> None:
        """A scheduler may change the weight of the past, too."""
        now = self._weights_now()
        if now == self._weights:
            return
        before, self._weights = self._weights, now
        for member in self._steps.members:
            beta = now[member.group][0]
            if beta != before[member.group][0]:
                self._owner.engine.set_spec(member.index, member.spec(beta), self._reason)
        common = self.step + 1
        self._steps.fold(
            lambda m, _: (now[m.group][1] - before[m.group][1]) * m.is_common(common),
            self._owner.kept,
        )

    def _weights_now(self) -> dict[int, tuple[float, float]]:
        groups = self.optimizer.param_groups
        return {
            number: (self._steps.beta(groups[number]), self._steps.carry(groups[number]))
            for number in {m.group for m in self._steps.members or self.members}
        }

    # ---- What the optimizer calls

    def _pre_hook(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the step. One with a closure makes its backward pass within the step."""
        self._show()
        given = args[1] if len(args) > 1 else kwargs.get("closure")
        if given is None:
            self._before()
            return None

        def closure() -> Any:
            loss = given()
            with torch.no_grad():
                self._before()
            return loss

        if len(args) > 1:
            return (args[0], closure, *args[2:]), kwargs
        return args, kwargs | {"closure": closure}

    def _before(self) -> None:
        infinite = getattr(self.optimizer, "found_inf", None)  # of a GradScaler, for fused steps
        self._skips = infinite is not None and bool(infinite > 0)
        if not self.frozen or self._skips:
            return
        if not self._fresh:
            self._check_nothing_there()
            return
        if _is_capturing():
            raise StateError("a step in which momentum travels cannot be captured in a CUDA graph")
        if self.is_local:
            self._owner.restore_others()
        self._steps.apply(self.step + 1, self._scales(), self._owner.sent)
        if self._steps.passes_by:
            self._hide()

    def _check_nothing_there(self) -> None:
        if any(m.parameter.grad is not None for m in self._steps.members):
            raise StateError(
                "optimizer.step() without an exchange since the last step: the last backward pass before it is outside of no_sync()"
            )
        self._skips = True

    def _scales(self) -> Scales:
        scale = getattr(self.optimizer, "grad_scale", None)
        return Scales(self._owner.kept, 1.0 if scale is None else float(scale))

    def _hide(self) -> None:
        """The optimizer passes by layers whose step is made."""
        done = {id(m.parameter) for m in self._steps.members}
        for group in self.optimizer.param_groups:
            parameters = group["params"]
            self._hidden.append((group, parameters))
            group["params"] = [p for p in parameters if id(p) not in done]

    def _show(self) -> None:
        for group, parameters in self._hidden:
            group["params"] = parameters
        self._hidden.clear()

    @torch.no_grad()
    def _post_hook(self, *_: Any) -> None:
        self._show()
        if self._trial is not None and (self._skips or _is_capturing()):
            self._trial.hold()
            return
        if self._skips:
            return
        if not self.frozen:
            self._count()
            self._consider()
            return
        self.step += 1
        self._fresh = False
        self._steps.after(self.step, self._scales(), self._owner.sent)
        if self._trial is not None and self._trial.stage == MOMENTUM:
            self._time_momentum(self._trial)
        elif self._looks_after(self.step):
            self._look()

    # ---- Phases

    def _count(self) -> None:
        """Steps as the optimizer counts them, so that a run may begin with a plain optimizer's state."""
        self.step = self._steps.count(self.members, self.step)
        if self.step % PERIOD == 0:
            self._watch.roll()

    def _consider(self) -> None:
        first, step = self._plan.first, self.step
        if self._owner.engine.ranks == 1:
            return  # nothing travels
        if self._trial is not None and self._trial.stage == GRADIENTS:
            self._time_gradients(self._trial)
            return
        if first is not None:
            due = step >= first
        else:
            span = self._steps.span(self.members)
            if step == 0 or step % span != 0:
                return
            norms = self._owner.gather(self._steps.variance_norm(self._ready()))
            self._norms = [*self._norms[-1:], sum(norm for (norm,) in norms) / len(norms)]
            due = is_settled(self._norms, step, span)
        if not due or step < self._earliest or not self._ready():
            return
        if self._trial is None:
            self._freeze()
        else:
            self._trial.begin(GRADIENTS)

    def _time_gradients(self, trial: Trial) -> None:
        """What the plan in force takes, which the adapter must have settled on."""
        plan = self._owner.reason(self.members[0].index)
        if not is_calm(plan):
            trial.hold()
            return
        if not trial.lap(plan):
            return
        trial.note([seconds for (seconds,) in self._owner.gather(trial.typical)])
        if not trial.confirms:
            trial.begin(MOMENTUM)
            self._freeze()
        elif trial.gains():
            trial.keep()
            self._freeze()
        else:
            self._lose(trial)

    def _time_momentum(self, trial: Trial) -> None:
        if not trial.lap():
            return
        trial.note([seconds for (seconds,) in self._owner.gather(trial.typical)])
        if trial.is_clear:
            trial.keep()
            self._set_specs(self._steps.members)  # they have another reason now
        elif trial.gains():
            self._return_to_gradients(trial.times, 0)
            trial.confirms = True
            trial.begin(GRADIENTS)
        else:
            self._lose(trial)

    def _lose(self, trial: Trial) -> None:
        trial.lose()
        self._return_to_gradients(f"{trial.times}, which does not pay", trial.pause)

    def _ready(self) -> list[Member]:
        """Members that the optimizer has momentum for: all that had a gradient."""
        return [m for m in self.members if self._steps.momentum(m) is not None]

    @property
    def _reason(self) -> str:
        if self._trial is None:
            return f"momentum since step {self._since}"
        if self._trial.stage == MOMENTUM:
            return f"{self._plan.adaptive}, trial of {CANDIDATE}"
        return f"{self._plan.adaptive}, {CANDIDATE} since step {self._since}: {self._trial.times}"

    def _freeze(self) -> None:
        members = self._ready()
        self.frozen, self._since, self._why = True, self.step, ""
        self._looked, self._fresh = self.step, False
        self._weights = self._weights_now()
        self._set_specs(members)
        self._steps.freeze(members, self.step, self._owner.kept)
        self._watch.start([(total, int(n)) for total, n in self._owner.gather(*self._watch.last)])

    def _set_specs(self, members: Sequence[Member]) -> None:
        for member in members:
            spec = member.spec(self._weights[member.group][0])
            self._owner.engine.set_spec(member.index, spec, self._reason)

    def _set_warm_up(self, reason: str) -> None:
        if self._trial is not None:
            self._owner.engine.leave_to_adapter(member.index for member in self.members)
            return
        for member in self.members:
            spec = member.codec.spec
            self._owner.engine.set_spec(member.index, member.warm_up, reason.format(spec))

    def _looks_after(self, step: int) -> bool:
        is_common = all(member.is_common(step) for member in self._steps.members)
        return self.frozen and step - self._looked >= PERIOD and is_common

    def _look(self) -> None:
        self._looked = self.step
        sizes = [self._owner.size_of(member.index) for member in self._steps.members]
        ratio = self._steps.ratio(self._owner.kept)
        found = self._owner.gather(ratio, *self._watch.take(), *sizes)
        why = self._watch.why_not([f[0] for f in found], [(f[1], int(f[2])) for f in found])
        if why:
            self._go_back(why)
        else:
            self._steps.follow([sum(s) / len(s) for s in zip(*(f[3:] for f in found), strict=True)])

    def _go_back(self, why: str) -> None:
        """Training does not go well."""
        pause = 0
        if self._trial is not None:
            self._trial.lose()
            pause = self._trial.pause
        self._return_to_gradients(why, pause)
        if self._owner.rank == 0:
            help_ = " A longer warm-up (moment:freeze=…) or a milder codec may help (docs/optimizers.md)"
            warnings.warn(
                f"pith: after step {self.step} gradients travel again in place of momentum: {why}. Momentum may travel again after step "
                f"{self._earliest}.{help_ if self._trial is None else ''}",
                stacklevel=2,
            )

    def _return_to_gradients(self, why: str, pause: int) -> None:
        """The variance follows them again. ``pause``: the least number of steps until momentum may travel."""
        if self.frozen:
            self._steps.thaw(self.step)
        self.frozen, self._since, self._why = False, self.step, why
        self._norms = []
        again = earliest_again(self.step, self._steps.span(self.members))
        self._earliest = max(again, self.step + pause)
        self._set_warm_up(f"exact again since step {self.step}")

    # ---- Checkpoints

    def save(self) -> dict[str, Any]:
        return {
            "optimizer": type(self.optimizer).__name__,
            "frozen": self.frozen,
            "step": self.step,
            "since": self._since,
            "why": self._why,
            "earliest": self._earliest,
            "norms": list(self._norms),
            "looked": self._looked,
            "fresh": self._fresh,
            "weights": [[number, *pair] for number, pair in self._weights.items()],
            "watch": self._watch.save(),
            "steps": self._steps.save() if self.frozen else None,
            "trial": None if self._trial is None else self._trial.save(),
        }

    def load(self, saved: Mapping[str, Any] | None) -> None:
        """``None``: from a checkpoint without momentum; the warm-up begins."""
        if saved is None:
            saved = {
                "frozen": False,
                "step": 0,
                "since": 0,
                "why": "",
                "earliest": 0,
                "norms": [],
                "looked": 0,
            }
            saved |= {"fresh": False, "weights": [], "watch": Watch().save(), "trial": None}
        self.frozen, self.step = saved["frozen"], saved["step"]
        self._since, self._why, self._earliest = saved["since"], saved["why"], saved["earliest"]
        self._norms, self._looked, self._fresh = (
            list(saved["norms"]),
            saved["looked"],
            saved["fresh"],
        )
        self._weights = {number: (beta, carry) for number, beta, carry in saved["weights"]}
        self._watch.load(saved["watch"])
        if self._trial is not None:
            device = self.members[0].parameter.device
            self._trial.load(saved["trial"] or Trial(device).save())
        self._set_warm_up("warm-up of {}")
        if self.frozen:
            self._steps.load(saved["steps"], self.members)
            self._set_specs(self._steps.members)


# ---- All of them -----------------------------------------------------------------------------------------------------


class Moments:
    """The layers of a model whose momentum travels."""

    def __init__(self, plans: Plans, reduction: Reduction, group: Any, scaler: Any = None) -> None:
        self.engine = reduction.engine
        self.rank, self.has_scaler = reduction.engine.rank, scaler is not None
        self._reduction, self._group = reduction, group
        self.sent: dict[int, torch.Tensor] = {}  # what layers had in the last exchange
        self.is_local = False  # whether this step is
        self._own: set[int] = set()  # layers whose gradients stay the rank's own in this step
        self._means: dict[int, torch.Tensor] = {}  # of the others
        self._measures = False  # whether gradients are measured in this step …
        self._norms: dict[int, torch.Tensor] = {}  # … and what was found
        self._why_not = plans.why_not
        self._drivers = [Driver(self, plan) for plan in plans.made]

    @property
    def kept(self) -> float:
        """The loss scale of what layers keep."""
        return self._reduction.scale or 1.0

    def reason(self, index: int) -> str:
        """Why a layer has its spec."""
        return self._reduction.layers[index].reason

    def size_of(self, index: int) -> float:
        """‖g‖² of a layer on this rank, in a step in which gradients are measured; NaN without a gradient."""
        norm = self._norms.get(index)
        return math.nan if norm is None else (float(norm) / self.kept) ** 2

    def gather(self, *mine: float) -> list[tuple[float, ...]]:
        """A few numbers of each rank."""
        form = f"<{len(mine)}d"
        return [
            struct.unpack(form, found)
            for found in all_gather_bytes(struct.pack(form, *mine), self._group)
        ]

    def serves(self, optimizer: Any) -> bool:
        """Whether these are the optimizers already."""
        known = {id(each) for each in plain_optimizers(optimizer)}
        mine = {id(driver.optimizer) for driver in self._drivers}
        return bool(mine) and known >= mine

    def begin(self) -> None:
        """Before the first gradient of a step."""
        self.sent.clear()
        self._norms.clear()
        for driver in self._drivers:
            driver.begin()
        self.is_local = any(driver.is_local for driver in self._drivers)
        self._own = {m.index for d in self._drivers if d.is_local for m in d.travelling}
        self._measures = any(driver.measures for driver in self._drivers)

    def travels(self, index: int, gradient: torch.Tensor) -> bool:
        """Whether a gradient is exchanged in the backward pass; in a local step those of layers that had none before the freeze are."""
        if self._measures:
            self._norms[index] = torch.linalg.vector_norm(gradient, dtype=torch.float32)
        self.sent[index] = gradient
        if index in self._own:
            self._reduction.keep(index)
            return False
        return True

    def restore_others(self) -> None:
        """In a local step, when the training loop is done with gradients: a rank clips by the norm of its own, and layers that are exchanged
        in every step must have the same mean everywhere."""
        found = [
            (self._reduction.layers[i].parameter.grad, mean) for i, mean in self._means.items()
        ]
        there = [(gradient, mean) for gradient, mean in found if gradient is not None]
        if there:
            torch._foreach_copy_([gradient for gradient, _ in there], [mean for _, mean in there])

    def exchanged(self) -> None:
        """At the end of the exchange."""
        if self.is_local:
            self._keep_means()
        for driver in self._drivers:
            driver.exchanged()

    def _keep_means(self) -> None:
        others = [index for index in self.sent if index not in self._own]
        if list(self._means) != others:
            self._means = {index: torch.empty_like(self.sent[index]) for index in others}
        if others:
            torch._foreach_copy_(list(self._means.values()), [self.sent[i] for i in others])

    @property
    def is_common(self) -> bool:
        return all(driver.is_common for driver in self._drivers)

    def report(self, loss: float | torch.Tensor) -> None:
        for driver in self._drivers:
            driver.report(loss)

    def moved(self, optimizer: Any, scaler: Any, steps: int | None) -> Moments:
        """The same layers with another optimizer, whose warm-up begins."""
        layers = [
            layer if layer.adaptive else dataclasses.replace(layer, spec=layer.declared)
            for layer in self._reduction.layers
        ]
        plans = plans_of(layers, optimizer, scaler, steps)
        self.close()
        return Moments(plans, self._reduction, self._group, scaler)

    def close(self) -> None:
        """Optimizers go on by themselves."""
        if not self.is_common:
            raise StateError(
                "ranks have made local steps and have different parameters: wait for a common step (compressor.is_common)"
            )
        for driver in self._drivers:
            driver.close()

    def stats(self) -> MomentStats | None:
        if not self._drivers:
            return MomentStats(f"not tried: {self._why_not}", 1, 0) if self._why_not else None
        several = len(self._drivers) > 1
        phases = [
            f"{type(d.optimizer).__name__} {d.phase}" if several else d.phase for d in self._drivers
        ]
        every = max(m.moment.every for d in self._drivers for m in d.members)
        return MomentStats("; ".join(phases), every, max(d.step for d in self._drivers))

    def save(self) -> list[dict[str, Any]]:
        return [driver.save() for driver in self._drivers]

    def load(self, saved: Sequence[Mapping[str, Any]] | None) -> None:
        """Before the reducer loads residuals, which belong to specs."""
        saved = saved or None  # empty where ``auto`` could not try momentum
        if not self._drivers:
            if saved is not None and any(entry["frozen"] for entry in saved):
                raise StateError(
                    f"in the state momentum travels, which is not possible here: {self._why_not}"
                )
            return
        kinds = [type(driver.optimizer).__name__ for driver in self._drivers]
        theirs = kinds if saved is None else [entry["optimizer"] for entry in saved]
        if kinds != theirs:
            raise StateError(
                f"the state was saved with {', '.join(theirs)}, and the optimizer is {', '.join(kinds)}"
            )
        for at, driver in enumerate(self._drivers):
            driver.load(None if saved is None else saved[at])
