# SPDX-License-Identifier: Apache-2.0
"""Futures of the torch backend: whatever goes wrong while one is completed is the error of that future, and the next ones complete."""

from __future__ import annotations

from typing import Any

import pytest

import needs

torch = needs.module("torch", "the torch backend needs torch")

import pith  # noqa: E402
from pith.torch._work import PithWork, SingleWaiter, Waiter  # noqa: E402


class Request:
    """Complete when it is waited for, or not as it should."""

    source = -1

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error

    def wait(self, timeout: float | None = None, *, set_by: str = "") -> None:
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return False


def raise_error(error: BaseException) -> Any:
    raise error


def works_that_fail(waiter: Waiter) -> list[PithWork]:
    tensor = [torch.zeros(1)]
    ok: Any = Request()
    odd: Any = Request(KeyError("odd"))
    known: Any = Request(pith.PeerError("rank 1 is gone"))
    return [
        PithWork(tensor, [ok], [lambda: raise_error(ValueError("finish"))], waiter=waiter),
        PithWork(tensor, [ok], [lambda: raise_error(SystemExit("exit"))], waiter=waiter),
        PithWork(tensor, [odd], waiter=waiter),
        PithWork(
            tensor, [known], waiter=waiter, describe=lambda _: raise_error(TypeError("describe"))
        ),
    ]


@pytest.mark.parametrize("kind", [Waiter, SingleWaiter])
def test_every_exception_becomes_a_failed_future(kind: type[Waiter]) -> None:
    waiter = kind("test")
    texts = ["finish", "exit", "odd", "rank 1 is gone"]
    works = works_that_fail(waiter)
    futures = [work.get_future() for work in works]
    last_request: Any = Request()
    last = PithWork([torch.ones(1)], [last_request], waiter=waiter)
    assert last.get_future().wait()[0].item() == 1  # the thread is still there
    for work, future, text in zip(works, futures, texts, strict=True):
        with pytest.raises(RuntimeError, match=text):
            future.wait()
        with pytest.raises(BaseException, match=text):
            work.wait()
    waiter.close()
