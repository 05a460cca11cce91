"""The memory that staging lies in: a slot is free when nobody looks at it, and engines can only look."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.transfer.slots import SLOT_UNIT_BYTES, Slots
from federation.transfer.staging import StagedBlock, Staging
from local_group.bounce import PAGE

FP = b"f" * 16


def test_a_slot_is_taken_until_the_last_view_of_it_is_gone() -> None:
    slots = Slots(PAGE)
    slot = slots.take(100)
    assert slot is not None
    assert len(slot) == 100
    part = slot[10:20]
    del slot
    assert slots.used_bytes == 2 * SLOT_UNIT_BYTES
    del part
    assert slots.used_bytes == 0


def test_a_view_may_be_let_go_of_by_any_thread() -> None:
    slots = Slots(PAGE)
    held = [slots.take(PAGE)]
    assert slots.take(1) is None, "no more than there is"
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert slots.take(PAGE) is not None


def test_what_is_written_to_a_slot_is_found_at_its_offset_by_who_maps_the_memory() -> None:
    slots = Slots(4 * PAGE)
    first, second = slots.take(100), slots.take(5)
    assert first is not None
    assert second is not None
    second[:] = b"bytes"
    seen = mmap.mmap(slots.fd, slots.size, prot=mmap.PROT_READ)
    assert seen[slots.offset(second) : slots.offset(second) + 5] == b"bytes"
    assert slots.offset(first) == 0
    assert slots.offset(second[2:]) == slots.offset(second) + 2


def test_whoever_has_the_descriptor_can_neither_write_nor_shrink_nor_unseal() -> None:
    slots = Slots(PAGE)
    assert slots.lends
    for attempt in (
        lambda: mmap.mmap(slots.fd, PAGE),
        lambda: os.pwrite(slots.fd, b"x", 0),
        lambda: os.ftruncate(slots.fd, 0),
        lambda: os.ftruncate(slots.fd, 2 * PAGE),
        lambda: fcntl.fcntl(slots.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    ):
        with pytest.raises(PermissionError):
            attempt()


def test_two_memories_have_two_names() -> None:
    assert Slots(PAGE).name != Slots(PAGE).name != 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3 * PAGE), st.booleans()), max_size=30))
def test_slots_never_overlap(steps: list[tuple[int, bool]]) -> None:
    slots = Slots(8 * PAGE)
    held: list[memoryview] = []
    for number, (size, free_one) in enumerate(steps):
        slot = slots.take(size)
        if slot is not None:
            slot[:] = bytes([number % 256]) * size
            held.append(slot)
        if free_one and held:
            held.pop(0)
        del slot
        spans = sorted((slots.offset(view), len(view)) for view in held)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
        assert all(len(set(view)) == 1 for view in held), "bytes of another slot"


def test_staging_gives_a_slot_back_when_its_block_goes_and_nobody_reads_it() -> None:
    slots = Slots(4 * PAGE)
    staging = Staging(bytes_max=4 * PAGE, hold=1.0, memory=slots.take)

    def land(key: str, now: float) -> StagedBlock:
        data = staging.reserve(PAGE, now)
        assert data is not None
        block = StagedBlock(FP, key, data, b"d" * 16, "west", 1, now, now)
        staging.land(block, PAGE)
        return block

    read = land("read", 0.0)
    for number in range(3):
        land(str(number), 0.0)
    assert staging.reserve(PAGE, 0.5) is None, "all are within their time"
    land("new", 2.0)  # "read" goes first, but is being read: the next one's slot is taken
    assert staging.get(FP, "read") is None
    assert staging.get(FP, "0") is None
    assert staging.get(FP, "1") is not None
    assert slots.used_bytes == 4 * PAGE
    del read
    assert slots.used_bytes == 3 * PAGE
