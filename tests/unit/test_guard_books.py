"""Guards switched off let pass; one peer is not felt by another; the books balance for any sequence."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.config import Limits
from federation.errors import ConfigError
from federation.limits.guard import Guard
from federation.limits.guards import Guards
from federation.limits.names import WAITABLE, Failure, GuardName, Kind
from federation.limits.switches import PERMIT, VARIABLE, guards_off
from federation.limits.ticket import Cost, Ticket
from tests.support.guards import CATALOG, HELLO, MIB, PULL, guards, incoming, let_in, outgoing

# Switched off


def exhaust(guard: Guard, cost: Cost, times: int = 400) -> Counter[GuardName]:
    """Many calls at once, all of which fail; what refused them."""
    for _ in range(times):
        answer = guard.admit(cost, 0.0)
        if isinstance(answer, Ticket):
            answer.spend(MIB, 0.0)
    return guard.refusals


@pytest.mark.parametrize(
    ("name", "cost", "limits"),
    [
        (GuardName.STREAMS, PULL, {"peer_bytes_per_s": 1 << 40}),
        (GuardName.REQUESTS, HELLO, {"peer_hellos_per_s": 10_000, "peer_requests_open": 8}),
        (GuardName.CATALOGS, CATALOG, {"peer_catalog_bytes_per_s": 1 << 30}),
        (GuardName.HELLO_RATE, HELLO, {}),
        (
            GuardName.REQUEST_RATE,
            PULL,
            {"serves_per_peer": 256, "peer_requests_per_s": 5, "peer_bytes_per_s": 1 << 40},
        ),
        (GuardName.BYTE_RATE, PULL, {"serves_per_peer": 256, "peer_bytes_per_s": 4 * MIB}),
        (GuardName.CATALOG_RATE, Cost(kind=Kind.CATALOG), {"peer_catalog_bytes_per_s": 4 * MIB}),
    ],
)
def test_a_guard_that_is_switched_off_lets_pass(
    name: GuardName, cost: Cost, limits: dict[str, int]
) -> None:
    times = 200
    assert exhaust(incoming(**limits), cost, times)[name] > 0
    assert exhaust(incoming(name, **limits), cost, times)[name] == 0


def test_switched_off_memory_leases_retries_hops_and_pauses_let_pass() -> None:
    off = (GuardName.WINDOW, GuardName.CATALOG_BYTES, GuardName.LEASES)
    guard = incoming(*off)
    guard.resize_pool(0)
    ticket = let_in(guard)
    for what in (GuardName.WINDOW, GuardName.CATALOG_BYTES):
        assert ticket.hold(what, 1 << 50, 0.0) is None
    assert ticket.lease(1 << 50, 0.0) is None
    assert ticket.lease(1 << 50, 0.0) is None
    ticket.done(0.0)
    assert guard.status(0.0)["memory_bytes"] == 0
    assert guard.status(0.0)["off"] == ["catalog_bytes", "leases", "window"]

    other = outgoing(GuardName.RETRIES, GuardName.HOPS, GuardName.RETRY_AFTER, pulls_per_peer=256)
    for _ in range(100):
        let_in(other, Cost(retry=True)).done(
            0.0, ok=False, kind_of_failure=Failure.SHED, retry_after=9
        )
    assert other.hops(7, 0.0)
    assert other.ready(Kind.PULL, 0.0)


def test_switches_are_read_by_name() -> None:
    assert guards_off({}) == frozenset()
    assert guards_off({VARIABLE: " "}) == frozenset()
    assert guards_off({VARIABLE: "breaker, digest,", PERMIT: "1"}) == {
        GuardName.BREAKER,
        GuardName.DIGEST,
    }


@pytest.mark.parametrize("permit", [{}, {PERMIT: "0"}, {PERMIT: "yes"}])
def test_outside_of_a_test_they_are_refused(permit: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="for tests alone"):
        guards_off({VARIABLE: "breaker", **permit})


def test_a_name_that_is_no_guards_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean breaker"):
        guards_off({VARIABLE: "braker", PERMIT: "1"})
    with pytest.raises(ConfigError, match="there are breaker, "):
        guards_off({VARIABLE: "zzz", PERMIT: "1"})


# Fairness and balance, for any sequence

PEERS = ("west", "east", "north")


def test_one_peers_exhaustion_is_not_felt_by_another() -> None:
    all_ = guards(peers=PEERS, serves_per_peer=4, bounce_bytes=64 * MIB, block_bytes_max=MIB)
    west = all_["west"].incoming
    for kind in (PULL, HELLO, CATALOG):
        exhaust(west, kind)
    holder = Ticket(west, PULL, 0.0, probe=False)
    while holder.hold(GuardName.WINDOW, MIB, 0.0) is None:
        pass
    for _ in range(10):
        west.note(Failure.PROTOCOL, 0.0)
    for name in PEERS[1:]:
        guard = all_[name].incoming
        for kind in (PULL, HELLO, CATALOG):
            let_in(guard, kind)
        ticket = let_in(guard)
        assert ticket.hold(GuardName.WINDOW, all_.windows.part, 0.0) is None
        assert ticket.lease(MIB, 0.0) is None
        assert guard.refusals == {}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "hold", "give", "spend", "pay", "lease", "done", "note"]),
        st.sampled_from(PEERS),
        st.sampled_from(["incoming", "outgoing"]),
        st.sampled_from(list(Kind)),
        st.integers(0, 40 * MIB),
        st.sampled_from([*Failure, None]),
        st.floats(-0.5, 2.0),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sets(st.sampled_from(list(GuardName)), max_size=4))
def test_the_books_balance_for_any_sequence(steps: list[Any], off: set[GuardName]) -> None:
    all_ = Guards(
        Limits(
            pulls_per_peer=3,
            serves_per_peer=3,
            peer_requests_open=8,
            peer_breaker_failures=2,
            peer_requests_per_s=20,
            peer_bytes_per_s=64 * MIB,
            peer_catalog_bytes=8 * MIB,
            bounce_bytes=64 * MIB,
        ),
        PEERS,
        random.Random(1),
        off=frozenset(off),
    )
    every = [(n, d, getattr(all_[n], d)) for n in PEERS for d in ("incoming", "outgoing")]
    tickets: list[tuple[Guard, Ticket]] = []
    now = 100.0
    for what, peer, direction, kind, n, failure, step in steps:
        now += step
        guard: Guard = getattr(all_[peer], direction)
        mine = [ticket for owner, ticket in tickets if owner is guard and ticket.open]
        before = [(name, way, g.status(now)) for name, way, g in every if g is not guard]
        if what == "admit":
            expected = guard.check(Cost(kind=kind, retry=n % 2 == 1, lane=n % 3), now)
            answer = guard.admit(Cost(kind=kind, retry=n % 2 == 1, lane=n % 3), now)
            if isinstance(answer, Ticket):
                assert expected is None
                tickets.append((guard, answer))
            else:
                assert answer == expected
                assert answer.reason not in off
                assert answer.retry_after >= 0
        elif what == "note":
            if failure is not None:
                guard.note(failure, now)
        elif mine:
            ticket = mine[n % len(mine)]
            if what == "hold":
                for name in (GuardName.CATALOG_BYTES, GuardName.WINDOW):
                    ticket.hold(name, n, now)
            elif what == "give":
                for name in (GuardName.CATALOG_BYTES, GuardName.WINDOW):
                    held = ticket._held[name, None]
                    ticket.give(name, min(n, held))
            elif what == "spend":
                assert ticket.spend(n, now) >= 0
            elif what == "pay":
                ticket.pay(n, now)
            elif what == "lease":
                ticket.lease(n, now)
            else:
                ticket.done(now, ok=failure is None, kind_of_failure=failure or Failure.OURS)
        # What one does is not felt by any other.
        after = [(name, way, g.status(now)) for name, way, g in every if g is not guard]
        assert after == before
        for name, _, g in every:
            if GuardName.STREAMS not in off:
                assert g._parts.streams.used <= 3, name
            if GuardName.REQUESTS not in off:
                assert g._parts.requests.used <= 8
        if GuardName.WINDOW not in off:
            assert sum(all_.windows.used(name) for name in PEERS) <= all_.windows.total
    for _, ticket in tickets:
        ticket.done(now)
        assert not ticket.done(now)
    for _, _, guard in every:
        parts = guard._parts
        for places in (parts.requests, parts.streams, parts.catalogs, parts.catalog_bytes):
            assert places.used == 0
        assert guard.status(now)["open"] == {}
        assert parts.memory.used(guard.name) == 0


def test_what_may_be_waited_for_passes_by_itself() -> None:
    assert GuardName.BREAKER not in WAITABLE
    assert GuardName.RETRY_AFTER not in WAITABLE
    assert GuardName.LEASES not in WAITABLE
