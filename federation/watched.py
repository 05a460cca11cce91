"""The calls of an engine's threads to its gateway, watched: those that it leaves without a word are ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import grpc

from federation.counters import counters
from federation.limits.federation import Asked, FederationBreaker
from local_group.breaker import BreakerState


class WatchedCall:
    """One call, between `with` and its end."""

    def __init__(self, watched: Watched, call: Any) -> None:
        self._watched, self._call = watched, call
        self._asked: Asked | None = None

    def __enter__(self) -> WatchedCall:
        self._asked = self._watched._begin(self._call)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._asked is not None
        # An answer by the gateway itself, of whatever kind, is a sign of life.
        refused = isinstance(error, grpc.RpcError) and error.code() not in _NO_ANSWER
        self._watched._end(self._asked, heard=refused)

    def heard(self) -> None:
        """Something of the answer came."""
        assert self._asked is not None
        self._watched._heard(self._asked)

    def result(self) -> bytes:
        """Of a call that has one answer."""
        return bytes(self._call.result())


_NO_ANSWER = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)


class Watched:
    """The breaker and the calls that it decides on. Thread-safe.

    Args:
        begun: called when a call is made after some time without any.
    """

    def __init__(self, breaker: FederationBreaker, begun: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._breaker = breaker
        self._begun = begun
        self._calls: dict[Asked, Any] = {}
        self._begun_at = float("-inf")
        self._idle = True

    def call(self, call: Any) -> WatchedCall:
        """To be entered; `call` is of gRPC, and has just been made."""
        return WatchedCall(self, call)

    def passes(self) -> bool:
        """Whether one may be made."""
        with self._lock:
            return self._breaker.passes(time.monotonic())

    def state(self) -> BreakerState:
        """The breaker's."""
        with self._lock:
            return self._breaker.state(time.monotonic())

    def stats(self) -> dict[str, Any]:
        """For people and programs."""
        with self._lock:
            now = time.monotonic()
            return {
                "breaker": self._breaker.state(now).value,
                "passes": self._breaker.passes(now),
                "opened": self._breaker.opened,
                "slow_answers": self._breaker.slow_pongs,
                "calls_open": self._breaker.open,
            }

    # For the thread that asks

    def busy(self, seconds: float) -> bool:
        """Whether calls wait, or one was made in the last `seconds`; False: the next one calls `begun`."""
        with self._lock:
            busy = bool(self._calls) or time.monotonic() - self._begun_at < seconds
            self._idle = not busy
            return busy

    def asks(self) -> bool:
        """Whether the gateway is to be asked whether it is there."""
        with self._lock:
            return self._breaker.asks(time.monotonic())

    def may_probe(self) -> bool:
        """Whether it may be."""
        with self._lock:
            return self._breaker.may_probe(time.monotonic())

    def retry_in(self) -> float:
        """Seconds until it may be."""
        with self._lock:
            return self._breaker.retry_in(time.monotonic())

    def answered(self, began: float) -> None:
        """It answered the question that was asked at `began`; perhaps too slowly."""
        with self._lock:
            self._breaker.answered(began, time.monotonic())
        self._cut()

    def lost(self) -> None:
        """It did not answer, or is not there."""
        with self._lock:
            self._breaker.lost(time.monotonic())
        self._cut()

    # For calls

    def _begin(self, call: Any) -> Asked:
        with self._lock:
            now = time.monotonic()
            asked = self._breaker.begin(now)
            self._calls[asked] = call
            self._begun_at = now
            idle, self._idle = self._idle, False
        if idle:
            self._begun()
        return asked

    def _heard(self, asked: Asked) -> None:
        with self._lock:
            self._breaker.heard(asked, time.monotonic())

    def _end(self, asked: Asked, *, heard: bool) -> None:
        with self._lock:
            if heard:
                self._breaker.heard(asked, time.monotonic())
            self._breaker.end(asked)
            self._calls.pop(asked, None)

    def _cut(self) -> None:
        """Ends what waits without a word, where the breaker has just been found open."""
        with self._lock:
            left = self._breaker.left(time.monotonic())
            cut = [self._calls.pop(asked) for asked in left if asked in self._calls]
        for call in cut:
            call.cancel()
        if cut:
            counters.add("moonmesh_federation_cut_total", len(cut))
