"""An engine's connection to its group's gateway: never waited for beyond a deadline, never an error.

A gateway that is gone or slow is left out at once (`federation.limits.federation`); a thread of this
module's looks for it in the background, tells it what was written, and puts it back in once it answers.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from federation.counters import counters
from federation.keys.namespace import Namespace
from federation.limits.attached import ATTACH_SECONDS
from federation.limits.federation import ASK_SECONDS, PONG_SECONDS, FederationBreaker
from federation.limits.names import GuardName
from federation.limits.switches import guards_off
from federation.request_limits import RequestLimits
from federation.taken import Taken
from federation.taking import MESSAGE_BYTES_MAX, Into, Taking
from federation.telemetry import inject
from federation.timeouts import Deadline
from federation.transfer.fair import PullClass
from federation.transfer.handover import ATTACH_METHOD, EXISTS_METHOD, REPORT_METHOD
from federation.trust.credentials import EngineCredentials
from federation.watched import Watched
from local_group.breaker import BreakerState
from moonmesh.v1 import engine_pb2

log = logging.getLogger(__name__)

REPORTS_MAX = 65_536
"""Written blocks that wait to be reported; more are dropped (they stay local)."""
REPORT_LINGER_SECONDS = 0.005
"""How long a report waits for company."""
CONTROL_SECONDS = 1.0
"""Deadline of a report, and of an attachment to a gateway that is not known to answer."""
WATCH_SECONDS = 1.0
"""For which calls are watched after the last one began: a call that comes later wakes the thread."""
REDIAL_MS = 100
"""Between two dials of the channel at first, and at most twice as long: a look in between is in vain."""
DIAL_MS = 1000
"""What one dial may take; TLS, where the gateway is on another host, needs several round trips."""
Report: TypeAlias = tuple[str, int, bytes, int]
"""Key, size, digest and place in its chain of a block that was put."""

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.initial_reconnect_backoff_ms", REDIAL_MS),
    ("grpc.max_reconnect_backoff_ms", 2 * REDIAL_MS),
    ("grpc.min_reconnect_backoff_ms", DIAL_MS),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
]


class GatewayLink:
    """One engine process's connection to its gateway. Thread-safe.

    Args:
        target: `unix:/path/to/gateway.sock` or `host:port`.
        credentials: for `host:port`, the engine's half of the group's mTLS.
        attached: told the group's name each time that the gateway has answered an attachment.
    """

    def __init__(
        self,
        target: str,
        namespace: Namespace,
        credentials: EngineCredentials | None = None,
        attached: Callable[[str], None] = lambda group: None,
    ) -> None:
        self._namespace = namespace
        self._attached = attached
        self._fingerprint = namespace.fingerprint()
        if credentials is None:
            self._channel = grpc.insecure_channel(target, _OPTIONS)
        else:
            self._channel = grpc.secure_channel(
                target,
                credentials.channel_credentials(),
                [*_OPTIONS, *credentials.channel_options()],
            )
        self._attach = self._channel.unary_unary(ATTACH_METHOD)
        self._report = self._channel.unary_unary(REPORT_METHOD)
        self._exists = self._channel.unary_unary(EXISTS_METHOD)
        doubts = GuardName.FEDERATION not in guards_off(os.environ)
        self._watched = Watched(FederationBreaker(random.Random(), doubts=doubts), self._look)
        self._taking = Taking(
            self._channel, self._fingerprint, socket_of(target), self._failed, self._watched
        )
        self._reports: deque[Report] = deque()
        self._answered = False
        self._federated = False
        self._full = False
        self._engine = secrets.randbits(64) | 1
        self._reason = "not attached yet"
        self._doubted = False
        self._limits = RequestLimits()
        self._wake = threading.Event()
        self._first = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="moonmesh-gateway", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Whether the gateway is there, answers, and shares this namespace with some peer."""
        return self._federated and self._watched.passes()

    def may_ask(self) -> bool:
        """`usable`, for a call that is about to be made: one that is not is counted."""
        usable = self.usable
        if self._federated and not usable:
            counters.add("moonmesh_federation_skipped_total")
        return usable

    @property
    def limits(self) -> RequestLimits:
        """What fits one request to this gateway."""
        return self._limits

    @property
    def taken(self) -> Taken:
        """What came from peers a short while ago."""
        return self._taking.taken

    def state(self) -> str:
        """For `stats`: what is known of the gateway."""
        state = self._watched.state()
        if state is not BreakerState.CLOSED:
            return f"breaker {state.value}"
        return "federated" if self._federated else f"local only: {self._reason}"

    def stats(self) -> dict[str, Any]:
        """The breaker of the whole federation, for `FederatedStore.stats`."""
        return self._watched.stats()

    def wait_until_answered(self, timeout: float) -> bool:
        """Waits for the first attachment, at most `timeout` seconds; whether the link is usable."""
        self._first.wait(timeout)
        return self.usable

    def report(self, key: str, size: int, digest: bytes, chain_position: int) -> None:
        """A block was put; told to the gateway soon. Never waits."""
        self.report_all([(key, size, digest, chain_position)])

    def report_all(self, written: Sequence[Report]) -> None:
        """Blocks were put; told to the gateway soon. Never waits."""
        room = max(0, REPORTS_MAX - len(self._reports))
        if len(written) > room:
            counters.add("moonmesh_reports_dropped_total", len(written) - room)
        self._reports.extend(written[:room])
        self._wake.set()

    def exists(self, keys: Sequence[str], wait: float, timeout: float) -> list[bool]:
        """Which keys have landed within `wait` seconds; all False where the gateway does not answer.

        A chain that is too long for one request is asked for piece by piece, until one is incomplete.
        """
        landed: list[bool] = []
        until = Deadline(timeout)
        for piece in self._limits.pieces(keys):
            request = engine_pb2.ExistsRequest(
                fingerprint=self._fingerprint,
                keys=keys[piece],
                wait_ms=max(0, int(1000 * min(wait, until.left()))),
                pull_class=PullClass.FIRST_TOKEN.name,
            )
            message = request.SerializeToString()
            try:
                with self._watched.call(
                    self._exists.future(message, timeout=until.left(), metadata=inject())
                ) as call:
                    raw = call.result()
                    call.heard()
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                self._failed(error)
                break
            flags = engine_pb2.ExistsReply.FromString(raw).landed
            landed += [flag == 1 for flag in flags]
            if not all(flags):
                break
        return (landed + [False] * len(keys))[: len(keys)]

    def pull(
        self,
        keys: Sequence[str],
        max_sizes: Sequence[int],
        into: Into,
        timeout: float,
        before: str = "",
    ) -> Iterator[tuple[int, int]]:
        """Takes blocks of the chain into the caller's memory as they arrive; ends at the deadline, or early.

        Yields index and size of each that is there and as its writer wrote it. A chain that is too long for
        one request is pulled piece by piece, until one is incomplete.

        Args:
            before: the key before the first, if the caller has that block.
        """
        until = Deadline(timeout)
        for piece in self._limits.pieces(keys):
            if until.left() <= 0:
                return
            arrived, start = 0, piece.start
            here = partial(_shifted, into, start)
            if start:
                before = keys[start - 1]
            for index, size in self._taking.take(
                keys[piece], max_sizes[piece], here, until.left(), before
            ):
                arrived += 1
                yield start + index, size
            if arrived < piece.stop - start:
                return

    def close(self) -> None:
        """Ends the thread and the channel. What was not reported is not."""
        self._closed = True
        self._wake.set()
        self._thread.join(2 * CONTROL_SECONDS)
        self._channel.close()

    def flush(self, timeout: float) -> bool:
        """Waits until everything written so far has been told; False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self._reports:
            if time.monotonic() >= deadline:
                return False
            self._wake.set()
            time.sleep(0.005)
        return True

    # The background

    def _work(self) -> None:
        attach_at = 0.0
        while not self._closed:
            if self._doubted or self._watched.asks() or time.monotonic() >= attach_at:
                answered = self._try_attach()
                attach_at = time.monotonic() + (ATTACH_SECONDS if answered else self._retry_in())
            if self._reports and self.usable:
                self._send_reports()
                if self._reports and self.usable:
                    continue
            elif self._reports and self._answered and not (self._federated or self._full):
                self._reports.clear()  # nobody may have this namespace: nothing to tell
            if not self._answers():
                attach_at = min(attach_at, time.monotonic() + self._retry_in())
            pause = attach_at - time.monotonic()
            if self._watched.busy(WATCH_SECONDS):
                pause = min(pause, ASK_SECONDS)
            self._wake.wait(max(0.01, pause))
            self._wake.clear()
            if self._reports:
                time.sleep(REPORT_LINGER_SECONDS)

    def _try_attach(self) -> bool:
        doubted, self._doubted = self._doubted, False
        if not self._watched.may_probe():
            return False
        request = engine_pb2.AttachRequest(
            envelope_json=self._namespace.canonical(),
            patterns=(pattern.text for pattern in self._namespace.patterns),
            engine=self._engine,
        )
        doubted |= self._watched.asks()
        seconds = PONG_SECONDS if doubted else CONTROL_SECONDS
        began = time.monotonic()
        try:
            raw = self._attach(request.SerializeToString(), timeout=seconds)
        except grpc.RpcError as error:
            counters.add("moonmesh_gateway_errors_total")
            self._reason = f"{error.code().name.lower()}: {error.details()}"
            self._watched.lost()
            return False
        reply = engine_pb2.AttachReply.FromString(raw)
        if not reply.federated and (reply.reason != self._reason or not self._answered):
            log.warning("no federation through group %s: %s", reply.group, reply.reason)
        self._attached(reply.group)
        self._taking.renew(reply.memory)
        self._limits = RequestLimits.told(reply.limits)
        self._reason, self._federated, self._full = reply.reason, reply.federated, reply.full
        self._watched.answered(began)
        self._answered = True
        self._first.set()
        return True

    def _send_reports(self) -> None:
        waiting = [self._reports[n] for n in range(min(len(self._reports), self._limits.reports))]
        batch = waiting[: self._limits.fitting([key for key, *_ in waiting])]
        if not batch:  # its key alone is longer than a request
            counters.add("moonmesh_reports_dropped_total")
            self._reports.popleft()
            return
        written = (
            engine_pb2.Written(key=key, size=size, digest=digest, chain_position=place)
            for key, size, digest, place in batch
        )
        request = engine_pb2.ReportRequest(fingerprint=self._fingerprint, written=written)
        try:
            self._report(request.SerializeToString(), timeout=CONTROL_SECONDS)
        except grpc.RpcError as error:
            if not self._failed(error):
                return  # kept, and told once the gateway answers again
            # It answered, and will not have this batch, now or later.
            counters.add("moonmesh_reports_dropped_total", len(batch))
        for _ in batch:
            self._reports.popleft()

    def _answers(self) -> bool:
        return self._watched.state() is BreakerState.CLOSED

    def _look(self) -> None:
        """Calls are made again: they are watched."""
        self._wake.set()

    def _retry_in(self) -> float:
        return max(0.05, self._watched.retry_in())

    def _failed(self, error: grpc.RpcError | grpc.FutureCancelledError) -> bool:
        """Notes a failed call; whether the gateway answered all the same, with a refusal."""
        if isinstance(error, grpc.FutureCancelledError):
            return False
        code = error.code()
        if code is grpc.StatusCode.UNAVAILABLE:
            # A gateway that is not there is no matter of counting: leave it out at once.
            counters.add("moonmesh_gateway_errors_total")
            self._watched.lost()
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            # A short deadline proves nothing: the thread asks it, with a deadline of its own.
            counters.add("moonmesh_gateway_errors_total")
            self._doubted = True
        elif code is not grpc.StatusCode.CANCELLED:
            counters.add("moonmesh_gateway_refusals_total")
            log.warning("the gateway refuses: %s", error.details())
            return True
        self._wake.set()
        return False


def _shifted(into: Into, start: int, index: int, size: int) -> int:
    return into(start + index, size)


def socket_of(gateway: str) -> Path | None:
    """The socket of a gateway on this host."""
    return Path(gateway.removeprefix("unix:")) if gateway.startswith("unix:") else None


def trace_folder(gateway: str) -> Path | None:
    """`data_dir/traces`, beside the spans of a gateway on this host."""
    socket = socket_of(gateway)
    return None if socket is None else socket.parent.parent / "traces"
