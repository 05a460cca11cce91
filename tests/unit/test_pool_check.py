"""Whether a place works with the pool of its group: told by the stores that are in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from federation.config import load_group
from federation.pool import (
    POOL_KEY,
    SEGMENTS_MAX,
    PoolCheck,
    PoolWatch,
    Told,
    has_places,
)
from local_group.admin import Segment
from local_group.coordination.base import VALUE_BYTES_MAX, Leader
from local_group.process_errors import AdminError, CoordinationGone
from tests.support.groups import write_group

OURS, THEIRS = {"1-1", "1-2"}, {"2-1"}
FIRST = Leader("h1:7402", "h1:7403", 5)
TOLD = Told(FIRST.member, 5, "h1:7400", frozenset(OURS))


def place(*, here: bool = False) -> PoolCheck:
    return PoolCheck("h2:7402", "x:7400", here=here)


def test_a_place_that_sees_one_store_of_the_leaders_pool_is_in_it() -> None:
    check = place()
    assert check.judge(TOLD, {"1-2", "1-9"}, FIRST) == ""


def test_a_place_with_another_pool_is_told_where_and_until_it_is_mended() -> None:
    check = place()
    why = check.judge(TOLD, THEIRS, FIRST)
    assert why == (
        "the master of this place, x:7400, has another pool than the one of h1:7402, which leads with "
        "the master h1:7400: no store is in both. In the group.toml of one of the two: correct [master] "
        "address"
    )
    assert "it starts a master of its own" in place(here=True).judge(TOLD, THEIRS, FIRST)
    assert check.judge(TOLD, None, FIRST) == why, "its master does not answer"
    assert check.judge(TOLD, set(), FIRST) == why, "no store is in its pool"
    assert "nobody leads" in check.judge(TOLD, THEIRS, None), "the leader is gone"
    assert check.judge(TOLD, OURS, None) == ""


def test_what_cannot_be_compared_keeps_nobody_from_anything() -> None:
    empty = Told(FIRST.member, 5, "h1:7400", frozenset())
    for told in (None, empty):
        assert place().judge(told, THEIRS, FIRST) == ""
    for segments in (None, set[str]()):
        assert place().judge(TOLD, segments, FIRST) == ""
    later = Leader(FIRST.member, FIRST.address, 6)  # has published nothing yet
    assert place().judge(TOLD, THEIRS, later) == ""


def test_where_nobody_leads_another_pool_is_the_groups_only_where_the_last_one_was() -> None:
    for here in (False, True):
        why = place(here=here).judge(TOLD, THEIRS, None)
        assert why == (
            "nobody leads, and the master of this place, x:7400, has another pool than the one that this "
            "group had last, with the master h1:7400, where h1:7402 led: no store is in both. Start "
            "h1:7402, or correct [master] address here; if the pool is a new one of this group, say so: "
            "moonmesh new-pool"
        )
    rebuilt = PoolCheck("h2:7402", "h1:7400", here=False)
    assert rebuilt.judge(TOLD, THEIRS, None) == "", "all stores of that master were started anew"
    own = Told("h2:7402", 5, "h1:7400", frozenset(OURS))
    assert place().judge(own, THEIRS, None) == "", "it was this very place"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "[::1]"])
def test_a_loopback_address_is_another_master_on_another_host(host: str) -> None:
    told = Told("h1:7402", 5, f"{host}:7400", frozenset(OURS))
    assert PoolCheck("h2:7402", told.master, here=True).judge(told, THEIRS, None)
    assert PoolCheck("h1:7502", told.master, here=False).judge(told, THEIRS, None) == ""


def test_what_a_leader_has_contradicted_is_not_taken_for_new_when_it_is_gone() -> None:
    check = PoolCheck("h2:7402", "h1:7400", here=False)
    assert check.judge(TOLD, THEIRS, FIRST)
    assert check.judge(TOLD, THEIRS, None)
    later = Told("h3:7402", 6, "h1:7400", frozenset(THEIRS))
    assert check.judge(later, THEIRS, None) == ""


def test_an_operator_decides_once_and_not_against_what_is_published_later() -> None:
    check = place()
    assert check.judge(TOLD, THEIRS, None)
    check.adopt(TOLD)
    assert check.judge(TOLD, THEIRS, None) == ""
    later = Told(FIRST.member, 6, "h1:7400", frozenset(OURS))
    assert check.judge(later, THEIRS, None), "somebody has led meanwhile"
    assert "has another pool than the one of h1:7402" in check.judge(TOLD, THEIRS, FIRST)


@pytest.mark.parametrize("raw", [None, b"", b"{", b"[]", b"{}", b'{"segments": 3}'])
def test_what_is_no_record_is_none(raw: bytes | None) -> None:
    assert Told.read(raw) is None


def test_a_record_of_the_most_stores_fits() -> None:
    ids = frozenset(f"{i + 10**19}-{2**64 - 1}" for i in range(SEGMENTS_MAX))
    told = Told("h" * 253 + ":7402", 2**63 - 1, "h" * 253 + ":7400", ids)
    assert len(told.to_bytes()) <= VALUE_BYTES_MAX
    assert Told.read(told.to_bytes()) == told


class Bench:
    """The terms, and the master, of one place."""

    def __init__(self) -> None:
        self.member = "127.0.0.1:24002"
        self.epoch = 5
        self.leads = True
        self.other: Leader | None = FIRST
        self.stood_down = 0
        self.stored: dict[str, bytes] = {}
        self.writes = 0
        self.ids = sorted(OURS)
        self.gone: set[str] = set()
        self.said: list[str] = []

    def valid(self) -> bool:
        return self.leads

    async def leader(self) -> Leader | None:
        return self.other

    async def stand_down(self) -> None:
        self.leads = False
        self.stood_down += 1

    async def publish(self, key: str, value: bytes) -> None:
        self.stored[key] = value
        self.writes += 1

    async def published(self, key: str) -> bytes | None:
        if "coordination" in self.gone:
            raise CoordinationGone("gone")
        return self.stored.get(key)

    async def segments(self) -> list[Segment]:
        if "master" in self.gone:
            raise AdminError("gone")
        return [Segment("s", "h:1", 1, 0, "OK", each) for each in self.ids]


async def test_a_leader_publishes_its_pool_when_it_changes(tmp_path: Path) -> None:
    bench = Bench()
    config = load_group(write_group(tmp_path, port_base=24000))
    watch = PoolWatch(config, bench, bench, bench.said.append)  # type: ignore[arg-type]
    await watch.look()
    await watch.look()
    told = Told(bench.member, 5, "127.0.0.1:24000", frozenset(OURS))
    assert (Told.read(bench.stored[POOL_KEY]), bench.writes) == (told, 1)
    bench.gone = {"master"}
    await watch.look()
    bench.gone, bench.ids = set(), [f"{i:05}" for i in range(SEGMENTS_MAX + 1)]
    await watch.look()
    assert bench.writes == 2
    assert Told.read(bench.stored[POOL_KEY]).segments == set(bench.ids[:SEGMENTS_MAX])  # type: ignore[union-attr]
    assert bench.said == [""] * 4


async def test_a_follower_compares(tmp_path: Path) -> None:
    bench = Bench()
    bench.leads, bench.stored = False, {POOL_KEY: TOLD.to_bytes()}
    bench.ids = sorted(THEIRS)
    config = load_group(write_group(tmp_path, port_base=24000))
    watch = PoolWatch(config, bench, bench, bench.said.append)  # type: ignore[arg-type]
    await watch.look()
    bench.gone = {"coordination"}
    await watch.look()
    assert len(bench.said) == 1
    assert "has another pool" in bench.said[0]


async def test_one_that_leads_with_another_pool_stands_down_before_it_publishes_it(
    tmp_path: Path,
) -> None:
    bench = Bench()
    bench.stored = {POOL_KEY: TOLD.to_bytes()}
    bench.ids, bench.gone = sorted(THEIRS), {"master"}
    config = load_group(write_group(tmp_path, port_base=24000))
    watch = PoolWatch(config, bench, bench, bench.said.append)  # type: ignore[arg-type]
    await watch.look()
    assert (bench.leads, bench.said) == (True, [""]), "its master does not answer yet"
    bench.gone = set()
    await watch.look()
    assert (bench.leads, bench.stood_down, bench.writes) == (False, 1, 0)
    assert bench.said[1].startswith("nobody leads, and the master of this place, 127.0.0.1:24000")


async def test_an_operator_is_told_why_a_pool_is_not_made_the_groups(tmp_path: Path) -> None:
    bench = Bench()
    config = load_group(write_group(tmp_path, port_base=24000))
    watch = PoolWatch(config, bench, bench, bench.said.append)  # type: ignore[arg-type]
    assert await watch.adopt() == "", "it leads"
    bench.leads, bench.stored, bench.ids = False, {POOL_KEY: TOLD.to_bytes()}, sorted(THEIRS)
    assert (await watch.adopt()).startswith("h1:7402 leads this group")
    bench.other, bench.gone = None, {"master"}
    assert (await watch.adopt()).startswith("the master 127.0.0.1:24000 does not answer")
    bench.gone = {"coordination"}
    assert await watch.adopt() == "who leads cannot be found out: gone"
    assert bench.said == []
    bench.gone = set()
    await watch.look()
    assert await watch.adopt() == ""
    assert bench.said[0].endswith("moonmesh new-pool")
    assert bench.said[1] == ""


def test_a_group_of_one_gateway_compares_nothing(tmp_path: Path) -> None:
    alone = write_group(tmp_path / "a", port_base=24000)
    both = write_group(tmp_path / "b", port_base=24000, coordination={"file_folder": "x"})
    etcd = write_group(tmp_path / "c", port_base=24000, coordination={"backend": "etcd"})
    assert [has_places(load_group(path)) for path in (alone, both, etcd)] == [False, True, True]
