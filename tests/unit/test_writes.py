"""Puts of an engine: after a stall of Mooncake, what was acknowledged is looked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from federation.batch import Batch
from federation.codes import OK, RPC_TIMEOUT
from federation.counters import counters
from federation.gateway_link import Report
from federation.identity import Fingerprint, block_digest
from federation.peer_reads import fill_from_peers
from federation.request_limits import RequestLimits
from federation.taken import TAKEN_SECONDS, Taken
from federation.timeouts import Deadline
from federation.writes import BESIDE_BYTES, Writes
from local_group.native import Replicate
from local_group.store import StoreClient, StoreClosed
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
        self.writes = Writes(self.client, None, FP, list)

    def put(self, *keys: str, until: Deadline | None = None) -> list[int]:
        memory = Memory(len(keys), SIZE)
        memory.fill(list(keys))
        return self.writes.put(keys, memory.ptrs, memory.sizes, until, None, 0)

    def stall(self, seconds: float) -> None:
        """A call is inside for so long, and was given up by its caller."""
        self.native.thaw.clear()

        def inside() -> bool:  # on a busy machine it may be given up before it has begun
            self.client.exists(["none"], 0.05)
            return self.client.stats().stuck == 1

        wait_for(inside, 5, "a call that is inside")
        self.now += seconds
        self.native.thaw.set()
        wait_for(lambda: self.client.stats().stuck == 0, 5, "the call to come back")


class FakeGatewayLink:
    """The part of a `GatewayLink` that writes use."""

    def __init__(self) -> None:
        self.taken = Taken(blocks_max=3)
        self.usable = True
        self.reported: list[tuple[str, int]] = []
        self.digests: list[bytes] = []
        self.limits = RequestLimits()
        self.delivered: set[str] = set()

    def report_all(self, written: Sequence[Report]) -> None:
        self.reported += [(key, place) for key, _, _, place in written]
        self.digests += [digest for _, _, digest, _ in written]

    def pull(
        self, keys: Sequence[str], sizes: Sequence[int], *_: object
    ) -> Iterator[tuple[int, int]]:
        yield from ((n, sizes[n]) for n, key in enumerate(keys) if key in self.delivered)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.writes.close()
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


def linked(bench: Bench) -> FakeGatewayLink:
    link = FakeGatewayLink()
    bench.writes = Writes(bench.client, link, FP, list)  # type: ignore[arg-type]
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
    taken.note("e", b"d")
    assert len(taken) == 1, "what is of no use any more takes no memory"


def test_what_nobody_has_any_more_is_written_as_new(bench: Bench) -> None:
    link = linked(bench)
    assert bench.put("a", "b") == [OK] * 2
    for key in ("a", "b"):
        link.taken.note(key, block_digest(FP, key, bench.native.blocks[key]))
    bench.native.blocks.clear()
    link.delivered = {"a"}
    filled = fill_from_peers(link, ["a", "b"], [1, 1], [8, 8], [-704, -704], 1.0)  # type: ignore[arg-type]
    assert list(filled) == [(0, 8)]
    assert bench.put("a", "b") == [OK] * 2
    assert set(bench.native.blocks) == {"b"}, (
        "the one that came is given back, the other is computed"
    )


LARGE = ["a", "b", "c"]


def put_large(bench: Bench) -> tuple[Memory, list[int]]:
    memory = Memory(len(LARGE), BESIDE_BYTES // 2)
    memory.fill(LARGE)
    return memory, bench.writes.put(LARGE, memory.ptrs, memory.sizes, None, None, 0)


def digests_of(memory: Memory) -> list[bytes]:
    return [block_digest(FP, key, memory.place(n)) for n, key in enumerate(LARGE)]


def test_digests_of_a_large_batch_are_made_beside_its_put(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = linked(bench)
    makers: list[str] = []
    digests = Batch.digests

    def noted(self: Batch, fingerprint: bytes) -> list[bytes | None]:
        makers.append(threading.current_thread().name)
        return digests(self, fingerprint)

    monkeypatch.setattr(Batch, "digests", noted)
    memory, codes = put_large(bench)
    assert codes == [OK] * 3
    assert link.digests == digests_of(memory)
    busy = threading.Event()
    bench.writes._beside.submit(busy.wait)
    memory, codes = put_large(bench)  # the thread has other things to do
    busy.set()
    assert codes == [OK] * 3
    assert link.digests == 2 * digests_of(memory)
    bench.put("small")
    me = threading.current_thread().name
    assert makers[1:] == [me, me]


def test_nobody_reads_the_callers_memory_after_a_put_that_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked(bench)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(self: Batch, fingerprint: bytes) -> list[bytes | None]:
        begun.set()
        assert go_on.wait(5)
        ended.set()
        return [None] * len(self.keys)

    def fails(*_: object) -> list[int]:
        assert begun.wait(5)
        threading.Timer(0.05, go_on.set).start()
        raise StoreClosed

    monkeypatch.setattr(Batch, "digests", slow)
    monkeypatch.setattr(bench.client, "put_from_direct", fails)
    with pytest.raises(StoreClosed):
        put_large(bench)
    assert ended.is_set()


def test_without_a_gateway_no_digests_are_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: Batch, fingerprint: bytes) -> list[bytes | None]:
        raise AssertionError("nobody is told of them")

    monkeypatch.setattr(Batch, "digests", never)
    assert bench.put("small") == [OK]
    assert put_large(bench)[1] == [OK] * 3


def test_a_large_put_after_the_close_is_told_that_it_is_closed(bench: Bench) -> None:
    linked(bench)
    bench.client.close()
    bench.writes.close()
    with pytest.raises(StoreClosed):
        put_large(bench)
