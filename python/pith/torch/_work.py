# SPDX-License-Identifier: Apache-2.0
"""What an operation of the backend gives back: torch's Work over requests of the C library.

Whoever calls ``wait`` waits in C, without the interpreter's lock. Only who asks for a future makes a thread wait for it: then that
thread completes the future and runs its callbacks, as DistributedDataParallel expects.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._comm import Request
from .._errors import Error

_NONE_GIVEN = timedelta(0)
_PATIENCE = 0.25  # seconds for callbacks of a future to end before those of the next one begin
_ORPHANS = 256  # works that nobody in Python holds any more, and nobody has waited for
_ORPHAN_BYTES = 1 << 16  # of results that such a work keeps alive


def seconds(timeout: timedelta | None) -> float | None:
    """A time-out of torch's options and of ``wait``: zero and less mean that none was given."""
    return timeout.total_seconds() if timeout is not None and timeout > _NONE_GIVEN else None


def begin_event(name: str) -> Any:
    """An event of torch's profiler."""
    return torch.ops.profiler._record_function_enter_new(name, None)


class PithWork(dist.Work):
    """An operation under way."""

    _complete = False
    _error: BaseException | None = None
    _future: torch.futures.Future | None = None
    _source = -1
    _event: Any = None
    _waiter: Waiter | None = None
    _was_waited_for = False

    def __init__(
        self,
        result: Sequence[torch.Tensor],
        requests: Sequence[Request],
        finishes: Sequence[Callable[[], None]] = (),
        *,
        timeout: float | None = None,
        waiter: Waiter | None = None,
        describe: Callable[[Error], Error] | None = None,
    ) -> None:
        super().__init__()
        self._result: Sequence[torch.Tensor] = tuple(result)
        self._requests: Sequence[Request] = tuple(requests)
        self._finishes = finishes
        self._timeout = timeout
        self._waiter = waiter
        self._describe = describe
        self._lock = threading.Lock()

    def __del__(self) -> None:
        # C++ may still hold the other half of this object (DistributedDataParallel.join hands a work to its reducer), and without this
        # half it would wait for ever. Whether it does cannot be asked; so the last few that nobody has waited for live on.
        if not self._was_waited_for and self._waiter is not None:
            if sum(tensor.nbytes for tensor in self._result) <= _ORPHAN_BYTES:
                self._waiter.orphans.append(self)

    def _end(self) -> None:
        """What is left to do once the data are there: results that go elsewhere."""
        finishes, self._finishes = self._finishes, ()
        if self._error is None:
            with torch.no_grad():
                for finish in finishes:
                    finish()

    def fail(self, error: BaseException) -> None:
        """Ends it with an error that nobody expected: whoever waits must hear of it."""
        with self._lock:
            if not self._complete:
                self._error = self._error or error
                self._finishes = ()
                self._requests = ()
                self._complete = True

    def _settle(self, timeout: float | None = None, set_by: str = "wait(timeout)") -> None:
        """Waits for the requests, once; later calls find it done."""
        with self._lock:
            if self._complete:
                return
            for request in self._requests:
                try:
                    request.wait(timeout, set_by=set_by)
                except Error as error:
                    self._error = self._error or error
                    if (
                        self._error is error and self._describe
                    ):  # with what the group knows about it
                        with contextlib.suppress(Exception):
                            self._error = self._describe(error)
                if request.source >= 0:
                    self._source = request.source
            try:
                self._end()
            except BaseException as error:
                self._error = error  # whoever waits must hear of it, on whatever thread this is
            self._requests = ()
            self._complete = True

    # ---- What torch calls

    def wait(self, timeout: Any = None) -> bool:
        self._was_waited_for = True
        if not self._complete:
            given = seconds(timeout)
            if given is not None:
                self._settle(given)
            else:
                self._settle(self._timeout, "the operation's options")
        if self._event is not None:
            self._end_event()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._complete or all(request.done() for request in self._requests)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        if self.is_completed():
            self._settle()
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return list(self._result)

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A future of the list of tensors. Errors are those of ``wait``, as a RuntimeError with the same text."""
        self._was_waited_for = True
        if self._future is None:
            done: torch.futures.Future = torch.futures.Future()
            # Only a callback that raises makes a future that C++ knows to have failed.
            self._future = done.then(self._outcome)
            if (
                self._event is not None
            ):  # ends with the future, whose thread knows nothing of the profiler: torch brings that along
                end = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction
                self._future = end(self._event, self._future)
            if self._complete or self._waiter is None:
                self._settle(self._timeout)
                done.set_result(None)
            else:
                self._waiter.put(self, done)
        return self._future

    def record(self, event: Any) -> None:
        """The event of torch's profiler lasts until the operation is complete. The waiter's thread ends it, so that the profiler shows it as an
        asynchronous one, as those of other backends."""
        self._event = event
        self.get_future()
        self._was_waited_for = False

    def _end_event(self) -> None:
        """The event must have ended when ``wait`` returns: the profiler may stop then."""
        self._event = None
        with contextlib.suppress(RuntimeError):  # as in self._error
            self.get_future().wait()

    def _outcome(self, _: torch.futures.Future) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return list(self._result)


class DoneWork(PithWork):
    """An operation that was complete when it returned. As short as can be: it is on the way of every synchronous call."""

    _complete = True
    _timeout = None
    _was_waited_for = True

    def __init__(self, result: Sequence[torch.Tensor]) -> None:
        dist.Work.__init__(self)
        self._result = result

    def __del__(self) -> None:
        pass

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            self._future = torch.futures.Future()
            self._future.set_result(list(self._result))
        return self._future


class Waiter:
    """Completes futures in the order of their operations, on a thread that the first one starts, one after another.

    A callback may start an operation and wait for it, as that of torch's PowerSGD does. Such an operation has a thread of its own, and callbacks of
    other futures do not begin meanwhile, so that all ranks call their operations in the same order. Only a callback that takes long without that
    is overtaken: it may wait for a future that comes later.
    """

    def __init__(self, name: str) -> None:
        self.orphans: deque[PithWork] = deque(maxlen=_ORPHANS)  # see PithWork.__del__
        self._name = name
        self._queue: deque[tuple[PithWork, torch.futures.Future]] = deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._own = threading.local()  # .is_calling: this thread runs callbacks
        self._is_settling = False  # a thread waits for the next operation
        self._idle = 0  # threads that could
        self._calling: threading.Thread | None = (
            None  # runs callbacks that should end before the next ones begin
        )
        self._nested = 0  # operations that callbacks have started
        self._is_closed = False

    def put(self, work: PithWork, done: torch.futures.Future) -> None:
        with self._changed:
            if getattr(self._own, "is_calling", False):
                self._nested += 1
                self._start(self._run_nested, work, done)
                return
            self._queue.append((work, done))
            self._make_sure_of_a_thread()
            self._changed.notify_all()

    def _start(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, name=self._name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _make_sure_of_a_thread(self) -> None:
        """Somebody will take the next entry: one that waits for an operation, or one that has nothing to do."""
        if not self._is_settling and self._idle == 0:
            self._idle += 1  # until it runs
            self._start(self._run)

    def _run(self) -> None:
        while (entry := self._take()) is not None:
            work, done = entry
            _settle_for_future(work)
            self._begin_callbacks()
            self._call(done)
            del entry, work, done  # not kept alive until the next one
            if not self._end_callbacks():
                break
        self._forget_thread()

    def _run_nested(self, work: PithWork, done: torch.futures.Future) -> None:
        _settle_for_future(work)
        self._call(done)
        with self._changed:
            self._nested -= 1
            self._changed.notify_all()
        self._forget_thread()

    def _forget_thread(self) -> None:
        with self._changed:
            self._threads.discard(threading.current_thread())

    def _call(self, done: torch.futures.Future) -> None:
        self._own.is_calling = True
        _complete_future(done)
        self._own.is_calling = False

    def _take(self) -> tuple[PithWork, torch.futures.Future] | None:
        with self._changed:
            while self._is_settling or not self._queue:
                if self._is_closed and not self._queue:
                    self._idle -= 1
                    return None
                self._changed.wait()
            self._idle -= 1
            self._is_settling = True
            return self._queue.popleft()

    def _begin_callbacks(self) -> None:
        with self._changed:
            while self._calling is not None:
                if not self._changed.wait(_PATIENCE) and self._nested == 0:
                    break
            self._calling = threading.current_thread()
            self._is_settling = False
            if self._queue:
                self._make_sure_of_a_thread()
            self._changed.notify_all()

    def _end_callbacks(self) -> bool:
        """Whether this thread is still of use."""
        with self._changed:
            if self._calling is threading.current_thread():
                self._calling = None
            stays = not self._idle and not (self._is_closed and not self._queue)
            self._idle += stays
            self._changed.notify_all()
            return stays

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self.orphans.clear()
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=10)


def _settle_for_future(work: PithWork) -> None:
    """For threads, where nobody catches anything: every exception becomes that of the future."""
    try:
        work._settle(work._timeout, "the operation's options")
    except BaseException as error:
        work.fail(error)


def _complete_future(done: torch.futures.Future) -> None:
    """Runs the callbacks. What one of them raises is that of its own future; anything else must not end the thread."""
    try:
        done.set_result(None)
    except BaseException:
        traceback.print_exc()


class SingleWaiter(Waiter):
    """For messages between two ranks, which may come in any order: each future has a thread of its own."""

    def put(self, work: PithWork, done: torch.futures.Future) -> None:
        def run() -> None:
            _settle_for_future(work)
            _complete_future(done)

        threading.Thread(target=run, name=self._name, daemon=True).start()
