"""Places of a federation as hosts of their own: network namespaces of the kernel, where root."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
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

    def store(self, name: str) -> FarStore:
        """An engine's store in a process on that host."""
        return FarStore(NAMED / f"{PREFIX}{self._stage}-{name}")

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


class FarStore:
    """A FederatedStore in a process of its own, in another network. Mooncake's client has threads for all
    that a process does, and they stay where the first one was.

    It is set up and closed as if it were here, and read and written by `tests.support.federation`.
    """

    def __init__(self, namespace: Path) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, namespace), daemon=True)
        self._process.start()
        theirs.close()

    def setup(self, *arguments: Any, **options: Any) -> int:
        """As `FederatedStore.setup`."""
        return int(self.call("setup", *arguments, **options))

    def close(self) -> None:
        """Closes it, and ends its process."""
        self.call("close")
        self._pipe.close()
        self._process.join(20)

    def call(self, what: str, *arguments: Any, **options: Any) -> Any:
        """Has something done there. AssertionError with what went wrong."""
        self._pipe.send((what, arguments, options))
        assert self._pipe.poll(120), f"{what} takes too long"
        well, answer = self._pipe.recv()
        assert well, answer
        return answer


def _serve(pipe: Connection, namespace: Path) -> None:
    _enter(namespace)
    from federation.client import FederatedStore
    from tests.support import federation

    store = FederatedStore()
    what = ""
    while what != "close":
        what, arguments, options = pipe.recv()
        try:
            if what in ("read", "write"):
                answer = getattr(federation, what)(store, *arguments, **options)
            else:
                answer = getattr(store, what)(*arguments, **options)
            pipe.send((True, answer))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))


def _enter(namespace: Path) -> None:
    """This thread, and those that it starts, are in another network from now on."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)
