"""Bulkheads: the books balance for any sequence, and no peer can take another's room."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.limits.bulkhead import Bulkhead, Shares

PEERS = ("east", "west", "south")


def test_the_limit_fits_and_one_more_does_not() -> None:
    places = Bulkhead(3)
    assert [places.take() for _ in range(4)] == [True, True, True, False]
    places.give()
    assert places.take()
    assert not places.take()


def test_lanes_do_not_take_from_each_other() -> None:
    places = Bulkhead(2)
    assert places.take(2, "a")
    assert not places.take(1, "a")
    assert places.take(2, "b")
    assert places.used == 4
    places.give(2, "a")
    assert (places.used, places._lanes) == (2, {"b": 2}), "an empty lane costs nothing"


def test_more_is_not_given_back_than_is_held() -> None:
    places = Bulkhead(2)
    places.take()
    places.give()
    with pytest.raises(ValueError, match="1 given back, 0 held"):
        places.give()


def test_forced_it_counts_and_refuses_nothing() -> None:
    places = Bulkhead(1)
    assert all(places.take(forced=True) for _ in range(3))
    assert places.used == 3


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from("abc"))))
def test_the_books_of_a_bulkhead_balance(steps: list[tuple[bool, int, str]]) -> None:
    places, held = Bulkhead(8), Counter[str]()
    for takes, n, lane in steps:
        if takes:
            fits = held[lane] + n <= 8
            assert places.take(n, lane) is fits
            held[lane] += n if fits else 0
        else:
            n = min(n, held[lane])
            places.give(n, lane)
            held[lane] -= n
        assert places.used == held.total()
        assert max(held.values(), default=0) <= 8


def test_a_peer_alone_may_have_nearly_all() -> None:
    shares = Shares(120, PEERS, 50)
    assert shares.part == 20
    assert shares.take("east", 80)
    assert not shares.take("east", 1), "what is left is the others' part"
    assert shares.take("west", 20)
    assert shares.take("south", 20)
    assert not shares.take("west", 1)


def test_the_only_peer_may_have_all() -> None:
    shares = Shares(120, ["east"], 50)
    assert shares.take("east", 120)
    assert not shares.take("east", 1)


def test_the_largest_thing_fits_beside_the_parts_of_all_others() -> None:
    shares = Shares(128, [f"p{i}" for i in range(10)], 0, largest=100)
    assert shares.part == 28 // 9
    assert shares.take("p0", 100)


def test_who_is_not_known_has_nothing() -> None:
    shares = Shares(120, PEERS, 50)
    assert not shares.take("stranger", 0)
    with pytest.raises(ValueError, match="stranger"):
        shares.give("stranger", 1)


def test_a_peer_gives_back_only_what_it_has() -> None:
    shares = Shares(120, PEERS, 50)
    shares.take("east", 5)
    with pytest.raises(ValueError, match="east gives back 6 of 5"):
        shares.give("east", 6)


def test_not_enforced_it_counts_and_refuses_nothing() -> None:
    shares = Shares(120, PEERS, 50, enforced=False)
    assert shares.take("east", 500)
    assert shares.used("east") == 500
    shares.give("east", 500)
    assert shares.used("east") == 0


@given(
    st.integers(1, 200),
    st.integers(0, 90),
    st.integers(0, 200),
    st.lists(st.tuples(st.booleans(), st.sampled_from(PEERS), st.integers(0, 120)), max_size=50),
)
def test_no_peer_can_take_the_part_of_another(
    total: int, percent: int, largest: int, steps: list[tuple[bool, str, int]]
) -> None:
    shares, held = Shares(total, PEERS, percent, largest=largest), Counter[str]()
    for takes, peer, n in steps:
        if takes:
            kept_for_it = held[peer] + n <= shares.part
            taken = shares.take(peer, n)
            assert taken or not kept_for_it, "its own part was refused"
            held[peer] += n if taken else 0
        else:
            n = min(n, held[peer])
            shares.give(peer, n)
            held[peer] -= n
        assert held.total() <= total
        for other in PEERS:
            assert shares.used(other) == held[other]
            room = shares.part - held[other]
            assert room <= 0 or shares.fits(other, room)
