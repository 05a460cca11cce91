"""The puller does not know which process reads: an answer that another one took apart is worth the same."""

from __future__ import annotations

from federation.identity import block_digest
from federation.transfer.allowance import Allowance
from federation.transfer.frames import Block, Missing
from federation.transfer.landing import Answer, Room, Taken
from moonmesh.v1 import peer_pb2
from tests.support.links import FP, SIZE, FakeLink, data_of
from tests.support.peers_in_memory import KEYS, Bench


class Elsewhere(FakeLink):
    """A peer whose blocks another process puts into the room that it is given, `each` to a message.

    Args:
        wrong: keys of blocks that it finds not to be their digest's.
        cut: it ends before the peer has said that this was all.
    """

    def __init__(self, *held: str, each: int = 2, wrong: str = "", cut: bool = False) -> None:
        super().__init__("east", held)
        self.each, self.wrong, self.cut = each, wrong, cut

    async def pull(
        self,
        request: peer_pb2.PullRequest,
        timeout: float,
        allowance: Allowance | None = None,
        room: Room | None = None,
    ) -> Answer:
        assert room is not None
        found: list[Block | Missing] = []
        for index, key in enumerate(request.keys):
            place = room.take(index, SIZE) if key in self.held else None
            if place is None:
                found.append(Missing(index))
                continue
            place[:] = data_of(key)
            digest = block_digest(FP, key, place)
            found.append(Block(index, digest, 0, place, good=key != self.wrong))
        for start in range(0, len(found), self.each):
            yield Taken(self.each * SIZE, found[start : start + self.each])
        if not self.cut:
            yield Taken(0, (), ended=True)


async def test_blocks_are_handed_on_and_what_is_missing_is_known() -> None:
    east = Elsewhere(*KEYS[1:])
    bench = Bench(east, claims={"east": KEYS})
    assert await bench.collect(bench.ask()) == [None, *(data_of(key) for key in KEYS[1:])]
    assert east.verdicts == ["succeeded"]
    assert bench.staging.reserved == 0


async def test_one_that_is_wrong_leaves_no_memory_behind_of_those_that_came_beside_it() -> None:
    east = Elsewhere(*KEYS, each=len(KEYS), wrong=KEYS[0])
    bench = Bench(east)
    assert await bench.collect(bench.ask()) == [None] * len(KEYS)
    assert east.verdicts == ["failed"]
    assert (bench.staging.bytes, bench.staging.reserved) == (0, 0)


async def test_an_answer_that_was_cut_short_is_none() -> None:
    east = Elsewhere(*KEYS, cut=True)
    bench = Bench(east)
    assert await bench.collect(bench.ask()) == [data_of(key) for key in KEYS]
    assert east.verdicts == ["failed"]
