"""An engine's connection to its group's gateway: never waited for beyond a deadline, never an error.

A gateway that is gone or slow is left out at once; a thread of this module's looks for it in the
background, tells it what was written, and puts it back in once it answers.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from federation.counters import counters
from federation.errors import PeerError
from federation.identity import Envelope, block_digest
from federation.telemetry import inject
from federation.transfer.frames import HEADER_BYTES, Block, Decoder
from federation.transfer.handover import ATTACH_METHOD, EXISTS_METHOD, PULL_METHOD, REPORT_METHOD
from federation.trust.credentials import EngineCredentials
from local_group.breaker import Breaker, BreakerLimits, BreakerState
from moonmesh.v1 import engine_pb2

log = logging.getLogger(__name__)

REPORTS_MAX = 65_536
"""Written blocks that wait to be reported; more are dropped (they stay local)."""
REPORT_BATCH = 1024
REPORT_LINGER_SECONDS = 0.005
"""How long a report waits for company."""
CONTROL_SECONDS = 1.0
"""Deadline of an attach or a report, which no engine waits for."""
ATTACH_SECONDS = 10.0
"""Between two attachments to a gateway that answers: they tell that the namespace is in use."""
KEYS_MAX = 4096
"""Keys in one request; a longer chain is cut."""
MESSAGE_BYTES_MAX = 4 * 1024 * 1024 + HEADER_BYTES * (KEYS_MAX + 1)
"""The longest message of a pull: the largest `limits.message_bytes` a gateway may be given."""
_BREAKER = BreakerLimits(failures=2, window=8, open_s=0.25, open_max_s=2.0)

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
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
        envelope: Envelope,
        credentials: EngineCredentials | None = None,
        attached: Callable[[str], None] = lambda group: None,
    ) -> None:
        self._envelope = envelope
        self._attached = attached
        self._fingerprint = envelope.fingerprint()
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
        self._pull = self._channel.unary_stream(PULL_METHOD)
        self._lock = threading.Lock()
        self._breaker = Breaker(_BREAKER, random.Random())
        self._reports: deque[engine_pb2.Written] = deque()
        self._federated = False
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="moonmesh-gateway", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Whether the gateway is there, answers, and shares this namespace with some peer."""
        with self._lock:
            closed = self._breaker.state(time.monotonic()) is BreakerState.CLOSED
        return self._federated and closed

    def state(self) -> str:
        """For `stats`: what is known of the gateway."""
        with self._lock:
            state = self._breaker.state(time.monotonic())
        if state is not BreakerState.CLOSED:
            return f"breaker {state.value}"
        return "federated" if self._federated else "local only"

    def wait_until_usable(self, timeout: float) -> bool:
        """Waits for the first attachment, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self.usable:
            if self._closed or time.monotonic() >= deadline:
                return False
            self._wake.set()
            time.sleep(0.01)
        return True

    def report(self, key: str, size: int, digest: bytes, chain_position: int) -> None:
        """A block was put; told to the gateway soon. Never waits."""
        if len(self._reports) >= REPORTS_MAX:
            counters.add("moonmesh_reports_dropped_total")
            return
        self._reports.append(
            engine_pb2.Written(key=key, size=size, digest=digest, chain_position=chain_position)
        )
        self._wake.set()

    def exists(self, keys: Sequence[str], wait: float, timeout: float) -> list[bool]:
        """Which keys have landed within `wait` seconds; all False where the gateway does not answer."""
        request = engine_pb2.ExistsRequest(
            fingerprint=self._fingerprint,
            keys=keys[:KEYS_MAX],
            wait_ms=max(0, int(1000 * wait)),
            pull_class=engine_pb2.FIRST_TOKEN,
        )
        try:
            raw = self._exists(request.SerializeToString(), timeout=timeout, metadata=inject())
        except grpc.RpcError as error:
            self._failed(error)
            return [False] * len(keys)
        self._succeeded()
        landed = engine_pb2.ExistsReply.FromString(raw).landed
        return [place < len(landed) and landed[place] == 1 for place in range(len(keys))]

    def pull(
        self, keys: Sequence[str], max_sizes: Sequence[int], timeout: float
    ) -> Iterator[tuple[int, bytearray]]:
        """Blocks of the chain as they arrive, with their places; ends at the deadline, or early.

        Each block is checked against its digest here, on this process's own copy of it.
        """
        keys, max_sizes = keys[:KEYS_MAX], max_sizes[:KEYS_MAX]
        request = engine_pb2.EnginePullRequest(
            fingerprint=self._fingerprint,
            keys=keys,
            max_sizes=max_sizes,
            pull_class=engine_pb2.FIRST_TOKEN,
        )
        decoder = Decoder(max_sizes, MESSAGE_BYTES_MAX)
        call = self._pull(request.SerializeToString(), timeout=timeout, metadata=inject())
        try:
            for message in call:
                for event in decoder.feed(message):
                    if not isinstance(event, Block):
                        continue
                    if block_digest(self._fingerprint, keys[event.index], event.data) != (
                        event.digest
                    ):
                        counters.add("moonmesh_handover_digest_mismatch_total")
                        return
                    yield event.index, event.data
            self._succeeded()
        except grpc.RpcError as error:
            self._failed(error)
        except PeerError as error:
            counters.add("moonmesh_handover_errors_total")
            log.warning("the gateway's answer is not understood: %s", error)
        finally:
            call.cancel()

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
            now = time.monotonic()
            if now >= attach_at:
                attach_at = now + (ATTACH_SECONDS if self._try_attach() else self._retry_in())
            if self._reports and self.usable:
                self._send_reports()
            elif self._reports and not self._federated and self._answers():
                self._reports.clear()  # nobody may have this namespace: nothing to tell
            if self._reports and self.usable:
                continue
            self._wake.wait(max(0.01, attach_at - time.monotonic()))
            self._wake.clear()
            if self._reports:
                time.sleep(REPORT_LINGER_SECONDS)
            if not self._answers():
                attach_at = min(attach_at, time.monotonic() + self._retry_in())

    def _try_attach(self) -> bool:
        with self._lock:
            if not self._breaker.allow(time.monotonic()):
                return False
        request = engine_pb2.AttachRequest(envelope_json=self._envelope.canonical())
        try:
            raw = self._attach(request.SerializeToString(), timeout=CONTROL_SECONDS)
        except grpc.RpcError as error:
            self._failed(error)
            return False
        self._succeeded()
        reply = engine_pb2.AttachReply.FromString(raw)
        if reply.federated != self._federated:
            log.info("gateway of %s: %s", reply.group, reply.reason or "federated")
        self._attached(reply.group)
        self._federated = reply.federated
        return True

    def _send_reports(self) -> None:
        batch = [self._reports[place] for place in range(min(len(self._reports), REPORT_BATCH))]
        request = engine_pb2.ReportRequest(fingerprint=self._fingerprint, written=batch)
        try:
            self._report(request.SerializeToString(), timeout=CONTROL_SECONDS)
        except grpc.RpcError as error:
            self._failed(error)
            return  # kept, and told once the gateway answers again
        self._succeeded()
        for _ in batch:
            self._reports.popleft()

    def _answers(self) -> bool:
        with self._lock:
            return self._breaker.state(time.monotonic()) is BreakerState.CLOSED

    def _retry_in(self) -> float:
        with self._lock:
            return max(0.05, self._breaker.retry_in(time.monotonic()))

    def _succeeded(self) -> None:
        with self._lock:
            self._breaker.success(time.monotonic())

    def _failed(self, error: grpc.RpcError) -> None:
        counters.add("moonmesh_gateway_errors_total")
        gone = error.code() is grpc.StatusCode.UNAVAILABLE
        with self._lock:
            # A gateway that is not there is no matter of counting: leave it out at once.
            for _ in range(_BREAKER.failures if gone else 1):
                self._breaker.failure(time.monotonic())
        self._wake.set()
