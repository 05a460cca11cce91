"""Guards as they are put together: at each limit, over it, fair between peers, books that balance."""

from __future__ import annotations

import random

import pytest

from federation.config import Limits
from federation.counters import counters
from federation.limits.guard import Guard
from federation.limits.guards import PeerGuards
from federation.limits.names import Failure, GuardName, Kind
from federation.limits.ticket import Cost, Refusal
from tests.support.guards import (
    CATALOG,
    HELLO,
    MIB,
    PULL,
    guards,
    incoming,
    let_in,
    outgoing,
    refused,
)

# Each limit: as much as it allows passes, one more does not.


@pytest.mark.parametrize("direction", ["incoming", "outgoing"])
def test_streams(direction: str) -> None:
    guard: Guard = getattr(guards(pulls_per_peer=2, serves_per_peer=2)["west"], direction)
    first, _ = let_in(guard), let_in(guard)
    refusal = refused(guard)
    assert (refusal.reason, refusal.passes) == (GuardName.STREAMS, True)
    assert 0 < refusal.retry_after <= 1
    first.done(0.0)
    let_in(guard)
    refused(guard)


def test_calls_of_all_kinds() -> None:
    guard = incoming(peer_requests_open=8)
    costs = [HELLO, *(Cost(kind=Kind.CATALOG, lane=bytes([i])) for i in range(6)), PULL]
    tickets = [let_in(guard, cost) for cost in costs]
    assert refused(guard, HELLO).reason is GuardName.REQUESTS
    tickets[0].done(0.0)
    let_in(guard, PULL)


def test_catalog_questions_in_one_namespace() -> None:
    guard = incoming(peer_catalogs_per_namespace=3)
    for _ in range(3):
        let_in(guard, CATALOG)
    assert refused(guard, CATALOG).reason is GuardName.CATALOGS
    let_in(guard, Cost(kind=Kind.CATALOG, lane=b"another"))


def test_catalog_questions_whose_namespace_shows_later() -> None:
    guard = incoming()
    tickets = [let_in(guard, Cost(kind=Kind.CATALOG)) for _ in range(3)]
    found = [ticket.hold(GuardName.CATALOGS, 1, 0.0, b"one") for ticket in tickets]
    assert [refusal and refusal.reason for refusal in found] == [None, None, GuardName.CATALOGS]
    tickets[0].done(0.0)
    assert tickets[2].hold(GuardName.CATALOGS, 1, 0.0, b"one") is None


def test_requests_a_second() -> None:
    guard = incoming(peer_requests_per_s=10)
    for _ in range(10):
        let_in(guard).done(0.0)
    refusal = refused(guard)
    assert refusal == Refusal(GuardName.REQUEST_RATE, pytest.approx(0.1))
    assert refused(guard, Cost(kind=Kind.CATALOG)).reason is GuardName.REQUEST_RATE
    let_in(guard, HELLO)  # a flood of pulls does not make the peer deaf
    let_in(guard, now=0.1)


def test_hellos_a_second() -> None:
    guard = incoming(peer_hellos_per_s=5)
    for _ in range(5):
        let_in(guard, HELLO).done(0.0)
    assert refused(guard, HELLO).reason is GuardName.HELLO_RATE
    let_in(guard)  # nor a flood of hellos its pulls
    let_in(guard, HELLO, now=0.2)


def test_bytes_a_second() -> None:
    guard = incoming(peer_bytes_per_s=10 * MIB)
    ticket = let_in(guard)
    assert ticket.spend(10 * MIB, 0.0) == 0, "a second's worth may come at once"
    assert ticket.spend(5 * MIB, 0.0) == pytest.approx(0.5), "then it is slowed down"
    assert refused(guard) == Refusal(GuardName.BYTE_RATE, pytest.approx(0.5))
    let_in(guard, now=0.5)


@pytest.mark.parametrize("ms", [500, 2000])
def test_what_may_come_at_once(ms: int) -> None:
    guard = incoming(peer_requests_per_s=10, peer_bytes_per_s=8 * MIB, peer_burst_ms=ms)
    for _ in range(10 * ms // 1000):
        let_in(guard).done(0.0)
    assert refused(guard).reason is GuardName.REQUEST_RATE
    ticket = let_in(guard, now=0.1)
    assert ticket.spend(8 * MIB * ms // 1000, 0.1) == 0
    assert ticket.spend(MIB, 0.1) == pytest.approx(1 / 8)


def test_a_rate_lets_one_in_however_short_its_burst() -> None:
    guard = incoming(peer_requests_per_s=1, peer_burst_ms=10)
    let_in(guard).done(0.0)
    assert refused(guard, now=0.9).reason is GuardName.REQUEST_RATE
    let_in(guard, now=1.0)


def test_catalog_bytes_a_second() -> None:
    guard = incoming(peer_catalog_bytes_per_s=4 * MIB)
    ticket = let_in(guard, CATALOG)
    assert ticket.pay(4 * MIB, 0.0) is None
    refusal = ticket.pay(MIB, 0.0)
    assert refusal == Refusal(GuardName.CATALOG_RATE, pytest.approx(0.25))
    assert ticket.pay(MIB, 0.25) is None


def test_a_snapshot_above_the_rate_is_made_by_a_full_bucket() -> None:
    guard = incoming(peer_catalog_bytes_per_s=4 * MIB)
    assert let_in(guard, CATALOG).pay(40 * MIB, 0.0) is None
    assert refused(guard, CATALOG).reason is GuardName.CATALOG_RATE
    let_in(guard, CATALOG, now=9.0)


def test_memory_for_catalogs() -> None:
    guard = outgoing(peer_catalog_bytes=MIB)
    ticket, other = let_in(guard, CATALOG), let_in(guard, CATALOG)
    assert ticket.hold(GuardName.CATALOG_BYTES, MIB - 1, 0.0) is None
    assert other.hold(GuardName.CATALOG_BYTES, 1, 0.0) is None
    refusal = other.hold(GuardName.CATALOG_BYTES, 1, 0.0)
    assert refusal is not None
    assert refusal.reason is GuardName.CATALOG_BYTES
    ticket.done(0.0)
    assert other.hold(GuardName.CATALOG_BYTES, MIB - 1, 0.0) is None


def test_memory_for_serves() -> None:
    two = guards(peers=("west", "east"), bounce_bytes=64 * MIB, block_bytes_max=MIB)
    west, east = let_in(two["west"].incoming), let_in(two["east"].incoming)
    assert west.hold(GuardName.WINDOW, 48 * MIB, 0.0) is None
    refusal = west.hold(GuardName.WINDOW, 1, 0.0)
    assert refusal is not None
    assert refusal.passes
    assert east.hold(GuardName.WINDOW, 16 * MIB, 0.0) is None, "its part is kept for it"
    west.give(GuardName.WINDOW, 32 * MIB)
    assert east.hold(GuardName.WINDOW, 32 * MIB, 0.0) is None


def test_leased_bytes() -> None:
    guard = incoming(peer_leased_bytes_min=MIB)
    guard.resize_pool(100 * MIB)
    ticket = let_in(guard)
    assert ticket.lease(2 * MIB, 0.0) is None
    refusal = ticket.lease(1, 0.0)
    assert refusal is not None
    assert refusal.reason is GuardName.LEASES
    assert not refusal.passes, "a lease is not worth waiting for"
    assert 10 <= refusal.retry_after <= 11
    assert ticket.lease(1, refusal.retry_after) is None
    assert outgoing().admit(PULL, 0.0).lease(1 << 60, 0.0) is None  # type: ignore[union-attr]


def test_retries() -> None:
    guard = outgoing(peer_retries_few=2, peer_retry_percent=50, pulls_per_peer=256)
    retry = Cost(retry=True)
    for _ in range(2):
        let_in(guard, retry)
    assert refused(guard, retry).reason is GuardName.RETRIES
    let_in(guard)
    refused(guard, retry)
    let_in(guard)
    let_in(guard, retry)
    let_in(incoming(), retry)  # the peer's retries are its own affair


def test_hops() -> None:
    guard = outgoing()
    assert guard.hops(0, 0.0)
    assert not guard.hops(1, 0.0)
    assert guard.refusals == {GuardName.HOPS: 1}


# The breaker and the peer's own word


def test_failures_open_the_breaker_and_one_probe_closes_it() -> None:
    guard = outgoing(peer_breaker_failures=2, peer_breaker_open_ms=1000)
    for _ in range(2):
        let_in(guard).done(0.0, ok=False, kind_of_failure=Failure.DIGEST)
    assert not guard.ready(Kind.PULL, 0.0)
    refusal = refused(guard)
    assert refusal.reason is GuardName.BREAKER
    assert 0.8 <= refusal.retry_after <= 1
    probe = let_in(guard, now=1.0)
    assert probe.probe
    assert refused(guard, now=1.0).reason is GuardName.BREAKER
    probe.done(1.1)
    assert guard.breaker(1.1) == "closed"


def fail(guard: Guard, now: float) -> None:
    let_in(guard, now=now).done(now, ok=False)


@pytest.mark.parametrize(("between", "state"), [(2, "open"), (3, "closed")])
def test_failures_count_among_the_last_pulls(between: int, state: str) -> None:
    guard = outgoing(peer_breaker_failures=2, peer_breaker_window=4)
    fail(guard, 0.0)
    for _ in range(between):
        let_in(guard).done(0.0)
    fail(guard, 0.0)
    assert guard.breaker(0.0) == state


@pytest.mark.parametrize(("later", "state"), [(1.9, "open"), (2.1, "closed")])
def test_failures_count_for_their_time(later: float, state: str) -> None:
    guard = outgoing(peer_breaker_failures=2, peer_breaker_within_ms=2000)
    fail(guard, 0.0)
    fail(guard, later)
    assert guard.breaker(later) == state


def test_a_breaker_stays_open_for_its_longest_time_and_no_longer() -> None:
    guard = outgoing(
        peer_breaker_failures=1, peer_breaker_open_ms=1000, peer_breaker_open_max_ms=3000
    )
    waits, now = [], 0.0
    for _ in range(5):
        fail(guard, now)
        waits.append(refused(guard, now=now).retry_after)
        now += waits[-1]
    assert 0.8 <= waits[0] <= 1
    assert all(0.8 * 3 <= wait <= 3 for wait in waits[2:])


@pytest.mark.parametrize(("blocks", "pulls", "failed"), [(9, 8, 0), (8, 8, 1), (8, 7, 0)])
def test_promises_are_judged_by_as_many_pulls_and_blocks(
    blocks: int, pulls: int, failed: int
) -> None:
    """One block a pull: those of `pulls` are remembered, and it takes so many blocks to judge."""
    guard = outgoing(peer_honesty_blocks_min=blocks, peer_honesty_pulls=pulls, peer_doubt_ms=0)
    for _ in range(8):
        let_in(guard).done(0.0, promised=1, kept=0)
    assert guard.status(0.0)["failures"].get("dishonest", 0) == failed


def test_a_refused_probe_is_not_spent() -> None:
    guard = outgoing(peer_breaker_failures=2, peer_requests_per_s=2)
    for _ in range(2):
        let_in(guard).done(0.0, ok=False)
    let_in(guard, Cost(kind=Kind.CATALOG), now=1.0)
    let_in(guard, Cost(kind=Kind.CATALOG), now=1.0)
    assert refused(guard, now=1.0).reason is GuardName.REQUEST_RATE
    assert let_in(guard, now=1.5).probe


def test_who_says_when_to_come_back_is_left_alone_until_then() -> None:
    guard = outgoing()
    let_in(guard).done(0.0, ok=False, kind_of_failure=Failure.SHED, retry_after=2.0)
    assert not guard.ready(Kind.PULL, 1.9)
    assert refused(guard, now=1.5) == Refusal(GuardName.RETRY_AFTER, pytest.approx(0.5))
    let_in(guard, CATALOG)  # it was said of pulls
    let_in(guard, now=2.0)
    assert guard.breaker(2.0) == "closed", "it protects itself, and is well"


def test_nobody_can_say_never() -> None:
    guard = outgoing(peer_retry_after_max_ms=3000)
    let_in(guard).done(0.0, ok=False, kind_of_failure=Failure.SHED, retry_after=1e9)
    assert refused(guard, now=2.9).reason is GuardName.RETRY_AFTER
    let_in(guard, now=3.0)


def test_a_later_shorter_word_does_not_undo_a_longer_one() -> None:
    guard = outgoing()
    one, two = let_in(guard), let_in(guard)
    one.done(0.0, ok=False, kind_of_failure=Failure.SHED, retry_after=2.0)
    two.done(0.0, ok=False, kind_of_failure=Failure.SHED, retry_after=0.1)
    assert refused(guard, now=1.0).retry_after == pytest.approx(1.0)


# Tickets


def test_a_ticket_ends_once() -> None:
    guard = outgoing(pulls_per_peer=2)
    ticket, _ = let_in(guard), let_in(guard)
    assert ticket.done(0.0)
    assert not ticket.done(0.0, ok=False)
    assert not ticket.open
    let_in(guard)
    assert refused(guard).reason is GuardName.STREAMS
    assert guard.status(0.0)["failures"] == {}


def test_what_a_ticket_holds_is_given_back_at_its_end() -> None:
    guard = incoming()
    ticket = let_in(guard)
    assert ticket.hold(GuardName.WINDOW, 5, 0.0) is None
    ticket.give(GuardName.WINDOW, 2)
    with pytest.raises(ValueError, match="4 of window given back, 3 held"):
        ticket.give(GuardName.WINDOW, 4)
    assert guard.status(0.0)["memory_bytes"] == 3
    ticket.done(0.0)
    assert guard.status(0.0)["memory_bytes"] == 0
    with pytest.raises(AssertionError, match="has ended"):
        ticket.hold(GuardName.WINDOW, 1, 0.0)


def test_who_waits_is_told_of_every_release() -> None:
    guard, told = incoming(), []
    guard.on_release = lambda: told.append(1)
    ticket = let_in(guard)
    ticket.hold(GuardName.WINDOW, 5, 0.0)
    assert told == []
    ticket.give(GuardName.WINDOW, 5)
    ticket.done(0.0)
    ticket.done(0.0)
    assert told == [1, 1]


def test_check_changes_nothing() -> None:
    guard = outgoing(pulls_per_peer=1, peer_requests_per_s=1)
    for _ in range(5):
        assert guard.check(PULL, 0.0) is None
    let_in(guard)
    assert guard.check(PULL, 0.0) is not None
    assert guard.refusals == {}


# Refusals are counted and shown


def test_refusals_are_counted_by_peer_guard_and_direction() -> None:
    name = 'moonmesh_guard_refusals_total{peer="counted",guard="streams",direction="in"}'
    guard = PeerGuards(Limits(serves_per_peer=1), "counted", random.Random(1)).incoming
    let_in(guard)
    before = counters.snapshot().get(name, 0)
    for _ in range(3):
        refused(guard)
    assert counters.snapshot()[name] - before == 3
    assert guard.status(0.0)["refusals"] == {"streams": 3}


def test_status_says_how_each_direction_stands() -> None:
    peer = guards(peer_leased_bytes_min=MIB)["west"]
    peer.incoming.resize_pool(1000 * MIB)
    ticket = let_in(peer.incoming)
    ticket.lease(7, 0.0)
    let_in(peer.outgoing).done(0.0, ok=False, kind_of_failure=Failure.SHED, retry_after=1.5)
    incoming, outgoing = peer.incoming.status(0.5), peer.outgoing.status(0.5)
    assert incoming["open"] == {"pull": 1}
    assert incoming["leased_bytes"] == 7
    assert incoming["leased_bytes_allowed"] == 20 * MIB
    assert outgoing["paused_s"] == {"pull": 1.0}
    assert outgoing["failures"] == {"shed": 1}
    assert outgoing["retries_left"] == 20
    assert "off" not in outgoing
