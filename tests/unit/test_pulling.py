"""A pulling process in this one: what it does with a peer's answer, and what its gateway hears of it."""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from federation.config import Limits
from federation.identity import block_digest
from federation.peers.channel import Channel, message_bytes_max, receive_now
from federation.peers.pull_worker import PullWorker
from federation.peers.wire import sent
from federation.pulling import Pulling
from federation.transfer.frames import Block, Missing, NoRoomError
from federation.transfer.landing import Taken
from federation.transfer.slots import Slots
from moonmesh.v1 import peer_pb2, pulling_pb2, serving_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import DATA, FP, East, serving

SIZE = 200_000
MEMORY = 64 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


class Staging:
    """Room in slots, with books."""

    def __init__(self, slots: Slots, most: int = MEMORY) -> None:
        self.slots = slots
        self.left = most

    def take(self, index: int, size: int) -> memoryview | None:
        place = self.slots.take(size) if size <= self.left else None
        self.left -= 0 if place is None else size
        return place

    def give(self, size: int) -> None:
        self.left += size


@asynccontextmanager
async def working(made: Made) -> AsyncIterator[tuple[PullWorker, Slots]]:
    """One that is well, of west."""
    limits = Limits()
    maps: list[mmap.mmap] = []
    slots = Slots(MEMORY, lambda memory: maps.append(mmap.mmap(memory, MEMORY)))
    ours, theirs = socket.socketpair()
    credentials = made.of("west")
    tls = credentials.tls
    setup = pulling_pb2.PullingSetup(
        limits_json=limits.model_dump_json(),
        federation=credentials.federation,
        tls=serving_pb2.ServerTls(
            name=tls.name,
            ca_pem=tls.ca_pem,
            cert_pem=tls.cert_pem,
            key_pem=tls.key_pem,
            not_after=tls.not_after.timestamp(),
        ),
    )
    worker = PullWorker(await Channel.open(ours, message_bytes_max(limits)), limits, slots.offset)
    running = asyncio.create_task(worker.run(setup))
    first = await asyncio.to_thread(receive_now, theirs, pulling_pb2.ToPulling)
    assert first is not None
    pulling = asyncio.create_task(Pulling(first.setup, maps[0]).run(theirs))
    try:
        await wait_for_async(lambda: worker.well, 5, "its first word")
        yield worker, slots
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        worker.ended()
        await asyncio.gather(pulling, return_exceptions=True)


def order(address: str, seconds: float = 5.0) -> pulling_pb2.Pull:
    return pulling_pb2.Pull(peer="east", address=address, timeout=seconds, stall=seconds)


def request(*keys: str) -> bytes:
    return sent(peer_pb2.PullRequest(fingerprint=FP, keys=keys, max_sizes=[SIZE] * len(keys)))


async def events(
    worker: PullWorker, address: str, room: Staging, *keys: str
) -> list[Block | Missing]:
    asked = order(address)
    asked.request = request(*keys)
    found: list[Block | Missing] = []
    ended = False
    async for taken in worker.pull(asked, asked.request, None, room):
        assert isinstance(taken, Taken)
        found += taken.events
        ended = taken.ended
    assert ended
    return found


async def test_blocks_land_in_staging_checked_and_what_is_missing_is_told(made: Made) -> None:
    east = East(made)
    keys = [f"k{i}" for i in range(40)]
    east.hold(*keys, size=SIZE)
    async with serving(east, made) as address, working(made) as (worker, slots):
        room = Staging(slots)
        found = await events(worker, address, room, *keys[:20], "absent", *keys[20:])
        assert [event.index for event in found] == list(range(41))
        assert isinstance(found[20], Missing)
        for key, block in zip(keys, (e for e in found if isinstance(e, Block)), strict=True):
            assert block.good
            assert block.digest == block_digest(FP, key, block.data)
            assert block.data == memoryview(DATA)[:SIZE]
        assert worker.pulls == 0
        assert room.left == MEMORY - 40 * SIZE, "nothing else is kept"


async def test_where_there_is_no_room_the_pull_ends_and_gives_all_back(made: Made) -> None:
    east = East(made)
    keys = [f"k{i}" for i in range(10)]
    east.hold(*keys, size=SIZE)
    async with serving(east, made) as address, working(made) as (worker, slots):
        room = Staging(slots, 3 * SIZE)
        with pytest.raises(NoRoomError):
            await events(worker, address, room, *keys)
        assert worker.pulls == 0


async def test_one_that_is_left_is_stopped_and_its_memory_is_free_after_that(made: Made) -> None:
    east = East(made)
    east.hold("k", size=SIZE)
    east.memory.gate.clear()
    async with serving(east, made) as address, working(made) as (worker, slots):
        room = Staging(slots)
        for reads in (0, 1):  # before it has begun, and while the peer reads
            asked = order(address)
            asked.request = request("k")
            answer = worker.pull(asked, asked.request, None, room)
            waiting = asyncio.ensure_future(anext(answer))
            await asyncio.sleep(0)
            await wait_for_async(lambda n=reads: east.memory.reads >= n, 5, "the peer to read")  # type: ignore[misc]
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await answer.aclose()
            await wait_for_async(lambda: worker.pulls == 0, 5, "its word that it is over")
        assert room.left == MEMORY
        east.memory.gate.set()
        assert len(await events(worker, address, room, "k")) == 1, "and the next one is served"


async def test_whether_there_is_a_connection(made: Made) -> None:
    async with serving(East(made), made) as address, working(made) as (worker, _):
        assert await worker.ready(order(address))
        assert not await worker.ready(order("127.0.0.1:1", 0.3))
