# SPDX-License-Identifier: Apache-2.0
"""Every collective of the torch backend against gloo on the same inputs: all types, 1 to 5 ranks.

Inputs are small whole numbers, so that sums are exact in every type and order and results can be compared bit by bit. Where gloo cannot do
a type, what torch computes from all ranks' inputs is the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import needs
from ranks import run

torch = needs.module("torch", "the backend needs torch")

import torch.distributed as dist  # noqa: E402

import pith.torch  # noqa: E402

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]
Op = dist.ReduceOp


def data(dtype: Any, rank: int, shape: tuple[int, ...] = (7, 3), salt: int = 0) -> Any:
    """What that rank has: 0 to 3, the same whoever asks."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    values = torch.randint(0, 4, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(values.double(), values.flip(0).double()).to(dtype)
    return values > 1 if dtype == torch.bool else values.to(dtype)


def strided(tensor: Any) -> Any:
    """The same values in memory that is not contiguous."""
    return torch.stack([tensor, torch.zeros_like(tensor)], dim=-1)[..., 0]


class Pair:
    """Does everything twice, with pith and with gloo, and compares."""

    def __init__(self, rank: int, size: int) -> None:
        dist.init_process_group("pith", timeout=timedelta(seconds=60))
        self.rank, self.size = rank, size
        self.gloo = dist.new_group(backend="gloo")
        self.with_gloo = self.checks = 0

    def both(self, what: str, operation: Callable[[Any], Any], expected: Any) -> None:
        """operation(group) gives tensors; expected is what they must be, gloo may not disagree."""
        found = operation(None)
        self.same(what, found, expected)
        try:
            reference = operation(self.gloo)
        except (RuntimeError, ValueError):
            return  # gloo cannot
        self.with_gloo += 1
        self.same(f"{what}, gloo", found, reference)

    def same(self, what: str, found: Any, expected: Any) -> None:
        found = found if isinstance(found, (list, tuple)) else [found]
        expected = expected if isinstance(expected, (list, tuple)) else [expected]
        assert len(found) == len(expected), what
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, (
                f"{what}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
            )
            assert torch.equal(a, b), f"{what}, rank {self.rank} of {self.size}: {a} is not {b}"
            self.checks += 1


def reduce_all(tensors: list[Any], op: Any) -> Any:
    """What torch says."""
    if tensors[0].dtype == torch.bool:
        stack = torch.stack(tensors)
        any_, all_ = stack.any(0), stack.all(0)
        odd = stack.sum(0) % 2 == 1
        return {
            Op.SUM: any_,
            Op.MAX: any_,
            Op.BOR: any_,
            Op.PRODUCT: all_,
            Op.MIN: all_,
            Op.BAND: all_,
            Op.BXOR: odd,
        }[op]
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        if op == Op.SUM:
            result += tensor
        elif op == Op.PRODUCT:
            result *= tensor
        elif op == Op.MIN:
            result = torch.minimum(result, tensor)
        elif op == Op.MAX:
            result = torch.maximum(result, tensor)
        elif op == Op.BAND:
            result &= tensor
        elif op == Op.BOR:
            result |= tensor
        elif op == Op.BXOR:
            result ^= tensor
    return result


def ops_of(dtype: Any) -> list[Any]:
    if dtype.is_complex:
        return [Op.SUM]
    bits = [] if dtype.is_floating_point else [Op.BAND, Op.BOR, Op.BXOR]
    return [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, *bits]


def check_reductions(p: Pair, dtype: Any) -> None:
    r, n = p.rank, p.size
    everybody = [data(dtype, k) for k in range(n)]
    for op in ops_of(dtype):
        expected = reduce_all(everybody, op)

        def allreduce(group: Any, op: Any = op) -> Any:
            if group is not None and dtype == torch.bool:
                raise ValueError  # gloo adds up bits as bytes: 1 + 1 is 2
            x = data(dtype, r)
            dist.all_reduce(x, op, group=group)
            return x

        def reduce(group: Any, op: Any = op) -> Any:
            if group is not None and dtype == torch.bool:
                raise ValueError  # gloo adds up bits as bytes: 1 + 1 is 2
            x = data(dtype, r)
            dist.reduce(x, n - 1, op, group=group)
            return x if r == n - 1 else []

        p.both(f"all_reduce {dtype} {op}", allreduce, expected)
        p.both(f"reduce {dtype} {op}", reduce, expected if r == n - 1 else [])
    whole = reduce_all([data(dtype, k, (n * 2, 3)) for k in range(n)], Op.SUM)
    mine = whole[2 * r : 2 * r + 2]

    def reduce_scatter_tensor(group: Any) -> Any:
        out = torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter_tensor(out, data(dtype, r, (n * 2, 3)), group=group)
        return out

    def reduce_scatter(group: Any) -> Any:
        out = torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter(out, list(data(dtype, r, (n * 2, 3)).chunk(n)), group=group)
        return out

    if dtype != torch.bool:
        p.both(f"reduce_scatter_tensor {dtype}", reduce_scatter_tensor, mine)
        p.both(f"reduce_scatter {dtype}", reduce_scatter, mine)


def check_moves(p: Pair, dtype: Any) -> None:
    r, n = p.rank, p.size
    everybody = [data(dtype, k) for k in range(n)]

    def broadcast(group: Any) -> Any:
        x = data(dtype, r)
        dist.broadcast(x, n - 1, group=group)
        return x

    def all_gather(group: Any) -> Any:
        out = [torch.empty(7, 3, dtype=dtype) for _ in range(n)]
        dist.all_gather(out, data(dtype, r), group=group)
        return out

    def all_gather_into_tensor(group: Any) -> Any:
        out = torch.empty(7 * n, 3, dtype=dtype)
        dist.all_gather_into_tensor(out, data(dtype, r), group=group)
        return out

    def gather(group: Any) -> Any:
        out = [torch.empty(7, 3, dtype=dtype) for _ in range(n)] if r == 0 else None
        dist.gather(data(dtype, r), out, 0, group=group)
        return out or []

    def scatter(group: Any) -> Any:
        out = torch.empty(7, 3, dtype=dtype)
        dist.scatter(
            out, [data(dtype, k) for k in range(n)] if r == n - 1 else None, n - 1, group=group
        )
        return out

    def all_to_all_single(group: Any) -> Any:
        out = torch.empty(2 * n, 3, dtype=dtype)
        dist.all_to_all_single(out, data(dtype, r, (2 * n, 3)), group=group)
        return out

    def all_to_all_splits(group: Any) -> Any:  # rank k sends k + p rows to rank p
        out = torch.empty(sum(k + r for k in range(n)), 3, dtype=dtype)
        given = data(dtype, r, (sum(r + k for k in range(n)), 3))
        dist.all_to_all_single(
            out, given, [k + r for k in range(n)], [r + k for k in range(n)], group=group
        )
        return out

    def all_to_all(group: Any) -> Any:
        out = [torch.empty(3, 2, dtype=dtype) for _ in range(n)]
        dist.all_to_all(out, [data(dtype, r, (3, 2), salt=k) for k in range(n)], group=group)
        return out

    def ring(group: Any) -> Any:
        out = torch.empty(7, 3, dtype=dtype)
        sent = dist.isend(data(dtype, r), (r + 1) % n, group=group, tag=3)
        dist.recv(out, (r - 1) % n, group=group, tag=3)
        sent.wait()
        return out

    p.both(f"broadcast {dtype}", broadcast, everybody[n - 1])
    p.both(f"all_gather {dtype}", all_gather, everybody)
    p.both(f"all_gather_into_tensor {dtype}", all_gather_into_tensor, torch.cat(everybody))
    p.both(f"gather {dtype}", gather, everybody if r == 0 else [])
    p.both(f"scatter {dtype}", scatter, everybody[r])
    rows = [data(dtype, k, (2 * n, 3))[2 * r : 2 * r + 2] for k in range(n)]
    p.both(f"all_to_all_single {dtype}", all_to_all_single, torch.cat(rows))
    splits = []
    for k in range(n):
        given = data(dtype, k, (sum(k + q for q in range(n)), 3))
        splits.append(given.split([k + q for q in range(n)])[r])
    p.both(f"all_to_all_single with splits {dtype}", all_to_all_splits, torch.cat(splits))
    p.both(f"all_to_all {dtype}", all_to_all, [data(dtype, k, (3, 2), salt=r) for k in range(n)])
    if n > 1:
        p.both(f"send and recv {dtype}", ring, everybody[(r - 1) % n])


def check_large(p: Pair) -> None:
    """Longer than a chunk, and of an odd length."""
    shape = (300_007,)
    expected = reduce_all([data(torch.float32, k, shape) for k in range(p.size)], Op.SUM)

    def allreduce(group: Any) -> Any:
        x = data(torch.float32, p.rank, shape)
        dist.all_reduce(x, group=group)
        return x

    p.both("all_reduce, large", allreduce, expected)


def check_empty(p: Pair) -> None:
    x = torch.empty(0)
    dist.all_reduce(x)
    out = torch.empty(0)
    dist.all_gather_into_tensor(out, x)
    dist.broadcast(x, 0)
    p.same("all_to_all_single, empty", out, torch.empty(0))


def check_strides(p: Pair) -> None:
    """Tensors that are not contiguous, as inputs and as outputs."""
    r, n = p.rank, p.size
    everybody = [data(torch.float32, k) for k in range(n)]
    total = reduce_all(everybody, Op.SUM)
    x = strided(data(torch.float32, r))
    assert not x.is_contiguous()
    dist.all_reduce(x)
    p.same("all_reduce, strided", x, total)
    t = data(torch.float32, r).t()
    dist.all_reduce(t)
    p.same("all_reduce, transposed", t, total.t())
    x = strided(data(torch.float32, r))
    dist.broadcast(x, 0)
    p.same("broadcast, strided", x, everybody[0])
    outs = [strided(torch.empty(7, 3)) for _ in range(n)]
    dist.all_gather(outs, strided(data(torch.float32, r)))
    p.same("all_gather, strided", outs, everybody)
    if n > 1:
        out = strided(torch.empty(7, 3))
        work = dist.irecv(out, (r - 1) % n)
        dist.send(strided(data(torch.float32, r)), (r + 1) % n)
        work.wait()
        p.same("recv, strided", out, everybody[(r - 1) % n])
    whole = torch.zeros(n, 7, 3)
    dist.all_gather(list(whole.unbind()), data(torch.float32, r))  # views that follow each other
    p.same("all_gather, into views", whole, torch.stack(everybody))
    conj = data(torch.complex64, r).conj()
    dist.group.WORLD.broadcast(conj, 0).wait()
    p.same(
        "broadcast, conjugate", conj.resolve_conj(), data(torch.complex64, 0).conj().resolve_conj()
    )


def check_means(p: Pair) -> None:
    for dtype in [*FLOATS, torch.complex64]:
        everybody = [data(dtype, k) for k in range(p.size)]
        x = everybody[p.rank].clone()
        dist.all_reduce(x, Op.AVG)
        wide = torch.stack(everybody).to(torch.complex128 if dtype.is_complex else torch.float64)
        torch.testing.assert_close(x, wide.mean(0).to(dtype))
        p.checks += 1
    x = torch.ones(5)
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    p.same("all_reduce, premultiplied", x, torch.full((5,), 0.5 * p.size))


def check_coalesced(p: Pair) -> None:
    r, n = p.rank, p.size
    shapes = [(5,), (3, 4), (2000,)]
    sums = [reduce_all([data(torch.float32, k, s) for k in range(n)], Op.SUM) for s in shapes]

    def all_reduce_coalesced(group: Any) -> Any:
        xs = [data(torch.float32, r, s) for s in shapes]
        dist.all_reduce_coalesced(xs, group=group)
        return xs

    p.both("all_reduce_coalesced", all_reduce_coalesced, sums)
    xs = [data(torch.float32, r, s) for s in shapes]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    p.same("coalescing manager, all_reduce", xs, sums)
    outs = [torch.empty(n * s[0], *s[1:]) for s in shapes]
    with dist._coalescing_manager():
        for out, s in zip(outs, shapes, strict=True):
            dist.all_gather_into_tensor(out, data(torch.float32, r, s))
    p.same(
        "coalescing manager, all_gather",
        outs,
        [torch.cat([data(torch.float32, k, s) for k in range(n)]) for s in shapes],
    )
    outs = [torch.empty(s) for s in shapes]
    with dist._coalescing_manager():
        for out, s in zip(outs, shapes, strict=True):
            dist.reduce_scatter_tensor(out, data(torch.float32, r, (n * s[0], *s[1:])))
    wholes = [
        reduce_all([data(torch.float32, k, (n * s[0], *s[1:])) for k in range(n)], Op.SUM)
        for s in shapes
    ]
    p.same(
        "coalescing manager, reduce_scatter",
        outs,
        [whole.chunk(n)[r] for whole, s in zip(wholes, shapes, strict=True)],
    )
    for some in (
        shapes,
        shapes[:1] * n,
    ):  # also as many tensors as ranks, where the two could be mixed up

        def all_gather_coalesced(group: Any, some: Any = some) -> Any:
            lists = [[torch.empty(s) for s in some] for _ in range(n)]
            given = [data(torch.float32, r, s, salt=k) for k, s in enumerate(some)]
            dist.all_gather_coalesced(lists, given, group=group)
            return [out for outs in lists for out in outs]

        p.both(
            "all_gather_coalesced",
            all_gather_coalesced,
            [data(torch.float32, q, s, salt=k) for q in range(n) for k, s in enumerate(some)],
        )


def check_async(p: Pair) -> None:
    total = reduce_all([data(torch.float32, k) for k in range(p.size)], Op.SUM)
    xs = [data(torch.float32, p.rank) for _ in range(40)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in works[::-1]:  # in any order
        assert work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
    p.same("async", xs, [total] * len(xs))
    futures = []
    for _ in range(10):
        x = data(torch.float32, p.rank)
        futures.append(dist.all_reduce(x, async_op=True).get_future())
    p.same("futures", [f.wait()[0] for f in futures], [total] * 10)
    chained = (
        dist.all_reduce(data(torch.float32, p.rank), async_op=True)
        .get_future()
        .then(lambda f: f.value()[0] * 2)
    )
    p.same("future.then", chained.wait(), total * 2)
    x = data(torch.float32, p.rank)
    work = dist.all_reduce(x, async_op=True)
    p.same("future and wait", [work.get_future().wait()[0]], [total])
    work.wait()
    for _ in range(100):
        dist.all_reduce(torch.ones(100), async_op=True)  # nobody waits
    dist.barrier(async_op=True).wait(timedelta(seconds=30))


def check_objects(p: Pair) -> None:
    r, n = p.rank, p.size
    got: list[Any] = [None] * n
    dist.all_gather_object(got, {"rank": r, "long": "x" * (100 * r)})
    assert [g["rank"] for g in got] == list(range(n)) and len(got[-1]["long"]) == 100 * (n - 1)
    several = [r, "a", None] if r == 0 else [None] * 3
    dist.broadcast_object_list(several, 0)
    assert several == [0, "a", None]
    on_root: Any = [None] * n if r == 0 else None
    dist.gather_object(r * 10, on_root, 0)
    assert r or on_root == [10 * k for k in range(n)]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {k}" for k in range(n)] if r == 0 else None, 0)
    assert mine == [f"for {r}"]
    p.checks += 4
    if n > 1 and r < 2:
        given = ["hello", 5] if r == 0 else [None, None]
        if r == 0:
            dist.send_object_list(given, 1)
        else:
            dist.recv_object_list(given, 0)
        assert given == ["hello", 5]


def check_points(p: Pair) -> None:
    r, n = p.rank, p.size
    if n == 1:
        return
    outs = [torch.empty(4) for _ in range(2)]
    operations = [
        dist.P2POp(dist.isend, torch.full((4,), float(r)), (r + 1) % n),
        dist.P2POp(dist.irecv, outs[0], (r - 1) % n),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    p.same("batch_isend_irecv", outs[0], torch.full((4,), float((r - 1) % n)))
    if r == 0:  # tags decide, not the order
        first, second = dist.isend(torch.ones(2), 1, tag=1), dist.isend(torch.ones(2) * 2, 1, tag=2)
        first.wait(), second.wait()
    elif r == 1:
        a, b = torch.empty(2), torch.empty(2)
        dist.recv(b, 0, tag=2)
        future = dist.irecv(a, 0, tag=1).get_future()
        p.same("tags", [future.wait()[0], b], [torch.ones(2), torch.ones(2) * 2])
    if r == 0:  # from any source
        got = {}
        for _ in range(n - 1):
            out = torch.empty(3)
            got[dist.recv(out, tag=9)] = out
        p.same(
            "recv from any",
            [got[k] for k in sorted(got)],
            [torch.full((3,), float(k)) for k in range(1, n)],
        )
    else:
        dist.send(torch.full((3,), float(r)), 0, tag=9)


def check_groups(p: Pair) -> None:
    r, n = p.rank, p.size
    evens = list(range(0, n, 2))
    group = dist.new_group(evens, backend="pith")
    if r in evens:
        x = torch.tensor([float(r)])
        dist.all_reduce(x, group=group)
        p.same("subgroup", x, torch.tensor([float(sum(evens))]))
        x = torch.tensor([float(r)])
        dist.broadcast(x, evens[-1], group=group)
        p.same("subgroup, global root", x, torch.tensor([float(evens[-1])]))
        dist.destroy_process_group(group)
    halves, _ = dist.new_subgroups(1)
    dist.barrier(halves)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, n), mesh_dim_names=("a", "b"))
    x = torch.ones(3)
    dist.all_reduce(x, group=mesh.get_group("b"))
    p.same("DeviceMesh", x, torch.full((3,), float(n)))


def check_functional(p: Pair) -> None:
    import torch.distributed._functional_collectives as functional

    r, n, group = p.rank, p.size, dist.group.WORLD
    plain = functional.wait_tensor
    p.same(
        "functional all_reduce",
        plain(functional.all_reduce(torch.ones(3) * r, "sum", group)),
        torch.ones(3) * sum(range(n)),
    )
    ops = torch.ops._c10d_functional
    gathered = ops.wait_tensor(ops.all_gather_into_tensor(torch.ones(2) * r, n, group.group_name))
    p.same("functional all_gather", gathered, torch.arange(n).float().repeat_interleave(2))
    scattered = ops.wait_tensor(
        ops.reduce_scatter_tensor(torch.arange(2.0 * n), "sum", n, group.group_name)
    )
    p.same("functional reduce_scatter", scattered, n * torch.arange(2.0 * n)[2 * r : 2 * r + 2])
    exchanged = ops.wait_tensor(
        ops.all_to_all_single(torch.arange(n) + 10 * r, [1] * n, [1] * n, group.group_name)
    )
    p.same("functional all_to_all", exchanged, 10 * torch.arange(n) + r)
    p.same(
        "functional broadcast",
        plain(functional.broadcast(torch.ones(2) * r, 0, group)),
        torch.zeros(2),
    )


def check_sparse(p: Pair) -> None:
    def one(k: int) -> Any:
        return torch.sparse_coo_tensor(
            [[k, k + 1]], torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (k + 1), (p.size + 1, 2)
        )

    x = one(p.rank)
    dist.all_reduce(x)
    p.same("sparse all_reduce", x.to_dense(), sum(one(k).to_dense() for k in range(p.size)))


def every_collective(rank: int, size: int) -> tuple[int, int]:
    p = Pair(rank, size)
    for dtype in ALL:
        check_reductions(p, dtype)
        check_moves(p, dtype)
    for dtype in [torch.uint16, torch.float8_e4m3fn]:  # types that only travel
        x = data(torch.float32, rank).to(dtype)
        dist.broadcast(x, 0)
        p.same(
            f"broadcast {dtype}",
            x.view(torch.uint8),
            data(torch.float32, 0).to(dtype).view(torch.uint8),
        )
    for check in (
        check_large,
        check_empty,
        check_strides,
        check_means,
        check_coalesced,
        check_async,
        check_objects,
        check_points,
        check_groups,
        check_functional,
        check_sparse,
    ):
        check(p)
    dist.destroy_process_group()
    return p.checks, p.with_gloo


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_collective_is_that_of_gloo(size: int) -> None:
    for checks, with_gloo in run(every_collective, size):
        assert checks > 250
        assert with_gloo > 100


# ---- Compression -----------------------------------------------------------------------------------------------------


def compressed(rank: int, size: int) -> list[bytes]:
    dist.init_process_group("pith")
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(rank))
    exact = x.clone()
    dist.all_reduce(exact)
    found = []
    with pith.torch.compression("q:8,round=stochastic", seed=5):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            y = x.to(dtype, copy=True)
            dist.all_reduce(y)
            assert 0 < (y.float() - exact).norm() < 0.03 * exact.norm()
            found.append(y.view(torch.uint8).numpy().tobytes())
        part = torch.empty(20_000 // size)
        dist.reduce_scatter_tensor(part, x[: len(part) * size].clone())
        assert (
            0
            < (part - exact[rank * len(part) : (rank + 1) * len(part)]).norm()
            < 0.05 * part.norm()
        )
        counts = torch.arange(2000) * rank
        dist.all_reduce(counts)  # integers stay exact
        assert torch.equal(counts, torch.arange(2000) * sum(range(size)))
        small = torch.full((10,), 0.1)
        dist.all_reduce(small)
        with pith.torch.compression(None):
            again = x.clone()
            dist.all_reduce(again)
            assert torch.equal(again, exact)
    with pith.torch.compression("topk:0.1"), pytest.warns(UserWarning, match="whole tensor"):
        dist.reduce_scatter_tensor(part, x[: len(part) * size].clone())
    usage = pith.torch.stats()
    assert usage.reductions == {
        "exact": 2,
        "q:8,round=stochastic": 4,
        "exact: not a sum of f32, f16 or bf16": 1,
        "exact: under 1024 values": 1,
        "exact: topk:0.1 needs the whole tensor": 1,
    }
    with pytest.raises(pith.UnsupportedError, match="ef/q:4"), pith.torch.compression("ef/q:4"):
        pass
    with pytest.raises(pith.SpecError), pith.torch.compression("qq:4"):
        pass
    dist.destroy_process_group()
    return found


def test_float_sums_are_compressed_when_asked_and_the_same_on_all_ranks() -> None:
    found = run(compressed, 3)
    assert found[0] == found[1] == found[2]


def from_environment(rank: int, size: int) -> dict[str, int]:
    dist.init_process_group("pith")
    dist.all_reduce(torch.randn(5000))
    usage = pith.torch.stats()
    dist.destroy_process_group()
    return usage.reductions


def test_the_spec_of_the_environment_holds_for_all_sums() -> None:
    assert run(from_environment, 2, env={"PITH_SPEC": "q:4"}) == [{"q:4": 1}] * 2
