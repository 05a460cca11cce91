"""Calls into Mooncake on threads that may be left behind.

A call that is overdue is abandoned by its caller: it keeps its worker and its memory until it
comes back from Mooncake, and only then is its memory given back, by the worker.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Callable


class CallState(enum.Enum):
    """queued -> preparing -> running -> done; or dropped: Mooncake never saw it."""

    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    DONE = "done"
    DROPPED = "dropped"


class Call:
    """One call of Mooncake.

    Args:
        work: the call itself, in a worker; returns Mooncake's codes.
        deadline: monotonic seconds; a call that has not begun by then is dropped.
        held_bytes: bounce memory it holds.
        give_back: frees that memory. Called by the worker if the call was abandoned; else the
            caller does it.
        prepare: run in the worker before `work`: copies the caller's bytes, so that the caller of
            an awaitable never waits for a copy. If the call is abandoned meanwhile, `work` is
            never run: the bytes may be torn.
        on_end: called in the worker after the call has ended in time (or was dropped).
    """

    __slots__ = (
        "abandoned",
        "began",
        "deadline",
        "ended",
        "error",
        "give_back",
        "held_bytes",
        "on_end",
        "prepare",
        "queued",
        "result",
        "starved",
        "state",
        "wake",
        "work",
    )

    def __init__(
        self,
        work: Callable[[], list[int]],
        deadline: float,
        held_bytes: int = 0,
        give_back: Callable[[], None] | None = None,
        prepare: Callable[[], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.work = work
        self.deadline = deadline
        self.held_bytes = held_bytes
        self.give_back = give_back
        self.prepare = prepare
        self.on_end = on_end
        self.state = CallState.QUEUED
        self.abandoned = False
        self.starved = False  # dropped while overdue calls held all workers
        self.result: list[int] | None = None
        self.error: BaseException | None = None
        self.queued = 0.0
        self.began = 0.0  # when it entered Mooncake
        self.ended = 0.0
        # A bare lock is the cheapest thing to wait on with a timeout.
        self.wake = threading.Lock()
        self.wake.acquire()


class Tally:
    """What all workers of one client share: its lock guards every count here and every queue."""

    def __init__(self, stuck_max: int) -> None:
        self.lock = threading.Lock()
        self.idle = threading.Condition(self.lock)  # told when `active` or `stuck` may be 0
        self.stuck_max = stuck_max
        self.closed = False  # no call may begin
        self.active = 0  # calls of the client that have not returned to their caller
        self.running = 0  # calls inside Mooncake, on workers
        self.stuck = 0  # ... of these, abandoned
        self.stuck_total = 0
        self.dropped_total = 0
        self.quarantined_bytes = 0
        self.stalled_at = float("-inf")  # when a call last came back that was inside for too long

    def came_back(self, began: float, ended: float, stall_s: float) -> None:
        """A call was inside Mooncake from `began` to `ended`. With the lock held."""
        if ended - began >= stall_s:
            self.stalled_at = ended


class Refused(enum.Enum):
    """Why a call was not queued."""

    QUEUE_FULL = "queue full"
    STUCK_LIMIT = "stuck limit"


class Workers:
    """A fixed number of daemon threads and one bounded queue.

    Args:
        name: of the threads.
        count: how many.
        queue_max: calls that may wait.
        tally: shared counts.
        proof_s: an overdue call that was inside Mooncake for this long holds its worker by
            Mooncake's fault.
        stall_s: a call that was inside for this long has seen Mooncake stall.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        count: int,
        queue_max: int,
        tally: Tally,
        proof_s: float,
        stall_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._proof_s = proof_s
        self._stall_s = stall_s
        self._current: set[Call] = set()  # what the workers are at
        self._queue: deque[Call] = deque()
        self._queue_max = queue_max
        self._tally = tally
        self._more = threading.Condition(tally.lock)
        self._clock = clock
        self._stopping = False
        for i in range(count):
            # Daemons: the interpreter must be able to exit while one is stuck in Mooncake.
            threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True).start()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, call: Call) -> Refused | None:
        """Queues a call; or why not."""
        with self._tally.lock:
            if self._tally.stuck >= self._tally.stuck_max:
                return Refused.STUCK_LIMIT
            if len(self._queue) >= self._queue_max:
                return Refused.QUEUE_FULL
            call.queued = self._clock()
            self._queue.append(call)
            self._more.notify()
        return None

    def wait(self, call: Call) -> bool:
        """Waits until the call's deadline. True: it ended (or was dropped), and its memory is the
        caller's again. False: it was abandoned and is none of the caller's business any more."""
        remaining = call.deadline - self._clock()
        if remaining > 0 and call.wake.acquire(timeout=remaining):
            return True
        return self.abandon(call)

    def abandon(self, call: Call) -> bool:
        """Gives a call up; as `wait` without waiting."""
        tally = self._tally
        with tally.lock:
            if call.state in (CallState.DONE, CallState.DROPPED):
                return True
            if call.state is CallState.QUEUED:
                self._queue.remove(call)
                call.state = CallState.DROPPED
                call.starved = self._starved()
                tally.dropped_total += 1
                return True
            call.abandoned = True
            tally.stuck += 1
            tally.stuck_total += 1
            tally.quarantined_bytes += call.held_bytes
            return False

    def _starved(self) -> bool:
        before = self._clock() - self._proof_s
        return len(self._current) == self._count and all(
            call.abandoned and 0.0 < call.began <= before for call in self._current
        )

    def stop(self) -> None:
        """Ends the threads that are idle, and the others when their calls return."""
        with self._tally.lock:
            self._stopping = True
            self._more.notify_all()

    def _run(self) -> None:
        while True:
            call = self._next()
            if call is None:
                return
            if call.state is CallState.PREPARING:
                self._execute(call)
            if call.abandoned:
                if call.give_back is not None:
                    call.give_back()
                with self._tally.lock:
                    # After the memory is free again: whoever sees 0 stuck sees 0 quarantined.
                    self._tally.stuck -= 1
                    self._tally.quarantined_bytes -= call.held_bytes
                    self._tally.idle.notify_all()
                del call
                continue
            call.wake.release()
            if call.on_end is not None:
                call.on_end()
            # Else the last call's memory and callbacks live on until the next one.
            del call

    def _next(self) -> Call | None:
        tally = self._tally
        with tally.lock:
            while not self._queue:
                if self._stopping:
                    return None
                self._more.wait()
            call = self._queue.popleft()
            if self._clock() >= call.deadline:
                call.state = CallState.DROPPED
                tally.dropped_total += 1
            else:
                call.state = CallState.PREPARING
                self._current.add(call)
                tally.running += 1
            return call

    def _execute(self, call: Call) -> None:
        tally = self._tally
        try:
            if call.prepare is not None:
                call.prepare()
            with tally.lock:
                go = not call.abandoned
                call.state = CallState.RUNNING
            if go:
                call.began = self._clock()
                call.result = call.work()
        except BaseException as error:  # the caller's to raise; a worker must not die of it
            call.error = error
        with tally.lock:
            call.ended = self._clock()
            call.state = CallState.DONE
            self._current.discard(call)
            tally.running -= 1
            if call.began:
                tally.came_back(call.began, call.ended, self._stall_s)
            if tally.closed:
                tally.idle.notify_all()
