# SPDX-License-Identifier: Apache-2.0
"""AdamW whose momentum travels: an optimizer of optax for specs that begin with ``moment``.

Gradients travel nearly exactly until the variance v has settled, or for as many steps as the spec says. Then v is frozen, and each rank
sends β·M + (1 − β)·g, its own part of the next momentum, with error feedback. The mean is the momentum M of all (docs/optimizers.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._codec import Codec, Moment, codec_of
from .._comm import Comm
from .._errors import ArgumentError, UnsupportedError
from .._spec import Spec, check_rules, rules_of
from ._allreduce import State, allreduce, init
from ._programs import leaves_of

_FLOOR = 0.1  # of a layer's mean variance: what every value has at least once it is frozen
_CHANGE = 0.04  # of ‖v‖ over one span of steps, at which it counts as settled
_SPANS = 4  # before which it never does
_PERIOD = 50  # steps between two looks at the size of gradients
_LEAST = 1e-4  # of a frozen variance
_SIZES, _NORM = "pith/sizes", "pith/norm"  # names of what travels beside the leaves


class MomentState(NamedTuple):
    """The state of ``adamw``. Each rank has its own; all but the last three fields are the same on all ranks."""

    count: Any  # steps so far
    frozen: Any  # the step after which v was frozen; 0: it is not
    mu: Any  # M, in f32
    nu: Any  # v, in f32
    norm: Any  # ‖v‖ when it was last looked at, for freeze=auto
    sizes: Any  # of each layer whose momentum travels: ‖g‖² at the first look after the freeze, and a mean of later ones
    exact: State  # of gradients that travel in all steps
    warm: State  # of those that travel until v is frozen
    sent: State  # of momentum


class _Plan:
    """Which leaves send their momentum, and how all of them travel in each phase."""

    def __init__(self, tree: Any, rules: Any, steps: int | None) -> None:
        leaves, _, self.structure = leaves_of(tree)
        self.names = [leaf.name for leaf in leaves]
        check_rules(rules, self.names)
        codecs = [codec_of(rules.find(leaf.name, leaf.shape).spec) for leaf in leaves]
        found = [(n, k, k.moment) for n, k in zip(self.names, codecs, strict=True)]
        self.moments = [name for name, _, moment in found if moment]
        self.others = [name for name, _, moment in found if not moment]
        if not self.moments:
            raise ArgumentError(
                "no leaf has a spec that begins with moment: for gradients, put pith.jax.compress() before an optimizer of optax"
            )
        settings = {m for _, _, m in found if m}
        if len({(m.freeze, m.every, m.warm) for m in settings}) > 1:
            raise ArgumentError("the parameters of moment are the same for all leaves")
        self.moment: Moment = next(iter(settings))
        if self.moment.every > 1:
            raise UnsupportedError("pith.jax.adamw exchanges in every step: leave out every=…")
        self.first = _first_frozen(self.moment.freeze, steps)
        gradients = f"q:{self.moment.warm}" if self.moment.warm else "none"
        self.exact_rules = _rules((n, k.spec) for n, k, m in found if not m)
        self.warm_rules = _rules([*((n, gradients) for n in self.moments), (_NORM, "none")])
        self.sent_rules = _rules([*((n, _feedback(k)) for n, k, m in found if m), (_SIZES, "none")])

    def split(self, tree: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The leaves that send momentum, and all others, by name."""
        leaves = dict(zip(self.names, self.structure.flatten_up_to(tree), strict=True))
        return {n: leaves[n] for n in self.moments}, {n: leaves[n] for n in self.others}

    def join(self, *parts: dict[str, Any]) -> Any:
        """The inverse."""
        leaves = {name: leaf for part in parts for name, leaf in part.items()}
        return jax.tree.unflatten(self.structure, [leaves[name] for name in self.names])


def _rules(pairs: Any) -> str:
    return ";".join(f"{name}={spec}" for name, spec in pairs)


def _feedback(codec: Codec) -> str:
    """The same codec with plain error feedback, which is what momentum travels with."""
    memory, _, rest = codec.parts.partition("/")
    store = [part for part in memory.split(",") if part.startswith("store=")]
    return ",".join(["ef", *store]) + "/" + rest


def adamw(
    learning_rate: float | Callable[[Any], Any],
    spec: Spec = "moment/onebit",
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    mask: Any = None,
    steps: int | None = None,
    rules: Any = None,
    plan: Any = None,
    seed: int = 0,
    comm: Comm | None = None,
) -> Any:
    """An ``optax.GradientTransformation``: AdamW that sends its compressed momentum once the variance is frozen::

        optimizer = pith.jax.adamw(1e-3, "*bias=none;*=moment,freeze=0.25/onebit", steps=1000)

    Its input are this rank's own gradients, so do not put ``compress`` before it. The first arguments are those of
    ``optax.adamw``. ``steps`` is the length of the run, for a ``freeze`` that is a share of it. Leaves with other specs
    get plain AdamW throughout.
    """
    import optax

    chosen = rules_of(spec, rules, plan)
    plans: dict[Any, _Plan] = {}  # by the structure and shapes of a tree

    def plan_of(tree: Any) -> _Plan:
        leaves, _, structure = leaves_of(tree)
        key = structure, tuple(leaves)
        if key not in plans:
            plans[key] = _Plan(tree, chosen, steps)
        return plans[key]

    options: dict[str, Any] = {"seed": seed, "comm": comm}
    span = math.ceil(1 / (1 - b2) - 1e-9)

    def begin(params: Any) -> MomentState:
        found = plan_of(params)
        moments, others = found.split(params)
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        wide = {n: jax.ShapeDtypeStruct(p.shape, jnp.float32) for n, p in moments.items()}
        count = len(moments)
        return MomentState(
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
            zeros,
            jax.tree.map(jnp.copy, zeros),
            jnp.zeros((), jnp.float32),
            jnp.zeros((2, count), jnp.float32),
            init(others, found.exact_rules or "none", **options),
            init(moments | {_NORM: jnp.zeros(())}, found.warm_rules, **options),
            init(wide | {_SIZES: jnp.zeros(count)}, found.sent_rules, **options),
        )

    def update(grads: Any, state: MomentState, params: Any = None) -> tuple[Any, MomentState]:
        if params is None:
            raise ArgumentError(
                "adamw needs the parameters: optimizer.update(grads, state, params)"
            )
        found = plan_of(grads)
        moments, others = found.split(grads)
        exact = state.exact
        if others:
            others, exact = allreduce(others, exact, found.exact_rules, **options)
        count = state.count + 1
        mu_m, mu_o = found.split(state.mu)
        nu_m, nu_o = found.split(state.nu)
        mu_o, nu_o = _adam(others, mu_o, nu_o, b1, b2)

        def warming(_: Any) -> Any:
            is_look = (found.moment.freeze == 0) & (state.count % span == 0)
            norm = jax.lax.cond(is_look, _norm_of, lambda _: jnp.zeros(()), nu_m)
            tree = moments | {_NORM: norm}
            tree, warm = allreduce(tree, state.warm, found.warm_rules, after=exact, **options)
            norm = tree.pop(_NORM)  # the same on all ranks, as what follows from it
            mu, nu = _adam(tree, mu_m, nu_m, b1, b2)
            is_settled = is_look & (jnp.abs(norm - state.norm) < _CHANGE * state.norm)
            is_settled = is_settled & (state.count >= _SPANS * span)
            now = is_settled if found.moment.freeze == 0 else count >= found.first
            frozen = jnp.where(now, count, 0)
            kept = jnp.where(is_look, norm, state.norm)
            return mu, nu, frozen, kept, state.sizes, warm, state.sent

        def sending(_: Any) -> Any:
            parts = {n: b1 * mu_m[n] + (1 - b1) * g.astype(jnp.float32) for n, g in moments.items()}
            sizes = [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in moments.values()]
            tree = parts | {_SIZES: jnp.stack(sizes)}
            mu, sent = allreduce(tree, state.sent, found.sent_rules, after=exact, **options)
            is_look = (count - state.frozen) % _PERIOD == 0
            looked = jnp.where(is_look, _look(state.sizes, mu.pop(_SIZES)), state.sizes)
            return mu, nu_m, state.frozen, state.norm, looked, state.warm, sent

        was_frozen = state.frozen > 0
        mu_m, nu_m, frozen, norm, sizes, warm, sent = jax.lax.cond(was_frozen, sending, warming, 0)
        factors = dict(zip(found.moments, _factors(sizes), strict=True))
        since = jnp.where(was_frozen, state.frozen, count)

        def step(mu: Any, nu: Any, at: Any, factor: Any) -> Any:
            root = jnp.sqrt(factor * nu / (1 - b2 ** at.astype(jnp.float32)))
            return mu / (1 - b1 ** count.astype(jnp.float32)) / (root + eps)

        moved = {n: step(mu_m[n], nu_m[n], since, factors[n]) for n in found.moments}
        moved |= {n: step(mu_o[n], nu_o[n], count, 1.0) for n in found.others}
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        decays = _decays(mask, params, weight_decay)

        def scaled(change: Any, p: Any, decay: Any) -> Any:
            return (-rate * (change + decay * p.astype(jnp.float32))).astype(p.dtype)

        updates = jax.tree.map(scaled, found.join(moved), params, decays)
        nu_m = jax.lax.cond((frozen > 0) & ~was_frozen, _raised, lambda nu: nu, nu_m)
        mu, nu = found.join(mu_m, mu_o), found.join(nu_m, nu_o)
        return updates, MomentState(count, frozen, mu, nu, norm, sizes, exact, warm, sent)

    return optax.GradientTransformation(begin, update)


def _first_frozen(freeze: float, steps: int | None) -> int:
    """The step after which ``freeze`` says so; 0: when v has settled."""
    if freeze == 0 or freeze >= 1:
        return math.ceil(freeze)
    if steps is None:
        raise ArgumentError(
            f"moment:freeze={freeze:g} is a share of the run: say how many steps that has, adamw(…, steps=…); or name a step, or auto"
        )
    return max(1, math.ceil(freeze * steps))


def _adam(grads: Any, mu: Any, nu: Any, b1: float, b2: float) -> tuple[Any, Any]:
    wide = {n: g.astype(jnp.float32) for n, g in grads.items()}
    return (
        {n: b1 * mu[n] + (1 - b1) * g for n, g in wide.items()},
        {n: b2 * nu[n] + (1 - b2) * jnp.square(g) for n, g in wide.items()},
    )


def _norm_of(nu: dict[str, Any]) -> Any:
    return sum(jnp.sum(v) for v in nu.values())


def _raised(nu: dict[str, Any]) -> dict[str, Any]:
    return {n: jnp.maximum(v, _FLOOR * jnp.mean(v)) for n, v in nu.items()}


def _look(sizes: Any, now: Any) -> Any:
    """The first look, and the mean of all, each half as much as the one after; looks that are not finite do not count."""
    first, mean = sizes
    had = first > 0
    looked = jnp.stack([jnp.where(had, first, now), jnp.where(had, (mean + now) / 2, now)])
    return jnp.where(jnp.isfinite(now), looked, sizes)


def _factors(sizes: Any) -> Any:
    """On frozen variances: how much gradients have shrunk since."""
    first, mean = sizes
    ratio = jnp.clip(mean / jnp.where(first > 0, first, 1), _LEAST, 1)
    return jnp.where(first > 0, ratio, 1)


def _decays(mask: Any, params: Any, weight_decay: float) -> Any:
    if mask is None:
        return jax.tree.map(lambda _: weight_decay, params)
    chosen = mask(params) if callable(mask) else mask
    return jax.tree.map(lambda use, _: jnp.where(use, weight_decay, 0.0), chosen, params)
