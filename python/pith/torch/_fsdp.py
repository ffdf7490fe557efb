"""Compressed communication for models sharded by fully_shard (FSDP2): its reduce-scatter, and if asked its all-gather.

FSDP2 hands over one tensor for all parameters of a module: for each rank the rank's shards of all of them, one after another. Here every
shard is encoded by itself with its layer's codec, so that any codec can be used, and payloads travel by the all-to-all or all-gather of
the backend. The owner of a shard adds up in f32 in rank order; gradients are encoded once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .. import _library as c
from .._adapt import AdaptiveRules
from .._codec import Caps, Codec, Rules, codec_of
from .._errors import ArgumentError, StateError, UnsupportedError
from ._carrier import all_gather_single
from ._checkpoint import check_head, head_of
from ._coder import Piece, coder_for
from ._layers import (
    COMPRESSIBLE,
    Layer,
    Spec,
    agree,
    described,
    layers_of,
    plain_name,
    rules_of,
    summary_of,
)
from ._rates import Rates, followed
from ._table import REDUCE_SCATTER, LayerStats, Meter, Table, ratio_of

_CASTS = {torch.float16: "fp16", torch.bfloat16: "bf16"}
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether fully_shard was called for it. FSDP2 is not imported for the question: then nobody has called it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return isinstance(model, getattr(fsdp, "FSDPModule", ()))


# ---- Shards ----------------------------------------------------------------------------------------------------------


class Shard:
    """A layer's part on each rank, as FSDP2 lays it out: as many values on every rank, padded."""

    def __init__(self, layer: Layer, parameter: Any, coder: Any) -> None:
        self.layer = layer
        self.parameter = parameter  # FSDP2's own object
        self._coder, self._ranks = coder, coder.ranks
        self._states: list[Any] | None = None
        self.steps, self.raw, self.sent = 0, 0, 0  # raw: bytes of what was handed over
        self.meter = Meter()

    @property
    def n(self) -> int:
        return int(self.parameter.padded_sharded_param_size.numel())

    @property
    def rows(self) -> int:
        shape = self.parameter.padded_sharded_param_size
        return int(shape[0]) if len(shape) > 1 else 0

    @property
    def has_gradient(self) -> bool:
        return bool(self.parameter.sharded_param.requires_grad)

    def codec(self, dtype: torch.dtype) -> Codec:
        spec = self.layer.spec
        return codec_of(_CASTS.get(dtype, "none") if spec == "none" else spec)

    def states(self, dtype: torch.dtype) -> Sequence[Any]:
        """What is kept of the gradients for each rank's shard."""
        codec = self.codec(dtype)
        if not codec.has_memory:
            return [None] * self._ranks
        if self._states is None:
            self._states = [self._coder.keep(codec, self.n, self.rows) for _ in range(self._ranks)]
        return self._states

    def measure(self, values: torch.Tensor) -> None:
        """A part of a new message: what encoding loses of it, now and then."""
        self.raw += values.numel() * values.itemsize * self._ranks
        self.meter.begin()
        self.meter.look(self.layer, values, self.rows)

    def scale(self, factor: float) -> None:
        for state in self._states or ():
            state.scale(factor)

    def scale_residual(self, factor: float) -> None:
        for state in self._states or ():
            state.scale_residual(factor)

    def save(self) -> list[Any]:
        return [self._coder.saved(state) for state in self._states or ()]

    def read(self, saved: list[Any]) -> list[Any]:
        """Saved states as objects; nothing changes yet."""
        if saved and len(saved) != self._ranks:
            raise StateError(
                f"layer {self.layer.name}: {len(saved)} states for {self._ranks} ranks"
            )
        fresh = [self._coder.keep(self.layer.codec, self.n, self.rows) for _ in saved]
        for state, data in zip(fresh, saved, strict=True):
            state.load(data)
        return fresh

    def load(self, states: list[Any], steps: int) -> None:
        self._states, self.steps = states or None, steps


def _pieces(tensor: torch.Tensor, shards: Sequence[Shard], ranks: int) -> list[list[torch.Tensor]]:
    """For each rank, its shard of each layer."""
    sizes = [shard.n for shard in shards]
    return [list(row.split(sizes)) for row in tensor.view(ranks, -1)]


class _Places:
    """Encodes and decodes shards: which codec, and where random numbers come from."""

    def __init__(self, coder: Any) -> None:
        self.coder = coder
        self.rank, self.ranks = coder.rank, coder.ranks

    def _context(self, shard: Shard, step: int, encoder: int, owner: int) -> c.Ctx:
        """Shards of one layer differ in their random numbers: each owner has steps of its own."""
        ctx: c.Ctx = self.coder.context(step * self.ranks + owner, shard.layer, encoder)
        ctx.rows = shard.rows
        return ctx

    def mine(
        self,
        shard: Shard,
        values: torch.Tensor,
        state: Any,
        payload: torch.Tensor,
        step: int,
        owner: int,
    ) -> Piece:
        """Values that this rank encodes for the owner of a shard."""
        return Piece(
            shard.codec(values.dtype),
            values,
            payload,
            self._context(shard, step, self.rank, owner),
            state,
        )

    def theirs(
        self,
        shard: Shard,
        codec: Codec,
        payload: torch.Tensor,
        values: torch.Tensor,
        step: int,
        encoder: int,
        owner: int,
    ) -> Piece:
        """What another rank has encoded."""
        return Piece(codec, values, payload, self._context(shard, step, encoder, owner))


def _empty(size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(*size, dtype=dtype, device=device)


class _OfModule:
    """What FSDP2's two interfaces have in common: the shards of one module, and memory for what is exchanged."""

    def __init__(self, owner: ShardedCompressor, shards: list[Shard], places: _Places) -> None:
        self._owner, self._shards, self._places = owner, shards, places

    def allocate(
        self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return _empty(size, dtype, device)


# ---- Reduce-scatter --------------------------------------------------------------------------------------------------


class _ReduceScatter(_OfModule):
    """Of the gradients of one module: FSDP2's interface for a reduce-scatter of one's own."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        shards = [shard for shard in self._shards if shard.has_gradient]
        reason = self._why_not(output_tensor, shards, op)
        if reason is not None:
            self._owner._count_exact(reason)
            return reduce_scatter_single(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
        self._owner._follow()
        self._reduce(output_tensor, input_tensor, shards, group, bool(_is_mean(op)))
        return None

    def _why_not(self, output: torch.Tensor, shards: list[Shard], op: Any) -> str | None:
        """Why these gradients are reduced exactly, if they are."""
        if output.dtype not in COMPRESSIBLE:
            return f"{output.dtype} is not compressed"
        if output.numel() != sum(shard.n for shard in shards):
            return "some parameters of a module had no gradient"
        if _is_mean(op) is None:
            return "a divide factor of your own"
        return None

    def _reduce(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        shards: list[Shard],
        group: Any,
        mean: bool,
    ) -> None:
        message, sizes = self._encode(source, shards)
        received = _all_to_all(message, sizes, shards, output.dtype, group)
        parts = output.split([shard.n for shard in shards])
        totals = [
            part if part.dtype == torch.float32 else torch.empty_like(part).float()
            for part in parts
        ]
        for rank, payloads in enumerate(received):
            self._add(shards, payloads, totals, output.dtype, rank)
        for shard, total, part in zip(shards, totals, parts, strict=True):
            self._divide(shard.codec(part.dtype), total, mean)
            if total is not part:
                part.copy_(total)
            shard.steps += 1

    def _encode(
        self, source: torch.Tensor, shards: list[Shard]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Payloads for rank 0, 1, …, of each layer, without gaps; and their sizes."""
        places, dtype = self._places, source.dtype
        bounds = [shard.codec(dtype).bound(shard.n) for shard in shards] * places.ranks
        rooms = places.coder.buffer(max(1, sum(bounds)))[: sum(bounds)].split(bounds)
        pieces: list[Piece] = []
        for rank, row in enumerate(_pieces(source, shards, places.ranks)):
            for shard, values in zip(shards, row, strict=True):
                if rank == places.rank:
                    shard.measure(values)
                state, room = shard.states(dtype)[rank], rooms[len(pieces)]
                pieces.append(places.mine(shard, values, state, room, shard.steps, rank))
        used = places.coder.encode_pieces(pieces)
        sizes = torch.tensor(used, dtype=torch.int64).view(places.ranks, len(shards))
        for index, shard in enumerate(shards):
            shard.sent += int(sizes[:, index].sum() - sizes[places.rank, index])
        return torch.cat([room[:size] for room, size in zip(rooms, used, strict=True)]), sizes

    def _add(
        self,
        shards: list[Shard],
        payloads: Sequence[torch.Tensor],
        totals: list[torch.Tensor],
        dtype: torch.dtype,
        rank: int,
    ) -> None:
        """What a rank has sent, to the sums of those before it."""
        places = self._places
        pieces = [
            places.theirs(shard, shard.codec(dtype), payload, total, shard.steps, rank, places.rank)
            for shard, payload, total in zip(shards, payloads, totals, strict=True)
        ]
        places.coder.decode_pieces(pieces, rank > 0)

    def _divide(self, codec: Codec, total: torch.Tensor, mean: bool) -> None:
        votes = Caps.VOTE in codec.caps
        if mean or votes:
            self._places.coder.aggregate(codec, total)
        if votes and not mean:
            total *= self._places.ranks  # who asked for a sum divides it


def _is_mean(op: Any) -> bool | None:
    """Whether it is a mean; None for anything but sums and means."""
    for kind, mean in ((dist.ReduceOp.AVG, True), (dist.ReduceOp.SUM, False)):
        if op == kind:
            return mean
    return None


def _all_to_all(
    message: torch.Tensor,
    sizes: torch.Tensor,
    shards: Sequence[Shard],
    dtype: torch.dtype,
    group: Any,
) -> list[list[torch.Tensor]]:
    """From each rank, the payload of each layer for us."""
    if all(Caps.FIXED in shard.codec(dtype).caps for shard in shards):
        theirs = sizes  # shards have the same size on all ranks
    else:
        ours = sizes.to(message.device)
        arrived = torch.empty_like(ours)
        dist.all_to_all_single(arrived, ours, group=group)
        theirs = arrived.cpu()
    send, receive = sizes.sum(1).tolist(), theirs.sum(1).tolist()
    received = torch.empty(sum(receive), dtype=torch.uint8, device=message.device)
    dist.all_to_all_single(received, message, receive, send, group=group)
    rows = received.split(receive)
    table = theirs.tolist()
    return [list(row.split(table[rank])) for rank, row in enumerate(rows)]


# ---- All-gather ------------------------------------------------------------------------------------------------------


class _AllGather(_OfModule):
    """Of the parameters of one module, the same way. Everybody decodes the same bytes, the owner too."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        async_op: bool = False,
    ) -> Any:
        whole = sum(shard.n for shard in self._shards)
        if input_tensor.dtype not in COMPRESSIBLE or input_tensor.numel() != whole:
            self._owner._count_exact(f"parameters of {input_tensor.dtype} in one message")
            return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        self._gather(output_tensor, input_tensor, group)
        return None

    def _gather(self, output: torch.Tensor, source: torch.Tensor, group: Any) -> None:
        shards, places, dtype = self._shards, self._places, source.dtype
        bounds = [shard.codec(dtype).bound(shard.n) for shard in shards]
        mine = places.coder.buffer(sum(bounds))
        pieces = source.split([shard.n for shard in shards])
        for shard, values, out in zip(shards, pieces, mine.split(bounds), strict=True):
            shard.measure(values)
            shard.steps += 1
            shard.sent += out.numel() * (places.ranks - 1)
        places.coder.encode_pieces(
            [
                places.mine(shard, values, None, out, 0, places.rank)
                for shard, values, out in zip(shards, pieces, mine.split(bounds), strict=True)
            ]
        )
        everything = places.coder.buffer(sum(bounds) * places.ranks)
        all_gather_single(everything, mine, group=group)
        rows = everything.view(places.ranks, -1)
        for rank, row in enumerate(_pieces(output, shards, places.ranks)):
            arrived = [
                places.theirs(shard, shard.codec(dtype), payload, values, 0, rank, rank)
                for shard, values, payload in zip(
                    shards, row, rows[rank].split(bounds), strict=True
                )
            ]
            places.coder.decode_pieces(arrived, add=False)


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
    """What :func:`pith.torch.compress` gives for a model sharded by ``fully_shard``."""

    def __init__(
        self,
        model: torch.nn.Module,
        spec: Spec,
        rules: str | Rules | None,
        plan: Any,
        seed: int,
        scaler: Any,
        all_gather: str | Rules | None,
        optimizer: Any,
        follow_lr: bool | None,
    ) -> None:
        groups = _groups_of(model)
        if not groups:
            raise ArgumentError("fully_shard has found no parameters in this model")
        self._group = groups[0][1]._reduce_scatter_process_group
        self._ranks = dist.get_world_size(self._group)
        self._owner = (
            dist.get_rank(),
            dist.get_world_size(),
        )  # replicas of a shard have residuals of their own
        self._scaler = scaler
        self._scale: float | None = None
        self.exact: dict[str, int] = {}  # messages that were not compressed, and why
        self._restore: list[Callable[[], None]] = []  # each puts back what FSDP2 had before
        self._forget: Callable[[], None] = lambda: None
        coder_for(groups[0][1].device, 0, 1, seed)  # says so if the device is none of ours

        def look() -> tuple[tuple[list[Layer], list[Layer]], dict[str, Any]]:
            followed(optimizer, follow_lr)  # a slip is an error here
            chosen = rules_of(spec, rules, plan)
            if isinstance(chosen, AdaptiveRules):
                raise UnsupportedError(
                    f"{chosen.adaptive} is for DistributedDataParallel and DistributedOptimizer: specs of models sharded by fully_shard "
                    "cannot change; take one from a plan, or q:4"
                )
            named = [(plain_name(name), p) for name, p in model.named_parameters()]
            layers = layers_of(named, chosen)
            gathered = _gathered(named, all_gather)
            more = {"all_gather": getattr(all_gather, "text", all_gather)}
            return (layers, gathered), summary_of(layers, chosen, seed, **more)

        layers, gathered = agree(self._group, look)
        self._layers = layers
        self._shards = self._attach(groups, layers, seed)
        self._parameters = self._attach(groups, gathered, seed, gather=True) if gathered else []
        self._rates = Rates([shard.layer for shard in self._shards], optimizer, follow_lr)

    def _attach(
        self, groups: list[tuple[Any, Any]], layers: list[Layer], seed: int, gather: bool = False
    ) -> list[Shard]:
        by_parameter = {id(layer.parameter): layer for layer in layers}
        found = []
        for module, group in groups:
            process_group = group._reduce_scatter_process_group
            ranks = dist.get_world_size(process_group)
            rank = dist.get_rank(process_group)
            places = _Places(coder_for(group.device, rank, ranks, seed))
            shards = [
                Shard(by_parameter[id(entry.sharded_param)], entry, places.coder)
                for entry in group.fsdp_params
            ]
            for shard in shards:
                places.coder.admit(shard.layer, shard.layer.codec)
            if gather:
                self._restore.append(partial(module.set_custom_all_gather, group._all_gather_comm))
                module.set_custom_all_gather(_AllGather(self, shards, places))
            else:
                self._restore.append(
                    partial(module.set_custom_reduce_scatter, group._reduce_scatter_comm)
                )
                module.set_custom_reduce_scatter(_ReduceScatter(self, shards, places))
            found += shards
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
        return self._layers

    def follow(self, optimizer: Any, follow_lr: bool | None = None) -> None:
        """Residuals follow the learning rates of this optimizer, or of several in a list, from the next step on, as with
        ``compress(model, spec, optimizer=…)``: for an optimizer that is made later, or anew."""
        self._rates.change(optimizer, follow_lr)

    def remove(self) -> None:
        """Ends compression: the model is reduced and gathered as before. All ranks call it, between steps."""
        for restore in self._restore:
            restore()
        self._restore.clear()
        self._forget()

    # ---- What the messages report

    def _count_exact(self, reason: str) -> None:
        self.exact[reason] = self.exact.get(reason, 0) + 1

    def _follow(self) -> None:
        """Before a message: what is kept follows the loss scale and the learning rate, which change between steps only."""
        self._follow_scale()
        self._rates.follow(lambda index, factor: self._shards[index].scale_residual(factor))

    def _follow_scale(self) -> None:
        """What is kept is in units of the loss scale."""
        if self._scaler is None or not self._scaler.is_enabled():
            return
        scale = float(self._scaler.get_scale())
        if self._scale is not None and scale != self._scale and math.isfinite(scale / self._scale):
            for shard in self._shards:
                shard.scale(scale / self._scale)
        self._scale = scale

    # ---- Checkpoints and statistics

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps between steps, for its checkpoint: every rank saves its own."""
        return head_of(*self._owner) | {
            "scale": self._scale,
            "rates": self._rates.save(),
            "layers": [(layer.name, layer.spec, list(layer.shape)) for layer in self._layers],
            "steps": [shard.steps for shard in self._shards],
            "states": [shard.save() for shard in self._shards],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """From a checkpoint of the same rank. Names, shapes, specs and ranks are checked before anything changes."""
        check_head(saved, *self._owner)
        mine = [(layer.name, layer.spec, list(layer.shape)) for layer in self._layers]
        if "states" not in saved or [tuple(entry) for entry in saved["layers"]] != mine:
            raise StateError(
                "the state is of other layers or specs, or of a model that is not sharded"
            )
        pairs = list(zip(self._shards, saved["states"], strict=True))
        fresh = [shard.read(states) for shard, states in pairs]  # all of them, or nothing changes
        for (shard, _), states, steps in zip(pairs, fresh, saved["steps"], strict=True):
            shard.load(states, steps)
        self._scale = saved["scale"]
        self._rates.load(saved.get("rates"))

    def stats(self) -> Table:
        """The table of layers; with ``all_gather``, parameters follow, as "NAME (gathered)". Errors are those of this rank's part."""
        found = [self._line(shard) for shard in self._shards]
        found += [self._line(shard, " (gathered)") for shard in self._parameters]
        for shard in self._shards + self._parameters:
            shard.meter.ask()
        return Table(found, self._ranks, dist.get_backend(self._group), REDUCE_SCATTER)

    def _line(self, shard: Shard, suffix: str = "") -> LayerStats:
        layer = shard.layer
        return LayerStats(
            layer.name + suffix,
            layer.spec,
            layer.reason,
            layer.n,
            shard.steps,
            shard.raw,
            shard.sent,
            ratio_of(shard.raw, shard.sent, shard._ranks, REDUCE_SCATTER),
            shard.meter.error(layer),
        )


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
