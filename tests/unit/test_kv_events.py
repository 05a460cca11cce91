"""KV events: what a publisher's messages say, and what follows for the holdings; the publisher is made up, by
Mooncake's description of it (docs/source/design/kv-event/publisher-design.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq.asyncio

from federation import kv_events as module
from federation.identity import Fingerprint, read_stored_key, stored_key
from federation.kv_events import KvEvents
from local_group.holdings import OWN, UNKNOWN, Holdings
from local_group.journal import Entry, Journal
from local_group.kv_events import EVENTS_MAX, PAYLOAD_BYTES_MAX, Event, EventStream
from local_group.ledger import Ledger, own
from local_group.names import name_of
from tests.support.wait import wait_for_async

FP = Fingerprint(b"f" * 16)
OTHER = Fingerprint(b"x" * 16)
DIGEST = b"d" * 16


def event(kind: str, key: str | None, **changes: Any) -> dict[str, Any]:
    """A map with the fields of the description."""
    made = {
        "event_id": 1,
        "timestamp": 1_700_000_000_000,
        "event_type": kind,
        "model_name": "m",
        "block_size": 16,
        "additional_salt": None,
        "lora_name": None,
        "tenant_id": "default",
        "backend_id": "pool-a",
        "medium": None if kind == "cleared" else "cpu",
        "dp_rank": 0,
        "type": {"stored": "BlockStored", "removed": "BlockRemoved"}.get(kind, "AllBlocksCleared"),
    }
    if key is not None:
        made |= {"group_id": None, "seq_hashes": [], "base_block_idx": None, "object_key": key}
    return made | changes


def message(seq: int, *events: dict[str, Any]) -> list[bytes]:
    payload = msgspec.msgpack.encode([1_700_000_000_000, list(events), 0])
    return [b"", seq.to_bytes(8, "big"), payload]


def test_events_in_their_order() -> None:
    stream = EventStream()
    assert "not known" in stream.receive(message(7, event("stored", "a"))).rescan
    news = stream.receive(message(8, event("stored", "b"), event("removed", "a")))
    assert (news.events, news.rescan) == ([Event("b", True), Event("a", False)], "")
    assert stream.receive(message(9, event("cleared", None))).rescan == "all was cleared"
    assert stream.receive(message(10)).rescan == ""
    assert (stream.messages, stream.gaps, stream.malformed) == (4, 0, 0)


@pytest.mark.parametrize("seq", [10, 1, 8, 7])
def test_a_gap_a_repetition_and_a_new_publisher_mean_a_listing(seq: int) -> None:
    stream = EventStream()
    stream.receive(message(8))
    news = stream.receive(message(seq, event("stored", "a")))
    assert news.rescan
    assert news.events == [Event("a", True)], "what it says is of use all the same"
    assert stream.receive(message(seq + 1)).rescan == ""
    assert stream.gaps == 1


def test_other_tenants_and_events_that_are_not_known_are_passed_over() -> None:
    stream = EventStream()
    stream.receive(message(1))
    theirs = [event(kind, "a", tenant_id="x") for kind in ("stored", "cleared")]
    news = stream.receive(message(2, *theirs, event("moved", "b")))
    assert (news.events, news.rescan) == ([], "")


def test_without_keys_there_are_listings() -> None:
    stream = EventStream()
    stream.receive(message(1))
    made = event("stored", "a")
    del made["object_key"]
    assert "emit_object_key" in stream.receive(message(2, made)).rescan


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"", bytes(8)],
        [b"", bytes(7), msgspec.msgpack.encode([1, [], 0])],
        [b"", bytes(8), b""],
        [b"", bytes(8), msgspec.msgpack.encode({"a": 1})],
        [b"", bytes(8), msgspec.msgpack.encode([1, [{"event_type": 5}], 0])],
        [
            b"",
            bytes(8),
            msgspec.msgpack.encode([1, [{"event_type": "stored", "object_key": 5}], 0]),
        ],
        [b"", bytes(8), b"\xdd\xff\xff\xff\xff"],
        [b"", bytes(8), bytes(PAYLOAD_BYTES_MAX + 1)],
        [b"", bytes(8), msgspec.msgpack.encode([1, [{"event_type": "x"}] * (EVENTS_MAX + 1), 0])],
    ],
)
def test_a_message_that_is_none_means_a_listing_and_nothing_else(frames: list[bytes]) -> None:
    stream = EventStream()
    stream.receive(message(1))
    news = stream.receive(frames)
    assert (news.events, news.rescan, stream.malformed) == ([], "a message that is none", 1)
    assert stream.receive(message(2)).rescan


class Master:
    """Its admin side."""

    def __init__(self) -> None:
        self.enabled = True
        self.keys: set[str] = set()
        self.asked: list[int] = []

    async def kv_events(self) -> bool:
        return self.enabled

    async def query(self, keys: Iterable[str]) -> dict[str, int | None]:
        wanted = list(keys)
        self.asked.append(len(wanted))
        return {key: 5 for key in wanted if key in self.keys}


class Gateway:
    def __init__(self, folder: Path, address: str = "127.0.0.1:1") -> None:
        self.master = Master()
        self.rescans = 0
        self.problems: list[str] = []
        self.holdings = Holdings(blocks_max=100_000, hop_limit=1, on_change=lambda _: None)
        self.ledger = Ledger(self.holdings, Journal(folder, 1 << 20), imported=[OTHER], alone=False)
        self.events = KvEvents(
            address,
            self.ledger,
            self.master,  # type: ignore[arg-type]
            namespaces=[FP, OTHER],
            classify=read_stored_key,
            rescan=self._rescan,
            on_problem=self.problems.append,
        )
        self.seq = 0

    def _rescan(self) -> None:
        self.rescans += 1

    async def say(self, *events: dict[str, Any]) -> None:
        self.seq += 1
        await self.events.take(message(self.seq, *events))

    def held(self, fingerprint: bytes = FP) -> set[int]:
        return set(self.holdings.after(fingerprint, -1, 100_000))


def names(*keys: str, fingerprint: bytes = FP) -> set[int]:
    return {name_of(fingerprint, key) for key in keys}


def stored(key: str, fingerprint: Fingerprint = FP) -> dict[str, Any]:
    return event("stored", stored_key(fingerprint, key))


def removed(key: str) -> dict[str, Any]:
    return event("removed", stored_key(FP, key))


async def test_what_is_stored_is_held_and_what_is_removed_is_asked_for(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    await gateway.ledger.load(None)
    await gateway.ledger.report([own(FP, "attested", 5, DIGEST), own(FP, "on disk", 5, DIGEST)])
    await gateway.say(stored("plain"), event("stored", "of nobody"))
    assert gateway.held() == names("attested", "on disk", "plain")
    gateway.master.keys = {stored_key(FP, "on disk"), stored_key(FP, "stored again")}
    await gateway.say(removed("attested"), removed("on disk"), removed("plain"))
    assert gateway.held() == names("attested", "on disk", "plain"), "not before the master is asked"
    await gateway.say(removed("plain"), stored("plain"))
    await gateway.events.ask()
    assert gateway.master.asked == [2], "one that was stored again is not asked for"
    assert gateway.held() == names("on disk", "plain")
    held = gateway.holdings.get(FP, "on disk")
    assert held is not None
    assert held.attested, "it is gone from memory alone"
    assert gateway.rescans == 1, "the first message alone"
    await gateway.ledger.close()


async def test_what_happens_in_another_groups_pool_says_nothing(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    await gateway.ledger.load(None)
    await gateway.ledger.report([own(FP, "own", 5, DIGEST)])
    await gateway.say(removed("own"))
    gateway.ledger.elsewhere = lambda: True
    await gateway.say(removed("own"), stored("theirs"))
    await gateway.events.ask()
    assert (gateway.master.asked, gateway.held()) == ([], names("own"))
    gateway.ledger.elsewhere = lambda: False
    await gateway.say(stored("ours"))
    assert gateway.held() == names("own", "ours")
    await gateway.ledger.close()


async def test_whose_a_stored_block_is_is_no_surer_than_with_a_listing(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    await gateway.ledger.load(None)
    pulled = Entry(OTHER, name_of(OTHER, "pulled"), 5, DIGEST, "west", 3, 1)
    await gateway.ledger.announce([pulled])
    await gateway.say(stored("pulled", OTHER), stored("doubtful", OTHER), stored("own"))
    origins = {name: held.origin for _, name, held in gateway.holdings.items()}
    assert origins == {
        pulled.name: "west",
        name_of(OTHER, "doubtful"): UNKNOWN,
        name_of(FP, "own"): OWN,
    }
    await gateway.ledger.close()
    assert [e.origin for e in Journal(tmp_path, 1 << 20).load()] == ["west", UNKNOWN]


async def test_with_too_much_removed_there_is_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMOVED_MAX", 3)
    gateway = Gateway(tmp_path)
    await gateway.say(*(removed(f"k{n}") for n in range(3)))
    assert gateway.rescans == 1
    await gateway.say(removed("k3"))
    assert gateway.rescans == 2
    await gateway.events.ask()
    assert gateway.master.asked == []


async def test_a_publisher_is_followed_missed_and_followed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    publisher.setsockopt(zmq.LINGER, 0)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    gateway = Gateway(tmp_path, f"127.0.0.1:{port}")
    gateway.master.enabled = False
    running = asyncio.create_task(gateway.events.run())
    seq = 0

    async def publish(*events: dict[str, Any]) -> None:
        nonlocal seq
        seq += 1
        await publisher.send_multipart(message(seq, *events))

    try:
        await wait_for_async(lambda: gateway.problems, 5, "it to be said that there are no events")
        gateway.master.enabled = True

        async def until_held(key: str) -> None:
            for _ in range(500):
                await publish(stored(key))
                if name_of(FP, key) in gateway.held():
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(f"{key} is not held")

        await until_held("a")
        assert gateway.rescans == 1
        seq += 5
        await until_held("b")
        assert gateway.rescans == 2, "something was missed"
        await publish(removed("a"))
        await wait_for_async(lambda: gateway.held() == names("b"), 5, "a to be withdrawn")
        seq = 0
        await until_held("c")
        assert gateway.rescans == 3, "the master was started anew"
        assert len(gateway.problems) == 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        publisher.close()
        context.term()
