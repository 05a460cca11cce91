"""Looking ahead: a handle to wait, look and be told; bounded, and it never keeps the caller waiting."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from typing import Any

import pytest

from federation import ahead
from federation.ahead import Ahead


class Store:
    """Answers once it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[tuple[list[str], float]] = []

    def ask(self, keys: Sequence[str], seconds: float) -> list[int]:
        self.asked.append((list(keys), seconds))
        if seconds:
            assert self.go.wait(10)
        return [1] * len(keys)


def test_a_handle_waits_looks_and_tells() -> None:
    store = Store()
    looking = Ahead(store.ask)
    told = threading.Event()
    handle = looking.start(["a", "b"], 5.0)
    handle.add_done_callback(lambda done: told.set())
    assert not handle.done()
    with pytest.raises(NotDone):
        handle.result(0.01)
    store.go.set()
    assert handle.result(10) == [1, 1]
    assert told.wait(10)
    assert store.asked == [(["a", "b"], 5.0)]
    looking.close()


def test_no_more_than_so_many_are_open_and_what_ends_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead, "AHEAD_MAX", 3)
    store = Store()
    looking = Ahead(store.ask)
    handles = [looking.start([str(n)], 5.0) for n in range(3)]
    over = looking.start(["over"], 5.0)
    assert over.done(), "answered at once, by what is here"
    assert (["over"], 0.0) in store.asked
    store.go.set()
    assert [handle.result(10) for handle in handles] == [[1]] * 3
    assert looking.start(["again"], 5.0).result(10) == [1]
    assert (["again"], 5.0) in store.asked
    looking.close()


def test_a_question_that_is_answered_before_anybody_looks_locks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Done(ThreadPoolExecutor):
        """As a fast thread and a slow caller."""

        def submit(self, *args: Any, **options: Any) -> Future[Any]:
            asked = super().submit(*args, **options)
            asked.exception(10)
            return asked

    monkeypatch.setattr(ahead, "ThreadPoolExecutor", Done)
    monkeypatch.setattr(ahead, "AHEAD_MAX", 1)
    store = Store()
    store.go.set()
    looking = Ahead(store.ask)
    asking = threading.Thread(
        target=lambda: [looking.start([], 1.0) for _ in range(3)], daemon=True
    )
    asking.start()
    asking.join(10)
    assert not asking.is_alive()
    assert [seconds for _, seconds in store.asked] == [1.0] * 3, "each made room for the next"
    looking.close()


def test_closing_cancels_what_waits() -> None:
    store = Store()
    looking = Ahead(store.ask)
    handles = [looking.start([str(n)], 5.0) for n in range(ahead.AHEAD_THREADS + 1)]
    looking.close()
    with pytest.raises(CancelledError):
        handles[-1].result(10)
    store.go.set()
    assert handles[0].result(10) == [1]
