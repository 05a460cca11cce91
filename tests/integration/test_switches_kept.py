"""Peers and the federation switched off, on real groups: for good, and told to everybody."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from federation.limits.orders import Order
from federation.order_file import OrderFile
from tests.support.federation import Federation
from tests.support.groups import moonmesh
from tests.support.switches import all_on, order
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("switch")) as federation:
        yield federation


@pytest.fixture(autouse=True)
def _all_on(pair: Federation) -> Iterator[None]:
    yield
    all_on(pair)


def test_both_sides_say_why_and_nobody_is_taken_for_dead(pair: Federation) -> None:
    assert order(pair, "west", "peer", "pause", "east") == "east is paused here\n"
    refused = "it refuses: paused by its operator"
    wait_for(lambda: pair.peer("east", "west")["reason"] == refused, 10, "east to hear of it")
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


def test_a_gateway_that_does_not_answer_is_said_and_goes_by_it_later(pair: Federation) -> None:
    group = pair.groups["east"]
    group.kill("gateway", signal.SIGSTOP)
    try:
        done = moonmesh("peer", "pause", "west", "-c", group.path)
        assert done.returncode == 1
        assert "written down, and not in force yet" in done.stderr
    finally:
        group.kill("gateway", signal.SIGCONT)
    wait_for(lambda: pair.peer("east", "west").get("order") == "paused", 10, "it to go by it")


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
    assert (done.returncode, done.stdout) == (
        0,
        "west is on here, as before: it was neither paused nor drained\n",
    )
