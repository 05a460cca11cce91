"""Copies of peers' blocks in the pool: counted, within their quota, and given back tail first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation import removal as removal_module
from federation.giving_back import GivingBack
from federation.removal import Removal
from federation.transfer.copies import COMING_MAX, LOW_PERCENT, Copies
from local_group.admin import Segment
from local_group.holdings import Change, Holdings
from local_group.names import name_of
from tests.unit.test_purge import FP, Mooncake


class Pool:
    """Holdings that a book of copies follows."""

    def __init__(self, percent: int = 100, copies_max: int = 1000) -> None:
        self.copies = Copies(percent, copies_max)
        self.holdings = Holdings(
            blocks_max=10_000, hop_limit=1, on_change=lambda _: None, on_hidden=self._hidden
        )

    def _hidden(self, change: Change) -> None:
        self.copies.follow(self.holdings, change.fingerprint, change.name)

    def pulled(self, key: str, size: int = 10, before: str = "") -> None:
        self.holdings.admit(FP, key, size, b"d" * 16, "west", 1, 1, 0.0)
        if before:
            self.copies.comes_after(FP, name_of(FP, key), name_of(FP, before))

    def written(self, key: str) -> None:
        self.holdings.report(FP, key, 10, b"d" * 16, 0.0)

    def surplus(self, keys: str, most: int = 1000) -> str:
        by_name = {name_of(FP, key): key for key in keys}
        return "".join(by_name[name] for _, name in self.copies.surplus(most))


def test_copies_are_counted_and_what_engines_wrote_is_not() -> None:
    pool = Pool()
    for key in "abc":
        pool.pulled(key)
    pool.written("own")
    pool.holdings.find(FP, "listed", "?", 0.0)
    assert (len(pool.copies), pool.copies.bytes) == (3, 30)
    pool.holdings.withdraw(FP, "a")
    pool.holdings.withdraw(FP, "own")
    assert (len(pool.copies), pool.copies.bytes) == (2, 20)
    pool.holdings.withhold(FP, "b", 1.0)
    assert (len(pool.copies), pool.copies.bytes) == (1, 10), "replaced: whose it is nobody knows"


def test_the_quota_is_a_part_of_the_pool() -> None:
    pool = Pool(percent=25)
    pool.pulled("a", 100)
    assert pool.copies.fits(1 << 60), "nobody has said how large the pool is"
    assert pool.surplus("a") == ""
    pool.copies.pool_is(800)
    assert pool.copies.fits(100)
    assert pool.surplus("a") == "", "there was room for all that came"
    assert not pool.copies.fits(101)
    assert pool.surplus("a") == "a"
    assert pool.surplus("a") == "", "once for each time that room was wanted"
    pool.pulled("b", 101)
    assert pool.surplus("ab") == "a"
    assert pool.surplus("ab") == "a", "as long as it is too much"


def test_as_much_is_given_back_as_what_was_wanted_needs() -> None:
    pool = Pool()
    for key in "abcd":
        pool.pulled(key, 25)
    pool.copies.pool_is(100)
    assert not pool.copies.fits(60)
    assert pool.surplus("abcd") == "abc"
    assert not pool.copies.fits(1)
    assert pool.surplus("abcd") == "a"
    assert not pool.copies.fits(1000)
    assert pool.surplus("abcd") == "abcd", "though it never fits"


def test_it_is_given_back_down_to_less_and_in_bounded_pieces() -> None:
    pool = Pool()
    keys = "".join(chr(200 + n) for n in range(100))
    for key in keys:
        pool.pulled(key)
    pool.copies.pool_is(990)
    assert len(pool.surplus(keys)) == 100 - 990 * LOW_PERCENT // 1000
    assert len(pool.surplus(keys, most=4)) == 4
    pool.copies.pool_is(1000)
    assert pool.surplus(keys) == "", "no more than it may be"


def test_small_ones_are_counted_too() -> None:
    pool = Pool(copies_max=10)
    pool.copies.pool_is(1 << 40)
    for key in "abcdefghi":
        pool.pulled(key, 1)
    assert pool.copies.fits(1)
    assert pool.surplus("abcdefghi") == ""
    pool.pulled("j", 1)
    assert not pool.copies.fits(1)
    assert pool.surplus("abcdefghij") == "a", "one of ten"
    for n in range(100):
        pool.pulled(f"more {n}", 1)
    assert len(pool.copies) == 20, "a book of bounded size"


def test_what_was_of_no_use_for_longest_goes_first_and_of_a_chain_its_tail() -> None:
    pool = Pool()
    for key, before in [("a", ""), ("b", "a"), ("c", "b"), ("x", ""), ("y", "x")]:
        pool.pulled(key, before=before)
    pool.copies.pool_is(0)
    assert pool.surplus("abcxy") == "cbayx"
    pool.copies.used(FP, name_of(FP, "b"))
    assert pool.surplus("abcxy") == "cyxba"
    pool.copies.used(FP, name_of(FP, "gone"))
    assert pool.surplus("abcxy") == "cyxba"


def test_what_comes_before_blocks_that_are_no_copies_is_known_of_so_many() -> None:
    pool = Pool()
    for n in range(COMING_MAX + 10):
        pool.copies.comes_after(FP, n, n + 1)
    assert len(pool.copies._coming) == COMING_MAX


def test_a_chain_that_bites_its_tail_is_only_strange() -> None:
    pool = Pool()
    for key in "ab":
        pool.pulled(key)
    pool.copies.comes_after(FP, name_of(FP, "a"), name_of(FP, "b"))
    pool.copies.comes_after(FP, name_of(FP, "b"), name_of(FP, "a"))
    pool.copies.pool_is(0)
    assert sorted(pool.surplus("ab")) == ["a", "b"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pull", "write", "gone", "use", "pool"]),
            st.integers(0, 3),
            st.integers(0, 9),
        ),
        max_size=80,
    )
)
def test_a_block_is_never_given_back_before_those_behind_it(
    steps: list[tuple[str, int, int]],
) -> None:
    pool = Pool()
    own: set[str] = set()
    linked: dict[str, str] = {}
    for what, chain, place in steps:
        key, before = f"{chain}/{place}", f"{chain}/{place - 1}" if place else ""
        if what == "pull" and key not in own:
            fresh = pool.holdings.get(FP, key) is None
            if fresh:
                linked.pop(key, None)
            if fresh and before and chain % 2:  # it is known before it is a copy
                pool.copies.comes_after(FP, name_of(FP, key), name_of(FP, before))
                pool.pulled(key, 1 + place)
            else:
                pool.pulled(key, 1 + place, before)
            if before:
                linked[key] = before
        elif what == "write" and pool.holdings.get(FP, key) is None:
            pool.written(key)
            own.add(key)
        elif what == "gone":
            pool.holdings.withdraw(FP, key)
            own.discard(key)
            linked.pop(key, None)
        elif what == "use":
            pool.copies.used(FP, name_of(FP, key))
        else:
            pool.copies.pool_is(chain * 30)
    keys = {name_of(FP, f"{c}/{p}"): f"{c}/{p}" for c in range(4) for p in range(10)}
    copied = [k for k in keys.values() if k not in own and pool.holdings.get(FP, k) is not None]
    held = (pool.holdings.get(FP, key) for key in copied)
    assert pool.copies.bytes == sum(each.size for each in held if each is not None)
    quota = pool.copies.quota
    surplus = [keys[name] for _, name in pool.copies.surplus(1000)]
    assert not set(surplus) & own
    if quota is None or pool.copies.bytes <= quota:
        assert surplus == []
    else:
        left = pool.copies.bytes - sum(1 + int(key[2:]) for key in surplus)
        assert left <= quota * LOW_PERCENT // 100
    place = {key: n for n, key in enumerate(surplus)}
    for behind, before in linked.items():
        if before in place and behind in copied:
            assert behind in place, "it would be left without what comes before it"
            assert place[behind] < place[before]


class Master:
    async def segments(self) -> list[Segment]:
        return []


async def test_what_is_over_is_removed_and_what_an_engine_wrote_meanwhile_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(removal_module, "BATCH_BLOCKS", 2)
    pool = Pool()
    for key in "abcdef":
        pool.pulled(key)
    pool.written("g")
    store = Mooncake("abcdefg", leased={"b": 1})
    listed = store.listed

    async def slow(blocks: object) -> dict[tuple[bytes, int], str]:
        found = await listed(blocks)  # type: ignore[arg-type]
        pool.holdings.withdraw(FP, "c")
        pool.written("c")
        return found

    giving = GivingBack(pool.copies, Removal(store, pool.holdings, slow), Master())
    assert not await giving.round(), "nobody has said how large the pool is"
    pool.copies.pool_is(30)
    assert await giving.round()
    assert {key[-1] for key in store.keys} == {"b", "c", "e", "f", "g"}
    assert pool.copies.bytes == 30, "b is being read: its turn comes later"
    assert not await giving.round()
    pool.copies.pool_is(29)
    assert await giving.round()
    assert {key[-1] for key in store.keys} == {"b", "c", "f", "g"}


async def test_where_mooncake_does_not_answer_nothing_is_forgotten() -> None:
    pool = Pool()
    pool.pulled("a")
    pool.copies.pool_is(0)
    store = Mooncake("a")
    store.silent = True
    assert await GivingBack(
        pool.copies, Removal(store, pool.holdings, store.listed), Master()
    ).round()
    assert len(pool.copies) == 1
