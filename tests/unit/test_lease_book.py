"""What was read for a peer is not forgotten with the process that read it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.config import PEERS_MAX
from federation.limits.budget import LEASE_SLOTS, LeaseBudget
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
    made.carry_on(LeaseBook(book, ["north", "west"]).pages[peer], now)
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
    page = LeaseBook(book, ["north", "west"]).pages["west"]
    page.save(1 << 40, 1 << 50)
    page.save(1, -5)
    assert budget(book).take(LEAST, 100.0)


def test_there_is_room_for_all_peers_and_no_other_size(book: int) -> None:
    names = [f"peer-{i}" for i in range(PEERS_MAX)]
    pages = LeaseBook(book, names).pages
    for i, page in enumerate(pages.values()):
        for slot in range(2 * LEASE_SLOTS):
            page.save(slot, i + 1)
    for i, page in enumerate(LeaseBook(book, names).pages.values()):
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
        "made.carry_on(LeaseBook(int(sys.argv[1]), ['north', 'west']).pages['west'], 100.0)\n"
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
