"""Turns and credit, whatever comes: shares are kept, nobody starves, nothing is held by who has left."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from federation.transfer.fair import FIRST_IN_A_ROW, WEIGHTS, FairQueue, PullClass
from federation.transfer.flight import PIECE_BYTES
from federation.transfer.schedule import STARVED_SECONDS, Claim, Schedule

FIRST, BATCH, PREFETCH = PullClass
MIB = 1 << 20
COST_MAX = 8


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    namespaces=st.integers(1, 4),
    first_share=st.floats(0.0, 1.0),
    turns=st.integers(50, 400),
)
def test_of_those_that_always_want_more_each_has_its_share(
    seed: int, namespaces: int, first_share: float, turns: int
) -> None:
    rng = random.Random(seed)
    queue: FairQueue[int] = FairQueue(10_000)
    flows: dict[int, tuple[PullClass, bytes, int]] = {}
    had: Counter[tuple[PullClass, bytes]] = Counter()
    row = 0

    def add(pull_class: PullClass, namespace: bytes) -> None:
        item, cost = len(flows), rng.randint(1, COST_MAX)
        flows[item] = (pull_class, namespace, cost)
        assert queue.add(item, pull_class, namespace, cost)

    for number in range(namespaces):
        for pull_class in WEIGHTS:
            for _ in range(3):
                add(pull_class, bytes([number]))
    for _ in range(turns):
        if rng.random() < first_share:
            add(FIRST, b"f")
        waits = queue.count(FIRST) > 0
        item = queue.peek()
        assert item is not None, "somebody waits, so it is somebody's turn"
        assert queue.peek() == item
        queue.take(item)
        pull_class, namespace, cost = flows[item]
        if pull_class is FIRST:
            row += 1
            assert row <= FIRST_IN_A_ROW
            continue
        assert not waits or row == FIRST_IN_A_ROW, "a first token is not kept waiting"
        row = 0
        had[pull_class, namespace] += cost
        add(pull_class, namespace)
    # Start-time fair queueing: two that always wait differ by one turn of each, by weight.
    by_class = {c: sum(n for (k, _), n in had.items() if k is c) / w for c, w in WEIGHTS.items()}
    assert max(by_class.values()) - min(by_class.values()) <= COST_MAX * sum(
        1 / w for w in WEIGHTS.values()
    )
    for pull_class in WEIGHTS:
        each = [had[pull_class, bytes([number])] for number in range(namespaces)]
        assert max(each) - min(each) <= 2 * COST_MAX


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("adlt"), st.integers(0, 10**6)), max_size=120))
def test_a_chain_keeps_its_order_and_the_queue_its_bound(steps: list[tuple[str, int]]) -> None:
    queue: FairQueue[int] = FairQueue(16)
    classes: dict[int, PullClass] = {}
    for number, (step, choice) in enumerate(steps):
        if step == "a":
            pull_class = list(PullClass)[choice % 3]
            added = queue.add(number, pull_class, b"", 1.0)
            assert added == (len(classes) < 16)
            if added:
                classes[number] = pull_class
        elif classes and step in "dl":
            item = sorted(classes)[choice % len(classes)]
            if step == "d":
                assert queue.drop(item)
                assert not queue.drop(item)
                del classes[item]
            else:
                classes[item] = FIRST
                queue.move(item, FIRST)
        elif step == "t":
            taken = queue.peek()
            assert (taken is None) == (not classes)
            if taken is not None:
                queue.take(taken)
                same = [item for item, c in classes.items() if c is classes[taken]]
                assert taken == min(same), "who came first in a class and namespace goes first"
                del classes[taken]
        assert len(queue) == len(classes) <= 16


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    streams=st.integers(1, 12),
    most=st.integers(1, 40),
    steps=st.integers(10, 300),
)
def test_what_may_be_under_way_is_bounded_and_freed(
    seed: int, streams: int, most: int, steps: int
) -> None:
    rng = random.Random(seed)
    schedule = Schedule(streams=streams, most=most, message_bytes=MIB)
    places: list[Claim] = []
    now = 0.0
    for _ in range(steps):
        now += rng.random() * 0.1
        step = rng.randrange(5)
        if step == 0:
            place = schedule.join(
                rng.choice(list(PullClass)),
                rng.choice([b"a", b"b"]),
                expects=rng.choice([None, 4096, MIB]),
            )
            if place is not None:
                places.append(place)
        elif places and step == 1:
            place = places.pop(rng.randrange(len(places)))
            before = schedule.outstanding
            schedule.leave(place)
            schedule.leave(place)
            assert schedule.outstanding == before - place.outstanding
        elif places and step == 2:
            schedule.reclass(rng.choice(places), rng.choice(list(PullClass)))
        elif places:
            place = rng.choice(places)
            schedule.came(place, min(place.outstanding, rng.randint(1, MIB)), now)
        while (turn := schedule.next()) is not None:
            schedule.begin(turn, now)
        schedule.credits(now)
        running = [place for place in places if place.began]
        lower = [place for place in running if not place.free]
        assert len(places) == len(schedule) <= most
        assert len(running) <= streams
        assert len(lower) <= max(1, streams - 1), "a stream is kept for first tokens"
        if len(running) < streams:
            assert all(p.began for p in places if p.pull_class is FIRST)
        if lower:
            piece = schedule.flight.piece(urgent=schedule.urgent)
            window = schedule.flight.window(urgent=schedule.urgent)
            most = window if len(lower) < 2 else max(piece, window - piece)
            crowded = all(p.outstanding >= most or not p.wants for p in lower)
            assert schedule.outstanding >= window or crowded, "what may be asked for is"
        for place in lower:
            assert place.outstanding or now - place.credited_at < STARVED_SECONDS
    for place in places:
        schedule.leave(place)
    assert (len(schedule), schedule.outstanding, schedule.next()) == (0, 0, None)
    assert not schedule.urgent


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), first=st.booleans())
def test_bytes_are_shared_by_class_and_namespace(seed: int, first: bool) -> None:
    rng = random.Random(seed)
    schedule = Schedule(streams=12, most=64, message_bytes=MIB)
    for pull_class in (PREFETCH, BATCH):
        for namespace in (b"a", b"b"):
            assert schedule.join(pull_class, namespace) is not None
    running: list[Claim] = []
    while (turn := schedule.next()) is not None:
        schedule.begin(turn, 0.0)
        running.append(turn)
    if first:
        urgent = schedule.join(FIRST, b"c")
        assert urgent is not None
        schedule.begin(urgent, 0.0)
    sent: list[Claim] = []
    """What the line carries, in the order in which it was asked for."""
    for place in running:
        sent += [place] * (place.given // (64 * 1024))
    rng.shuffle(sent)
    now = 0.0
    for _ in range(6000):
        now += 0.001
        if not sent:
            break
        schedule.came(sent.pop(0), 64 * 1024, now)
        for place, size in schedule.credits(now):
            sent += [place] * (size // (64 * 1024))
    had: Counter[PullClass] = Counter()
    for place in running:
        had[place.pull_class] += place.got
        assert place.got > 4 * PIECE_BYTES, "nobody starves"
    assert had[BATCH] > 2 * had[PREFETCH]
    for pull_class in WEIGHTS:
        one, other = (place.got for place in running if place.pull_class is pull_class)
        assert abs(one - other) <= 8 * MIB


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(2, 12), steps=st.integers(10, 200))
def test_no_more_is_under_way_than_the_window_and_a_piece(
    seed: int, streams: int, steps: int
) -> None:
    """Where everything comes in time, and nobody is urgent."""
    rng = random.Random(seed)
    schedule = Schedule(streams=streams, most=64, message_bytes=MIB)
    places: list[Claim] = []
    most = 0
    """Under the widest window so far: what was asked for then may still be under way."""
    for step in range(steps):
        if rng.random() < 0.5:
            place = schedule.join(
                rng.choice([BATCH, PREFETCH]), b"a", expects=rng.choice([None, MIB])
            )
            if place is not None:
                places.append(place)
        running = [place for place in places if place.outstanding]
        if running:
            place = rng.choice(running)
            schedule.came(place, rng.randint(1, place.outstanding), step * 1e-4)
        while (turn := schedule.next()) is not None:
            schedule.begin(turn, step * 1e-4)
        schedule.credits(step * 1e-4)
        flight = schedule.flight
        most = max(most, flight.window(urgent=False) + flight.piece(urgent=False))
        assert schedule.outstanding <= most
