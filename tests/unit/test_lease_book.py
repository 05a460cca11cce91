"""What was read for a peer is not forgotten with the process that read it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.config import PEERS_MAX, Limits
from federation.limits.budget import LEASE_SLOTS, LeaseBudget
from federation.limits.guard import Guard
from federation.limits.guards import Guards
from federation.limits.names import GuardName
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.peers.lease_book import BOOK_BYTES, LeaseBook, make_book
from tests.support.groups import environment

TTL, LEAST = 10.0, 1000


@pytest.fixture
def book() -> Iterator[int]:
    descriptor = make_book()
    yield descriptor
    os.close(descriptor)


def budget(book: int, now: float = 100.0, peer: str = "west") -> LeaseBudget:
    """That of a new process."""
    made = LeaseBudget(2, LEAST, TTL)
    made.carry_on(LeaseBook(book, ["north", "west"]).books[peer].leases, now)
    return made


def test_a_new_process_has_no_more_room_than_the_last_one(book: int) -> None:
    first = budget(book)
    assert first.take(LEAST - 1, 100.0)
    assert first.take(1, 101.0)
    for now in (101.0, 105.0, 109.9):
        second = budget(book, now)
        assert second.leased_at(now) == LEAST
        assert not second.take(1, now)
    assert second.wait(LEAST, 109.9) == pytest.approx(first.wait(LEAST, 109.9))
    assert budget(book, 112.0).take(LEAST, 112.0), "leases end for it as they do for the first"


def test_each_peer_has_its_own(book: int) -> None:
    assert budget(book, peer="west").take(LEAST, 100.0)
    assert budget(book, peer="north").take(LEAST, 100.0)
    assert not budget(book, peer="north").take(1, 100.0)


def test_what_lies_ahead_or_makes_no_sense_is_not_believed(book: int) -> None:
    page = LeaseBook(book, ["north", "west"]).books["west"].leases
    page.save(1 << 40, 1 << 50)
    page.save(1, -5)
    assert budget(book).take(LEAST, 100.0)


def test_there_is_room_for_all_peers_and_no_other_size(book: int) -> None:
    names = [f"peer-{i}" for i in range(PEERS_MAX)]
    pages = [each.leases for each in LeaseBook(book, names).books.values()]
    for i, page in enumerate(pages):
        for slot in range(2 * LEASE_SLOTS):
            page.save(slot, i + 1)
    for i, page in enumerate(each.leases for each in LeaseBook(book, names).books.values()):
        assert dict(page.load()) == dict.fromkeys(range(2 * LEASE_SLOTS), i + 1)
    for size in (0, 2 * BOOK_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(book, size)


@given(
    st.lists(
        st.tuples(st.sampled_from(["read", "restart"]), st.integers(1, 400), st.integers(0, 4000)),
        max_size=200,
    )
)
def test_restarts_change_nothing_of_what_a_peer_may_read(ops: list[tuple[str, int, int]]) -> None:
    descriptor = make_book()
    try:
        steady, now = LeaseBudget(2, LEAST, TTL), 100.0
        restarted = budget(descriptor, now)
        for what, size, later in ops:
            now += later / 1000
            if what == "restart":
                restarted = budget(descriptor, now)
            else:
                assert restarted.take(size, now) == steady.take(size, now)
            assert restarted.leased_at(now) == steady.leased_at(now)
    finally:
        os.close(descriptor)


def test_a_killed_process_has_written_down_what_it_was_about_to_read(book: int) -> None:
    code = (
        "import os, signal, sys, time\n"
        "from federation.limits.budget import LeaseBudget\n"
        "from federation.peers.lease_book import LeaseBook\n"
        "made = LeaseBudget(2, 1000, 10.0)\n"
        "made.carry_on(LeaseBook(int(sys.argv[1]), ['north', 'west']).books['west'].leases, 100.0)\n"
        "assert made.take(700, 100.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(book)]
    done = subprocess.run(command, pass_fds=[book], env=environment(), timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    assert budget(book).leased_at(100.0) == 700


def test_the_clock_is_the_hosts() -> None:
    """Else slots of one process would mean nothing to the next."""
    code = "import time; print(time.monotonic())"
    before = time.monotonic()
    told = float(subprocess.check_output([sys.executable, "-c", code]))
    assert before < told < time.monotonic()


def test_what_processes_beside_each_other_read_counts_for_all_of_them(book: int) -> None:
    first, second = guards(book)
    for each in (first, second):
        each.resize_pool(8 << 20)
    assert first.lease(600 << 10, 100.0) is None
    assert second.lease(400 << 10, 100.0) is None, "of an eighth of the pool"
    refused = second.lease(100 << 10, 100.0)
    assert refused is not None
    assert refused.reason is GuardName.LEASES
    assert first.lease(100 << 10, 100.0) is not None
    assert second.lease(100 << 10, 100.0 + refused.retry_after) is None, "it ends for both"


def test_places_are_of_all_processes_together(book: int) -> None:
    first, second = guards(book)
    held = [first.admit(Cost(), 100.0), second.admit(Cost(), 100.0)]
    assert all(isinstance(each, Ticket) for each in held)
    third = second.admit(Cost(), 100.0)
    assert isinstance(third, Refusal)
    assert third.reason is GuardName.STREAMS
    assert isinstance(held[0], Ticket)
    held[0].done(100.0)
    assert isinstance(second.admit(Cost(), 100.0), Ticket)
    # One that was killed with a call open holds nothing once the next one is there.
    assert isinstance(guards(book)[1].admit(Cost(), 100.0), Ticket)


def test_a_rate_is_that_of_all_processes_together(book: int) -> None:
    first, second = guards(book)
    ticket, other = first.admit(Cost(), 100.0), second.admit(Cost(), 100.0)
    assert isinstance(ticket, Ticket)
    assert isinstance(other, Ticket)
    assert ticket.spend(RATE // 2, 100.0) == 0
    assert other.spend(RATE // 2, 100.0) == 0
    assert other.spend(RATE, 100.0) == pytest.approx(1.0)
    assert ticket.spend(RATE, 100.0) == pytest.approx(2.0), "the other one's debt is its own too"


RATE = 8 << 20


def guards(book: int) -> list[Guard]:
    """Of a peer, in two serving processes."""
    limits = Limits(serves_per_peer=2, peer_bytes_per_s=RATE, peer_leased_bytes_min=1 << 20)
    made = []
    for worker in range(2):
        guard = Guards(limits, ["west"], random.Random(1))["west"].incoming
        guard.join(LeaseBook(book, ["west"], worker, 2).books["west"], 100.0)
        made.append(guard)
    return made
