"""Parts of the backends that decide without IO: watches, votes; and the file backend."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local_group.coordination import raft
from local_group.coordination.base import EPOCH_MAX, Changed, Leader, Listed
from local_group.coordination.etcd_watch import Position
from local_group.coordination.file_backend import FileBackend
from local_group.coordination.machine import Machine
from local_group.coordination.raft import read_secret
from local_group.coordination.raft_replica import read_snapshot
from local_group.coordination.raft_transport import Disk, Votes
from local_group.coordination.watchers import PENDING_MAX, Watchers
from local_group.process_errors import CoordinationError, Fenced


@dataclass
class KeyValue:
    mod_revision: int


@dataclass
class Event:
    kv: KeyValue


def events(*revisions: int) -> list[Event]:
    return [Event(KeyValue(revision)) for revision in revisions]


def taken(position: Position, *revisions: int, fragment: bool = False) -> list[int]:
    told = position.take(events(*revisions), fragment=fragment)
    return [event.kv.mod_revision for event in told]


# Where a watch of etcd goes on


def test_a_watch_goes_on_after_what_was_told() -> None:
    position = Position(5)
    assert taken(position) == []
    assert position.next == 5, "an answer without events says nothing of what is still to come"
    assert taken(position, 5, 7) == [5, 7]
    assert position.next == 8
    assert taken(position, 6, 7, 8) == [8], "what was told is not told again"


def test_a_revision_in_two_fragments_is_told_whole() -> None:
    position = Position(1)
    assert taken(position, 1, 2, 3, fragment=True) == [1, 2]
    assert position.next == 3
    assert taken(position, 3, 3, fragment=True) == []
    assert taken(position, 3, 4) == [3, 3, 3, 3, 4]
    assert position.next == 5


def test_a_break_between_fragments_asks_for_the_revision_again() -> None:
    position = Position(1)
    assert taken(position, 1, 2, 2, fragment=True) == [1]
    position.broken()
    assert position.next == 2
    assert taken(position, 2, 2, 2) == [2, 2, 2]


# Watchers of what is in memory


async def first(stream: AsyncIterator[Any], count: int) -> list[Any]:
    return [await asyncio.wait_for(anext(stream), 5) for _ in range(count)]


async def test_a_watcher_lists_and_is_told() -> None:
    values = {"a/1": b"1", "b": b"2"}
    watchers = Watchers(lambda: values)
    stream = watchers.watch("a/")
    assert await first(stream, 1) == [Listed({"a/1": b"1"})]
    watchers.changed("b", b"3")
    watchers.changed("a/2", b"4")
    watchers.changed("a/2", b"5")
    assert await first(stream, 2) == [Changed("a/2", b"4"), Changed("a/2", b"5")]
    watchers.replaced()
    assert await first(stream, 1) == [Listed({"a/1": b"1"})]


async def test_a_watcher_that_does_not_read_lists_again() -> None:
    values = {"k": b""}
    watchers = Watchers(lambda: values)
    stream = watchers.watch("")
    await first(stream, 1)
    for i in range(PENDING_MAX + 1):
        values["k"] = str(i).encode()
        watchers.changed("k", values["k"])
    assert await first(stream, 1) == [Listed({"k": str(PENDING_MAX).encode()})]
    watchers.changed("k", b"next")
    assert await first(stream, 1) == [Changed("k", b"next")]


# Which votes a candidate of Raft counts


def vote(term: int, fresh: bool = False) -> dict[str, Any]:
    return {"type": "response_vote", "term": term, **({"fresh": True} if fresh else {})}


def test_votes_of_members_with_a_past_count_at_once() -> None:
    votes = Votes(2)
    assert votes.take("b", vote(1), fresh=False) == [("b", vote(1))]


def test_a_member_that_lost_its_disk_elects_nobody_alone() -> None:
    votes = Votes(2)
    assert votes.take("b", vote(1, fresh=True), fresh=False) == []
    assert votes.take("b", vote(1, fresh=True), fresh=False) == []
    assert votes.take("b", vote(2, fresh=True), fresh=False) == [], "another election"
    assert votes.take("c", vote(2), fresh=False) == [("c", vote(2))]


def test_all_fresh_members_together_begin() -> None:
    votes = Votes(2)
    assert votes.take("b", vote(1, fresh=True), fresh=True) == []
    counted = votes.take("c", vote(1, fresh=True), fresh=True)
    assert [voter for voter, _ in counted] == ["b", "c"]


def test_a_fresh_candidate_needs_all() -> None:
    votes = Votes(2)
    assert votes.take("b", vote(1), fresh=True) == []
    assert len(votes.take("c", vote(1), fresh=True)) == 2


def test_a_disk_knows_whether_it_has_a_past(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "raft")
    assert disk.fresh
    disk.journal.write_bytes(b"x")
    disk.join()
    assert not Disk(tmp_path / "raft").fresh
    disk.doubt()
    assert Disk(tmp_path / "raft").fresh
    disk.join()
    disk.journal.unlink()
    assert Disk(tmp_path / "raft").fresh, "its journal is gone"


@pytest.mark.parametrize("content", [b"", b"zz {}", b"00000000 {}", b"\xff\xfe"])
def test_a_damaged_snapshot_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(content)
    with pytest.raises(CoordinationError, match="is damaged") as caught:
        read_snapshot(path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", [b"short\n", b"", b"x" * 5000, b"\0" * 32])
def test_a_bad_secret_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(CoordinationError, match="16 to 4096 characters"):
        read_secret(path)


async def test_a_leader_of_raft_that_does_not_renew_is_no_more_known_to_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(raft, "clock", lambda: now)
    machine = Machine()
    places = ("h:1", ("h:1", "h:2", "h:3"), tmp_path, tmp_path / "secret", 2.0)
    backend = raft.RaftBackend("b", "unix:b", *places)
    backend._replica = SimpleNamespace(machine=machine)  # type: ignore[assignment]
    assert await backend.leader() is None
    assert machine.claim("x", "a", "unix:a", 2.0, machine.standing[0], 0) == 1
    assert await backend.leader() == Leader("a", "unix:a", 1)
    now = 101.9
    assert await backend.leader() == Leader("a", "unix:a", 1)
    now = 102.0
    assert await backend.leader() is None
    machine.renew("x")
    assert await backend.leader() == Leader("a", "unix:a", 1)


def test_raft_leaves_the_sockets_of_this_process_alone() -> None:
    assert socket.inet_ntop(socket.AF_INET, bytes([127, 0, 0, 1])) == "127.0.0.1"


# Files


async def leading(folder: Path) -> FileBackend:
    backend = FileBackend(folder, "a", "unix:a")
    await backend.start()
    return backend


async def test_a_file_that_cannot_go_higher_gives_up_its_term(tmp_path: Path) -> None:
    one = await leading(tmp_path)
    term = await one.campaign()
    with pytest.raises(CoordinationError):
        await one.above(term, EPOCH_MAX)
    assert not term.valid()
    assert (await asyncio.wait_for(one.campaign(), 5)).epoch == 2
    await one.close()


async def test_a_file_leads_one_at_a_time(tmp_path: Path) -> None:
    one, two = await leading(tmp_path), await leading(tmp_path)
    term = await one.campaign()
    waiting = asyncio.create_task(two.campaign(floor=50))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    leader = await two.leader()
    assert leader is not None
    assert leader.epoch == term.epoch == 1
    await one.put("k", b"1", term)
    await one.resign(term)
    assert term.lost.is_set()
    other = await asyncio.wait_for(waiting, 5)
    assert other.epoch == 51
    with pytest.raises(Fenced):
        await one.put("k", b"2", term)
    assert await two.get("k") == b"1"
    await two.close()
    assert not other.valid()
    assert await one.leader() is None


async def test_a_file_keeps_what_was_put(tmp_path: Path) -> None:
    backend = await leading(tmp_path)
    term = await backend.above(await backend.campaign(), 9)
    assert term.epoch == 10
    await backend.put("k", b"\0\xff", term)
    await backend.close()
    again = await leading(tmp_path)
    assert await again.get("k") == b"\0\xff"
    assert await again.get("other") is None
    assert (await again.campaign()).epoch == 11
    await again.close()


async def test_a_cancelled_campaign_leaves_nothing(tmp_path: Path) -> None:
    one, two = await leading(tmp_path), await leading(tmp_path)
    term = await one.campaign()
    waiting = asyncio.create_task(two.campaign())
    await asyncio.wait({waiting}, timeout=0.15)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await one.resign(term)
    assert (await asyncio.wait_for(one.campaign(), 5)).epoch == 2
    await one.close()


async def test_a_damaged_configuration_is_told(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"00000000 {}\n")
    with pytest.raises(CoordinationError, match="is damaged"):
        await leading(tmp_path)
