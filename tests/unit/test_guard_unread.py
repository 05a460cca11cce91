"""What becomes of calls that a peer opens and does not read, over real mTLS, with Mooncake in memory."""

from __future__ import annotations

import numpy as np
import pytest

from federation.limits.errors import ShedError
from federation.peers import arrivals
from federation.peers.wire import CATALOG_METHOD, PULL_METHOD
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import FP, MIB, East, fixed_window, link_to, pulled, serving


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


async def test_a_peer_that_does_not_read_gives_the_memory_back_and_is_blamed(made: Made) -> None:
    east = East(made, peer_stall_ms=500, peer_breaker_failures=1)
    keys = [f"k{i}" for i in range(64)]
    east.hold(*keys)
    async with (
        serving(east, made) as address,
        link_to(address, made, "west") as link,
        fixed_window(address, made) as unread,
    ):
        request = peer_pb2.PullRequest(fingerprint=FP, keys=keys).SerializeToString()
        call = unread.unary_stream(PULL_METHOD)(request, timeout=30)
        await call.read()  # one message, and then nothing more
        await wait_for_async(lambda: "stall" in east.status()["failures"], 10, "the stall")
        await wait_for_async(lambda: east.status()["memory_bytes"] == 0, 5, "the window")
        assert east.status()["breaker"] == "open"
        assert east.status()["open"] == {"pull": 1}, "its error waits behind what is not read"
        with pytest.raises(ShedError, match="breaker"):
            await pulled(link, "k0")
        call.cancel()
        await wait_for_async(lambda: east.status()["open"] == {}, 5, "the call to be gone")


async def test_calls_that_cannot_be_got_rid_of_take_their_own_peers_places(made: Made) -> None:
    east = East(made, peer_stall_ms=500, serves_per_peer=2, peer_breaker_failures=100)
    keys = [f"k{i}" for i in range(64)]
    east.hold(*keys)
    async with (
        serving(east, made) as address,
        link_to(address, made, "west") as west,
        link_to(address, made, "north") as north,
        fixed_window(address, made) as unread,
    ):
        request = peer_pb2.PullRequest(fingerprint=FP, keys=keys).SerializeToString()
        calls = [unread.unary_stream(PULL_METHOD)(request) for _ in range(2)]  # no deadline
        for call in calls:
            await call.read()
        await wait_for_async(lambda: east.status()["failures"] == {"stall": 2}, 10, "both")
        assert east.status()["open"] == {"pull": 2}
        with pytest.raises(ShedError, match="streams"):
            await pulled(west, "k0")
        assert await pulled(north, *keys[:10]) == 10
        for call in calls:
            call.cancel()
        await wait_for_async(lambda: east.status()["open"] == {}, 5, "the calls to be gone")


async def test_a_call_that_nobody_reads_ends_with_its_connection(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "END_SECONDS", 1.0)
    east = East(
        made, peer_stall_ms=200, pull_timeout_ms=500, catalog_wait_ms=500, peer_connection_ms=1000
    )
    keys = [f"k{i}" for i in range(64)]
    east.hold(*keys)
    async with (
        serving(east, made) as address,
        link_to(address, made, "west") as link,
        fixed_window(address, made) as unread,
    ):
        request = peer_pb2.PullRequest(fingerprint=FP, keys=keys).SerializeToString()
        call = unread.unary_stream(PULL_METHOD)(request)  # no deadline
        await call.read()
        await wait_for_async(lambda: "stall" in east.status()["failures"], 10, "the stall")
        assert east.status()["open"] == {"pull": 1}
        await wait_for_async(lambda: east.status()["open"] == {}, 10, "its place to be free")
        assert await pulled(link, "k0") == 1, "on another connection"


async def test_a_catalog_that_nobody_reads_is_not_kept(made: Made) -> None:
    east = East(made, peer_stall_ms=200)
    log = east.offers.log(FP)
    assert log is not None
    log.extend(np.arange(4 * MIB, dtype=np.uint64) << np.uint64(42))
    async with serving(east, made) as address, fixed_window(address, made) as unread:
        request = peer_pb2.CatalogRequest(fingerprint=FP).SerializeToString()
        call = unread.unary_stream(CATALOG_METHOD)(request)
        await call.read()
        await wait_for_async(lambda: east.status()["failures"] == {"stall": 1}, 10, "the stall")
        call.cancel()
        await wait_for_async(lambda: east.status()["open"] == {}, 5, "the call to be gone")
