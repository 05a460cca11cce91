"""Places of a federation as hosts of their own: network namespaces of the kernel, where root."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from chaos.network.base import CLEAR, Fault, Places
from chaos.network.namespaces import Namespaces
from chaos.network.tools import NAMED, PREFIX, why_not

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
PROBLEM = why_not()
"""Why there can be none here, and what to do; None if there can."""


class Hosts:
    """A network namespace for each name, and one between them, from its making to `close`.

    Args:
        folder: of a log.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._stage = f"t{os.getpid()}-{id(self) % 10_000}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        places = Places(tuple(names), (), 0)
        self._network = Namespaces(places, self._stage, lambda made: None, folder / "delay.log")
        self._do(self._network.up())

    def close(self) -> None:
        """Removes them; what ran there has ended."""
        left = self._do(self._network.down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert not left, f"could not be removed: {left}"

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def address(self, name: str) -> str:
        """Of a host, as all others reach it."""
        return self._network.listen(name)

    def inside(self, name: str) -> list[str]:
        """What to put before a command so that it runs there."""
        return list(self._network.inside(name))

    @contextmanager
    def cut(self, source: str, to: str) -> Iterator[None]:
        """Meanwhile nothing of what `source` sends reaches `to`."""
        self._do(self._network.change(source, to, Fault("cut")))
        try:
            yield
        finally:
            self._do(self._network.change(source, to, CLEAR))

    def pinned(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` makes, made and called in a thread of that host, where the threads that it starts are
        too."""
        namespace = NAMED / f"{PREFIX}{self._stage}-{name}"
        return _Pinned(ThreadPoolExecutor(1, initializer=_enter, initargs=(namespace,)), make)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


def _enter(namespace: Path) -> None:
    """This thread alone is in another network from now on."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)


class _Pinned:
    """An object whose methods are called in one thread; closing it ends that."""

    def __init__(self, thread: ThreadPoolExecutor, make: Callable[[], Any]) -> None:
        self._thread = thread
        self._object = thread.submit(make).result(60)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._object, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = self._thread.submit(method, *arguments, **options).result(120)
            if name == "close":
                self._thread.shutdown()
            return result

        return call
