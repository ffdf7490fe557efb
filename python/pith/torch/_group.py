# SPDX-License-Identifier: Apache-2.0
"""The process group: torch.distributed's operations as calls of the C library.

Each operation prepares memory (_buffers.py), calls C (_base.py), and gives a Work (_work.py). torch has several names for some operations,
old and new, because its versions differ in which of them they call; all names are here. Operations that torch says are synchronous are
done when they return; the others run in the background.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _library as c
from .._codec import Caps
from .._comm import ANY_RANK, sizes
from .._errors import ArgumentError, Error
from . import _buffers as buffers
from ._base import GroupBase, Part, Tensors, Usage, is_profiling, option
from ._work import DoneWork, PithWork

_DEFAULT_TIMEOUT = dist.default_pg_timeout.total_seconds()
_NO_TIMEOUT = timedelta(0)
_ANY = 0  # no capability that a codec must have
_CHUNKED = int(Caps.CHUNKED)
_AllreduceOptions = dist.AllreduceOptions
_PLAIN = {
    dtype: buffers.moved(dtype)[0]
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
}
_PLAIN_REDUCTIONS = {dist.ReduceOp.SUM: buffers.SUM, dist.ReduceOp.AVG: buffers.MEAN}


def _only(tensors: Any, operation: str) -> torch.Tensor:
    """The one tensor of a list; torch's lists are from times of several devices in a process."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ArgumentError(f"{operation}: one tensor is expected, not {len(tensors)}")
    return tensors[0]


def _listed(tensors: Any) -> Tensors:
    """A tensor for each rank, which torch gives in a list or in a list of one list."""
    return tensors if isinstance(tensors[0], torch.Tensor) else tensors[0]


def _root(opts: Any) -> int:
    """The root of options, or a rank given in their place."""
    return opts if isinstance(opts, int) else option(opts, "rootRank", 0)


def _reduce_op(opts: Any) -> Any:
    """The reduction of options, or a reduction given in their place."""
    if opts is None:
        return dist.ReduceOp.SUM
    return opts.reduceOp if hasattr(opts, "reduceOp") else opts


class PithGroup(GroupBase):
    """A process group over a :class:`pith.Comm`."""

    def _counts(self, counts: Sequence[int] | None, width: int) -> Any:
        """How many values each rank has, for C; None: as many as any other."""
        return sizes([count * width for count in counts], self.size()) if counts else None

    # ---- Reductions

    def _reduction(
        self, buffer: torch.Tensor, op: Any, caps: int
    ) -> tuple[tuple[int, int], int, Any]:
        """What C calls the values and the reduction, and how they are compressed, if they are."""
        dtype, width, reduction = buffers.reduced(buffer.dtype, buffers.kind_of(op))
        call = self._call_for(buffer.numel() * width, dtype, reduction, caps)
        return (dtype, width), reduction, call

    def _allreduce_part(self, tensor: torch.Tensor, op: Any) -> Part:
        buffer, finish = buffers.in_place(tensor, buffers.factor_of(op))
        unit, reduction, call = self._reduction(buffer, op, _ANY)
        memory = buffers.span(buffer, unit)
        return (c.lib.pith_allreduce, memory, memory, reduction, call), buffer, finish

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> PithWork:
        """Reduces a tensor in place: the result is the same on all ranks. Sums and means of floats are compressed if a spec is set."""
        is_one = type(tensors) is list and len(tensors) == 1
        if is_one and type(opts) is _AllreduceOptions:
            work = self._allreduce_plain(tensors[0], opts)
            if work is not None:
                return work
        tensor = _only(tensors, "allreduce")
        op = _reduce_op(opts)
        if tensor.is_sparse:
            return self._allreduce_sparse(tensor, op)
        return self._run([self._allreduce_part(tensor, op)], [tensor], opts)

    def _allreduce_plain(self, tensor: torch.Tensor, opts: Any) -> PithWork | None:
        """An allreduce of a contiguous tensor: the same as below, in as few steps as can be, for after a long operation every step of
        the interpreter is slow. None where something is different."""
        unit = _PLAIN.get(tensor.dtype)
        reduction = _PLAIN_REDUCTIONS.get(opts.reduceOp.op)
        if (
            unit is None
            or reduction is None
            or not tensor.is_cpu
            or tensor.layout is not torch.strided
            or not tensor.is_contiguous()
            or tensor.is_neg()
            or opts.timeout > _NO_TIMEOUT
            or self._comm is None
            or is_profiling()
        ):
            return None
        n = tensor.numel()
        call = self._call_for(n, unit, reduction, _ANY)
        memory = c.Span(tensor.data_ptr(), n, unit)
        arguments = (memory, memory, reduction, call)
        self._sequence += 1
        try:
            if opts.asyncOp:
                request = self._comm.submit(
                    c.lib.pith_allreduce, *arguments, result=None, lent=tensor, wait=False
                )
                return PithWork((tensor,), (request,), waiter=self._waiter, describe=self._describe)
            status = c.lib.pith_allreduce(self._comm._pointer, *arguments, None)
            if status:
                raise c.last_error(status)
        except Error as error:
            raise self._describe(error) from None
        return DoneWork((tensor,))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> PithWork:
        """Reduces several tensors, each in place, as one operation."""
        op = _reduce_op(opts)
        return self._run([self._allreduce_part(tensor, op) for tensor in tensors], tensors, opts)

    def _allreduce_sparse(self, tensor: torch.Tensor, op: Any) -> PithWork:
        """The sum of sparse tensors: everybody gets all indices and values, and adds them up in the order of ranks."""
        if buffers.kind_of(op) not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ArgumentError("only sums and means of sparse tensors can be had")
        mine = tensor.coalesce()
        indices, values = mine.indices(), mine.values()
        lengths = torch.empty(self.size(), dtype=torch.int64)
        self._allgather_base(lengths, torch.tensor([values.shape[0]])).wait()
        counts = lengths.tolist()
        all_indices = [torch.empty(n, indices.shape[0], dtype=torch.int64) for n in counts]
        all_values = [torch.empty(n, *values.shape[1:], dtype=values.dtype) for n in counts]
        self.allgather([all_indices], [indices.t().contiguous()]).wait()
        self.allgather([all_values], [values]).wait()
        total = torch.sparse_coo_tensor(
            torch.cat(all_indices).t(), torch.cat(all_values), tensor.shape, is_coalesced=False
        ).coalesce()
        with torch.no_grad():
            tensor.copy_(total / self.size() if buffers.kind_of(op) == dist.ReduceOp.AVG else total)
        return DoneWork([tensor])

    def reduce(self, tensors: Any, opts: Any = None) -> PithWork:
        """Reduces a tensor to the root rank."""
        op, root = _reduce_op(opts), _root(opts)
        tensor = _only(tensors, "reduce")
        buffer, finish = buffers.in_place(tensor, buffers.factor_of(op))
        unit, reduction, call = self._reduction(buffer, op, _CHUNKED)
        memory = buffers.span(buffer, unit)
        whole = (c.lib.pith_reduce, memory, memory, reduction, root, call)
        return self._run([(whole, buffer, finish if root == self.rank() else None)], [tensor], opts)

    def _reduce_scatter_part(
        self, out: torch.Tensor, values: torch.Tensor, op: Any, counts: Sequence[int] | None = None
    ) -> Part:
        factor = buffers.factor_of(op)
        source = values if factor is None else values * factor
        target, finish = buffers.output(out)
        unit, reduction, call = self._reduction(source, op, _CHUNKED)
        spans = buffers.span(source, unit), buffers.span(target, unit)
        lengths = self._counts(counts, unit[1])
        whole = (c.lib.pith_reduce_scatter, *spans, lengths, reduction, call)
        return whole, (source, target), finish

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> PithWork:
        """Reduces a list of tensors; each rank keeps the one of its number."""
        out, parts = _only(outputs, "reduce_scatter"), _listed(inputs)
        buffers.same_type([out, *parts], "reduce_scatter")
        counts = [part.numel() for part in parts]
        part = self._reduce_scatter_part(out, buffers.joined(parts), _reduce_op(opts), counts)
        return self._run([part], [out], opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> PithWork:
        """Reduces one tensor; each rank keeps the part of its number."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> PithWork:
        """Several ``reduce_scatter_single`` as one operation."""
        op, parts = _reduce_op(opts), []
        for out, given in zip(outputs, inputs, strict=True):
            _check_single("reduce_scatter_tensor", "input", given, out, self.size())
            parts.append(self._reduce_scatter_part(out, buffers.dense(given), op))
        return self._run(parts, outputs, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- Moves

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> PithWork:
        """Sends the tensor of the root rank to all others."""
        root, tensor = _root(opts), _only(tensors, "broadcast")
        buffer, finish = buffers.in_place(tensor)
        call = (c.lib.pith_broadcast, buffers.span(buffer, buffers.moved(buffer.dtype)), root, None)
        return self._run([(call, buffer, finish if root != self.rank() else None)], [tensor], opts)

    def _allgather_part(
        self,
        given: torch.Tensor,
        into: tuple[torch.Tensor, buffers.Finish | None],
        counts: Sequence[int] | None = None,
    ) -> Part:
        source, (target, finish) = buffers.dense(given), into
        unit = buffers.moved(source.dtype)
        spans = buffers.span(source, unit), buffers.span(target, unit)
        call = (c.lib.pith_all_gather, *spans, self._counts(counts, unit[1]), None)
        return call, (source, target), finish

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> PithWork:
        """Collects a tensor of every rank into a list, on all ranks."""
        return self._allgather_lists([_listed(outputs)], [_only(inputs, "all_gather")], opts)

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> PithWork:
        """A list of outputs for each rank, with one for each input."""
        if len(output_lists) != self.size():
            raise ArgumentError(
                f"all_gather_coalesced: {len(output_lists)} lists of output tensors for {self.size()} ranks"
            )
        for rank, outs in enumerate(output_lists):
            if len(outs) != len(inputs):
                raise ArgumentError(
                    f"all_gather_coalesced: {len(outs)} output tensors of rank {rank} for {len(inputs)} inputs"
                )
        by_input = [list(outs) for outs in zip(*output_lists, strict=True)]
        return self._allgather_lists(by_input, inputs, opts)

    def _allgather_lists(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any
    ) -> PithWork:
        """A list of outputs for each input, with one for each rank."""
        parts = []
        for outs, given in zip(output_lists, inputs, strict=True):
            buffers.same_type([given, *outs], "all_gather")
            if len(outs) != self.size():
                raise ArgumentError(
                    f"all_gather: {len(outs)} output tensors for {self.size()} ranks"
                )
            counts = [out.numel() for out in outs]
            parts.append(self._allgather_part(given, buffers.joined_output(outs), counts))
        return self._run(parts, [out for outs in output_lists for out in outs], opts)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> PithWork:
        """Collects a tensor of every rank into one tensor, on all ranks."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> PithWork:
        """Several ``all_gather_single`` as one operation."""
        parts = []
        for out, given in zip(outputs, inputs, strict=True):
            _check_single("all_gather_into_tensor", "output", out, given, self.size())
            parts.append(self._allgather_part(given, buffers.output(out)))
        return self._run(parts, outputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> PithWork:
        """Collects a tensor of every rank on the root rank."""
        root, given = _root(opts), _only(inputs, "gather")
        outs = _listed(outputs) if self.rank() == root else []
        buffers.same_type([given, *outs], "gather")
        source, unit = buffers.dense(given), buffers.moved(given.dtype)
        target, finish = buffers.joined_output(outs) if outs else (given.new_empty(0), None)
        spans = buffers.span(source, unit), buffers.span(target, unit)
        lengths = self._counts([out.numel() for out in outs], unit[1])
        call = (c.lib.pith_gather, *spans, lengths, root)
        return self._run([(call, (source, target), finish)], outs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> PithWork:
        """Sends each rank its tensor of the root rank's list."""
        root, out = _root(opts), _only(outputs, "scatter")
        parts = _listed(inputs) if self.rank() == root else []
        buffers.same_type([out, *parts], "scatter")
        target, finish = buffers.output(out)
        source, unit = (
            buffers.joined(parts) if parts else out.new_empty(0),
            buffers.moved(out.dtype),
        )
        lengths = self._counts([part.numel() for part in parts], unit[1])
        spans = buffers.span(source, unit), lengths, buffers.span(target, unit)
        call = (c.lib.pith_scatter, *spans, root)
        return self._run([(call, (source, target), finish)], [out], opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
        timeout: Any = None,
    ) -> PithWork:
        """Sends each rank its part of one tensor, by the sizes given."""
        buffers.same_type([output, input], "all_to_all_single")
        width = buffers.moved(input.dtype)[1]
        send = _split_sizes("input", input, input_splits, self.size(), width)
        receive = _split_sizes("output", output, output_splits, self.size(), width)
        part = _all_to_all_part(buffers.dense(input), send, buffers.output(output), receive)
        return self._run([part], [output], opts)

    alltoall_base = all_to_all_single

    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: Any = None
    ) -> PithWork:
        """Sends each rank its tensor of a list."""
        width = buffers.moved(buffers.same_type([*outputs, *inputs], "all_to_all"))[1]
        send, receive = (self._counts([t.numel() for t in all], width) for all in (inputs, outputs))
        into = buffers.joined_output(outputs)
        part = _all_to_all_part(buffers.joined(inputs), send, into, receive)
        return self._run([part], outputs, opts)

    def barrier(self, opts: Any = None, timeout: Any = None) -> PithWork:
        """Completes when all ranks have called it."""
        return self._run([((c.lib.pith_barrier,), None, None)], [], opts)

    # ---- Between two ranks

    def send(self, tensors: Any, peer: int, tag: int = 0) -> PithWork:
        """Sends a tensor to one rank."""
        tensor = _only(tensors, "send")
        source = buffers.dense(tensor)
        call = (c.lib.pith_send, buffers.span(source, buffers.moved(source.dtype)), peer, tag)
        return self._run([(call, source, None)], [tensor], waiter=self._point_waiter)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> PithWork:
        """Receives a tensor from one rank."""
        tensor = _only(tensors, "recv")
        target, finish = buffers.output(tensor)
        call = (c.lib.pith_recv, buffers.span(target, buffers.moved(target.dtype)), peer, tag)
        return self._run([(call, target, finish)], [tensor], waiter=self._point_waiter)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> PithWork:
        """Receives the next tensor with this tag from any rank."""
        return self.recv(tensors, ANY_RANK, tag)

    # ---- Groups of operations: each is sent on its way at once, so there is nothing to group

    def _start_coalescing(self, device: Any) -> None:
        pass

    def _end_coalescing(self, device: Any) -> PithWork:
        return DoneWork([])


def _all_to_all_part(
    source: torch.Tensor, send: Any, into: tuple[torch.Tensor, buffers.Finish | None], receive: Any
) -> Part:
    (target, finish), unit = into, buffers.moved(source.dtype)
    spans = buffers.span(source, unit), send, buffers.span(target, unit), receive
    return (c.lib.pith_all_to_all, *spans), (source, target), finish


def _check_single(
    operation: str, what: str, large: torch.Tensor, small: torch.Tensor, ranks: int
) -> None:
    """Two tensors of one type, of which one has a part for each rank as large as the other."""
    buffers.same_type([large, small], operation)
    if large.numel() != small.numel() * ranks:
        raise ArgumentError(
            f"{operation}: the {what} has {large.numel()} values, not {ranks} × {small.numel()}: one part for each rank"
        )


def _split_sizes(
    what: str, tensor: torch.Tensor, splits: Sequence[int] | None, ranks: int, width: int
) -> Any:
    """Splits along the first dimension as counts of values."""
    if not splits:
        if tensor.numel() and tensor.shape[0] % ranks:
            raise ArgumentError(
                f"all_to_all_single: {tensor.shape[0]} rows of the {what} cannot be split over {ranks} ranks"
            )
        return None
    rows = tensor.shape[0] if tensor.dim() else 1
    if len(splits) != ranks or sum(splits) != rows:
        raise ArgumentError(
            f"all_to_all_single: the {what} has {rows} rows, the splits are {list(splits)} for {ranks} ranks"
        )
    row = tensor.numel() // rows if rows else 0
    return sizes([split * row * width for split in splits], ranks)


def _timeout(given: Any) -> tuple[float, str]:
    """torch's time-out where the user chose one, else PITH_TIMEOUT, else torch's default; and what set it."""
    wanted = _DEFAULT_TIMEOUT if given is None else given.total_seconds()
    own = float(os.environ.get("PITH_TIMEOUT") or 0)
    if own > 0 and wanted == _DEFAULT_TIMEOUT:
        return own, "PITH_TIMEOUT"
    return wanted, "init_process_group(timeout=…)"


def create(options: Any, backend_options: Any = None) -> PithGroup:
    """Called by torch for init_process_group("pith") and new_group."""
    timeout, set_by = _timeout(options.timeout)
    place = options.store, options.group_rank, options.group_size
    return PithGroup(*place, timeout, options.global_ranks_in_group, set_by)


def stats(group: Any = None) -> Usage:
    """What a group (the default one, if none is given) has done."""
    group = group if group is not None else dist.group.WORLD
    if not isinstance(group, PithGroup):
        raise ArgumentError("this process group is not of the backend pith")
    return group.usage()
