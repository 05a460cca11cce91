"""The guards of a real gateway, asked too much by a peer with valid certificates."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from federation.config import Limits
from federation.limits.switches import PERMIT, VARIABLE
from federation.peers.wire import HELLO_METHOD, PULL_METHOD, RETRY_AFTER
from federation.transfer.frames import Block, Decoder
from moonmesh.v1 import peer_pb2
from tests.integration.test_hostile_peer import Attacker
from tests.support.federation import FINGERPRINT, Federation, content
from tests.support.groups import environment
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

MIB = 1 << 20
KEYS = [f"big-{i}" for i in range(12)]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """`good` and its peers: `west`, which is real, and whoever speaks for `evil`."""
    with Federation(
        tmp_path_factory.mktemp("guards"), ("good", "west", "evil"), absent=["evil"]
    ) as federation:
        store = federation.engine("good")
        federation.engine("west")  # follows the catalog of good from now on
        for key in KEYS:
            assert store.put(key, content(key, MIB).tobytes()) == 0
        assert store.flush_reports()
        federation.wait_for_view("west", "good", len(KEYS))
        yield federation


@pytest.fixture(scope="module")
def evil(crowd: Federation) -> Iterator[Attacker]:
    attacker = Attacker(crowd)
    yield attacker
    attacker.channel.close()


def incoming(federation: Federation, peer: str) -> dict[str, Any]:
    (found,) = [p for p in federation.status("good")["peers"] if p["name"] == peer]
    return dict(found["guards"]["incoming"])


def test_a_peer_that_reads_all_it_can_keeps_no_more_than_its_part_of_the_pool_leased(
    crowd: Federation, evil: Attacker
) -> None:
    request = peer_pb2.PullRequest(fingerprint=FINGERPRINT, keys=KEYS).SerializeToString()
    decoder, came = Decoder([MIB] * len(KEYS), 2 * MIB), 0
    with pytest.raises(grpc.RpcError) as caught:  # noqa: PT012 - what came before it counts
        for message in evil.channel.unary_stream(PULL_METHOD)(request, timeout=20):
            came += sum(isinstance(event, Block) for event in decoder.feed(message))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "leases" in caught.value.details()
    assert 1000 < int(dict(caught.value.trailing_metadata())[RETRY_AFTER]) <= 11_000
    assert came == 8, "an eighth of 64 MiB"
    # The peer has the error before the call is over here.
    wait_for(lambda: incoming(crowd, "evil")["open"] == {}, 5, "the call to be over")
    status = incoming(crowd, "evil")
    assert status["leased_bytes"] == status["leased_bytes_allowed"] == 8 * MIB
    assert status["refusals"] == {"leases": 1}
    assert status["memory_bytes"] == 0
    name = 'moonmesh_guard_refusals_total{peer="evil",guard="leases",direction="in"}'
    assert crowd.counter("good", name) == 1
    # Asking again pins no more, and takes nothing from west, which is still served.
    assert evil.refused(PULL_METHOD, request)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert incoming(crowd, "evil")["leased_bytes"] == 8 * MIB
    west = crowd.engine("west", deadline_ms=5000)
    assert west.get(KEYS[0]) == content(KEYS[0], MIB).tobytes()
    assert incoming(crowd, "west")["refusals"] == {}


def test_a_flood_of_hellos_is_refused_and_felt_by_nobody_else(
    crowd: Federation, evil: Attacker
) -> None:
    hello = evil.channel.unary_unary(HELLO_METHOD)
    began = time.monotonic()
    futures = [hello.future(b"", timeout=20) for _ in range(300)]
    errors = [future.exception() for future in futures]
    # A second's worth at once, and as many a second as long as it took.
    let_in = Limits().peer_hellos_per_s * (1 + time.monotonic() - began)
    codes = [error.code() for error in errors if isinstance(error, grpc.RpcError)]
    shed = codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert len(codes) == 300
    assert shed >= 300 - let_in, (
        "a hello of no content is refused for itself, the rest for the flood"
    )
    assert incoming(crowd, "evil")["refusals"]["hello_rate"] > 0
    (west,) = [p for p in crowd.status("good")["peers"] if p["name"] == "west"]
    assert west["state"] == "alive"
    assert west["guards"]["incoming"]["refusals"] == {}


def test_a_reader_that_was_shed_gets_the_rest_when_it_may(crowd: Federation) -> None:
    """The asker's guard holds to what it was told; the engine only sees misses until then."""
    west = crowd.engine("west", deadline_ms=5000)
    assert {"peer", "local"} >= set(read_big(west, KEYS[:2]))
    read_big(west, KEYS)
    (good,) = [p for p in crowd.status("west")["peers"] if p["name"] == "good"]
    assert good["breaker"] == "closed"
    # On a busy machine a hello may be late beside it: that is counted too, and blames nobody.
    assert good["guards"]["outgoing"]["failures"]["shed"] == 1
    assert 0 < good["guards"]["outgoing"]["paused_s"]["pull"] <= 10
    wait_for(
        lambda: set(read_big(west, KEYS)) <= {"peer", "local"}, 40, "all of them, a lease later"
    )


def read_big(store: Any, keys: list[str]) -> list[str]:
    tiers = []
    for key in keys:
        value = store.get(key)
        assert value in (b"", content(key, MIB).tobytes())
        tiers.append(store.last_tiers()[0])
    return tiers


def test_who_kills_the_serving_process_wins_no_leases_by_it(tmp_path: Path) -> None:
    """What it had counted holds for the next one. Leases are long here, so that none ends meanwhile."""
    with Federation(
        tmp_path,
        ("good", "evil"),
        absent=["evil"],
        master={"lease_ttl_ms": 300_000},
        limits={"staging_hold_ms": 300_000},
    ) as federation:
        store = federation.store("good")
        for key in KEYS:
            assert store.put(key, content(key, MIB).tobytes()) == 0
        assert store.flush_reports()
        attacker = Attacker(federation)
        for i in range(8):
            request = peer_pb2.PullRequest(fingerprint=FINGERPRINT, keys=KEYS[i : i + 1])
            raw = request.SerializeToString()
            assert sum(map(len, attacker.channel.unary_stream(PULL_METHOD)(raw, timeout=20))) > MIB
            if i % 3 == 2:
                kill_serving(federation, "good", attacker)
            leased = incoming(federation, "evil")["leased_bytes"]
            assert leased == (i + 1) * MIB
        kill_serving(federation, "good", attacker)
        request = peer_pb2.PullRequest(fingerprint=FINGERPRINT, keys=KEYS[:1])
        code, said = attacker.refused(PULL_METHOD, request.SerializeToString())
        attacker.channel.close()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "leases" in said
        assert federation.status("good")["serving"]["restarts"] == 3


def kill_serving(federation: Federation, name: str, attacker: Attacker) -> None:
    """... and waits for the next one, and for a connection to it."""
    old = federation.status(name)["serving"]["pid"]
    os.kill(old, signal.SIGKILL)

    def again() -> bool:
        now = federation.status(name)["serving"]
        return now["state"] == "serving" and now["pid"] not in (None, old)

    wait_for(again, 30, "the next serving process")
    grpc.channel_ready_future(attacker.channel).result(20)


def test_a_gateway_that_is_told_to_run_unguarded_does_not_start(crowd: Federation) -> None:
    config = crowd.folder / "evil" / "group.toml"
    for extra, says in (
        ({VARIABLE: "breaker"}, "is for tests alone"),
        ({VARIABLE: "braker", PERMIT: "1"}, "did you mean breaker"),
    ):
        done = gateway(config, extra)
        assert done.returncode == 2, done.stderr
        assert "error MM101" in done.stderr
        assert says in done.stderr


def gateway(config: Path, extra: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "federation.gateway_process", "-c", str(config)],
        env={**environment(), **extra},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_guard_that_is_switched_off_is_off_and_status_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "leases")
    monkeypatch.setenv(PERMIT, "1")
    with Federation(tmp_path, ("good", "evil"), absent=["evil"]) as federation:
        store = federation.store("good")
        for key in KEYS:
            assert store.put(key, content(key, MIB).tobytes()) == 0
        assert store.flush_reports()
        attacker = Attacker(federation)
        request = peer_pb2.PullRequest(fingerprint=FINGERPRINT, keys=KEYS).SerializeToString()
        messages = list(attacker.channel.unary_stream(PULL_METHOD)(request, timeout=20))
        attacker.channel.close()
        assert sum(map(len, messages)) > len(KEYS) * MIB
        assert incoming(federation, "evil")["off"] == ["leases"]
        for process in ("gateway", "serving"):
            assert "switched off for a test: leases" in federation.groups["good"].log(process)
