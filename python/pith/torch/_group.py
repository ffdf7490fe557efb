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
from ._base import GroupBase, Tensors, Usage, is_profiling, option
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


def _reduce_op(opts: Any) -> Any:
    """The reduction of options, or a reduction given in their place."""
    if opts is None:
        return dist.ReduceOp.SUM
    return opts.reduceOp if hasattr(opts, "reduceOp") else opts


class PithGroup(GroupBase):
    """A process group over a :class:`pith.Comm`."""

    # ---- Reductions

    def _allreduce_call(self, buffer: torch.Tensor, kind: Any) -> tuple[Any, ...]:
        dtype, width, reduction = buffers.reduced(buffer.dtype, kind)
        n = buffer.numel() * width
        chosen = self._choose(n, dtype, reduction, _ANY)
        memory = c.Span(buffer.data_ptr(), n, dtype)
        return (
            c.lib.pith_allreduce,
            memory,
            memory,
            reduction,
            self._call(chosen) if chosen else None,
        )

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> PithWork:
        is_one = type(tensors) is list and len(tensors) == 1
        if is_one and type(opts) is _AllreduceOptions:
            work = self._allreduce_plain(tensors[0], opts)
            if work is not None:
                return work
        tensor = _only(tensors, "allreduce")
        op = _reduce_op(opts)
        if tensor.is_sparse:
            return self._allreduce_sparse(tensor, op)
        buffer, finish = buffers.in_place(tensor)
        _scale(buffer, op)
        call = self._allreduce_call(buffer, buffers.kind_of(op))
        return self._run([call], [tensor], buffer, opts, [finish])

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
        chosen = self._choose(n, unit, reduction, _ANY)
        call = self._call(chosen) if chosen is not None else None
        memory = c.Span(tensor.data_ptr(), n, unit)
        self._sequence += 1
        if opts.asyncOp:
            return self._start(tensor, c.lib.pith_allreduce, memory, memory, reduction, call)
        status = c.lib.pith_allreduce(self._comm._pointer, memory, memory, reduction, call, None)
        if status:
            error = c.last_error(status)
            raise self._describe(error) if isinstance(error, Error) else error
        return DoneWork((tensor,))

    def _start(self, tensor: torch.Tensor, function: Any, *arguments: Any) -> PithWork:
        try:
            request = self.comm.submit(function, *arguments, result=None, lent=tensor, wait=False)
        except Error as error:
            raise self._describe(error) from None
        return PithWork((tensor,), (request,), waiter=self._waiter, describe=self._describe)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> PithWork:
        op = _reduce_op(opts)
        parts = [buffers.in_place(tensor) for tensor in tensors]
        for buffer, _ in parts:
            _scale(buffer, op)
        calls = [self._allreduce_call(buffer, buffers.kind_of(op)) for buffer, _ in parts]
        return self._run(calls, tensors, parts, opts, [finish for _, finish in parts])

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
        op, root = _reduce_op(opts), option(opts, "rootRank", 0)
        tensor = _only(tensors, "reduce")
        buffer, finish = buffers.in_place(tensor)
        if buffers.factor_of(op) is not None:
            buffer, finish = _scaled(tensor, op, root == self.rank())
        dtype, width, reduction = buffers.reduced(buffer.dtype, buffers.kind_of(op))
        chosen = self._choose(buffer.numel() * width, dtype, reduction, _CHUNKED)
        memory = buffers.span(buffer, (dtype, width))
        call = (c.lib.pith_reduce, memory, memory, reduction, root, self._call(chosen))
        return self._run([call], [tensor], buffer, opts, [finish if root == self.rank() else None])

    def _reduce_scatter_call(
        self, source: torch.Tensor, target: torch.Tensor, counts: Sequence[int] | None, op: Any
    ) -> tuple[Any, ...]:
        dtype, width, reduction = buffers.reduced(source.dtype, buffers.kind_of(op))
        chosen = self._choose(source.numel() * width, dtype, reduction, _CHUNKED)
        lengths = sizes([count * width for count in counts], self.size()) if counts else None
        return (
            c.lib.pith_reduce_scatter,
            buffers.span(source, (dtype, width)),
            buffers.span(target, (dtype, width)),
            lengths,
            reduction,
            self._call(chosen),
        )

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> PithWork:
        op = _reduce_op(opts)
        out = _only(outputs, "reduce_scatter")
        parts = inputs if isinstance(inputs[0], torch.Tensor) else inputs[0]
        buffers.same_type([out, *parts], "reduce_scatter")
        source = _scaled_copy(buffers.joined(parts), op)
        target, finish = buffers.output(out)
        call = self._reduce_scatter_call(source, target, [part.numel() for part in parts], op)
        return self._run([call], [out], (source, target), opts, [finish])

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> PithWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> PithWork:
        op = _reduce_op(opts)
        calls, finishes, lent = [], [], []
        for out, given in zip(outputs, inputs, strict=True):
            buffers.same_type([out, given], "reduce_scatter_tensor")
            _check_size("reduce_scatter_tensor", "input", given, out, self.size())
            source = _scaled_copy(buffers.dense(given), op)
            target, finish = buffers.output(out)
            calls.append(self._reduce_scatter_call(source, target, None, op))
            finishes.append(finish)
            lent.append((source, target))
        return self._run(calls, outputs, lent, opts, finishes)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- Moves

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> PithWork:
        root = opts if isinstance(opts, int) else option(opts, "rootRank", 0)
        tensor = _only(tensors, "broadcast")
        buffer, finish = buffers.in_place(tensor)
        memory = buffers.span(buffer, buffers.moved(buffer.dtype))
        call = (c.lib.pith_broadcast, memory, root, None)
        return self._run([call], [tensor], buffer, opts, [finish if root != self.rank() else None])

    def _allgather_call(
        self, source: torch.Tensor, target: torch.Tensor, counts: Sequence[int] | None = None
    ) -> tuple[Any, ...]:
        unit = buffers.moved(source.dtype)
        lengths = sizes([count * unit[1] for count in counts], self.size()) if counts else None
        return (
            c.lib.pith_all_gather,
            buffers.span(source, unit),
            buffers.span(target, unit),
            lengths,
            None,
        )

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> PithWork:
        given = _only(inputs, "all_gather")
        outs = outputs if isinstance(outputs[0], torch.Tensor) else outputs[0]
        return self._allgather_lists([outs], [given], opts)

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
        calls, finishes, lent = [], [], []
        for outs, given in zip(output_lists, inputs, strict=True):
            buffers.same_type([given, *outs], "all_gather")
            if len(outs) != self.size():
                raise ArgumentError(
                    f"all_gather: {len(outs)} output tensors for {self.size()} ranks"
                )
            source = buffers.dense(given)
            target, finish = buffers.joined_output(outs)
            calls.append(self._allgather_call(source, target, [out.numel() for out in outs]))
            finishes.append(finish)
            lent.append((source, target))
        result = [out for outs in output_lists for out in outs]
        return self._run(calls, result, lent, opts, finishes)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> PithWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> PithWork:
        calls, finishes, lent = [], [], []
        for out, given in zip(outputs, inputs, strict=True):
            buffers.same_type([out, given], "all_gather_into_tensor")
            _check_size("all_gather_into_tensor", "output", out, given, self.size())
            source = buffers.dense(given)
            target, finish = buffers.output(out)
            calls.append(self._allgather_call(source, target))
            finishes.append(finish)
            lent.append((source, target))
        return self._run(calls, outputs, lent, opts, finishes)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> PithWork:
        root = opts if isinstance(opts, int) else option(opts, "rootRank", 0)
        given = _only(inputs, "gather")
        source, unit = buffers.dense(given), buffers.moved(given.dtype)
        empty = c.Span(None, 0, unit[0])
        if self.rank() != root:
            call = (c.lib.pith_gather, buffers.span(source, unit), empty, None, root)
            return self._run([call], [], source, opts)
        outs = outputs if isinstance(outputs[0], torch.Tensor) else outputs[0]
        buffers.same_type([given, *outs], "gather")
        target, finish = buffers.joined_output(outs)
        lengths = sizes([out.numel() * unit[1] for out in outs], self.size())
        call = (
            c.lib.pith_gather,
            buffers.span(source, unit),
            buffers.span(target, unit),
            lengths,
            root,
        )
        return self._run([call], outs, (source, target), opts, [finish])

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> PithWork:
        root = opts if isinstance(opts, int) else option(opts, "rootRank", 0)
        out = _only(outputs, "scatter")
        target, finish = buffers.output(out)
        unit = buffers.moved(out.dtype)
        if self.rank() != root:
            call = (
                c.lib.pith_scatter,
                c.Span(None, 0, unit[0]),
                None,
                buffers.span(target, unit),
                root,
            )
            return self._run([call], [out], target, opts, [finish])
        parts = inputs if isinstance(inputs[0], torch.Tensor) else inputs[0]
        buffers.same_type([out, *parts], "scatter")
        source = buffers.joined(parts)
        lengths = sizes([part.numel() * unit[1] for part in parts], self.size())
        call = (
            c.lib.pith_scatter,
            buffers.span(source, unit),
            lengths,
            buffers.span(target, unit),
            root,
        )
        return self._run([call], [out], (source, target), opts, [finish])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
        timeout: Any = None,
    ) -> PithWork:
        buffers.same_type([output, input], "all_to_all_single")
        source = buffers.dense(input)
        target, finish = buffers.output(output)
        unit = buffers.moved(input.dtype)
        call = (
            c.lib.pith_all_to_all,
            buffers.span(source, unit),
            _split_sizes("input", input, input_splits, self.size(), unit[1]),
            buffers.span(target, unit),
            _split_sizes("output", output, output_splits, self.size(), unit[1]),
        )
        return self._run([call], [output], (source, target), opts, [finish])

    alltoall_base = all_to_all_single

    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: Any = None
    ) -> PithWork:
        buffers.same_type([*outputs, *inputs], "all_to_all")
        source = buffers.joined(inputs)
        target, finish = buffers.joined_output(outputs)
        unit = buffers.moved(source.dtype)
        call = (
            c.lib.pith_all_to_all,
            buffers.span(source, unit),
            sizes([tensor.numel() * unit[1] for tensor in inputs], self.size()),
            buffers.span(target, unit),
            sizes([tensor.numel() * unit[1] for tensor in outputs], self.size()),
        )
        return self._run([call], outputs, (source, target), opts, [finish])

    def barrier(self, opts: Any = None, timeout: Any = None) -> PithWork:
        return self._run([(c.lib.pith_barrier,)], [], None, opts)

    # ---- Between two ranks

    def send(self, tensors: Any, peer: int, tag: int = 0) -> PithWork:
        tensor = _only(tensors, "send")
        source = buffers.dense(tensor)
        call = (c.lib.pith_send, buffers.span(source, buffers.moved(source.dtype)), peer, tag)
        return self._run([call], [tensor], source, waiter=self._point_waiter)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> PithWork:
        tensor = _only(tensors, "recv")
        target, finish = buffers.output(tensor)
        call = (c.lib.pith_recv, buffers.span(target, buffers.moved(target.dtype)), peer, tag)
        return self._run([call], [tensor], target, finishes=[finish], waiter=self._point_waiter)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> PithWork:
        return self.recv(tensors, ANY_RANK, tag)

    # ---- Groups of operations: each is sent on its way at once, so there is nothing to group

    def _start_coalescing(self, device: Any) -> None:
        pass

    def _end_coalescing(self, device: Any) -> PithWork:
        return DoneWork([])


def _scale(buffer: torch.Tensor, op: Any) -> None:
    factor = buffers.factor_of(op)
    if factor is not None:
        buffer.detach().mul_(factor)


def _scaled_copy(source: torch.Tensor, op: Any) -> torch.Tensor:
    factor = buffers.factor_of(op)
    return source if factor is None else source * factor


def _scaled(
    tensor: torch.Tensor, op: Any, is_root: bool
) -> tuple[torch.Tensor, buffers.Finish | None]:
    """A scaled copy, for operations that change the tensor on the root only."""
    copy = _scaled_copy(buffers.dense(tensor), op)

    def assign() -> None:
        tensor.copy_(copy)

    return copy, assign if is_root else None


def _check_size(
    operation: str, what: str, large: torch.Tensor, small: torch.Tensor, ranks: int
) -> None:
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
    return PithGroup(
        options.store,
        options.group_rank,
        options.group_size,
        timeout,
        options.global_ranks_in_group,
        set_by,
    )


def stats(group: Any = None) -> Usage:
    """What a group (the default one, if none is given) has done."""
    group = group if group is not None else dist.group.WORLD
    if not isinstance(group, PithGroup):
        raise ArgumentError("this process group is not of the backend pith")
    return group.usage()
