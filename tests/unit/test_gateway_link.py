"""An engine's connection to its gateway: left out when gone or slow, taken back, never an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from federation import gateway_link as module
from federation.gateway_link import GatewayLink
from federation.identity import block_digest
from federation.keys.namespace import Namespace
from federation.limits.federation import SLOW_PONGS, SLOW_SECONDS
from federation.memory import pointer_to
from federation.transfer.frames import Encoder
from moonmesh.v1 import engine_pb2
from tests.support.clock import Punctuality
from tests.support.wait import wait_for

ENVELOPE = Namespace(
    model="m", revision="1", engine="e", kv_dtype="bf16", block_tokens=16, layout="l"
)
FP = ENVELOPE.fingerprint()


class FakeGateway:
    """The gateway's methods on a unix socket; what they do is in the attributes."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.reported: list[str] = []
        self.federated = True
        self.digest_of = b"right"
        self.refuse: set[str] = set()
        self.pull_seconds = 0.0
        self.attach_seconds = 0.0
        self.asked: list[int] = []
        self.hang = threading.Event()
        self._release = threading.Event()
        self._server: grpc.Server | None = None

    @property
    def target(self) -> str:
        return f"unix:{self.socket}"

    def start(self) -> None:
        self._release.clear()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        unary = grpc.unary_unary_rpc_method_handler
        handlers = {
            "Attach": unary(self._attach),
            "Report": unary(self._report),
            "Exists": unary(self._exists),
            "Pull": grpc.unary_stream_rpc_method_handler(self._pull),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("moonmesh.v1.Engine", handlers),)
        )
        self._server.add_insecure_port(self.target)
        self._server.start()

    def stop(self) -> None:
        self._release.set()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def _wait(self) -> None:
        if self.hang.is_set():
            self._release.wait()

    def _attach(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        self._wait()
        time.sleep(self.attach_seconds)
        reply = engine_pb2.AttachReply(group="g", fingerprint=FP, federated=self.federated)
        return reply.SerializeToString()

    def _report(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        self._wait()
        keys = [item.key for item in engine_pb2.ReportRequest.FromString(raw).written]
        if self.refuse.intersection(keys):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not these")
        self.reported += keys
        return b""

    def _exists(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        self._wait()
        keys = engine_pb2.ExistsRequest.FromString(raw).keys
        reply = engine_pb2.ExistsReply(landed=bytes(key.startswith("here") for key in keys))
        return reply.SerializeToString()

    def _pull(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self._wait()
        encoder = Encoder(1 << 20)
        time.sleep(self.pull_seconds)
        keys = engine_pb2.EnginePullRequest.FromString(raw).keys
        self.asked.append(len(keys))
        for index, key in enumerate(keys):
            digest = block_digest(FP, key, self.digest_of)
            yield from encoder.block(index, digest, memoryview(b"right"))
        yield encoder.end()


def pulled(
    link: GatewayLink, keys: list[str], sizes: list[int], timeout: float
) -> list[tuple[int, bytes]]:
    """What arrives, as bytes."""
    memory: dict[int, bytearray] = {}

    def into(index: int, size: int) -> int:
        memory[index] = bytearray(size)
        return pointer_to(memoryview(memory[index]))[0]

    return [(index, bytes(memory[index])) for index, _ in link.pull(keys, sizes, into, timeout)]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    gateway = FakeGateway(tmp_path / "g.sock")
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture
def link(gateway: FakeGateway) -> Iterator[GatewayLink]:
    link = GatewayLink(gateway.target, ENVELOPE)
    assert link.wait_until_answered(5)
    yield link
    link.close()


def test_blocks_and_existence_come_through(link: GatewayLink) -> None:
    assert pulled(link, ["a", "b"], [5, 5], 5.0) == [
        (0, b"right"),
        (1, b"right"),
    ]
    assert link.exists(["here-1", "not", "here-2"], 0.0, 5.0) == [True, False, True]


def test_a_block_with_another_digest_is_not_handed_over(
    gateway: FakeGateway, link: GatewayLink
) -> None:
    gateway.digest_of = b"wrong"
    assert pulled(link, ["a"], [5], 5.0) == []


def test_a_block_larger_than_its_room_is_not_handed_over(link: GatewayLink) -> None:
    assert pulled(link, ["a"], [4], 5.0) == []


def test_what_is_written_is_told(gateway: FakeGateway, link: GatewayLink) -> None:
    for n in range(3000):
        link.report(f"k{n}", 5, b"d" * 16, n)
    assert link.flush(10)
    assert gateway.reported == [f"k{n}" for n in range(3000)]


def test_a_gateway_that_is_gone_is_left_out_at_once_and_taken_back(
    gateway: FakeGateway, link: GatewayLink
) -> None:
    gateway.stop()
    assert pulled(link, ["a"], [5], 5.0) == []
    assert not link.usable
    link.report("kept", 5, b"d" * 16, 0)
    gateway.start()
    wait_for(lambda: link.usable, 10, "the link to be taken back")
    assert link.flush(5), "what was written meanwhile is told afterwards"
    assert gateway.reported == ["kept"]


def test_a_gateway_that_hangs_is_found_out_and_taken_back(
    gateway: FakeGateway, link: GatewayLink
) -> None:
    gateway.hang.set()
    with Punctuality() as punctual:
        assert punctual.call(lambda: pulled(link, ["a"], [5], 0.05)) == []
    punctual.check(0.05)
    wait_for(lambda: not link.usable, module.PONG_SECONDS + 2, "it to be left out")
    gateway.hang.clear()
    gateway._release.set()
    wait_for(lambda: link.usable, 10, "the link to be taken back")


def test_deadlines_that_are_too_short_do_not_make_a_healthy_gateway_a_slow_one(
    gateway: FakeGateway, link: GatewayLink
) -> None:
    gateway.pull_seconds = 0.1
    for _ in range(20):
        assert pulled(link, ["a"], [5], 0.005) == []
    gateway.pull_seconds = 0.0
    wait_for(lambda: not link._doubted, 5, "the doubt to be looked into")
    assert link.usable
    assert len(pulled(link, ["a"], [5], 5.0)) == 1


def test_a_report_that_is_refused_is_dropped_and_holds_up_nothing(
    gateway: FakeGateway, link: GatewayLink
) -> None:
    gateway.refuse.add("bad")
    link.report("bad", 5, b"d" * 16, 0)
    assert link.flush(5)
    link.report("good", 5, b"d" * 16, 0)
    assert link.flush(5)
    assert gateway.reported == ["good"]
    assert link.usable, "a refusal is an answer"


def test_a_key_longer_than_a_request_is_never_sent(gateway: FakeGateway, link: GatewayLink) -> None:
    link.report("k" * (2 << 20), 5, b"d" * 16, 0)
    link.report("good", 5, b"d" * 16, 0)
    assert link.flush(5)
    assert gateway.reported == ["good"]


def test_a_chain_longer_than_a_request_is_asked_for_in_pieces(
    gateway: FakeGateway, link: GatewayLink
) -> None:
    keys = [f"here-{n}" for n in range(10_000)]
    blocks = pulled(link, keys, [5] * len(keys), 30.0)
    assert [index for index, _ in blocks] == list(range(10_000))
    assert gateway.asked == [4096, 4096, 1808]
    assert link.exists([*keys, "not", "here-after"], 0.0, 30.0) == [True] * 10_000 + [False, True]
    long = [f"here-{n:04}" + "x" * 1000 for n in range(3000)]
    gateway.asked.clear()
    assert len(pulled(link, long, [5] * len(long), 30.0)) == 3000
    assert max(gateway.asked) * 1009 < 1 << 20, "no request is above the limit of a message"


def test_a_namespace_that_nobody_shares_asks_nothing(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path / "g.sock")
    gateway.federated = False
    gateway.start()
    link = GatewayLink(gateway.target, ENVELOPE)
    assert not link.wait_until_answered(0.3)
    assert link.state().startswith("local only")
    link.report("k", 5, b"d" * 16, 0)
    assert link.flush(5), "there is nobody to tell, so nothing is kept"
    assert gateway.reported == []
    link.close()
    gateway.stop()


def test_without_a_gateway_reports_are_kept_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORTS_MAX", 3)
    link = GatewayLink(f"unix:{tmp_path}/nobody.sock", ENVELOPE)
    dropped = module.counters.snapshot().get("moonmesh_reports_dropped_total", 0)
    for n in range(5):
        link.report(f"k{n}", 5, b"d" * 16, n)
    assert not link.flush(0.05)
    assert module.counters.snapshot()["moonmesh_reports_dropped_total"] == dropped + 2
    link.close()


def test_many_that_wait_for_a_gateway_that_hangs_are_let_go_long_before_their_deadline(
    gateway: FakeGateway, link: GatewayLink
) -> None:
    cut = module.counters.snapshot().get("moonmesh_federation_cut_total", 0)
    gateway.hang.set()
    threads, taken = 6, []

    def ask(n: int) -> None:
        began = time.monotonic()
        assert (pulled(link, ["a"], [5], 10.0) if n % 2 else link.exists(["a"], 9.0, 10.0)) in (
            [],
            [False],
        )
        taken.append(time.monotonic() - began)

    readers = [threading.Thread(target=ask, args=[n]) for n in range(threads)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(10)
    assert len(taken) == threads
    assert max(taken) < 2.0, "ASK_SECONDS, a tick and PONG_SECONDS; the rest is the machine's"
    assert not link.may_ask()
    assert link.stats()["breaker"] in ("open", "half_open")
    assert module.counters.snapshot()["moonmesh_federation_cut_total"] - cut == threads


def test_a_gateway_that_answers_slowly_is_left_out(gateway: FakeGateway, link: GatewayLink) -> None:
    skipped = module.counters.snapshot().get("moonmesh_federation_skipped_total", 0)
    gateway.attach_seconds = SLOW_SECONDS + 0.03
    gateway.pull_seconds = 0.5
    # One after the other, as an engine would: each is silent for long enough to be asked about.
    for _ in range(20):
        if not link.may_ask():
            break
        pulled(link, ["a"], [5], 5.0)
    wait_for(lambda: link.stats()["opened"], 10, "it to be left out")
    assert link.stats()["slow_answers"] >= SLOW_PONGS
    assert not link.may_ask()
    assert module.counters.snapshot()["moonmesh_federation_skipped_total"] > skipped
    gateway.attach_seconds = 0.0
    wait_for(lambda: link.usable, 10, "it to be taken back")


def test_peers_that_are_slow_are_not_the_gateways_fault(
    gateway: FakeGateway, link: GatewayLink
) -> None:
    gateway.pull_seconds = 1.0
    readers = [threading.Thread(target=lambda: pulled(link, ["a"], [5], 5.0)) for _ in range(4)]
    for reader in readers:
        reader.start()
    passed = []
    while any(reader.is_alive() for reader in readers):
        passed.append(link.usable)
        time.sleep(0.02)
    assert link.stats()["opened"] == 0
    assert passed.count(False) <= len(passed) // 4, "doubted for moments at most"
