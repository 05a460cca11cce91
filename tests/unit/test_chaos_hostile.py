"""The hostile peer is as hostile as it says, and nothing but: what it sends is judged by our own parts."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

import pytest

from chaos.hostile import peer
from chaos.hostile.answers import (
    HUGE_BYTES,
    LATE_S,
    MESSAGES,
    answer,
    honest_block,
    load_content,
)
from chaos.hostile.books import Books
from chaos.hostile.greetings import Greetings
from chaos.hostile.names import Answer, Greeting
from chaos.hostile.peer import LoadClaims
from chaos.hostile.statements import Speaker
from chaos.load.keys import DEMO, ENVELOPES, contents, owner
from federation.errors import PeerError
from federation.identity import Envelope, block_digest
from federation.transfer.frames import HEADER_BYTES, Block, Decoder
from gossip.config import GossipConfig
from gossip.engine import GossipEngine, Receipt
from gossip.events import StatementRejected
from gossip.hello import check_hello
from gossip.statement import Reason, StatementError
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made

FINGERPRINT = Envelope.of(ENVELOPES[DEMO]).fingerprint()
KEYS = ["one", "two"]
CONTENT = load_content(contents(DEMO, 4096))
T = TypeVar("T")


def blocks(how: Answer) -> list[Block]:
    decoder = Decoder([4096] * len(KEYS), (1 << 20) + 1000)
    found = [
        event
        for message in MESSAGES[how](FINGERPRINT, KEYS, CONTENT)
        for event in decoder.feed(message)
    ]
    assert decoder.ended
    return [event for event in found if isinstance(event, Block)]


def fits(block: Block) -> bool:
    return block_digest(FINGERPRINT, KEYS[block.index], block.data) == block.digest


def test_the_honest_answer_is_right() -> None:
    found = blocks(Answer.HONEST)
    assert [bytes(b.data) for b in found] == [CONTENT(key) for key in KEYS]
    assert all(map(fits, found))


@pytest.mark.parametrize("how", [Answer.WRONG_BYTES, Answer.WRONG_DIGEST, Answer.WRONG_NAMESPACE])
def test_a_lie_about_bytes_does_not_fit_its_digest(how: Answer) -> None:
    found = blocks(how)
    assert len(found) == len(KEYS)
    assert not any(map(fits, found))


def test_poison_fits_its_digest_and_is_wrong_all_over() -> None:
    for block in blocks(Answer.POISON):
        right = CONTENT(KEYS[block.index])
        assert fits(block)
        assert not any(a == b for a, b in zip(block.data, right, strict=True))


def test_what_has_travelled_is_poison_and_says_how_far_it_came() -> None:
    found = blocks(Answer.TRAVELLED)
    assert [block.hops for block in found] == [1, 1]
    assert all(map(fits, found))
    assert all(bytes(block.data) != CONTENT(KEYS[block.index]) for block in found)
    assert {block.hops for block in blocks(Answer.HONEST)} == {0}


def test_a_patchy_peer_lacks_about_a_quarter_and_is_right_about_the_rest() -> None:
    keys = [f"k{i}" for i in range(200)]
    decoder = Decoder([4096] * len(keys), (1 << 20) + 10_000)
    found = [
        event
        for message in MESSAGES[Answer.PATCHY](FINGERPRINT, keys, CONTENT)
        for event in decoder.feed(message)
    ]
    assert decoder.ended
    assert len(found) == len(keys)
    good = [event for event in found if isinstance(event, Block)]
    assert 130 < len(good) < 170
    assert all(bytes(block.data) == CONTENT(keys[block.index]) for block in good)


async def test_huge_blocks_are_as_large_as_the_room_and_no_larger() -> None:
    room = [4096, HUGE_BYTES + 5]
    decoder = Decoder(room, (1 << 20) + 1000)
    found = [
        event
        async for message in answer(Answer.HUGE, FINGERPRINT, KEYS, CONTENT, room)
        for event in decoder.feed(message)
    ]
    assert decoder.ended
    good = [event for event in found if isinstance(event, Block)]
    assert [len(block.data) for block in good] == room
    assert all(map(fits, good))


@pytest.mark.parametrize("how", LATE_S)
async def test_a_late_answer_is_the_honest_one(how: Answer) -> None:
    messages = answer(how, FINGERPRINT, KEYS, CONTENT)
    began = asyncio.get_running_loop().time()
    assert [m async for m in messages] == MESSAGES[Answer.HONEST](FINGERPRINT, KEYS, CONTENT)
    assert asyncio.get_running_loop().time() - began >= LATE_S[how]


def test_a_wrong_length_fits_its_digest() -> None:
    found = blocks(Answer.WRONG_LENGTH)
    assert all(map(fits, found))
    assert {len(block.data) for block in found} == {4095}


@pytest.mark.parametrize("how", [Answer.WRONG_SIZE, Answer.OVERSIZED_MESSAGE, Answer.GARBAGE])
def test_what_breaks_the_form_is_refused_by_the_decoder(how: Answer) -> None:
    decoder = Decoder([4096] * len(KEYS), (1 << 20) + 1000)

    def decode() -> None:
        for message in MESSAGES[how](FINGERPRINT, KEYS, CONTENT):
            list(decoder.feed(message))

    with pytest.raises(PeerError):
        decode()


async def first(messages: AsyncIterator[T], count: int) -> list[T]:
    return [await asyncio.wait_for(anext(messages), 5) for _ in range(count)]


async def test_stalling_midway_sends_half_a_block_and_no_more() -> None:
    messages = answer(Answer.STALL_MIDWAY, FINGERPRINT, KEYS, CONTENT)
    (half,) = await first(messages, 1)
    assert HEADER_BYTES < len(half) < HEADER_BYTES + 4096
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(anext(messages), 0.1)


async def test_dripping_sends_a_byte_at_a_time() -> None:
    messages = answer(Answer.DRIP, FINGERPRINT, KEYS, CONTENT)
    header, byte = await first(messages, 2)
    assert (len(header), len(byte)) == (HEADER_BYTES, 1)


def test_the_plain_content_is_told_by_its_key() -> None:
    assert honest_block("a") != honest_block("b")
    assert len(honest_block("a")) == 4096


def test_the_books_know_the_most_within_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.8, 1.6, 5.0])
    monkeypatch.setattr("chaos.hostile.books.time.monotonic", lambda: next(times))
    books = Books(window_s=1.0)
    for size, asked in ((10, 0.0), (20, 0.7), (30, 1.5), (1, 3.0)):
        books.got(size, asked)
    assert (books.bytes, books.window_bytes_max, books.burst_bytes_max) == (61, 50, 30)


def test_claims_are_the_keys_of_the_load() -> None:
    claims = LoadClaims(
        tag="t", owners=("a", "b"), chains=2, blocks=3, block_bytes=8, namespaces=(DEMO,)
    )
    assert len(claims.keys()) == len(set(claims.keys())) == 12
    assert set(claims.contents()) == {FINGERPRINT}
    assert [owner(key) for key in list(claims.keys())] == ["a"] * 6 + ["b"] * 6
    assert owner("alien") == ""


@pytest.fixture
def west(tmp_path: Path) -> tuple[Speaker, GossipEngine]:
    """West speaks, and east's gossip judges what it says."""
    made = Made(tmp_path)
    peering, credentials = made.peering("west", "east"), made.of("west")
    east = GossipEngine(
        "east",
        "demo",
        made.of("east").signing_key,
        {"west": [key.public for key in made.peering("east", "west").peers[0].keys]},
        epoch=1,
        boot_nonce=bytes(16),
        config=GossipConfig.test(),
        rng=random.Random(1),
        now=0.0,
    )
    return Speaker(peering, credentials, epoch=3), east


def judged(west: tuple[Speaker, GossipEngine], count: int) -> tuple[set[Receipt], set[Reason]]:
    """What east makes of the next hellos."""
    speaker, east = west
    receipts = {east.receive("west", speaker.reply(), 1.0 + i) for i in range(count)}
    rejected = {e.reason for e in east.events() if isinstance(e, StatementRejected)}
    return receipts, rejected


def test_an_honest_speaker_is_believed(west: tuple[Speaker, GossipEngine]) -> None:
    receipts, rejected = judged(west, 5)
    assert Receipt.ACCEPTED in receipts
    assert not rejected


def test_equivocation_is_two_statements_at_one_place(west: tuple[Speaker, GossipEngine]) -> None:
    judged(west, 1)
    west[0].how = "equivocate"
    receipts, rejected = judged(west, 20)
    assert Receipt.ACCEPTED in receipts
    assert rejected == {Reason.EQUIVOCATION}


def test_a_replay_has_its_own_past_and_the_words_of_others(
    west: tuple[Speaker, GossipEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker, east = west
    east.tick(5.0)
    (hello,) = east.outbox()
    speaker.heard(hello.hello.SerializeToString())
    times = itertools.count(1e6)  # each statement a second after the last: the past is old
    monkeypatch.setattr("chaos.hostile.statements.time.monotonic", lambda: next(times))
    judged(west, 3)
    speaker.how = "replay"
    receipts, rejected = judged(west, 5)  # not by chance: every four replies have both
    assert {Receipt.STALE, Receipt.REJECTED} <= receipts
    assert rejected <= {Reason.BAD_SIGNATURE, Reason.OTHER_GROUP}
    assert rejected


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        (Greeting.PLAIN, None),
        (Greeting.POSITIONS, None),
        (Greeting.STALE, None),
        (Greeting.CROWD, Reason.OVERSIZE),
        (Greeting.SIGNATURE, Reason.BAD_SIGNATURE),
    ],
)
def test_a_greeting_is_at_the_limits_or_above_them(
    tmp_path: Path, kind: Greeting, refused: Reason | None
) -> None:
    made = Made(tmp_path)
    config = GossipConfig()
    speaker = Speaker(made.peering("west", "east"), made.of("west"), epoch=3)
    greetings = Greetings(speaker.hello, speaker.old)
    hello = peer_pb2.HelloRequest.FromString(greetings.of(kind))
    assert hello.ByteSize() <= config.max_hello_bytes
    assert (len(hello.positions) >= config.positions_per_hello) == (
        kind in (Greeting.POSITIONS, Greeting.CROWD)
    )
    assert len(hello.relayed) == (config.relay_per_hello if kind is Greeting.STALE else 0)
    with pytest.raises(StatementError) if refused else nullcontext() as raised:
        check_hello(hello, config)
    assert (raised.value.reason if raised else None) == refused


def test_one_program_is_one_hostile_peer_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Made(tmp_path).peering("west", "east")
    load = LoadClaims(
        tag="t", owners=("west",), chains=2, blocks=2, block_bytes=4096, namespaces=("demo",)
    )
    (tmp_path / "load.json").write_text(load.model_dump_json())
    common = [f"--config={tmp_path}/west.toml", "--listen=127.0.0.1:0", "--behaviour=honest"]
    common += [f"--load={tmp_path}/load.json", "--target=east"]
    lines = [
        json.dumps({"arguments": [*common, "--epoch=1", "--attack=hellos"]}), "go", "rest",
        json.dumps({"arguments": [*common, "--epoch=2", "--attack=hellos"]}), "rest",
        json.dumps({"arguments": [*common, "--epoch=3"]}), "go", "rest",
    ]  # fmt: skip
    read, write = os.pipe()
    os.write(write, "".join(f"{line}\n" for line in lines).encode())
    os.close(write)
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        asyncio.run(asyncio.wait_for(peer._lives(), 20))
    said = capfd.readouterr().out.splitlines()
    assert (said[0::3], said[2::3]) == (["ready"] * 3, ["ok"] * 3)
    attacked, asleep, quiet = (json.loads(line) for line in said[1::3])
    assert "refused" in attacked
    assert asleep == quiet == {"pulls": 0, "catalogs": 0}, "the second was not woken"
