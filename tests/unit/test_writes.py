"""Puts of an engine: after a stall of Mooncake, what was acknowledged is looked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from federation.codes import OK, RPC_TIMEOUT
from federation.counters import counters
from federation.gateway_link import Report
from federation.identity import Fingerprint, block_digest
from federation.taken import TAKEN_SECONDS, Taken
from federation.timeouts import Deadline
from federation.writes import Writes
from local_group.native import Replicate
from local_group.store import StoreClient
from local_group.store_config import StoreLimits
from tests.support.blocks import Memory
from tests.support.fake_native import FakeNative
from tests.support.wait import wait_for

SIZE = 100
FP = Fingerprint(bytes(16))
LIMITS = StoreLimits(bounce_bytes=1 << 20, window_bytes=1 << 18, stall_s=0.5, unsettled_s=35.0)


class Shadowing(FakeNative):
    """Answers 0 for `shadowed` keys, and does not have them: another client's put holds their place."""

    shadowed: frozenset[str] = frozenset()

    def put(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        replicate: Replicate | None,
    ) -> list[int]:
        codes = super().put(keys, ptrs, sizes, replicate)
        for key in self.shadowed.intersection(keys):
            self.blocks.pop(key, None)
        return codes


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.native = Shadowing()
        self.client = StoreClient(self.native, LIMITS, lambda: self.now)
        self.writes = Writes(self.client, None, FP, lambda key: key)

    def put(self, *keys: str, until: Deadline | None = None) -> list[int]:
        memory = Memory(len(keys), SIZE)
        memory.fill(list(keys))
        return self.writes.put(keys, memory.ptrs, memory.sizes, until, None, 0)

    def stall(self, seconds: float) -> None:
        """A call is inside for so long, and was given up by its caller."""
        self.native.thaw.clear()
        self.client.exists(["none"], 0.05)
        assert self.client.stats().stuck == 1
        self.now += seconds
        self.native.thaw.set()
        wait_for(lambda: self.client.stats().stuck == 0, 5, "the call to come back")


class FakeLink:
    """The part of a `GatewayLink` that writes use."""

    def __init__(self) -> None:
        self.taken = Taken(blocks_max=3)
        self.usable = True
        self.reported: list[tuple[str, int]] = []

    def report_all(self, written: Sequence[Report]) -> None:
        self.reported += [(key, place) for key, _, _, place in written]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.native.thaw.set()
    bench.client.close()


@pytest.mark.parametrize("until", [None, 5.0])
def test_after_a_stall_what_is_not_there_was_not_stored(bench: Bench, until: float | None) -> None:
    bench.native.shadowed = frozenset({"b"})
    bench.stall(0.5)
    before = counters.snapshot().get("moonmesh_puts_unconfirmed_total", 0)
    deadline = None if until is None else Deadline(until)
    assert bench.put("a", "b", "c", until=deadline) == [OK, RPC_TIMEOUT, OK]
    assert counters.snapshot()["moonmesh_puts_unconfirmed_total"] == before + 1


def test_a_healthy_mooncake_is_not_asked_twice(bench: Bench) -> None:
    assert bench.put("a") == [OK]
    bench.stall(0.49)
    assert bench.put("b") == [OK]
    assert bench.native.calls.count("exists") == 1, "the stalled one alone"


def test_it_is_asked_for_as_long_as_a_place_may_be_held(bench: Bench) -> None:
    bench.stall(0.5)
    bench.now += 34.9
    assert bench.put("a") == [OK]
    assert bench.native.calls.count("exists") == 2
    bench.now += 0.1
    assert bench.put("b") == [OK]
    assert bench.native.calls.count("exists") == 2


def test_a_call_that_still_hangs_is_a_stall(bench: Bench) -> None:
    assert not bench.client.unsettled()
    bench.native.thaw.clear()
    bench.client.exists(["none"], 0.05)
    assert bench.client.unsettled()


def linked(bench: Bench) -> FakeLink:
    link = FakeLink()
    bench.writes = Writes(bench.client, link, FP, lambda key: key)  # type: ignore[arg-type]
    return link


def test_what_came_from_a_peer_is_not_written_back(bench: Bench) -> None:
    link = linked(bench)
    assert bench.put("a", "b", "c", "d") == [OK] * 4
    written = dict(bench.native.blocks)
    bench.native.blocks.clear()
    link.reported.clear()
    for key in ("b", "c"):
        link.taken.note(key, block_digest(FP, key, written[key]))
    link.taken.note("d", bytes(16))  # what is written now is something else
    assert bench.put("a", "b", "c", "d") == [OK] * 4
    assert set(bench.native.blocks) == {"a", "d"}
    assert link.reported == [("a", 0), ("d", 3)], "their places are those of the caller's chain"
    assert bench.put("b", "c") == [OK] * 2
    assert set(bench.native.blocks) == {"a", "d"}
    link.usable = False  # a peer's copy is of no use now
    assert bench.put("b", "c") == [OK] * 2
    assert set(bench.native.blocks) == {"a", "b", "c", "d"}


def test_what_was_taken_is_remembered_for_a_while_and_up_to_a_limit() -> None:
    now = 0.0
    taken = Taken(blocks_max=3, clock=lambda: now)
    for key in "abcd":
        taken.note(key, b"d")
    assert len(taken) == 3
    assert [taken.same(key, b"d") for key in "abcd"] == [False, True, True, True]
    assert not taken.same("b", b"e")
    assert not taken.same("b", None)
    now = TAKEN_SECONDS + 0.1
    assert not taken.same("d", b"d")
