"""What an operation of the backend gives back: torch's Work over requests of the C library.

Whoever calls ``wait`` waits in C, without the interpreter's lock. Only who asks for a future makes a thread wait for it: then that
thread completes the future, as DistributedDataParallel expects.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._comm import Request
from .._errors import Error

_NONE_GIVEN = timedelta(0)


def seconds(timeout: timedelta | None) -> float | None:
    """torch's time-outs; zero and less mean that none was given."""
    return timeout.total_seconds() if timeout is not None and timeout > _NONE_GIVEN else None


class PithWork(dist.Work):
    """An operation under way."""

    _complete = False
    _error: BaseException | None = None
    _future: torch.futures.Future | None = None
    _source = -1

    def __init__(
        self,
        result: Sequence[torch.Tensor],
        requests: Sequence[Request],
        finish: Callable[[], None] | None = None,
        *,
        timeout: float | None = None,
        waiter: Waiter | None = None,
        describe: Callable[[Error], Error] | None = None,
    ) -> None:
        super().__init__()
        self._result: Sequence[torch.Tensor] = tuple(result)
        self._requests: Sequence[Request] = tuple(requests)
        self._finish = finish
        self._timeout = timeout
        self._waiter = waiter
        self._describe = describe
        self._lock = threading.Lock()

    def _end(self) -> None:
        """What is left to do once the data are there: results that go elsewhere."""
        finish, self._finish = self._finish, None
        if finish and self._error is None:
            with torch.no_grad():
                finish()

    def _settle(self, timeout: float | None = None) -> None:
        """Waits for the requests, once; later calls find it done."""
        with self._lock:
            if self._complete:
                return
            for request in self._requests:
                try:
                    request.wait(timeout)
                except Error as error:
                    self._error = self._error or (
                        self._describe(error) if self._describe else error
                    )
            self._end()
            self._requests = ()
            self._complete = True

    # ---- What torch calls

    def wait(self, timeout: Any = None) -> bool:
        if not self._complete:
            self._settle(seconds(timeout) or self._timeout)
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

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> torch.futures.Future:
        """A future of the list of tensors. Errors are those of ``wait``, as a RuntimeError with the same text."""
        if self._future is None:
            done: torch.futures.Future = torch.futures.Future()
            # Only a callback that raises makes a future that C++ knows to have failed.
            self._future = done.then(self._outcome)
            if self._complete or self._waiter is None:
                self._settle(self._timeout)
                done.set_result(None)
            else:
                self._waiter.put(self, done)
        return self._future

    def _outcome(self, _: torch.futures.Future) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return list(self._result)


class DoneWork(PithWork):
    """An operation that was complete when it returned. As short as can be: it is on the way of every synchronous call."""

    _complete = True
    _timeout = None

    def __init__(self, result: Sequence[torch.Tensor]) -> None:
        dist.Work.__init__(self)
        self._result = result

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            self._future = torch.futures.Future()
            self._future.set_result(list(self._result))
        return self._future


class Waiter:
    """A thread that completes futures in the order of their operations; started by the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[tuple[PithWork, torch.futures.Future] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, work: PithWork, done: torch.futures.Future) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._queue.put((work, done))

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            work, done = entry
            work._settle(work._timeout)
            done.set_result(None)
            del entry, work, done  # not kept alive until the next one

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)


class SingleWaiter(Waiter):
    """For messages between two ranks, which may come in any order: each future has a thread of its own."""

    def put(self, work: PithWork, done: torch.futures.Future) -> None:
        def run() -> None:
            work._settle(work._timeout)
            done.set_result(None)

        threading.Thread(target=run, name=self._name, daemon=True).start()
