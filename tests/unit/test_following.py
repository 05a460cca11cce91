"""A follower and its leader over a real connection: found, copied, told, lost and found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest

from federation.config import GATEWAYS_MAX, Limits
from federation.following import follower as shell
from federation.following import leader as side
from federation.following.follower import Follower
from federation.following.leader import FOLLOW_METHOD, GroupService
from federation.following.outgoing import Outgoing
from federation.transfer.handover import EngineService
from federation.transfer.slots import Slots
from local_group.coordination.base import Leader
from local_group.holdings import Change, Holdings
from local_group.journal import Entry, Journal
from local_group.ledger import Ledger, own
from local_group.names import name_of
from moonmesh.v1 import group_pb2
from tests.support.wait import wait_for_async

FP = b"f" * 16


def names(*keys: str) -> set[int]:
    return {name_of(FP, key) for key in keys}


def written(*keys: str) -> list[Entry]:
    return [own(FP, key, 8, b"d" * 16) for key in keys]


class Place:
    """One gateway of a group, as far as the others of it see."""

    def __init__(self, folder: Path, name: str, bench: Bench) -> None:
        self.member = name
        self.bench = bench
        self.address = f"unix:{folder}/{name}.sock"
        self.problems: list[str] = []
        self.listings = 0
        self.holdings = Holdings(
            blocks_max=10_000,
            hop_limit=1,
            on_change=self._moved,
            on_amended=self._moved,
            on_hidden=self._moved,
        )
        self.ledger = Ledger(self.holdings, Journal(folder / name, 1 << 20), self._wrote)
        self.group = GroupService(self.holdings, [FP], self)
        self.outgoing = Outgoing()
        self.follower = Follower(
            self,
            self.ledger,
            self.outgoing,
            [FP],
            Limits(),
            list_blocks=self._list,
            credentials=None,
            on_problem=self.problems.append,
        )
        self.server: grpc.aio.Server | None = None
        self.running: asyncio.Task[None] | None = None

    # Its terms

    @property
    def epoch(self) -> int:
        return self.bench.epoch if self.valid() else 0

    def valid(self) -> bool:
        return self.bench.leading is self

    async def leader(self) -> Leader | None:
        leading = self.bench.seen_by(self)
        if leading is None:
            return None
        return Leader(leading.member, leading.address, self.bench.epoch)

    # Its life

    async def start(self) -> None:
        await self.ledger.load(None)
        await self.listen()
        self.follower.follow()
        self.running = asyncio.create_task(self.follower.run())

    async def listen(self) -> None:
        engines = EngineService(
            group="east",
            known=[],
            namespaces=[FP],
            exported=[FP],
            ledger=self.ledger,
            puller=None,  # type: ignore[arg-type]
            promise=lambda fingerprint, key: True,
            given=lambda block, before: None,
            read_on=lambda fingerprint, before: None,
            prefetched=lambda block, before: None,
            touch=lambda fingerprint: None,
            limits=Limits(),
            on_error=self.problems.append,
            slots=Slots(1 << 20),
        )
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((engines.handlers(), self.group.handlers()))
        self.server.add_insecure_port(self.address)
        await self.server.start()

    async def close(self) -> None:
        assert self.running is not None
        assert self.server is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self.group.close()
        await self.server.stop(0)
        await self.ledger.close()

    async def write(self, *keys: str) -> None:
        """Engines here do."""
        await self.ledger.report(written(*keys))

    def names(self) -> set[int]:
        return set(self.holdings.after(FP, -1, 999))

    def _moved(self, change: Change) -> None:
        self.group.take(change)

    def _wrote(self, entries: Sequence[Entry]) -> None:
        self.follower.wrote(entries)

    async def _list(self) -> None:
        self.listings += 1


class Bench:
    """Two places of one group."""

    def __init__(self, folder: Path) -> None:
        self.leading: Place | None = None
        self.epoch = 0
        self.stale: Place | None = None
        """Whom everybody takes for the leader, whoever leads."""
        self.a, self.b = Place(folder, "a", self), Place(folder, "b", self)

    def seen_by(self, place: Place) -> Place | None:
        return self.stale or self.leading

    def lead(self, place: Place | None) -> None:
        """A term ends, and another begins."""
        before = self.leading
        self.leading = place
        self.epoch += 1
        if before is not None:
            before.group.rest()
            before.follower.follow()
        if place is not None:
            place.follower.rest()


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(shell, "LOOK_S", 0.05)
    monkeypatch.setattr(shell, "AGAIN_S", (0.01, 0.02))
    made = Bench(tmp_path)
    await made.a.start()
    await made.b.start()
    yield made
    await made.a.close()
    await made.b.close()


def state(place: Place) -> dict[str, object]:
    status = place.follower.status()
    assert status is not None
    return status


async def copied(place: Place, *keys: str) -> None:
    await wait_for_async(
        lambda: place.names() == names(*keys), 5, f"{keys}, not {len(place.names())}"
    )


async def test_a_follower_has_what_the_leader_has_and_tells_what_it_is_told(bench: Bench) -> None:
    await bench.a.write("before")
    bench.lead(bench.a)
    await copied(bench.b, "before")
    assert bench.a.group.followers == ["b"]
    await bench.a.write("after")
    await bench.b.write("here")
    await copied(bench.b, "before", "after", "here")
    await copied(bench.a, "before", "after", "here")
    await wait_for_async(lambda: state(bench.b)["untold_blocks"] == 0, 5, "its answer")
    assert state(bench.b)["complete"]
    assert state(bench.b)["error"] == ""
    assert bench.a.follower.status() is None, "it follows nobody"
    assert bench.b.listings == 1, "one a snapshot"


async def test_what_came_from_a_peer_is_not_told_as_our_own(bench: Bench) -> None:
    pulled = Entry(FP, name_of(FP, "pulled"), 8, b"d" * 16, "west", 3, 1)
    bench.lead(bench.a)
    await copied(bench.b)
    await bench.b.ledger.announce([pulled])
    await bench.b.write("pulled", "ours")  # an engine writes back what it was given
    await copied(bench.a, "ours")
    assert bench.b.names() == names("pulled", "ours")
    held = bench.b.holdings.get(FP, "pulled")
    assert held is not None
    assert held.origin == "west"
    bench.lead(bench.b)
    await copied(bench.a, "ours", "pulled")
    assert bench.a.ledger.remembered == 1, "whose it is, the next leader knows"


async def test_the_copy_is_on_disk(bench: Bench, tmp_path: Path) -> None:
    bench.lead(bench.a)
    await bench.a.write("x")
    await copied(bench.b, "x")
    await wait_for_async(lambda: bench.b.ledger.journal_bytes > 0, 5, "the journal")
    await bench.b.ledger.close()
    again = Holdings(blocks_max=9, hop_limit=1, on_change=lambda change: None)
    ledger = Ledger(again, Journal(tmp_path / "b", 1 << 20))
    await ledger.load(None)
    assert again.after(FP, -1, 9) == [name_of(FP, "x")]
    await ledger.close()


async def test_whoever_leads_all_blocks_are_known(bench: Bench) -> None:
    bench.lead(bench.a)
    await bench.a.write("one")
    await bench.b.write("two")
    await copied(bench.a, "one", "two")
    await copied(bench.b, "one", "two")
    await wait_for_async(lambda: state(bench.b)["untold_blocks"] == 0, 5, "the leader's answer")
    bench.lead(None)
    await wait_for_async(lambda: not state(bench.b)["connected"], 5, "the stream to end")
    await bench.b.write("three")  # while nobody leads: kept
    await bench.a.write("four")
    # (One that the leader's snapshot lacked may still wait to be told again.)
    waits = bench.b.outgoing
    assert (FP, name_of(FP, "three")) in waits
    assert (FP, name_of(FP, "four")) not in waits
    bench.lead(bench.b)
    await copied(bench.b, "one", "two", "three", "four")
    await copied(bench.a, "one", "two", "three", "four")
    assert bench.b.group.followers == ["a"]


async def test_one_that_is_no_leader_any_more_is_not_followed(bench: Bench) -> None:
    bench.lead(bench.a)
    await bench.a.write("x")
    await copied(bench.b, "x")
    bench.stale = bench.a  # as coordination may be read a moment late
    bench.leading = None
    bench.a.group.rest()
    await wait_for_async(lambda: "does not lead" in str(state(bench.b)["error"]), 5, "a refusal")
    assert bench.b.names() == names("x"), "nothing is forgotten"


async def test_a_leader_that_says_nothing_is_left_and_found_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "SILENT_S", 0.2)
    monkeypatch.setattr(side, "BEAT_S", 60.0)
    monkeypatch.setattr(shell, "TROUBLE_S", 0.0)
    bench.lead(bench.a)
    await copied(bench.b)
    await wait_for_async(lambda: "said nothing" in str(state(bench.b)["error"]), 5, "its patience")
    monkeypatch.setattr(side, "BEAT_S", 0.02)
    await wait_for_async(lambda: state(bench.b)["error"] == "", 5, "the leader to be heard")
    monkeypatch.setattr(side, "BEAT_S", 60.0)


async def test_a_leader_that_cannot_be_reached_is_a_problem_after_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "TROUBLE_S", 0.1)
    bench.a.address = "unix:/nowhere/gateway.sock"
    bench.lead(bench.a)
    await wait_for_async(lambda: bench.b.problems, 5, "the problem")
    assert (
        "the leader a cannot be followed: its socket /nowhere/gateway.sock is not on this host"
        in (bench.b.problems[0])
    )
    bench.a.address = "127.0.0.1:1"
    await wait_for_async(lambda: "needs mTLS" in str(state(bench.b)["error"]), 5, "the reason")


async def test_a_place_of_another_pool_copies_and_tells_nothing(bench: Bench) -> None:
    bench.lead(bench.a)
    await copied(bench.b)
    bench.b.follower.bar("another pool")
    await wait_for_async(lambda: bench.a.group.followers == [], 5, "the end of its stream")
    await bench.a.write("of a")
    await bench.b.write("of b")
    await wait_for_async(lambda: state(bench.b)["error"] == "another pool", 5, "why, in status")
    assert (bench.a.names(), bench.b.names()) == (names("of a"), names("of b"))
    bench.b.follower.bar("")
    await copied(bench.b, "of a", "of b")
    await copied(bench.a, "of a", "of b")


async def test_a_follower_that_asks_anew_takes_the_place_of_its_stream(bench: Bench) -> None:
    bench.lead(bench.a)
    await wait_for_async(lambda: bench.a.group.followers == ["b"], 5, "its stream")
    bench.b.follower._attempt.cancel()  # type: ignore[union-attr]
    async with grpc.aio.insecure_channel(bench.a.address) as channel:
        request = group_pb2.FollowRequest(member="b", epoch=1)
        calls = [channel.unary_stream(FOLLOW_METHOD)(request.SerializeToString()) for _ in range(2)]
        assert await calls[1].read() is not grpc.aio.EOF
        await wait_for_async(lambda: bench.a.group.followers == ["b"], 5, "one stream")
        for call in calls:
            call.cancel()


async def test_only_so_many_follow_and_only_the_groups_own(bench: Bench) -> None:
    bench.lead(bench.a)
    await wait_for_async(lambda: bench.a.group.followers == ["b"], 5, "its stream")
    guarded = bench.a.group.only_for(lambda context: False)

    class RefusedError(Exception):
        pass

    class Context:
        code: grpc.StatusCode | None = None

        async def abort(self, code: grpc.StatusCode, why: str) -> None:
            self.code = code
            raise RefusedError(why)

    async def refused(service: GroupService, raw: bytes) -> grpc.StatusCode | None:
        context = Context()
        with pytest.raises(RefusedError):
            await service.follow(raw, context)
        return context.code

    good = group_pb2.FollowRequest(member="z", epoch=1).SerializeToString()
    later = group_pb2.FollowRequest(member="z", epoch=2).SerializeToString()
    assert await refused(guarded, good) is grpc.StatusCode.PERMISSION_DENIED
    assert await refused(bench.b.group, good) is grpc.StatusCode.FAILED_PRECONDITION
    assert await refused(bench.a.group, later) is grpc.StatusCode.FAILED_PRECONDITION
    assert await refused(bench.a.group, b"\xff") is grpc.StatusCode.INVALID_ARGUMENT
    assert await refused(bench.a.group, bytes(2000)) is grpc.StatusCode.INVALID_ARGUMENT
    for name in ("", "a\x1b[2J"):
        unnamed = group_pb2.FollowRequest(member=name, epoch=1).SerializeToString()
        assert await refused(bench.a.group, unnamed) is grpc.StatusCode.INVALID_ARGUMENT
    async with grpc.aio.insecure_channel(bench.a.address) as channel:
        calls = []
        for index in range(GATEWAYS_MAX - 1):
            request = group_pb2.FollowRequest(member=f"f{index}", epoch=1)
            calls.append(channel.unary_stream(FOLLOW_METHOD)(request.SerializeToString()))
        for call in calls:
            assert await call.read() is not grpc.aio.EOF
        assert await refused(bench.a.group, good) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_follower_that_does_not_read_is_let_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side, "UNREAD_S", 0.1)
    bench.lead(bench.a)
    await wait_for_async(lambda: bench.a.group.followers == ["b"], 5, "its stream")

    class Frozen:
        pages = 0

        async def write(self, raw: bytes) -> None:
            self.pages += 1
            await asyncio.Event().wait()

    context = Frozen()
    request = group_pb2.FollowRequest(member="frozen", epoch=1)
    await bench.a.group.follow(request.SerializeToString(), context)
    assert context.pages == 1
    assert bench.a.group.followers == ["b"]
