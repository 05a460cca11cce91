"""A long question to the local Mooncake, asked as two at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

HALVES_FROM: Final = 4096
"""Keys. A client makes and reads one question in one thread, and a master answers it in one: of 8,000 keys a
half is on its way while the other is made, or answered. Of fewer it is not worth a second thread."""


class Halves:
    """Thread-safe. Starts no thread before the first long question.

    One question at a time is halved: where several are asked at once, all cores are at work as it is.
    """

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def ask(self, question: Callable[[Sequence[str]], list[T]], keys: Sequence[str]) -> list[T]:
        """The answers of `question`, one a key. What a half raises is raised when both are over."""
        if len(keys) < HALVES_FROM or not self._free.acquire(blocking=False):
            return question(keys)
        try:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "moonmesh-exists")
            middle = len(keys) // 2
            second = self._thread.submit(question, keys[middle:])
            try:
                first = question(keys[:middle])
            finally:
                error = second.exception()  # waits
            if error is not None:
                raise error
            return first + second.result()
        finally:
            self._free.release()


HALVES: Final = Halves()
"""Of this process: its stores share the cores."""
