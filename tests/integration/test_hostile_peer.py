"""What a peer with valid certificates sends is refused and counted, and nothing of it is stored."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from chaos.hostile.peer import Behaviour, honest_block
from federation.catalog.wire import Assembler
from federation.config import Limits
from federation.identity import Envelope, block_digest, key_hash
from federation.peering import load_peering
from federation.peers.wire import CATALOG_METHOD, PULL_METHOD
from federation.trust.credentials import Credentials, load_credentials
from moonmesh.v1 import peer_pb2
from tests.support.federation import FINGERPRINT, NAMESPACE, Federation, HostileGroup, write
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

KEYS = [f"claimed-{i}" for i in range(4)]


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """One real group, `good`, whose only peer is whatever takes the place of `evil`."""
    limits = {"peer_breaker_failures": 1000}  # so that every test's pull is tried
    folder = tmp_path_factory.mktemp("hostile")
    with Federation(folder, ("good", "evil"), absent=["evil"], limits=limits) as federation:
        yield federation


@pytest.mark.parametrize(
    ("behaviour", "counter", "reason"),
    [
        (Behaviour.WRONG_DIGEST, "moonmesh_digest_mismatch_total", "does not match its digest"),
        (Behaviour.WRONG_NAMESPACE, "moonmesh_digest_mismatch_total", "does not match its digest"),
        (Behaviour.UNATTESTED, "moonmesh_pull_errors_total", "such were not asked for"),
        (Behaviour.WRONG_SIZE, "moonmesh_pull_errors_total", "were asked for"),
        (Behaviour.OVERSIZED_MESSAGE, "moonmesh_oversized_messages_total", "above the limit"),
        (Behaviour.GARBAGE, "moonmesh_pull_errors_total", "a header"),
        (Behaviour.CUT, "moonmesh_pull_errors_total", "cut short"),
        (Behaviour.NOTHING, "moonmesh_pull_missing_total", ""),
    ],
)
def test_a_lying_answer_is_refused_counted_and_not_stored(
    victim: Federation, behaviour: Behaviour, counter: str, reason: str
) -> None:
    keys = [f"{behaviour.value}-{key}" for key in KEYS]
    store = victim.engine("good", deadline_ms=3000)
    before = victim.counter("good", counter)
    with HostileGroup(victim, "evil", behaviour.value, keys) as evil:
        _wait_for_claims(victim, len(evil.claims))
        assert store.get(keys[0]) == b""
    status = victim.status("good")
    assert status["counters"][counter] > before
    if reason and behaviour is not Behaviour.OVERSIZED_MESSAGE:
        # A hello that went well since has taken the reason back; the log keeps it.
        assert victim.counter("good", "moonmesh_pull_errors_total") > 0
    assert status["staging"]["blocks"] == 0
    assert status["staging"]["reserved"] == 0
    assert status["counters"].get("moonmesh_admitted_total", 0) == 0
    assert store.batch_is_exist(keys, for_write=True) == [0] * len(keys)


def test_an_honest_answer_of_the_same_program_is_taken(victim: Federation) -> None:
    """Holds the tests above to account: it is the lie that is refused, not the program."""
    keys = [f"honest-{key}" for key in KEYS]
    store = victim.engine("good", deadline_ms=3000)
    with HostileGroup(victim, "evil", Behaviour.HONEST.value, keys) as evil:
        _wait_for_claims(victim, len(evil.claims))
        assert store.get(keys[0]) == honest_block(keys[0])


def test_a_peer_that_never_answers_costs_the_deadline_and_no_more(victim: Federation) -> None:
    store = victim.engine("good", deadline_ms=300)
    keys = [f"stall-{key}" for key in KEYS]
    with HostileGroup(victim, "evil", Behaviour.STALL.value, keys) as evil:
        _wait_for_claims(victim, len(evil.claims))
        assert store.get(keys[0]) == b""
    assert victim.status("good")["pulls"]["under_way"] == 0
    assert store.stats()["gateway"] == "federated", "a slow peer is not a slow gateway"


class Attacker:
    """Raw calls to the victim, with evil's own certificate."""

    def __init__(self, federation: Federation) -> None:
        peering = load_peering(federation.folder / "evil" / "peering.toml")
        credentials: Credentials = load_credentials(
            peering.own.credentials, "evil", peering.federation
        )
        self.channel = grpc.secure_channel(
            f"127.0.0.1:{federation.ports['good'] + 2}",
            credentials.channel_credentials(),
            options=[*credentials.channel_options("good"), ("grpc.max_send_message_length", -1)],
        )

    def refused(self, method: str, raw: bytes) -> tuple[grpc.StatusCode, str]:
        """The code and text of a call that has to fail."""
        call = self.channel.unary_stream(method)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(raw, timeout=10))
        error = caught.value
        return error.code(), error.details()


@pytest.fixture(scope="module")
def attacker(victim: Federation) -> Iterator[Attacker]:
    attacker = Attacker(victim)
    yield attacker
    attacker.channel.close()


OTHER = Envelope(**{**NAMESPACE, "model": "never-exported"}).fingerprint()
LIMITS = Limits()


@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [
        (
            peer_pb2.PullRequest(fingerprint=OTHER, keys=["k"]),
            grpc.StatusCode.PERMISSION_DENIED,
            "namespace",
        ),
        (
            peer_pb2.PullRequest(fingerprint=b"short", keys=["k"]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "fingerprint of 5 bytes",
        ),
        (
            peer_pb2.PullRequest(fingerprint=FINGERPRINT),
            grpc.StatusCode.INVALID_ARGUMENT,
            "0 keys",
        ),
        (
            peer_pb2.PullRequest(
                fingerprint=FINGERPRINT, keys=["k"] * (LIMITS.peer_request_keys_max + 1)
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
            "4097 keys",
        ),
        (
            peer_pb2.PullRequest(fingerprint=FINGERPRINT, keys=["k" * 2000]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "a key over 1024 bytes",
        ),
        (
            peer_pb2.PullRequest(fingerprint=FINGERPRINT, keys=["a", "b", "c"], max_sizes=[1, 2]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "2 sizes for 3 keys",
        ),
        (
            peer_pb2.PullRequest(fingerprint=FINGERPRINT, keys=["k" * LIMITS.message_bytes]),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "above the limit",
        ),
    ],
)
def test_a_request_that_is_not_allowed_is_refused_with_the_reason(
    victim: Federation,
    attacker: Attacker,
    request_: peer_pb2.PullRequest,
    code: grpc.StatusCode,
    says: str,
) -> None:
    before = victim.counter("good", "moonmesh_refused_requests_total")
    got, details = attacker.refused(PULL_METHOD, request_.SerializeToString())
    assert got is code
    assert says in details
    assert victim.counter("good", "moonmesh_refused_requests_total") == before + 1
    refused = victim.status("good")["refused"]
    assert any(entry["who"] == "evil" and says in entry["reason"] for entry in refused)


def test_a_request_of_the_longest_allowed_key_passes(
    victim: Federation, attacker: Attacker
) -> None:
    request = peer_pb2.PullRequest(
        fingerprint=FINGERPRINT, keys=["k" * LIMITS.key_bytes_max], max_sizes=[1]
    )
    messages = list(
        attacker.channel.unary_stream(PULL_METHOD)(request.SerializeToString(), timeout=10)
    )
    assert len(messages) >= 1


def test_a_catalog_of_a_namespace_that_is_not_exported_is_refused(
    victim: Federation, attacker: Attacker
) -> None:
    request = peer_pb2.CatalogRequest(fingerprint=OTHER, wait_ms=0)
    code, details = attacker.refused(CATALOG_METHOD, request.SerializeToString())
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "may not import" in details


def test_bytes_that_are_no_message_are_refused(victim: Federation, attacker: Attacker) -> None:
    code, details = attacker.refused(PULL_METHOD, b"\xff" * 100)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "no message" in details


def test_a_peer_may_have_what_is_exported(victim: Federation, attacker: Attacker) -> None:
    """Holds the refusals above to account: the same calls, allowed, are answered."""
    store = victim.engine("good")
    write(store, ["exported"])
    request = peer_pb2.PullRequest(fingerprint=FINGERPRINT, keys=["exported"])
    (message, *_) = list(
        attacker.channel.unary_stream(PULL_METHOD)(request.SerializeToString(), timeout=10)
    )
    value = store.get("exported")
    assert value in message
    assert block_digest(FINGERPRINT, "exported", value) in message


def test_a_catalog_names_our_own_blocks_and_not_those_we_pulled(
    victim: Federation, attacker: Attacker
) -> None:
    store = victim.engine("good")
    with HostileGroup(victim, "evil", Behaviour.HONEST.value, ["pulled"]) as evil:
        _wait_for_claims(victim, len(evil.claims))
        assert store.get("pulled") == honest_block("pulled")
    write(store, ["written"])
    request = peer_pb2.CatalogRequest(fingerprint=FINGERPRINT, wait_ms=0)
    (raw,) = list(
        attacker.channel.unary_stream(CATALOG_METHOD)(request.SerializeToString(), timeout=10)
    )
    page = peer_pb2.CatalogPage.FromString(raw)
    assert (page.last, page.snapshot) == (True, True)
    assembler = Assembler(1000, None)
    news = assembler.feed(page)
    assert news is not None
    assert news.snapshot is not None
    names = [key_hash(FINGERPRINT, key) for key in ("written", "pulled")]
    assert news.snapshot.contains(np.array(names, dtype=np.uint64)).tolist() == [True, False]


def _wait_for_claims(victim: Federation, blocks: int) -> None:
    def seen() -> bool:
        (evil,) = victim.status("good")["peers"]
        return evil["state"] == "alive" and [v["blocks"] for v in evil["views"]] == [blocks]

    wait_for(seen, 30, f"the claims of {blocks} blocks: {victim.status('good')['peers']}")
