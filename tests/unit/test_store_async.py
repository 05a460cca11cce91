"""The store client as the gateway awaits it: views of bounce memory, and writes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from federation.transfer.slots import Slots
from local_group.outcome import Status
from tests.support.blocks import block_bytes
from tests.support.stores import SIZE, Make, is_calm, names, statuses, stores_over_fakes
from tests.support.timing import Timed
from tests.support.wait import wait_for


@pytest.fixture
def make() -> Iterator[Make]:
    with stores_over_fakes() as build:
        yield build


async def test_read_gives_views_until_release(make: Make) -> None:
    client, native = make()
    native.blocks.update(a=b"abc", b=b"defg")
    batch = await client.read(["a", "x", "b"], [SIZE, SIZE, SIZE], 1.0)
    assert statuses(batch.outcomes) == [Status.HIT, Status.MISS, Status.HIT]
    view = batch.view(0)
    assert (bytes(view), bytes(batch.view(2)), view.readonly) == (b"abc", b"defg", True)
    with pytest.raises(ValueError, match="OBJECT_NOT_FOUND"):
        batch.view(1)
    assert client.stats().bounce_used_bytes > 0
    batch.release()
    batch.release()
    with pytest.raises(ValueError, match="released"):
        bytes(view)
    with pytest.raises(ValueError, match="released"):
        batch.view(0)
    assert is_calm(client)


async def test_read_beyond_one_window_is_told_per_key(make: Make) -> None:
    client, native = make()
    native.blocks["a"] = b"a"
    half = 1 << 17
    async with await client.read(["a"] * 3, [half] * 3, 1.0) as batch:
        assert [o.error_name for o in batch.outcomes] == ["OK", "OK", "BOUNCE_EXCEEDED"]
    assert is_calm(client)


async def test_write_goes_in_windows_and_tells_bad_items(make: Make) -> None:
    client, native = make()
    items = [(f"k{i}", block_bytes(f"k{i}", 1 << 16)) for i in range(9)]
    mixed = [("", b"x"), *items, ("empty", b""), ("view", memoryview(b"abc"))]
    outcomes = await client.write(mixed, 5.0)
    assert [o.error_name for o in outcomes] == [
        "INVALID_PARAMS", *["OK"] * 9, "INVALID_PARAMS", "OK",
    ]  # fmt: skip
    assert native.blocks == {**dict(items), "view": b"abc"}
    assert is_calm(client)


async def test_a_write_in_place_needs_no_bounce_memory(make: Make) -> None:
    client, native = make(bounce_bytes=1 << 18, window_bytes=1 << 18)
    async with await client.read(["x"], [1 << 18], 1.0):  # all there is
        native.blocks["old"] = b"first"
        items = [("a", b"abc"), ("", b"x"), ("v", memoryview(b"abcd")), ("old", b"later")]
        outcomes = await client.write_in_place(items, 5.0)
    assert [o.error_name for o in outcomes] == ["OK", "INVALID_PARAMS", "OK", "OK"]
    assert native.blocks == {"a": b"abc", "v": b"abcd", "old": b"first"}


@pytest.mark.parametrize("cancelled", [False, True])
async def test_memory_of_a_write_in_place_stays_until_mooncake_has_returned(
    make: Make, cancelled: bool
) -> None:
    client, native = make()
    slots = Slots(1 << 16)
    slot = slots.take(SIZE)
    assert slot is not None
    slot[:] = block_bytes("a", SIZE)
    native.thaw.clear()
    writing = asyncio.create_task(client.write_in_place([("a", slot)], 20.0 if cancelled else 0.05))
    del slot
    await asyncio.to_thread(wait_for, lambda: native.calls == ["put"], 5, "the put")
    if cancelled:
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    else:
        assert statuses(await writing) == [Status.TIMEOUT]
    del writing
    gc.collect()
    assert slots.used_bytes >= SIZE, "Mooncake may still read it"
    native.thaw.set()
    await asyncio.to_thread(wait_for, lambda: slots.used_bytes == 0, 5, "the slot to be free")
    assert native.blocks == {"a": block_bytes("a", SIZE)}
    assert is_calm(client)


async def test_overdue_and_cancelled_awaits_quarantine(make: Make) -> None:
    client, native = make(workers_get=2)
    native.blocks["a"] = b"a"
    native.thaw.clear()
    with Timed() as timed:
        batch = await client.read(["a"], [SIZE], 0.05)
    timed.check(0.05, "a read")
    assert statuses(batch.outcomes) == [Status.TIMEOUT]
    batch.release()
    reading = asyncio.create_task(client.read(["a"], [SIZE], 20.0))
    await asyncio.to_thread(wait_for, lambda: len(native.calls) == 2, 5, "the second read")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    stats = client.stats()
    assert (stats.stuck, stats.quarantined_bytes, stats.active) == (2, 2 * SIZE, 0)
    native.thaw.set()
    await asyncio.to_thread(wait_for, lambda: is_calm(client), 5, "the quarantine to drain")


async def test_a_cancelled_wait_for_room_leaks_nothing(make: Make) -> None:
    client, native = make(bounce_bytes=1 << 18, window_bytes=1 << 18)
    native.blocks["a"] = b"a"
    batch = await client.read(["a"], [1 << 18], 1.0)
    waiting = asyncio.create_task(client.read(["a"], [SIZE], 20.0))
    await asyncio.to_thread(wait_for, lambda: client.stats().active == 1, 5, "the read to wait")
    assert names((await client.read(["a"], [SIZE], 1.0)).outcomes) == {"QUEUE_FULL"}
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    late = await client.read(["a"], [SIZE], 0.02)
    assert statuses(late.outcomes) == [Status.TIMEOUT]
    batch.release()
    assert is_calm(client)
    async with await client.read(["a"], [SIZE], 1.0) as again:
        assert statuses(again.outcomes) == [Status.HIT]
