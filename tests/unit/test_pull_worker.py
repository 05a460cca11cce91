"""A pulling process may be broken or taken over: what its gateway takes of it, and gives it."""

from __future__ import annotations

import pytest

from federation.limits.errors import ShedError
from federation.peers.pull_worker import UNTAKEN_MAX, Remote
from federation.peers.wire import LostError
from federation.transfer.frames import Block, Missing, NoRoomError
from moonmesh.v1 import peer_pb2, pulling_pb2

SIZES = (100, 100, 8)


class Bounded:
    """Room for so many bytes, with books."""

    def __init__(self, size: int = 1000) -> None:
        self.left = size

    def take(self, index: int, size: int) -> memoryview | None:
        if size > self.left:
            return None
        self.left -= size
        return memoryview(bytearray(size))

    def give(self, size: int) -> None:
        self.left += size


def remote(room: Bounded) -> Remote:
    return Remote(peer_pb2.PullRequest(keys=["a", "b", "c"], max_sizes=SIZES), room)


def need(*wishes: tuple[int, int], ahead: bool = False) -> pulling_pb2.Need:
    made = pulling_pb2.Need(id=1)
    for index, size in wishes:
        made.wishes.add(index=index, size=size, ahead=ahead)
    return made


def came(*indices: int, digest: bytes = bytes(16), hops: int = 0) -> pulling_pb2.Came:
    made = pulling_pb2.Came(id=1, size=10)
    for index in indices:
        made.arrivals.add(index=index, digest=digest, hops=hops, attested=True, good=True)
    return made


def offset(view: memoryview) -> int:
    return 64


def test_it_is_given_memory_and_a_block_is_what_lies_there() -> None:
    room = Bounded()
    pull = remote(room)
    (place,) = pull.need(need((0, 60)), offset).places
    assert (place.index, place.offset, place.size) == (0, 64, 60)
    pull.came(came(0))
    ((block,),) = [taken.events for taken in pull.come]
    assert isinstance(block, Block)
    assert (block.index, len(block.data), block.good) == (0, 60, True)
    pull.end(pulling_pb2.Over(id=1, ended=True))
    assert room.left == 940, "the block has its own"


def test_what_was_given_in_advance_and_not_used_is_given_back() -> None:
    room = Bounded()
    pull = remote(room)
    assert len(pull.need(need((0, 60), (1, 60), ahead=True), offset).places) == 2
    assert pull.need(need((1, 60)), offset).places[0].size == 60, "the same place again"
    assert room.left == 880
    assert pull.need(need((1, 70)), offset).places[0].size == 70, "another size, another place"
    assert room.left == 870
    pull.end(pulling_pb2.Over(id=1))
    assert room.left == 1000


def test_memory_that_may_still_be_written_to_is_nobody_elses_until_the_end() -> None:
    room = Bounded()
    pull = remote(room)
    pull.need(need((0, 60), (1, 60)), offset)
    pull.came(came(0))
    pull.leave()
    assert room.left == 940, "what has come is not wanted; the other place may be written to"
    pull.came(came(1))
    assert room.left == 1000
    assert not pull.come
    assert not pull.need(need((2, 8)), offset).places, "and there is no more"


@pytest.mark.parametrize("wish", [(0, 101), (0, 0), (3, 1), (2, 9)])
def test_it_gets_none_for_what_was_not_asked_for(wish: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not asked for"):
        remote(Bounded()).need(need(wish), offset)


def test_where_there_is_no_room_a_guess_is_not_answered_and_a_block_is_refused() -> None:
    pull = remote(Bounded(50))
    ahead = pull.need(need((0, 60), ahead=True), offset)
    assert (len(ahead.places), ahead.none) == (0, False)
    assert pull.need(need((0, 60)), offset).none
    pull.end(pulling_pb2.Over(id=1, error="NoRoomError"))
    with pytest.raises(NoRoomError):
        pull.raise_if_failed("east")


@pytest.mark.parametrize(
    "bad", [came(1), came(0, 0), came(0, digest=b"short"), came(0, hops=1 << 20)]
)
def test_a_block_that_cannot_be_is_not_believed(bad: pulling_pb2.Came) -> None:
    pull = remote(Bounded())
    pull.need(need((0, 60)), offset)
    with pytest.raises(ValueError, match="no place"):
        pull.came(bad)


def test_what_is_missing_was_asked_for() -> None:
    pull = remote(Bounded())
    message = pulling_pb2.Came(id=1)
    message.arrivals.add(index=2, missing=True)
    pull.came(message)
    assert pull.come[0].events == [Missing(2)]
    message.arrivals.add(index=3, missing=True)
    with pytest.raises(ValueError, match="not asked for"):
        pull.came(message)


def test_it_sends_no_more_than_is_taken() -> None:
    pull = remote(Bounded())
    for _ in range(UNTAKEN_MAX):
        pull.came(came())
    with pytest.raises(ValueError, match="more messages"):
        pull.came(came())


def test_how_it_ended_is_what_the_peer_did_and_a_word_that_is_none_is_not_the_peers() -> None:
    pull = remote(Bounded())
    pull.end(pulling_pb2.Over(id=1, error="ShedError", what="full", retry_after=2.0))
    with pytest.raises(ShedError) as caught:
        pull.raise_if_failed("east")
    assert caught.value.retry_after == 2.0
    pull.end(pulling_pb2.Over(id=1, error="KeyboardInterrupt"))
    with pytest.raises(LostError):
        pull.raise_if_failed("east")
