# SPDX-License-Identifier: Apache-2.0
"""Which layers send the momentum of which optimizer; what cannot be done is an error here, before the first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._codec import Rules, codec_of
from .._errors import ArgumentError, UnsupportedError
from ._auto import is_free, is_plain
from ._freeze import first_frozen
from ._layers import COMPRESSIBLE, Layer
from ._moment_adam import AdamSteps
from ._moment_steps import Member, MuonSteps, SgdSteps, Steps
from ._moment_trial import CANDIDATE
from ._rates import plain_optimizers


@dataclass
class Plan:
    """An optimizer and those of its layers whose momentum is to travel."""

    optimizer: torch.optim.Optimizer
    kind: type[Steps]
    members: list[Member]
    first: int | None  # the step after which it does; None: when the variance has settled
    adaptive: str = ""  # the adaptive spec that tries it


@dataclass
class Plans:
    """All of them, and why momentum is no candidate of ``auto``, where it might be."""

    made: list[Plan]
    why_not: str = ""

    def __bool__(self) -> bool:
        return bool(self.made or self.why_not)


def plans_of(layers: Sequence[Layer], optimizer: Any, scaler: Any, steps: int | None) -> Plans:
    """For the layers with ``moment`` in their specs, where it is an error if it cannot be done; else for those of ``auto``, which may try it."""
    optimizers = plain_optimizers(optimizer)
    found = [(index, layer) for index, layer in enumerate(layers) if _sends_momentum(layer)]
    if found:
        return Plans(_demanded(layers, found, optimizers, scaler, steps))
    tried = [(index, layer) for index, layer in enumerate(layers) if is_free(layer.adaptive)]
    if not tried or all(map(is_plain, optimizers)):
        return Plans([])
    try:
        return Plans([_tried(tried, optimizers, scaler)])
    except (ArgumentError, UnsupportedError) as error:
        return Plans([], str(error))


def _sends_momentum(layer: Layer) -> bool:
    return not layer.adaptive and layer.codec.moment is not None


def _tried(
    found: Sequence[tuple[int, Layer]], optimizers: Sequence[torch.optim.Optimizer], scaler: Any
) -> Plan:
    """Momentum as a candidate of ``auto``; an error if it cannot be one."""
    optimizer = optimizers[0]
    if len(optimizers) > 1:
        raise UnsupportedError(f"it is tried with one optimizer, and there are {len(optimizers)}")
    if not is_tried(optimizer):
        raise UnsupportedError(
            f"it is tried with AdamW and Adam of torch.optim, not with {type(optimizer).__name__}"
        )
    groups = _groups_of(optimizers)
    _check_groups([layer for _, layer in found], groups)
    members = [
        _member(
            index,
            dataclasses.replace(layer, spec=CANDIDATE),
            groups[id(layer.parameter)][1],
            optimizer,
            scaler,
        )
        for index, layer in found
    ]
    return Plan(optimizer, AdamSteps, members, None, found[0][1].adaptive)


def _groups_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[int, tuple[int, int]]:
    """Which optimizer has a parameter, and in which of its groups."""
    return {
        id(parameter): (which, number)
        for which, each in enumerate(optimizers)
        for number, group in enumerate(each.param_groups)
        for parameter in group["params"]
    }


def _demanded(
    layers: Sequence[Layer],
    found: Sequence[tuple[int, Layer]],
    optimizers: Sequence[torch.optim.Optimizer],
    scaler: Any,
    steps: int | None,
) -> list[Plan]:
    if not optimizers:
        raise ArgumentError(
            f"{found[0][1].spec} sends the momentum of an optimizer, and there is none: compress(…, optimizer=optimizer)"
        )
    groups = _groups_of(optimizers)
    _check_groups([layer for _, layer in found], groups)
    plans = [Plan(each, _kind_of(each), [], None) for each in optimizers]
    for index, layer in [*found, *_others(layers, found, optimizers)]:
        which, number = groups[id(layer.parameter)]
        plans[which].members.append(_member(index, layer, number, optimizers[which], scaler))
    used = [plan for plan in plans if plan.members]
    for plan in used:
        plan.first = _first_of(plan, steps)
    return used


def _others(
    layers: Sequence[Layer],
    found: Sequence[tuple[int, Layer]],
    optimizers: Sequence[torch.optim.Optimizer],
) -> list[tuple[int, Layer]]:
    """With local steps, the layers that are not compressed: they are exchanged in the same steps as all others, exactly, so that nobody waits
    for anybody in between, and a norm that gradients are clipped by is of all of them."""
    moments = [moment for _, layer in found if (moment := layer.codec.moment) is not None]
    times = {moment.every for moment in moments}
    if max(times) == 1:
        return []
    if len(times) > 1:
        raise ArgumentError(
            f"local steps are those of all layers: say the same every=… in all rules with moment, not {' and '.join(map(str, sorted(times)))}"
        )
    every, freeze = moments[0].every, moments[0].freeze
    known = {id(p) for group in optimizers[0].param_groups for p in group["params"]}
    strange = [layer.name for layer in layers if id(layer.parameter) not in known]
    if len(optimizers) > 1 or strange:
        why = f"{strange[0]} is not in its groups" if strange else f"there are {len(optimizers)}"
        raise UnsupportedError(
            f"local steps (every={every}) are for one optimizer with all parameters of the model: {why}"
        )
    spec = f"moment,every={every},freeze={freeze or 'auto'}/none"
    here = {index for index, _ in found}
    others = [(index, layer) for index, layer in enumerate(layers) if index not in here]
    for _, layer in others:
        if layer.sparse or layer.dtype not in COMPRESSIBLE:
            raise UnsupportedError(
                f"local steps (every={every}) are those of all layers, and {layer.name} cannot make them: {layer.reason}"
            )
    return [(index, dataclasses.replace(layer, spec=spec)) for index, layer in others]


def check_sparse(layers: Sequence[Layer], rules: Rules) -> None:
    """An error if rules want the momentum of a layer with a sparse gradient."""
    for layer in layers:
        if layer.sparse and codec_of(rules.find(layer.name, layer.shape).spec).moment:
            raise UnsupportedError(
                f"the gradient of {layer.name} is sparse, and momentum is not: give it another spec in a rule, {layer.name}=none"
            )


def _check_groups(layers: Sequence[Layer], groups: Mapping[int, Any]) -> None:
    missing = [layer.name for layer in layers if id(layer.parameter) not in groups]
    if len(missing) == len(layers):
        raise ArgumentError(
            f"the optimizer has none of the {len(layers)} layers whose momentum is to travel ({missing[0]}, …): it is that of another model"
        )
    if missing:
        raise ArgumentError(
            f"{len(missing)} of {len(layers)} layers whose momentum is to travel are in no group of the optimizer ({missing[0]}, …): give "
            "all optimizers of the model, optimizer=[…], or these layers another spec"
        )


def is_tried(optimizer: torch.optim.Optimizer) -> bool:
    """Whether ``auto`` tries its momentum."""
    return _steps_of(optimizer) is AdamSteps


def _kind_of(optimizer: torch.optim.Optimizer) -> type[Steps]:
    found = _steps_of(optimizer)
    if found is None:
        raise UnsupportedError(
            f"momentum travels with AdamW, Adam, SGD and Muon of torch.optim, not with {type(optimizer).__name__}"
        )
    return found


def _steps_of(optimizer: torch.optim.Optimizer) -> type[Steps] | None:
    muon: Any = getattr(torch.optim, "Muon", ())
    for kind, steps in (
        ((torch.optim.Adam, torch.optim.AdamW), AdamSteps),
        (torch.optim.SGD, SgdSteps),
        (muon, MuonSteps),
    ):
        if isinstance(optimizer, kind):
            return steps
    return None


def _member(
    index: int, layer: Layer, number: int, optimizer: torch.optim.Optimizer, scaler: Any
) -> Member:
    moment = layer.codec.moment
    assert moment is not None
    group, name = optimizer.param_groups[number], type(optimizer).__name__
    is_adam = isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW))
    if moment.every > 1 and not is_adam:
        raise UnsupportedError(
            f"{layer.spec}: local steps (every={moment.every}) are for AdamW and Adam; with {name}, pith.torch.LocalSteps is for that"
        )
    if moment.every > 1 and scaler is not None and scaler.is_enabled():
        raise UnsupportedError(
            f"{layer.spec}: in local steps (every={moment.every}) ranks would find infinities in gradients of their own, and a GradScaler would skip "
            "different steps: use bfloat16, or every=1"
        )
    if is_adam:
        _check_adam(optimizer, group, name)
    elif not group["momentum"]:
        raise UnsupportedError(
            f"{layer.spec}: this {name} has no momentum: ef/{layer.spec.partition('/')[2]} is for that"
        )
    parameter = layer.parameter
    if (
        hasattr(parameter, "_local_tensor")
        or torch.empty_like(parameter).stride() != parameter.stride()
    ):
        raise UnsupportedError(
            f"{layer.spec}: the values of {layer.name} are not in one piece of memory"
        )
    return Member(index, layer.name, parameter, number, layer.codec, moment)


def _check_adam(optimizer: Any, group: Mapping[str, Any], name: str) -> None:
    if group["amsgrad"]:
        raise UnsupportedError(
            f"{name} with amsgrad has a variance that follows every gradient: momentum travels with amsgrad=False"
        )
    if group["weight_decay"] and not _is_decoupled(optimizer, group):
        raise UnsupportedError(
            f"the weight decay of {name} is a part of gradients, and would have to travel: use torch.optim.AdamW"
        )
    if group["differentiable"]:
        raise UnsupportedError(f"momentum does not travel with {name}(differentiable=True)")


def _is_decoupled(optimizer: Any, group: Mapping[str, Any]) -> bool:
    return bool(group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW)))


def _first_of(plan: Plan, steps: int | None) -> int | None:
    times = {member.moment.freeze for member in plan.members}
    if len(times) > 1:
        raise ArgumentError(
            f"the layers of an optimizer have one time at which its variance is frozen, not {len(times)}: say the same freeze=… in all rules"
        )
    first = first_frozen(times.pop(), steps)
    # Without a variance there is nothing to wait for but the first momentum.
    return 1 if first is None and plan.kind is not AdamSteps else first
