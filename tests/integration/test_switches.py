"""Peers and the federation switched off and on, on real groups: at once, for good, and told to everybody."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from federation.limits.orders import Order
from federation.order_file import OrderFile
from tests.support.federation import Federation, read, write
from tests.support.groups import moonmesh
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
    for name in pair.groups:
        order(pair, name, "federation", "on", "--forget")
    for name, other in (("east", "west"), ("west", "east")):

        def usable(name: str = name, other: str = other) -> bool:
            peer = pair.peer(name, other)
            return peer.get("order") == "on" and not peer["reason"].startswith("it refuses: ")

        wait_for(usable, 10, f"{name} to be on with {other} again: {pair.peer(name, other)}")


def order(federation: Federation, name: str, *words: str) -> str:
    """Gives an order, and returns what was said; it is in force then."""
    done = moonmesh(*words, "-c", federation.groups[name].path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


def test_both_sides_say_why_and_nobody_is_taken_for_dead(pair: Federation) -> None:
    assert order(pair, "west", "peer", "pause", "east") == "east is paused here\n"
    refused = "it refuses: paused by its operator"
    wait_for(lambda: pair.peer("east", "west")["reason"] == refused, 5, "east to hear of it")
    status = moonmesh("status", "-c", pair.groups["west"].path)
    assert status.returncode == 0, "it is no fault"
    assert "peer east is paused: `moonmesh peer resume east`" in status.stdout
    wide = moonmesh("status", "-c", pair.groups["east"].path, env={"COLUMNS": "250"})
    assert refused in wide.stdout
    hellos = pair.peer("east", "west")["version"]
    wait_for(lambda: pair.peer("east", "west")["version"] != hellos, 10, "gossip to go on")
    for name, other in (("east", "west"), ("west", "east")):
        assert pair.peer(name, other)["state"] == "alive"
        assert pair.peer(name, other)["breaker"] == "closed"
    assert pair.status("west")["switches"]["peers"] == {"east": "paused"}
    assert pair.status("east")["switches"]["peers"] == {}


def test_it_holds_after_the_gateway_and_the_group_were_restarted(pair: Federation) -> None:
    order(pair, "west", "peer", "pause", "east")
    group = pair.groups["west"]
    old = group.kill("gateway")
    wait_for(lambda: group.pid("gateway") != old and group.phase("gateway") == "ready", 30, "it")
    assert pair.status("west")["switches"]["peers"] == {"east": "paused"}
    old = pair.status("west")["serving"]["pid"]
    os.kill(old, signal.SIGKILL)
    serving = lambda: pair.peer("west", "east")["guards"]["incoming"]["order"]  # noqa: E731
    wait_for(lambda: pair.status("west")["serving"]["pid"] not in (None, old), 20, "the next one")
    wait_for(lambda: serving() == "paused", 10, "the next serving process to go by it")
    group.down()
    assert "peer east is paused here" in moonmesh("status", "-c", group.path).stdout
    order(pair, "west", "federation", "off")  # also while nothing runs
    group.up()
    assert pair.status("west")["switches"]["federation"] == "off"
    pair.wait_until_alive()
    order(pair, "west", "federation", "on")
    assert pair.peer("west", "east")["order"] == "paused", "that was not taken back"
    # Its engine was connected to the master that is gone, and finds out with the first call.
    engine = pair.engine("west")
    wait_for(lambda: engine.put("here again", b"x") == 0, 10, "its engine to be connected anew")


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


def test_a_gateway_that_does_not_answer_is_said_and_goes_by_it_later(pair: Federation) -> None:
    group = pair.groups["east"]
    group.kill("gateway", signal.SIGSTOP)
    try:
        done = moonmesh("peer", "pause", "west", "-c", group.path)
        assert done.returncode == 1
        assert "written down, and not in force yet" in done.stderr
    finally:
        group.kill("gateway", signal.SIGCONT)
    wait_for(lambda: pair.peer("east", "west").get("order") == "paused", 5, "it to go by it")


def test_a_record_that_cannot_be_read_switches_all_off_at_a_start_and_says_so(
    pair: Federation,
) -> None:
    group = pair.groups["east"]
    order(pair, "east", "peer", "pause", "west")
    OrderFile(group.config.data_dir).path.write_bytes(b"damaged")
    done = moonmesh("peer", "resume", "west", "-c", group.path)
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert "federation on --forget" in done.stderr
    old = group.kill("gateway")
    wait_for(lambda: group.pid("gateway") != old and group.phase("gateway") == "ready", 30, "it")
    assert pair.peer("east", "west")["order"] == Order.OFF.value
    said = " ".join(moonmesh("status", "-c", group.path).stdout.split())
    assert "nothing is exchanged with peers until it can be read" in said


def test_mistakes_are_told(pair: Federation) -> None:
    path = pair.groups["east"].path
    done = moonmesh("peer", "pause", "wset", "-c", path)
    assert done.returncode == 2
    assert '"wset" is not a peer of this group' in done.stderr
    assert "its peers: west" in done.stderr
    done = moonmesh("peer", "resume", "west", "-c", path)
    assert done.returncode == 1
    assert "was neither paused nor drained" in done.stdout
