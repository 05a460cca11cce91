"""What a gateway refuses its peers, over real mTLS, with Mooncake in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import numpy as np
import pytest

from federation.config import Limits
from federation.counters import counters
from federation.errors import PeerError
from federation.identity import key_hash, stored_key
from federation.limits.errors import LateError, ShedError
from federation.limits.names import GuardName
from federation.limits.shedding import Shedding
from federation.limits.ticket import Cost, Ticket
from federation.peers.arrivals import server_bounds
from federation.peers.wire import CATALOG_METHOD, PULL_METHOD, RETRY_AFTER
from federation.transfer.losses import LOST_BLOCKS_MIN
from federation.transfer.measuring import shedding_limits
from local_group import outcome as codes
from local_group.outcome import Outcome, failed
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import (
    FP,
    MIB,
    Answers,
    East,
    drained,
    link_to,
    linked,
    plain_hello,
    pulled,
    serving,
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


async def test_what_is_within_the_limits_is_served(made: Made) -> None:
    east = East(made)
    east.hold("a", "b")
    async with linked(east, made) as link:
        assert await pulled(link, "a", "b", "absent") == 2
    assert east.status()["open"] == {}
    assert east.status()["memory_bytes"] == 0
    assert east.status()["refusals"] == {}
    assert east.status()["leased_bytes"] == 2 * MIB


async def test_one_stream_too_many_is_told_when_to_come_back_and_does_not_before(
    made: Made,
) -> None:
    east = East(made, serves_per_peer=1)
    east.hold("a")
    east.memory.gate.clear()
    name = 'moonmesh_guard_refusals_total{peer="west",guard="streams",direction="in"}'
    before = counters.snapshot().get(name, 0)
    async with linked(east, made) as link:
        first = asyncio.create_task(pulled(link, "a"))
        await wait_for_async(lambda: east.memory.reads == 1, 5, "the first to be served")
        with pytest.raises(ShedError, match=r"no room for you now \(streams\)") as caught:
            await pulled(link, "a")
        assert 0 < caught.value.retry_after <= 1
        assert not link.usable(time.monotonic()), "the asker's own guard holds to it"
        assert link.guard.breaker(time.monotonic()) == "closed"
        await wait_for_async(lambda: link.usable(time.monotonic()), 5, "its time to be over")
        east.memory.gate.set()
        assert await first == 1
        assert await pulled(link, "a") == 1
    assert counters.snapshot()[name] - before == 1
    assert east.status()["refusals"] == {"streams": 1}


async def test_a_peer_at_its_limit_takes_nothing_from_another(made: Made) -> None:
    east = East(made, serves_per_peer=1)
    east.hold("a")
    east.memory.gate.clear()
    async with (
        serving(east, made) as address,
        link_to(address, made, "west") as west,
        link_to(address, made, "north") as north,
    ):
        first = asyncio.create_task(pulled(west, "a"))
        await wait_for_async(lambda: east.memory.reads == 1, 5, "west to be served")
        with pytest.raises(ShedError):
            await pulled(west, "a")
        other = asyncio.create_task(pulled(north, "a"))
        await wait_for_async(lambda: east.memory.reads == 2, 5, "north to be served")
        east.memory.gate.set()
        assert await asyncio.gather(first, other) == [1, 1]
    assert east.status("north")["refusals"] == {}


async def test_leased_bytes_are_bounded_and_what_came_before_stands(made: Made) -> None:
    east = East(made, pool=400 * MIB, peer_leased_bytes_min=MIB, serve_window_bytes=2 * MIB)
    keys = [f"k{i}" for i in range(12)]
    east.hold(*keys)
    async with linked(east, made) as link:
        with pytest.raises(ShedError, match="leases") as caught:
            await pulled(link, *keys)
        assert caught.value.came == 8, "two percent of 400 MiB"  # type: ignore[attr-defined]
        assert 9 < caught.value.retry_after <= 10
    assert east.status()["leased_bytes"] == 8 * MIB
    assert east.status()["leased_bytes_allowed"] == 8 * MIB
    assert east.status()["memory_bytes"] == 0
    assert east.status("north")["leased_bytes"] == 0


async def test_a_window_waits_for_memory_for_its_time_and_is_then_refused(made: Made) -> None:
    limits = {"bounce_bytes": 16 * MIB, "serve_window_bytes": 16 * MIB, "block_bytes_max": MIB}
    east = East(made, **limits, peer_window_wait_ms=300)
    east.hold(*(f"k{i}" for i in range(16)))
    holder = east.guards["west"].incoming.admit(Cost(), time.monotonic())
    assert isinstance(holder, Ticket)
    assert holder.hold(GuardName.WINDOW, MIB, time.monotonic()) is None
    part = east.guards.windows
    room = next(n for n in range(16, 0, -1) if part.fits("west", n * MIB))
    keys = [f"k{i}" for i in range(room + 1)]
    async with linked(east, made) as link:
        began = time.monotonic()
        with pytest.raises(ShedError, match="window"):
            await pulled(link, *keys)
        assert 0.3 <= time.monotonic() - began < 3
        await wait_for_async(lambda: link.usable(time.monotonic()), 5, "its time to be over")
        waiting = asyncio.create_task(pulled(link, *keys))
        await wait_for_async(lambda: east.status()["open"]["pull"] == 2, 5, "it to wait")
        holder.done(time.monotonic())
        assert await waiting == room + 1


async def test_catalog_questions_are_bounded_for_each_namespace(made: Made) -> None:
    east = East(made, catalog_wait_ms=5000)
    log = east.offers.log(FP)
    assert log is not None
    after = peer_pb2.Position(log_id=log.position.log_id, n=log.position.n)
    request = peer_pb2.CatalogRequest(fingerprint=FP, after=after, wait_ms=5000).SerializeToString()
    async with linked(east, made) as link:
        calls = [link.gateways[0].control.unary_stream(CATALOG_METHOD)(request) for _ in range(3)]
        reads = [asyncio.ensure_future(call.read()) for call in calls]
        done, waiting = await asyncio.wait(reads, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = done
        error = refused.exception()
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(error.trailing_metadata())[RETRY_AFTER] == "100"
        for call in calls:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await wait_for_async(lambda: east.status()["open"] == {}, 5, "all to be over")


async def test_a_process_that_is_to_end_answers_who_waits_for_news(made: Made) -> None:
    east = East(made, catalog_wait_ms=60_000)
    log = east.offers.log(FP)
    assert log is not None
    after = peer_pb2.Position(log_id=log.position.log_id, n=log.position.n)
    request = peer_pb2.CatalogRequest(fingerprint=FP, after=after, wait_ms=60_000)
    async with linked(east, made) as link:
        waiting = asyncio.create_task(drained(link.catalog(request, 30.0)))
        await wait_for_async(lambda: east.status()["open"] == {"catalog": 1}, 5, "the question")
        east.service.leave()
        (page,) = await asyncio.wait_for(waiting, 5)
        assert (page.position, page.added.gaps) == (after, b"")
        assert await asyncio.wait_for(drained(link.catalog(request, 30.0)), 5) == [page]


async def test_snapshots_are_bounded_by_their_bytes(made: Made) -> None:
    east = East(made, peer_catalog_bytes_per_s=MIB)
    log = east.offers.log(FP)
    assert log is not None
    log.extend(np.arange(MIB // 2, dtype=np.uint64) << np.uint64(45))
    request = peer_pb2.CatalogRequest(fingerprint=FP)
    async with linked(east, made) as link:
        pages = await drained(link.catalog(request, 5.0))
        assert sum(len(page.added.gaps) for page in pages) == MIB
        with pytest.raises(ShedError, match="catalog_rate") as caught:
            await drained(link.catalog(request, 5.0))
        assert 0 < caught.value.retry_after <= 1


async def test_a_serve_is_no_faster_than_its_peer_may_be_served(made: Made) -> None:
    east = East(made, peer_bytes_per_s=16 * MIB)
    keys = [f"k{i}" for i in range(20)]
    east.hold(*keys)
    began = time.monotonic()
    async with linked(east, made) as link:
        assert await pulled(link, *keys) == 20
    assert time.monotonic() - began > 0.2  # 4 MiB beyond the burst


async def test_a_serve_ends_by_the_pull_timeout_whatever_the_asker_says(made: Made) -> None:
    east = East(made, pull_timeout_ms=100)
    east.hold("a")
    east.memory.gate.clear()
    async with linked(east, made) as link:
        with pytest.raises(LateError):
            await pulled(link, "a", timeout=30)
    assert east.status()["open"] == {}


@pytest.mark.parametrize(
    ("raw", "counts"),
    [
        (b"\xff" * 50, True),
        (peer_pb2.PullRequest(fingerprint=b"short", keys=["k"]).SerializeToString(), True),
        (peer_pb2.PullRequest(fingerprint=FP, keys=["k" * MIB]).SerializeToString(), True),
        # Limits may differ between groups, and so may what is shared: that is no attack.
        (peer_pb2.PullRequest(fingerprint=FP, keys=["k" * 2000]).SerializeToString(), False),
        (peer_pb2.PullRequest(fingerprint=FP, keys=["k"] * 5000).SerializeToString(), False),
        (peer_pb2.PullRequest(fingerprint=b"g" * 16, keys=["k"]).SerializeToString(), False),
    ],
)
async def test_what_cannot_be_opens_the_owners_breaker(
    made: Made, raw: bytes, counts: bool
) -> None:
    east = East(made, peer_breaker_failures=3, peer_breaker_open_ms=60_000)
    async with linked(east, made) as link:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await (
                    link.gateways[0]
                    .bulk.channels[0]
                    .unary_stream(PULL_METHOD)(raw, timeout=5)
                    .read()
                )
        if not counts:
            assert await pulled(link, "absent") == 0
            return
        with pytest.raises(ShedError, match="breaker") as caught:
            await pulled(link, "absent")
        assert caught.value.retry_after == 10
        hello = peer_pb2.HelloRequest.FromString(plain_hello(made))
        await Answers(link).to(hello)  # it can still show that it lives


def gone(east: East, *keys: str) -> None:
    east.memory.gone.update(stored_key(FP, key) for key in keys)


async def test_what_a_serve_finds_gone_is_withdrawn_at_once(made: Made) -> None:
    east = East(made)
    east.hold("a", "b")
    log = east.offers.log(FP)
    assert log is not None
    position = log.position
    gone(east, "a")
    async with linked(east, made) as link:
        assert await pulled(link, "a", "b") == 1
        after = peer_pb2.Position(log_id=position.log_id, n=position.n)
        request = peer_pb2.CatalogRequest(fingerprint=FP, after=after)
        (page,) = await drained(link.catalog(request, 5.0))
        assert page.removed.base == key_hash(FP, "a") >> (64 - page.bits)
        assert page.removed.gaps == bytes(2), "this one, and no other"


@pytest.mark.parametrize(
    "outcome",
    [None, failed(codes.BREAKER_OPEN), failed(codes.DEADLINE_PASSED), failed(-900), failed(-800)],
)
async def test_an_owner_whose_mooncake_does_not_answer_says_so(
    made: Made, outcome: Outcome | None
) -> None:
    east = East(made)
    east.hold("a")
    if outcome is None:
        east.memory.master_fails = True
    else:
        east.memory.outcome = outcome
    async with linked(east, made) as link:
        with pytest.raises(PeerError, match="its Mooncake does not answer"):
            await pulled(link, "a")
        assert link.guard.status(time.monotonic())["failures"] == {"error": 1}
    assert len(east.holdings) == 1, "what is not known to be gone stays"
    assert east.status()["memory_bytes"] == 0
    assert east.status()["failures"].get("error", 0) == 0, "and is not the asker's fault"


async def test_a_store_that_is_full_of_work_sheds(made: Made) -> None:
    east = East(made)
    east.hold("a")
    east.memory.outcome = failed(codes.QUEUE_FULL)
    async with linked(east, made) as link:
        with pytest.raises(ShedError, match="no room for you now"):
            await pulled(link, "a")


async def test_a_group_whose_store_is_slow_gives_way_and_says_when_to_come_back(made: Made) -> None:
    shedding = Shedding(shedding_limits(Limits()), time.monotonic())
    shedding.windows = 0.5
    east = East(made, shedding=shedding)
    east.hold("a", "b")
    east.memory.gate.clear()
    async with linked(east, made) as link:
        first = asyncio.create_task(pulled(link, "a"))
        await wait_for_async(lambda: east.memory.reads == 1, 5, "the first to be served")
        with pytest.raises(ShedError, match=r"no room for you now \(giving_way\)") as caught:
            await pulled(link, "b")
        assert caught.value.retry_after == pytest.approx(0.2, abs=0.01)
        assert link.guard.breaker(time.monotonic()) == "closed"
        east.memory.gate.set()
        assert await first == 1
    assert east.status()["refusals"] == {"giving_way": 1}


async def test_a_great_loss_is_listed_at_once_and_a_few_evictions_are_not(made: Made) -> None:
    east = East(made)
    keys = [f"k{n}" for n in range(4 * LOST_BLOCKS_MIN)]
    east.hold(*keys, size=1)
    gone(east, *keys[: LOST_BLOCKS_MIN - 1])
    async with linked(east, made) as link:
        await pulled(link, *keys[: LOST_BLOCKS_MIN - 1])
        assert not east.lost
        gone(east, *keys)
        await pulled(link, *keys)
        assert east.lost


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def test_calls_without_a_request_take_no_place_of_another_peer(made: Made) -> None:
    east = East(made, peer_requests_open=8, peer_requests_arriving=16, peer_requests_refused=16)
    east.hold("a")
    places, _ = server_bounds(east.limits, 2)
    async with (
        serving(east, made) as address,
        link_to(address, made, "west") as west,
        link_to(address, made, "north") as north,
    ):
        calls = [
            west.gateways[0].bulk.channels[0].stream_stream(PULL_METHOD)(never())
            for _ in range(2 * places)
        ]
        reads = [asyncio.ensure_future(call.read()) for call in calls]
        refused = 2 * places - 16
        await wait_for_async(
            lambda: sum(read.done() for read in reads) == refused, 10, "what is too many"
        )
        assert await pulled(north, "a") == 1
        for call in calls:
            call.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


async def test_a_request_that_does_not_come_is_not_waited_for(made: Made) -> None:
    east = East(made, peer_stall_ms=100)
    async with linked(east, made) as link:
        call = link.gateways[0].bulk.channels[0].stream_stream(PULL_METHOD)(never())
        with pytest.raises(grpc.aio.AioRpcError, match="no request came"):
            await asyncio.wait_for(call.read(), 5)
