"""Blocks that nobody attested: offered, sent and taken where both sides allow it, and nowhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator

import pytest

from federation.catalog.wire import position_from_wire
from federation.config import Limits
from federation.identity import block_digest, key_hash, stored_key
from federation.limits.ticket import Cost, Ticket
from federation.peers.wire import CATALOG_METHOD
from federation.transfer.frames import Block, Decoder, Encoder, FrameError, Missing
from federation.transfer.puller import Puller
from federation.transfer.staging import Staging
from federation.transfer.verify import verify
from local_group.holdings import HOPS_MAX, OWN
from moonmesh.v1 import peer_pb2
from tests.support.catalogs import view_of
from tests.support.credentials import Made
from tests.support.links import FakeLink, data_of
from tests.support.wire import DATA, FP, MIB, East, drained, link_to, linked, serving

SIZE = 5000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


def east_with(made: Made, attested: str, found: str) -> East:
    east = East(made, unattested=True)
    east.memory.size = SIZE
    for key in attested:
        digest = block_digest(FP, key, memoryview(DATA)[:SIZE])
        assert east.holdings.report(FP, key, SIZE, digest, 0.0)
    for key in found:
        assert east.holdings.find(FP, key, OWN, 0.0)
    return east


async def asked(
    made: Made, east: East, keys: str, *, unattested: bool, room: int = MIB
) -> list[Block | Missing]:
    """What comes of a pull."""
    decoder = Decoder([room] * len(keys), 2 * MIB)
    request = peer_pb2.PullRequest(
        fingerprint=FP, keys=list(keys), unattested=unattested, max_sizes=[room]
    )
    came: list[Block | Missing] = []
    async with linked(east, made) as link:
        ticket = link.guard.admit(Cost(), time.monotonic())
        assert isinstance(ticket, Ticket)
        async with contextlib.aclosing(link.pull(request, 5.0)) as messages:
            async for message in messages:
                came += decoder.feed(message)
        ticket.done(time.monotonic())
    assert decoder.ended
    return came


async def test_what_a_listing_found_is_read_sized_and_sent_as_unattested(made: Made) -> None:
    east = east_with(made, "a", "bc")
    one, two, three = await asked(made, east, "abc", unattested=True)
    assert isinstance(one, Block)
    assert isinstance(two, Block)
    assert isinstance(three, Block)
    assert [one.attested, two.attested, three.attested] == [True, False, False]
    assert {len(block.data) for block in (one, two, three)} == {SIZE}
    for key, block in zip("abc", (one, two, three), strict=True):
        assert block.digest == block_digest(FP, key, block.data)
    assert east.status()["leased_bytes"] == 3 * SIZE


async def test_who_takes_no_such_blocks_is_sent_none(made: Made) -> None:
    east = east_with(made, "a", "b")
    one, two = await asked(made, east, "ab", unattested=False)
    assert isinstance(one, Block)
    assert one.attested
    assert two == Missing(1)
    assert east.holdings.get(FP, "b") is not None, "it is there, for others"


async def test_where_the_namespace_allows_none_nobody_is_sent_any(made: Made) -> None:
    east = East(made)
    assert east.holdings.find(FP, "b", OWN, 0.0)
    assert await asked(made, east, "b", unattested=True) == [Missing(0)]
    assert east.memory.reads == 0


async def test_one_of_which_mooncake_tells_no_size_is_not_sent_and_not_offered_again(
    made: Made,
) -> None:
    east = east_with(made, "", "abc")
    east.memory.gone = {stored_key(FP, "a")}
    found = await asked(made, east, "ab", unattested=True, room=SIZE)
    assert found[0] == Missing(0)
    assert isinstance(found[1], Block)
    assert east.holdings.get(FP, "a") is None
    # One that is larger than the asker has room for is there all the same.
    assert await asked(made, east, "b", unattested=True, room=SIZE - 1) == [Missing(0)]
    assert east.holdings.get(FP, "b") is not None


async def test_catalogs_name_them_to_those_who_take_them(made: Made) -> None:
    east = east_with(made, "a", "bc")
    blocks: dict[bool, int] = {}
    positions = {}
    async with serving(east, made) as address:
        for unattested in (True, False):
            async with link_to(address, made, "west") as link:
                channel = link.gateways[0].control
                request = peer_pb2.CatalogRequest(fingerprint=FP, unattested=unattested)
                call = channel.unary_stream(CATALOG_METHOD)(request.SerializeToString())
                pages = [peer_pb2.CatalogPage.FromString(raw) for raw in await drained(call)]
                blocks[unattested] = sum(page.blocks for page in pages)
                positions[unattested] = position_from_wire(pages[-1].position)
    assert blocks == {True: 3, False: 1}
    # The two logs are not one: a position in either is none in the other.
    assert positions[True].log_id != positions[False].log_id
    log = east.offers.log(FP, unattested=False)
    assert log is not None
    assert len(log) == 1
    # Attested later, it is named to the others too; gone, to nobody.
    east.holdings.withdraw(FP, "b")
    assert east.holdings.report(FP, "b", SIZE, b"d" * 16, 1.0)
    assert len(log) == 2
    east.holdings.withdraw(FP, "c")
    east.holdings.withdraw(FP, "b")
    everything = east.offers.log(FP)
    assert (len(log), everything is not None and len(everything)) == (1, 1)


def messages(digest: bytes, data: bytes) -> Iterator[bytes]:
    encoder = Encoder(1 << 20)
    yield from encoder.block(0, digest, memoryview(data), attested=False)
    yield encoder.end()


def test_an_unattested_block_that_was_not_asked_for_breaks_the_protocol() -> None:
    data = b"x" * 100
    decoder = Decoder([100], 1 << 20)
    raw = b"".join(messages(block_digest(FP, "k", data), data))
    (block,) = decoder.feed(raw)
    assert isinstance(block, Block)
    assert not block.attested
    source = FakeLink("east", [])
    verify(source, FP, "k", block, hop_limit=1, unattested=True)
    with pytest.raises(FrameError, match="is unattested, and such were not asked for"):
        verify(source, FP, "k", block, hop_limit=1, unattested=False)
    # The digest that its sender made is checked as any other.
    block.data[0] ^= 1
    with pytest.raises(Exception, match="does not match its digest"):
        verify(source, FP, "k", block, hop_limit=1, unattested=True)


@pytest.mark.parametrize("allowed", [True, False])
async def test_one_is_pulled_where_that_is_allowed_and_is_never_offered_onward(
    allowed: bool,
) -> None:
    async def script(request: peer_pb2.PullRequest) -> AsyncGenerator[bytes, None]:
        assert request.unattested == allowed
        for message in messages(block_digest(FP, "k0", data_of("k0")), data_of("k0")):
            yield message

    source = FakeLink("east", ["k0"], script)
    landed: list[tuple[str, int]] = []
    puller = Puller(
        staging=Staging(bytes_max=1 << 20, hold=10.0),
        holders=lambda _: [(source, view_of([key_hash(FP, "k0")]))],
        landed=lambda block: landed.append((block.key, block.hops)),
        limits=Limits(),
        unattested=[FP] if allowed else [],
    )
    ask = puller.ask(FP, ["k0"], [MIB], timeout=5.0)
    await ask.settle(5.0)
    assert ask.landed(0) == allowed
    assert source.verdicts == ["succeeded" if allowed else "failed"]
    # More borders than any hop limit allows.
    assert landed == ([("k0", HOPS_MAX)] if allowed else [])
    ask.leave()
    await puller.close()


async def test_one_above_the_largest_block_is_not_offered_any_more(made: Made) -> None:
    east = East(made, unattested=True, block_bytes_max=1 << 20)
    for size, key, held in [(1 << 20, "a", True), ((1 << 20) + 1, "b", False)]:
        east.memory.size = size
        assert east.holdings.find(FP, key, OWN, 0.0)
        assert [type(e) for e in await asked(made, east, key, unattested=True)] == [
            Block if held else Missing
        ]
        assert (east.holdings.get(FP, key) is not None) == held
