# SPDX-License-Identifier: Apache-2.0
"""Compressed communication for models sharded by fully_shard (FSDP2): its reduce-scatter, its allreduce between replicas where there are
any (_replicas.py), and if asked its all-gather.

FSDP2 hands over one tensor for all parameters of a module: for each rank the rank's shards of all of them, one after another. Here every
shard is encoded by itself with its layer's codec, so that any codec can be used. A sharded reducer of the C library does that, and its
payloads travel by the all-to-all or all-gather of the backend.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .._adapt import AdaptiveRules, option_of
from .._codec import Caps, Rules
from .._errors import ArgumentError, Error, StateError, UnsupportedError
from .._reducer import Reducer
from .._spec import rules_of
from .._table import ALLREDUCE, REDUCE_SCATTER, LayerStats, Table
from ._carrier import all_gather_single
from ._engine import check_device, to_tensor
from ._layers import (
    COMPRESSIBLE,
    Layer,
    Settings,
    agree,
    default_spec,
    described,
    layers_of,
    plain_name,
    refuse_moments,
    summary_of,
)
from ._rates import LossScale, Rates, followed
from ._replicas import (
    Between,
    ReplicaGroup,
    ReplicaShard,
    gradient_dtype,
    replicas_of,
    take_place,
)
from ._shards import (
    Messages,
    Shard,
    compare,
    copy_to_compare,
    follow_plan,
    is_mean,
    measure,
    why_exact,
)
from ._states import check_head, head_of

_SHARDED = "a model sharded by fully_shard has of that only the part of its own shards, where every rank would add all of it to its gradients"

reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether fully_shard was called for it. FSDP2 is not imported for the question: then nobody has called it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return isinstance(model, getattr(fsdp, "FSDPModule", ()))


# ---- What FSDP2 calls ------------------------------------------------------------------------------------------------


class _OfModule:
    """What FSDP2's two interfaces have in common: the shards of one module, and memory for what is exchanged."""

    name = ""  # in the names of FSDP2's functions

    def __init__(self, owner: ShardedCompressor, shards: list[Shard], group: Any) -> None:
        self._owner, self._shards, self._messages = owner, shards, shards[0].messages
        self._group = group  # what FSDP2 keeps of the module

    def allocate(
        self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _ReduceScatter(_OfModule):
    """Of the gradients of one module: FSDP2's interface for a reduce-scatter of one's own."""

    name = "reduce_scatter"

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        shards = [s for s in self._shards if s.parameter.sharded_param.requires_grad]
        reason = why_exact(output_tensor, shards, op)
        if reason is not None:
            self._owner.exact[reason] += 1
            return reduce_scatter_single(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
        self._owner._follow()
        messages = self._messages
        measure(shards, input_tensor.view(messages.ranks, -1)[messages.rank])
        call = messages.reducer.reduce_scatter
        messages.run(call, shards, input_tensor, output_tensor, bool(is_mean(op)))
        follow_plan(self._shards)
        return None


class _AllGather(_OfModule):
    """Of the parameters of one module, the same way. Everybody decodes the same bytes, the owner too.

    As differences from what all ranks have, parameters travel in the forward pass. The backward pass gets what the forward pass was given:
    parameters do not change in between.
    """

    name = "all_gather"
    _is_kept = False

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        async_op: bool = False,
    ) -> Any:
        whole = sum(shard.n for shard in self._shards)
        if input_tensor.dtype not in COMPRESSIBLE or input_tensor.numel() != whole:
            self._owner.exact[f"parameters of {input_tensor.dtype} in one message"] += 1
            return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        reducer, shards = self._messages.reducer, self._shards
        if not shards[0].delta:
            measure(shards, input_tensor)
            self._messages.run(reducer.all_gather, shards, input_tensor, output_tensor)
        elif self._is_kept and self._is_backward():
            self._messages.run(_given_again(reducer), shards, input_tensor, output_tensor)
        else:
            copy = copy_to_compare(shards, input_tensor)
            self._messages.run(reducer.all_gather, shards, input_tensor, output_tensor)
            if copy is not None:
                compare(
                    shards, copy, output_tensor.view(self._messages.ranks, -1)[self._messages.rank]
                )
            self._is_kept = True
        return None

    def _is_backward(self) -> bool:
        """As FSDP2 says; where it does not, differences travel again."""
        return getattr(getattr(self._group, "_training_state", None), "name", "") == "PRE_BACKWARD"


def _given_again(reducer: Reducer) -> Callable[..., None]:
    return lambda numbers, source, target: reducer.gathered(numbers, target)


# ---- The whole model -------------------------------------------------------------------------------------------------


def _groups_of(model: torch.nn.Module) -> list[tuple[Any, Any]]:
    """Modules that fully_shard was called for, with what FSDP2 keeps of their parameters."""
    found = []
    for module in model.modules():
        if not is_sharded(module):
            continue
        state = module._get_fsdp_state()  # type: ignore[operator]
        groups = getattr(state, "_fsdp_param_groups", None)
        groups = groups if groups is not None else [getattr(state, "_fsdp_param_group", None)]
        present = [group for group in groups if group is not None]
        if len(present) > 1:
            raise UnsupportedError(
                "a module whose parameters are sharded over several meshes cannot be compressed"
            )
        found += [(module, group) for group in present if group.fsdp_params]
    return found


class ShardedCompressor:
    """The handle that ``compress`` returns for a model sharded by ``fully_shard``."""

    def __init__(self, model: torch.nn.Module, settings: Settings) -> None:
        seed, optimizer = settings.seed, settings.optimizer
        all_gather, replicas = settings.all_gather, settings.replicas
        delta, rules_gathered = _split_delta(all_gather)
        groups = _groups_of(model)
        if not groups:
            raise ArgumentError("fully_shard has found no parameters in this model")
        self._group = groups[0][1]._reduce_scatter_process_group
        self._ranks = dist.get_world_size(self._group)
        # Of the world: replicas of a shard have residuals of their own.
        self._owner = dist.get_rank(), dist.get_world_size()
        self._scale = LossScale(settings.scaler)
        self.exact: Counter[str] = Counter()  # messages that were not compressed, and why
        self._restore: list[Callable[[], None]] = []  # each puts back what FSDP2 had before
        self._forget: Callable[[], None] = lambda: None
        check_device(groups[0][1].device)

        def look() -> tuple[tuple[Any, ...], dict[str, Any]]:
            followed(optimizer, settings.follow_lr)  # a slip is an error here
            chosen = settings.rules_or(default_spec(model.parameters()))
            named = [(plain_name(name), p) for name, p in model.named_parameters()]
            layers = layers_of(named, chosen)
            refuse_moments(layers, _SHARDED)
            between = _between(named, chosen, replicas) if replicated else ("", [])
            gathered = _gathered(named, rules_gathered)
            more = {
                "all_gather": getattr(all_gather, "text", all_gather),
                "replicas": getattr(replicas, "text", replicas),
            }
            summary.update(summary_of(layers, chosen, seed, **more))
            return (_adaptive(chosen), layers, between, gathered), summary

        found = [replicas_of(group) for _, group in groups]
        replicated = [over for over in found if over is not None]
        self._replica_groups = {
            entry: over
            for (_, group), over in zip(groups, found, strict=True)
            if over is not None
            for entry in group.fsdp_params
        }
        summary: dict[str, Any] = {}
        look_here = partial(agree, self._group, look)
        if replicated:  # what shard groups have agreed on, replicas compare
            found_all = agree(replicated[0], lambda: (look_here(), summary))
        elif replicas is not None:
            raise ArgumentError(
                "replicas is for models that fully_shard has sharded over a mesh of two dimensions: here there is one replica only"
            )
        else:
            found_all = look_here()
        adaptive, layers, (adaptive_between, between), gathered = found_all
        self._layers = layers
        self._messages: list[Messages] = []  # of gradients
        self._gathering: list[Messages] = []  # of parameters, where anything is kept of them
        self._between: list[Between] = []
        try:
            self._shards = self._attach(groups, layers, seed, adaptive)
            self._replicas = (
                self._attach_replicas(groups, between, seed, adaptive_between) if between else []
            )
            self._parameters = (
                self._attach(groups, gathered, seed, "", True, delta) if gathered else []
            )
        except Error:  # on all ranks: they have agreed on what is wrong
            self.remove()
            raise
        self._replica = {shard.parameter: shard for shard in self._replicas}
        layers = [shard.layer for shard in self._shards]
        self._rates = Rates(layers, optimizer, settings.follow_lr)

    def _attach(
        self,
        groups: list[tuple[Any, Any]],
        layers: list[Layer],
        seed: int,
        adaptive: str,
        gather: bool = False,
        delta: str = "",
    ) -> list[Shard]:
        by_parameter = {id(layer.parameter): layer for layer in layers}
        found = []
        made: dict[Any, Messages] = {}
        for module, group in groups:
            over = group._reduce_scatter_process_group
            messages = made[over] = made.get(over) or Messages(over, group.device, seed, adaptive)
            shards = [
                Shard(
                    by_parameter[id(entry.sharded_param)],
                    entry,
                    gradient_dtype(group, entry),
                    messages,
                    delta,
                )
                for entry in group.fsdp_params
            ]
            kind = _AllGather if gather else _ReduceScatter
            set_custom = getattr(module, f"set_custom_{kind.name}")
            self._restore.append(partial(set_custom, getattr(group, f"_{kind.name}_comm")))
            set_custom(kind(self, shards, group))
            found += shards
        if not gather:
            self._messages = list(made.values())
        elif delta:
            self._gathering = list(made.values())
        return found

    def _attach_replicas(
        self, groups: list[tuple[Any, Any]], layers: list[Layer], seed: int, adaptive: str
    ) -> list[ReplicaShard]:
        by_parameter = {id(layer.parameter): layer for layer in layers}
        found = []
        made: dict[Any, Between] = {}
        for _, group in groups:
            over = replicas_of(group)
            if over is None:
                continue
            between = made[over] = made.get(over) or Between(over, group.device, seed, adaptive)
            shards = [
                ReplicaShard(
                    by_parameter[id(entry.sharded_param)],
                    entry,
                    gradient_dtype(group, entry),
                    between,
                )
                for entry in group.fsdp_params
            ]
            self._restore.append(take_place(group, ReplicaGroup(self, group, over, shards)))
            found += shards
        self._between = list(made.values())
        for between in self._between:
            between.reducer.check()
        follow_plan(found)
        return found

    def __repr__(self) -> str:
        rank = dist.get_rank(self._group)
        return f"<pith.torch.ShardedCompressor of {described(self._layers, dist.get_backend(self._group), rank, self._ranks)}>"

    @property
    def group(self) -> Any:
        """The process group of the first sharded module."""
        return self._group

    @property
    def layers(self) -> Sequence[Layer]:
        """The parameters that get a gradient."""
        return [shard.layer for shard in self._shards]

    def follow(self, optimizer: Any, follow_lr: bool | None = None) -> None:
        """Residuals follow the learning rates of this optimizer, or of several in a list, from the next step on, as with
        ``compress(model, spec, optimizer=…)``: for an optimizer that is made later, or anew."""
        self._rates.change(optimizer, follow_lr)

    def remove(self) -> None:
        """Ends compression: gradients and parameters are exchanged exactly from now on. All ranks call it, between steps."""
        for restore in self._restore:
            restore()
        self._restore.clear()
        self._forget()

    # ---- What the messages report

    def _follow(self) -> None:
        """Before a message: what is kept follows the loss scale and the learning rate, which change between steps only."""

        def scale(factor: float) -> None:
            for reducer in self._of_gradients():
                reducer.scale(factor)

        def scale_residual(index: int, factor: float) -> None:
            shard = self._shards[index]
            shard.messages.reducer.scale_residual(shard.number, factor)
            replica = self._replica.get(shard.parameter)
            if replica is not None:
                replica.messages.reducer.scale_residual(replica.number, factor)

        self._scale.follow(scale)
        self._rates.follow(scale_residual)

    # ---- Checkpoints and statistics

    def _of_gradients(self) -> list[Reducer]:
        own: list[Messages | Between] = [*self._messages, *self._between]
        return [each.reducer for each in own]

    def _kept(self) -> list[Reducer]:
        """Those that a checkpoint has."""
        return self._of_gradients() + [each.reducer for each in self._gathering]

    def _head(self) -> dict[str, Any]:
        """What a state must have in common with this compressor."""
        found = {"layers": [(x.name, x.declared, list(x.shape)) for x in self._layers]}
        if self._replicas:
            found["replicas"] = [(x.layer.name, x.layer.declared, x.shape) for x in self._replicas]
        if self._gathering:
            parameters = self._parameters
            found["gathered"] = [
                (x.layer.name, x.delta + x.layer.spec, x.shape) for x in parameters
            ]
        return found

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps between steps, for its checkpoint: every rank saves its own."""
        return (
            head_of(*self._owner)
            | {"scale": self._scale.value, "rates": self._rates.save()}
            | self._head()
            | {"reducers": [to_tensor(reducer.save()) for reducer in self._kept()]}
        )

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """From a checkpoint of the same rank. Names, shapes, specs and ranks are checked before anything changes."""
        check_head(saved, *self._owner)
        if "states" in saved:
            raise StateError(
                "the state was saved by Pith 0.1, which kept it in another form; train on without it"
            )
        same = "reducers" in saved and len(saved["reducers"]) == len(self._kept())
        mine = self._head()
        for level in ("layers", "replicas", "gathered"):
            theirs = [tuple(entry) for entry in saved.get(level, [])]
            same = same and theirs == mine.get(level, [])
        if not same:
            raise StateError(
                "the state is of other layers or specs, or of a model that is not sharded"
            )
        changed: list[tuple[Reducer, bytes]] = []
        try:
            for reducer, state in zip(self._kept(), saved["reducers"], strict=True):
                before = reducer.save()
                reducer.load(state)
                changed.append((reducer, before))
        except Error:
            for reducer, before in changed:  # all of them, or nothing changes
                reducer.load(before)
            raise
        self._scale.value = saved["scale"]
        self._rates.load(saved.get("rates"))
        self._follow_plans()

    def _follow_plans(self) -> None:
        follow_plan(self._shards)
        follow_plan(self._replicas)

    def stats(self) -> Table:
        """A table of the layers. Rows "NAME (replicas)" are the allreduce between replicas, and rows "NAME (gathered)"
        gathered parameters. Errors are those of this rank's part.
        """
        found = [self._line(shard) for shard in self._shards]
        found += [self._line(shard, " (replicas)", ALLREDUCE) for shard in self._replicas]
        found += [self._line(shard, " (gathered)") for shard in self._parameters]
        all_shards: list[Shard | ReplicaShard] = [*self._shards, *self._replicas, *self._parameters]
        for shard in all_shards:
            shard.meter.ask()
        exact = sum(x.ratio * x.wire_bytes for x in found if x.wire_bytes)
        backend = dist.get_backend(self._group)
        return Table(found, self._ranks, backend, REDUCE_SCATTER, exact_bytes=exact)

    def _line(
        self, shard: Shard | ReplicaShard, suffix: str = "", passes: int = REDUCE_SCATTER
    ) -> LayerStats:
        now, ranks = shard.messages.reducer.layer(shard.number), shard.messages.ranks
        raw, sent = now.traffic.raw_bytes, now.traffic.sent_bytes
        found = shard.meter.line(shard.layer, now.steps, raw, sent, ranks, passes)
        spec = now.spec if isinstance(shard, Shard) and shard.delta else found.spec
        return dataclasses.replace(found, name=found.name + suffix, spec=spec)


def _adaptive(rules: Rules) -> str:
    """The adaptive spec in these rules, if there is one."""
    return rules.adaptive if isinstance(rules, AdaptiveRules) else ""


def _between(
    named: list[Any], gradients: Rules, spec: str | Rules | None
) -> tuple[str, list[Layer]]:
    """The adaptive spec of the allreduce between replicas, if there is one, and its layers, if any of them is compressed. If nothing is said, it is
    compressed as gradients are. There is one adaptive spec for a model: if it is that of gradients, its budget is that of replicas."""
    if spec is None:
        chosen = gradients
        if isinstance(gradients, AdaptiveRules):
            budget = option_of(gradients.adaptive, "budget") or "q:4"
            chosen = rules_of(gradients.text.removesuffix(gradients.adaptive) + budget, None, None)
    else:
        chosen = rules_of(spec, None, None)
    if _adaptive(gradients) and _adaptive(chosen):
        raise UnsupportedError(
            f"replicas: {_adaptive(chosen)} and {_adaptive(gradients)} inside cannot both adapt: each would take the time that the other's "
            "trials cost for that of its own; give one of them a spec that stays, as q:4"
        )
    layers = layers_of(named, chosen)
    refuse_moments(layers, _SHARDED)
    adaptive = _adaptive(chosen)
    return adaptive, layers if adaptive or any(layer.spec != "none" for layer in layers) else []


def _split_delta(spec: str | Rules | None) -> tuple[str, str | Rules | None]:
    """What says that parameters travel as differences ("delta:64/"), and the spec or rules of these."""
    if not isinstance(spec, str):
        return "", spec
    found = re.match(r"\s*(delta(?:[:,][^/;]*)?/)", spec)
    return (found[1], spec[found.end() :]) if found else ("", spec)


def _gathered(named: list[Any], spec: str | Rules | None) -> list[Layer]:
    """The layers of an all-gather, if it is compressed."""
    if spec is None:
        return []
    chosen = rules_of(spec, None, None)
    if isinstance(chosen, AdaptiveRules):
        raise UnsupportedError(f"all_gather: {chosen.adaptive} is for gradients")
    layers = layers_of(named, chosen)
    for layer in layers:
        if layer.codec.has_memory or Caps.FIXED not in layer.codec.caps:
            raise UnsupportedError(
                f"all_gather: {layer.spec} cannot be used for parameters: that takes a codec of fixed size without memory, as q:8"
            )
    return layers
