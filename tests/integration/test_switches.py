"""Peers and the federation switched off and on, on real groups: at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from federation.order_file import OrderFile
from tests.support.federation import Federation, read, write
from tests.support.switches import all_on, order
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]

AT_ONCE = 1.0
"""Seconds within which an order is in force, from when its command has begun to write it."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("switch")) as federation:
        yield federation


@pytest.fixture(autouse=True)
def _all_on(pair: Federation) -> Iterator[None]:
    yield
    all_on(pair)


def chain(federation: Federation, tag: str, blocks: int = 4) -> list[str]:
    """A new chain in west, of which east knows."""
    keys = [f"{tag}-{i}" for i in range(blocks)]
    read(federation.engine("east"), [f"{tag}-nobody-has"])  # it follows west from now on
    write(federation.engine("west"), keys)

    def seen() -> bool:
        held = federation.status("west")["holdings"]["blocks"]
        views = federation.peer("east", "west")["views"]
        return sum(v["blocks"] for v in views) >= held > 0

    wait_for(seen, 10, f"east to see what west has: {federation.peer('east', 'west')}")
    return keys


class Reader(threading.Thread):
    """Reads block after block of west in east, and notes when each call ended and from where it came."""

    def __init__(self, federation: Federation, keys: list[str]) -> None:
        super().__init__(daemon=True)
        self._store, self._keys = federation.engine("east", deadline_ms=1000), keys
        self.read: list[tuple[float, float, str]] = []
        """When it began, when it ended, the tier."""
        self.stops = threading.Event()

    def run(self) -> None:
        for key in self._keys:
            if self.stops.is_set():
                return
            began = time.monotonic()
            (tier,) = read(self._store, [key])
            self.read.append((began, time.monotonic(), tier))


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ("east", ("peer", "pause", "west")),
        ("west", ("peer", "pause", "east")),
        ("east", ("federation", "off")),
        ("west", ("peer", "drain", "east")),
    ],
)
def test_it_is_in_force_within_a_second(
    pair: Federation, who: str, words: tuple[str, ...], record_property: object
) -> None:
    keys = chain(pair, "-".join((who, *words)), 600)
    reader = Reader(pair, keys)
    reader.start()
    wait_for(lambda: any(tier == "peer" for *_, tier in reader.read), 10, "a block of west")
    file = OrderFile(pair.groups[who].config.data_dir)
    before = file.read().changed_at
    order(pair, who, *words)
    told = time.monotonic()
    written = told - (time.time() - file.read().changed_at)
    assert file.read().changed_at > before
    wait_for(lambda: reader.read[-1][0] > told + 0.3, 10, "reads after it")
    reader.stops.set()
    reader.join(10)
    last = max(ended for _, ended, tier in reader.read if tier == "peer")
    record_property(
        "figure", f"{words}: in force {1000 * (last - written):.0f} ms after it was written"
    )  # type: ignore[operator]
    assert last - written < AT_ONCE
    assert all(tier == "miss" for began, _, tier in reader.read if began > told), "nothing comes"
    slow = [ended - began for began, ended, _ in reader.read if began > told]
    assert sorted(slow)[len(slow) // 2] < 0.1, "and nobody waits for it"


def test_what_was_resumed_is_pulled_again_at_once(pair: Federation) -> None:
    keys = chain(pair, "again")
    order(pair, "west", "peer", "pause", "east")
    order(pair, "east", "federation", "off")
    assert read(pair.engine("east"), keys[:1]) == ["miss"]
    order(pair, "east", "federation", "on")
    order(pair, "west", "peer", "resume", "east")
    began = time.monotonic()
    wait_for(lambda: read(pair.engine("east"), keys) == ["peer"] * len(keys), 10, "the blocks")
    assert time.monotonic() - began < 3.0
