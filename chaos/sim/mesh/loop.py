"""An event loop whose time passes only when nothing is left to do, for many processes at once.

What runs on it is what runs in production: tasks, timeouts and queues of asyncio. Whose a callback is, its
context says; so a single process can be stopped, thawed and killed, and has a clock of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import os
import random
import time
import weakref
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from chaos.sim.mesh.pipe import connect_pipe

DISK_SECONDS: Final = 0.0005
"""What a call takes that production makes on a thread: into the disk, mostly."""
ROUNDS_PER_INSTANT: Final = 100_000
"""Rounds of the loop without any time passing, after which it is a livelock."""
WALL_S: Final = 1_700_000_000.0
"""When worlds begin: people read it, nobody decides by it."""
DRAWN_BITS: Final = 64

T = TypeVar("T")


class LivelockError(RuntimeError):
    """Something goes on for ever and no time passes."""


@dataclass(eq=False)
class Node:
    """One process of a world.

    Attributes:
        name: of it, for stories.
        group: whose it is.
        offset: seconds that its monotonic clock is ahead of the world's.
        running: a process that does not run has been killed: nothing of it happens any more.
        stalled: nothing of it happens until it is thawed.
    """

    name: str
    group: str
    offset: float = 0.0
    running: bool = True
    stalled: bool = False
    backlog: deque[asyncio.Handle] = field(default_factory=deque)
    tasks: weakref.WeakSet[asyncio.Task[Any]] = field(default_factory=weakref.WeakSet)
    graves: list[asyncio.Task[Any]] = field(default_factory=list)
    """Tasks of a killed process: what they would still do at their end is not done."""

    def __repr__(self) -> str:
        return self.name

    def run(self, action: Callable[..., T], *arguments: Any) -> T:
        """Calls something as this process."""
        context = copy_context()
        context.run(NODE.set, self)
        return context.run(action, *arguments)

    def start(self, loop: VirtualLoop, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task of this process; what it raises is told at once, and not when it is forgotten."""
        task = self.run(loop.create_task, work)
        task.add_done_callback(loop.look_at)
        return task

    def stall(self) -> None:
        """Frozen, until `thaw`."""
        self.stalled = True

    def thaw(self, loop: VirtualLoop) -> None:
        """What was due comes at once."""
        self.stalled = False
        loop.take_back(self.backlog)

    def kill(self) -> None:
        """At once, and without a word."""
        self.running = False
        self.graves.extend(self.tasks)
        self.backlog.clear()


NODE: ContextVar[Node | None] = ContextVar("node", default=None)
"""The process that runs now; None: the world itself."""


class VirtualLoop(BaseEventLoop):
    """See the module.

    Attributes:
        now: seconds since the world began.
        watch: called with whatever nobody has caught.
    """

    def __init__(self, watch: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.now = 0.0
        self.rounds = 0
        self._watch = watch
        self._order = 0
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._cancelled = 0
        self.set_exception_handler(lambda _, context: self._watch(context))
        self.set_task_factory(_make_task)

    # Time

    def time(self) -> float:
        """What the clock of the process that asks shows."""
        node = NODE.get()
        return self.now if node is None else self.now + node.offset

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """At a time of the clock of whoever calls."""
        context = copy_context() if context is None else context
        node = context.get(NODE)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        at = when
        if node is not None:
            at = when - node.offset
            while at + node.offset < when:  # rounded: by its own clock it would be too early
                at = math.nextafter(at, math.inf)
        self._push(at, handle)
        return handle

    def at(self, when: float, node: Node | None, action: Callable[..., object], *args: Any) -> None:
        """At a time of the world, as one of its processes."""
        context = copy_context()
        context.run(NODE.set, node)
        self._push(when, asyncio.Handle(action, args, self, context))

    def take_back(self, handles: deque[asyncio.Handle]) -> None:
        """What a process could not do while it was frozen, in order."""
        self._ready.extend(handles)  # type: ignore[attr-defined]
        handles.clear()

    def look_at(self, task: asyncio.Task[Any]) -> None:
        """A task has ended."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._watch({"message": f"{task.get_name()} ended", "exception": error})

    def _push(self, when: float, handle: asyncio.Handle) -> None:
        self._order += 1
        heapq.heappush(self._timers, (max(when, self.now), self._order, handle))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled += 1
        if self._cancelled > 1000 and 2 * self._cancelled > len(self._timers):
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        if not ready:
            if not timers:
                raise LivelockError("nothing is ever to happen again")
            if timers[0][0] > self.now:
                self.now, self.rounds = timers[0][0], 0
        self.rounds += 1
        if self.rounds > ROUNDS_PER_INSTANT:
            raise LivelockError(f"{ready[0] if ready else 'a timer'} goes on for ever")
        now = self.now
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            node = handle._context.get(NODE)  # type: ignore[attr-defined]
            if node is not None:
                if not node.running:
                    continue
                if node.stalled:
                    node.backlog.append(handle)
                    continue
            handle._run()

    # What there is instead of threads and sockets

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Done in one go, a moment later."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(DISK_SECONDS, work)
        return future

    async def create_unix_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], path: Any = None, *, sock: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """One end of a pair that `pipe.make_pair` has made."""
        protocol = protocol_factory()
        return connect_pipe(sock, protocol, self), protocol

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is nobody to wake."""


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **options)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    node = NODE.get()
    if node is not None:
        node.tasks.add(task)
    return task


@contextlib.contextmanager
def virtual(loop: VirtualLoop, seed: str) -> Iterator[None]:
    """Clocks and chance of this process are the world's, for as long as it lasts.

    Production asks `time.monotonic` and draws from `random` and `os.urandom` where it is put together: the
    cores get both as arguments.
    """
    source = random.Random(seed)

    class Drawn(random.Random):
        """One that nobody has given a seed is given one of the world."""

        def __init__(self, x: Any = None) -> None:
            super().__init__(source.getrandbits(DRAWN_BITS) if x is None else x)

    changed: list[tuple[Any, str, Any]] = [
        (time, "monotonic", loop.time),
        (time, "time", lambda: WALL_S + loop.now),
        (os, "urandom", source.randbytes),
        (random, "Random", Drawn),
        (random, "random", source.random),
        (random, "uniform", source.uniform),
    ]
    before = [(where, name, getattr(where, name)) for where, name, _ in changed]
    for where, name, value in changed:
        setattr(where, name, value)
    try:
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


def bury(tasks: Iterator[asyncio.Task[Any]]) -> None:
    """Ends what has not ended, when a world is over; nothing of it is of interest any more."""
    for task in tasks:
        coroutine = task.get_coro()
        with contextlib.suppress(BaseException):
            if isinstance(coroutine, Generator | Coroutine):
                coroutine.close()
