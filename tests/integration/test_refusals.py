"""Who is no peer gets nothing, and the reason stands in the log and in `status`, on real gateways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from federation.client import FederatedStore
from federation.errors import ConfigError
from federation.following.leader import FOLLOW_METHOD
from federation.peers.wire import PULL_METHOD
from federation.trust.authority import Authority
from federation.trust.credentials import (
    EngineCredentials,
    load_credentials,
    load_engine_credentials,
    utc_now,
)
from moonmesh.v1 import engine_pb2, group_pb2, peer_pb2
from tests.support.credentials import MONTH
from tests.support.federation import ENVELOPE, FINGERPRINT, Federation, read, write
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

REQUEST = peer_pb2.PullRequest(fingerprint=FINGERPRINT, keys=["k"]).SerializeToString()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """`good` knows `west` and `south`; `evil` knows `good`, which does not know it.

    `west` signs with another key than good has of it; `south` thinks that evil is where good is.
    """
    names = ("good", "west", "evil", "south")
    federation = Federation(
        tmp_path_factory.mktemp("crowd"), names, alive=False, gateway={"engines_tcp": True}
    )
    good = federation.folder / "good" / "peering.toml"
    head, *peers = good.read_text().split("[[peers]]")
    good.write_text("[[peers]]".join([head, *(p for p in peers if 'name = "evil"' not in p)]))
    for name in ("identity.key", "identity.pub"):
        (federation.folder / "west" / "credentials" / name).unlink()
    Authority(federation.folder / "ca", "test").group(
        "west", federation.folder / "west" / "credentials"
    )
    south = federation.folder / "south" / "peering.toml"
    address = {name: f"127.0.0.1:{base + 2}" for name, base in federation.ports.items()}
    text = south.read_text().replace(address["good"], "127.0.0.1:9")
    south.write_text(text.replace(address["evil"], address["good"]))
    with federation:
        yield federation


def refused(federation: Federation, who: str, why: str) -> bool:
    return any(
        who in entry["who"] and why in entry["reason"]
        for entry in federation.status("good").get("refused", [])
    )


def peer(federation: Federation, name: str, other: str) -> dict[str, object]:
    (found,) = [p for p in federation.status(name)["peers"] if p["name"] == other]
    return dict(found)


def test_a_group_that_is_not_in_peering_toml(crowd: Federation) -> None:
    wait_for(lambda: refused(crowd, "evil", "not a peer in peering.toml"), 20, "the refusal")
    assert "not a peer in peering.toml" in crowd.groups["good"].log("serving")
    assert crowd.groups["evil"].config.name == "evil"
    wait_for(
        lambda: "not a peer in peering.toml" in str(peer(crowd, "evil", "good")["reason"]),
        20,
        "evil to be told why",
    )
    assert peer(crowd, "evil", "good")["state"] == "unheard"


def test_a_statement_signed_with_another_key(crowd: Federation) -> None:
    wait_for(lambda: refused(crowd, "west", "not signed by the key"), 20, "the refusal")
    assert "not signed by the key" in crowd.groups["good"].log("gateway")
    assert peer(crowd, "good", "west")["state"] == "unheard"


def test_a_gateway_of_another_name_than_expected(crowd: Federation) -> None:
    wait_for(
        lambda: "good" in str(peer(crowd, "south", "evil")["reason"]),
        20,
        f"the reason: {peer(crowd, 'south', 'evil')}",
    )
    # It is heard all the same: evil greets south where south is, and its statement is good.
    wait_for(lambda: peer(crowd, "south", "evil")["state"] == "alive", 20, "evil to be heard")
    assert "good" in str(peer(crowd, "south", "evil")["reason"]), "what is wrong stays in sight"


@pytest.mark.parametrize("case", ["expired", "another CA", "none"])
def test_a_certificate_that_does_not_hold(crowd: Federation, tmp_path: Path, case: str) -> None:
    folder = crowd.folder / "west" / "credentials"
    name = "west"
    authority_pem = (folder / "ca.pem").read_bytes()
    if case == "none":
        channel_credentials = grpc.ssl_channel_credentials(authority_pem)
        why = "certificate"
    else:
        if case == "expired":
            made = Authority(crowd.folder / "ca", "test", now=utc_now() - MONTH, days=2)
            now, why = utc_now() - MONTH, "expired"
        else:
            made, now, why = Authority(tmp_path / "ca", "test"), None, "CA"
        made.group(name, tmp_path / "credentials")
        own = load_credentials(tmp_path / "credentials", name, "test", now=now).tls
        channel_credentials = grpc.ssl_channel_credentials(authority_pem, own.key_pem, own.cert_pem)
    options = load_credentials(
        crowd.folder / "good" / "credentials", "good", "test"
    ).channel_options("good")
    with grpc.secure_channel(
        f"127.0.0.1:{crowd.ports['good'] + 2}", channel_credentials, options=options
    ) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(channel.unary_stream(PULL_METHOD)(REQUEST, timeout=5))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    wait_for(lambda: refused(crowd, "unknown", why), 10, f"{crowd.status('good')['refused']}")
    assert "andshake failed" in crowd.groups["good"].log("serving")


def test_an_engine_on_another_host_is_served_over_its_groups_own_mtls(crowd: Federation) -> None:
    config = crowd.groups["good"].config
    target = f"127.0.0.1:{config.ports.engines_tcp}"
    store = FederatedStore()
    credentials = crowd.folder / "good" / "credentials"
    assert (
        store.setup(
            config.host,
            master_server_addr=config.master_address,
            namespace=ENVELOPE,
            gateway=target,
            credentials=credentials,
            group="good",
        )
        == 0
    )
    wait_for(lambda: store.stats()["gateway"] == "federated", 10, "to be attached")
    held = crowd.status("good")["holdings"]["blocks"]
    write(store, ["over-tcp"])
    assert read(store, ["over-tcp"]) == ["local"]
    assert crowd.status("good")["holdings"]["blocks"] == held + 1
    store.close()

    # Another group's engine is let in by nobody ...
    stranger = load_engine_credentials(crowd.folder / "west" / "credentials", "west", "client")
    options = load_engine_credentials(credentials, "good", "client").channel_options()
    attach = engine_pb2.AttachRequest(envelope_json=ENVELOPE.canonical()).SerializeToString()
    assert not _lets_in(target, stranger, options, attach)
    # ... but an engine of this one is, and a gateway, which may follow besides. An engine may not.
    gateway = load_engine_credentials(credentials, "good", "server")
    engine = load_engine_credentials(credentials, "good", "client")
    for own in (gateway, engine):
        assert _lets_in(target, own, options, attach)
    assert _followed(target, gateway) is None
    assert _followed(target, engine) is grpc.StatusCode.PERMISSION_DENIED
    with grpc.insecure_channel(f"unix:{config.gateway_socket}") as channel:
        assert _follow(channel) is grpc.StatusCode.UNIMPLEMENTED, "a socket tells nobody's name"
    assert crowd.status("good")["leading"]["followers"] == []


def _followed(target: str, credentials: EngineCredentials) -> grpc.StatusCode | None:
    with grpc.secure_channel(
        target, credentials.channel_credentials(), options=credentials.channel_options()
    ) as channel:
        return _follow(channel)


def _follow(channel: grpc.Channel) -> grpc.StatusCode | None:
    """How it is refused; None if it is not."""
    asked = group_pb2.FollowRequest(member="x:1", epoch=1).SerializeToString()
    call = channel.unary_stream(FOLLOW_METHOD)(asked, timeout=5)
    try:
        next(call)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    call.cancel()
    return None


def _lets_in(
    target: str, credentials: EngineCredentials, options: list[tuple[str, str]], attach: bytes
) -> bool:
    channel = grpc.secure_channel(target, credentials.channel_credentials(), options=options)
    try:
        channel.unary_unary("/moonmesh.v1.Engine/Attach")(attach, timeout=5)
    except grpc.RpcError:
        return False
    finally:
        channel.close()
    return True


def test_a_gateway_on_another_host_needs_credentials() -> None:
    with pytest.raises(ConfigError, match="needs credentials and group"):
        FederatedStore().setup("127.0.0.1", namespace=ENVELOPE, gateway="127.0.0.1:7403")
