"""How fast peers are: what comes first, what each byte takes, and how soon that is believed and forgotten."""

from __future__ import annotations

import pytest

from federation.transfer.speed import (
    HALF_SECONDS,
    KEPT_SECONDS,
    KINDS_MAX,
    SMALL_BYTES,
    SURE_PULLS,
    Estimate,
    Speeds,
)

MIB = 1 << 20


def pull(
    speeds: Speeds, sizes: list[int], first: float, rate: float, at: float = 0.0, kind: str = ""
) -> None:
    """One whose messages are of these sizes, over a line that takes so long before each byte."""
    timed = speeds.begin("west", at, kind)
    size = 0
    for each in sizes:
        size += each
        timed.came(each, at + first + size / rate)
    timed.done()


def known(speeds: Speeds, now: float = 1.0, kind: str = "") -> Estimate:
    found = speeds.estimate("west", now, kind)
    assert found is not None
    return found


@pytest.mark.parametrize("sizes", [[[MIB, 9 * MIB]], [[MIB], [4 * MIB], [2 * MIB]]])
def test_what_comes_first_and_what_a_byte_takes_are_told_apart(sizes: list[list[int]]) -> None:
    speeds = Speeds(rate_max=1e9)
    for each in sizes:
        pull(speeds, each, 0.05, 1e8)
    found = known(speeds)
    assert found.first == pytest.approx(0.05, rel=0.01)
    assert found.byte == pytest.approx(1e-8, rel=0.01)
    assert found.seconds(100 * MIB) == pytest.approx(0.05 + MIB * 1e-6, rel=0.01)


def test_sizes_that_are_all_alike_do_not_tell_them_apart() -> None:
    speeds = Speeds(rate_max=1e9)
    for _ in range(5):
        pull(speeds, [4 * MIB], 0.05, 1e8)
    assert known(speeds).seconds(4 * MIB) == pytest.approx(0.05 + 4 * MIB * 1e-8)
    small = Speeds(rate_max=1e9)
    for _ in range(5):
        pull(small, [1000], 0.05, 1e8)
    found = known(small)
    assert found.seconds(1000) == pytest.approx(0.05, rel=0.01)
    assert found.first > 0.9 * 0.05, "of small ones nearly all is what comes first"
    assert found.byte == pytest.approx(0.05 / SMALL_BYTES, rel=0.01)


def test_no_peer_is_believed_to_be_faster_than_it_may_be() -> None:
    speeds = Speeds(rate_max=1e6)
    pull(speeds, [MIB, 8 * MIB], 0.01, 1e9)
    assert known(speeds).byte == 1e-6


def test_a_line_whose_pulls_make_no_sense_together_is_still_a_line() -> None:
    speeds = Speeds(rate_max=1e9)
    pull(speeds, [MIB], 5.0, 1e9)
    pull(speeds, [64 * MIB], 0.0, 1e9)
    found = known(speeds)
    assert found.first >= 0
    assert found.byte >= 1e-9


def test_it_takes_a_few_pulls_to_be_sure_and_time_to_forget() -> None:
    speeds = Speeds(rate_max=1e9)
    assert speeds.estimate("west", 0.0) is None
    for n in range(SURE_PULLS):
        assert n == 0 or not known(speeds, 0.0).sure
        pull(speeds, [MIB, MIB], 0.01, 1e8)
    assert known(speeds, 0.0).sure
    assert speeds.estimate("west", KEPT_SECONDS - 1) is not None
    assert speeds.estimate("west", KEPT_SECONDS + 1) is None
    pull(speeds, [MIB, MIB], 0.01, 1e6, at=2 * KEPT_SECONDS)
    assert known(speeds, 2 * KEPT_SECONDS).byte == pytest.approx(1e-6), "what is forgotten is gone"


def test_a_line_that_changes_is_found_out() -> None:
    speeds = Speeds(rate_max=1e9)
    for n in range(50):
        pull(speeds, [MIB, 3 * MIB], 0.01, 1e8, at=n / 10)
    for n in range(20):
        pull(speeds, [MIB, 3 * MIB], 0.1, 1e7, at=5 + n)
    found = known(speeds, 30.0)
    assert found.byte == pytest.approx(1e-7, rel=0.2)
    assert found.first == pytest.approx(0.1, rel=0.2)


def test_one_pull_after_a_while_counts_more_than_all_before() -> None:
    speeds = Speeds(rate_max=1e9)
    for _ in range(50):
        pull(speeds, [MIB, 3 * MIB], 0.01, 1e6)
    pull(speeds, [MIB, 3 * MIB], 0.01, 1e8, at=5 * HALF_SECONDS)
    assert known(speeds, 5 * HALF_SECONDS).byte < 5e-7


def test_kinds_are_told_apart_once_they_are_known() -> None:
    speeds = Speeds(rate_max=1e9)
    for _ in range(4):
        pull(speeds, [MIB, 3 * MIB], 0.01, 1e8, kind="first")
    assert known(speeds, kind="ahead").byte == pytest.approx(1e-8), "the others tell"
    for _ in range(4):
        pull(speeds, [MIB, 3 * MIB], 0.5, 1e7, kind="ahead")
    assert known(speeds, kind="ahead").byte == pytest.approx(1e-7)
    assert known(speeds, kind="first").byte == pytest.approx(1e-8)


def test_there_are_only_so_many_kinds() -> None:
    speeds = Speeds(rate_max=1e9)
    for n in range(3 * KINDS_MAX):
        pull(speeds, [MIB, 3 * MIB], 0.01, 1e8, kind=f"kind {n}")
    assert len(speeds._lines["west"]) == KINDS_MAX + 1
    assert known(speeds, kind="kind 23").byte == pytest.approx(1e-8)


def test_a_pull_on_which_nothing_came_tells_nothing() -> None:
    speeds = Speeds(rate_max=1e9)
    speeds.begin("west", 0.0).done()
    assert speeds.seconds("west", MIB, 0.0) is None
    assert speeds.told_at("west") == float("-inf")
