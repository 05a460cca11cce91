"""Bounce memory: spans never overlap, nothing leaks, the line is served in order."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from local_group.bounce import PAGE, Arena, BounceMemory, Waiter

PAGES = 64


class ArenaMachine(RuleBasedStateMachine):
    """Any order of takes and gives, against a map of pages."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(PAGES * PAGE)
        self.spans: dict[int, int] = {}

    def longest_gap(self) -> int:
        used = {p for at, n in self.spans.items() for p in range(at // PAGE, (at + n) // PAGE)}
        best = run = 0
        for page in range(PAGES):
            run = 0 if page in used else run + 1
            best = max(best, run)
        return best

    @rule(size=st.integers(1, PAGES * PAGE + 1))
    def take(self, size: int) -> None:
        pages = -(-size // PAGE)
        fits = pages <= self.longest_gap()
        offset = self.arena.take(size)
        assert (offset is not None) == fits, "taken exactly when a gap is long enough"
        if offset is None:
            return
        assert offset % PAGE == 0
        assert 0 <= offset <= offset + pages * PAGE <= self.arena.size
        for at, length in self.spans.items():
            assert offset + pages * PAGE <= at or at + length <= offset, "overlap"
        self.spans[offset] = pages * PAGE

    @precondition(lambda self: self.spans)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.spans)))
        assert self.arena.give(offset) == self.spans.pop(offset)
        with pytest.raises(KeyError):
            self.arena.give(offset)

    @invariant()
    def every_byte_is_free_or_taken_once(self) -> None:
        assert self.arena.taken == self.spans
        spans = sorted([*self.arena.free, *self.spans.items()])
        at = 0
        for offset, length in spans:
            assert offset == at
            assert length > 0
            at += length
        assert at == self.arena.size
        assert self.arena.free_bytes == sum(length for _, length in self.arena.free)

    @invariant()
    def free_neighbours_are_merged(self) -> None:
        free = self.arena.free
        for (a, n), (b, _) in pairwise(free):
            assert a + n < b


ArenaMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestArena = ArenaMachine.TestCase


@pytest.mark.parametrize("size", [0, -PAGE, PAGE + 1])
def test_arena_size_is_whole_pages(size: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        Arena(size)


def test_views_write_through_to_the_address() -> None:
    memory = BounceMemory(4 * PAGE, 1)
    first, second = memory.take(PAGE), memory.take(PAGE)
    assert first is not None
    assert second is not None
    memory.view(first, 3)[:] = b"abc"
    memory.view(second, 3)[:] = b"xyz"
    assert ctypes.string_at(memory.address + first, 3) == b"abc"
    assert ctypes.string_at(memory.address + second, 3) == b"xyz"
    assert memory.used_bytes == 2 * PAGE


def join(memory: BounceMemory, size: int, order: list[str], name: str) -> Waiter | None:
    return memory.wait_in_line(size, lambda: order.append(name))


def test_line_is_served_in_order_and_nobody_overtakes() -> None:
    memory = BounceMemory(4 * PAGE, 2)
    a, b = memory.take(2 * PAGE), memory.take(2 * PAGE)
    assert a is not None
    assert b is not None
    order: list[str] = []
    large = join(memory, 4 * PAGE, order, "large")
    small = join(memory, PAGE, order, "small")
    assert join(memory, PAGE, order, "third") is None, "the line is bounded"
    memory.give(a)
    assert order == [], "a small one does not starve the large one before it"
    assert memory.take(PAGE) is None
    memory.give(b)
    assert order == ["large"]
    assert large is not None
    assert large.offset is not None
    memory.give(large.offset)
    assert order == ["large", "small"]
    assert small is not None
    assert small.offset is not None
    memory.give(small.offset)
    assert memory.used_bytes == 0


def test_leaving_the_line_serves_the_next_and_returns_what_was_granted() -> None:
    memory = BounceMemory(4 * PAGE, 4)
    held = memory.take(2 * PAGE)
    assert held is not None
    order: list[str] = []
    large = join(memory, 4 * PAGE, order, "large")
    small = join(memory, 2 * PAGE, order, "small")
    assert large is not None
    assert small is not None
    memory.leave_line(large)
    assert order == ["small"]
    memory.leave_line(small)  # granted already, but its caller had given up: nothing leaks
    memory.give(held)
    assert memory.used_bytes == 0
    assert memory.take(4 * PAGE) == 0
