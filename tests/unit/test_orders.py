"""What an operator switches off: the record, the file that keeps it, and what a guard makes of it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation.cli.main import app
from federation.limits.names import GuardName
from federation.limits.orders import NAMES_MAX, RECORD_BYTES_MAX, SAID, SAID_HERE, Order, Orders
from federation.order_file import OrderError, OrderFile
from federation.switchboard import Switchboard
from tests.support.groups import write_group
from tests.support.guards import CATALOG, HELLO, PULL, guards, let_in, outgoing, refused
from tests.support.wait import wait_for_async


def test_an_order_holds_for_its_peer_and_off_for_all() -> None:
    orders = Orders().with_peer("west", Order.PAUSED, 1.0).with_peer("north", Order.DRAINED, 2.0)
    assert [orders.of(name) for name in ("west", "north", "south")] == ["paused", "drained", "on"]
    off = orders.with_federation(off=True, at=3.0)
    assert {off.of(name) for name in ("west", "north", "south")} == {Order.OFF}
    assert off.with_federation(off=False, at=4.0).of("west") is Order.PAUSED, "it was not forgotten"
    assert orders.with_peer("west", Order.ON, 5.0).peers == {"north": Order.DRAINED}


def test_a_record_says_what_was_ordered() -> None:
    orders = Orders(True, {"west": Order.PAUSED, "north": Order.DRAINED}, 12.5)
    assert Orders.decode(orders.encode()) == orders
    assert set(SAID) == set(SAID_HERE) == set(Order)


def test_orders_are_bounded_and_all_that_may_be_fit_the_record() -> None:
    orders = Orders()
    for i in range(NAMES_MAX):
        orders = orders.with_peer(f"{i:03}".ljust(31, "x"), Order.DRAINED, 1.0)
    assert len(orders.encode()) < RECORD_BYTES_MAX - 64
    assert Orders.decode(orders.encode()) == orders
    with pytest.raises(ValueError, match="256 is the limit"):
        orders.with_peer("one-more", Order.PAUSED, 1.0)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "Expecting value"),
        (b"[]", "other fields"),
        (b"{}", "other fields"),
        (b"\xff", "can't decode"),
        (json.dumps({"federation": "maybe", "peers": {}, "at": 0}).encode(), "neither on nor off"),
        (
            json.dumps({"federation": "on", "peers": {"a": "on"}, "at": 0}).encode(),
            "neither paused",
        ),
        (json.dumps({"federation": "on", "peers": {"a": "dead"}, "at": 0}).encode(), "not a valid"),
        (json.dumps({"federation": "on", "peers": [], "at": 0}).encode(), "no table"),
        (json.dumps({"federation": "on", "peers": {}, "at": "now"}).encode(), "no time"),
        (b" " * (RECORD_BYTES_MAX + 1), "is the limit"),
    ],
)
def test_what_is_no_record_is_not_taken_for_one(raw: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Orders.decode(raw)


def test_the_file_keeps_them(tmp_path: Path) -> None:
    file = OrderFile(tmp_path / "data")
    assert file.read() == Orders(), "nothing was ever switched off"
    file.change(lambda held: held.with_peer("west", Order.PAUSED, 1.0))
    file.change(lambda held: held.with_federation(off=True, at=2.0))
    assert OrderFile(tmp_path / "data").read() == Orders(True, {"west": Order.PAUSED}, 2.0)


def test_a_change_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    file = OrderFile(tmp_path)
    file.change(lambda held: held.with_peer("west", Order.PAUSED, 1.0))

    def refuse(held: Orders) -> Orders:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        file.change(refuse)
    assert file.read().of("west") is Order.PAUSED


def test_changes_of_two_commands_at_once_are_both_kept(tmp_path: Path) -> None:
    names = [f"peer-{i}" for i in range(16)]

    def pause(name: str) -> None:
        OrderFile(tmp_path).change(lambda held: held.with_peer(name, Order.PAUSED, 1.0))

    threads = [threading.Thread(target=pause, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(OrderFile(tmp_path).read().peers) == set(names)


def test_a_damaged_file_is_an_error_and_written_anew_only_where_that_is_asked(
    tmp_path: Path,
) -> None:
    file = OrderFile(tmp_path)
    file.change(lambda held: held.with_peer("west", Order.PAUSED, 1.0))
    file.path.write_bytes(b"x" * 100)
    with pytest.raises(OrderError, match="is damaged"):
        file.read()
    with pytest.raises(OrderError, match="is damaged"):
        file.change(lambda held: held)
    assert file.change(lambda held: held.with_federation(off=True, at=2.0), anew=True).off
    assert file.read() == Orders(off=True, changed_at=2.0)


def test_a_write_that_was_cut_off_leaves_what_was_there(tmp_path: Path) -> None:
    file = OrderFile(tmp_path)
    for at in (1.0, 2.0):
        file.change(lambda held, at=at: held.with_peer("west", Order.PAUSED, at))  # type: ignore[misc]
    data = bytearray(file.path.read_bytes())
    newest = data.index(b"2.0")
    data[newest : newest + 3] = b"9.9"  # as if only a part of it had reached the disk
    file.path.write_bytes(data)
    assert file.read().changed_at == 1.0


@pytest.mark.parametrize("order", [Order.PAUSED, Order.DRAINED, Order.OFF])
def test_a_peer_that_is_switched_off_may_say_hello_and_nothing_else(order: Order) -> None:
    guard = outgoing()
    guard.order = order
    let_in(guard, HELLO)
    for cost in (PULL, CATALOG):
        assert refused(guard, cost).reason is GuardName.SWITCH
        assert not guard.ready(cost.kind, 0.0)
    assert not refused(guard).passes, "nobody waits for an operator"
    guard.order = Order.ON
    let_in(guard)
    assert guard.ready(PULL.kind, 0.0)


def test_the_switch_can_be_switched_off_for_a_test() -> None:
    guard = outgoing(GuardName.SWITCH)
    guard.order = Order.PAUSED
    let_in(guard)


def test_all_is_off_at_a_start_that_cannot_read_the_file(tmp_path: Path) -> None:
    file, both = OrderFile(tmp_path), guards(peers=("west", "north"))
    file.path.write_bytes(b"damaged")
    board = Switchboard(file)
    board.load(both)
    assert {each.outgoing.order for each in both.values()} == {Order.OFF}
    assert "nothing is exchanged with peers until it can be read" in board.said()[0]
    assert board.status()["problem"]


async def test_what_is_in_force_stays_so_where_the_file_cannot_be_read_any_more(
    tmp_path: Path,
) -> None:
    file, both = OrderFile(tmp_path), guards(peers=("west", "north"))
    file.change(lambda held: held.with_peer("west", Order.PAUSED, time.time()))
    board = Switchboard(file)
    board.load(both)
    file.path.write_bytes(b"damaged")
    assert "stays in force" in await board.take()
    assert [both[name].outgoing.order for name in both] == [Order.PAUSED, Order.ON]
    file.change(lambda held: Orders(), anew=True)
    assert await board.take() == ""
    assert [both[name].outgoing.order for name in both] == [Order.ON, Order.ON]


async def test_an_order_is_found_although_the_command_that_gave_it_was_killed(
    tmp_path: Path,
) -> None:
    file, one = OrderFile(tmp_path), guards()
    board = Switchboard(file)
    board.load(one)
    watch = asyncio.create_task(board.watch())
    file.change(lambda held: held.with_peer("west", Order.DRAINED, 1.0))
    await wait_for_async(lambda: one["west"].outgoing.order is Order.DRAINED, 3, "the order")
    watch.cancel()
    assert board.word("west") == "drained"


def test_a_peer_is_draining_while_something_is_under_way_with_it(tmp_path: Path) -> None:
    file, one = OrderFile(tmp_path), guards()
    ticket = let_in(one["west"].outgoing)
    file.change(lambda held: held.with_peer("west", Order.DRAINED, 1.0))
    board = Switchboard(file)
    board.load(one)
    assert board.word("west") == "draining"
    assert board.status()["peers"] == {"west": "draining"}
    ticket.done(1.0)
    assert board.word("west") == "drained"


def test_a_peer_is_resumed_as_often_as_one_likes(tmp_path: Path) -> None:
    group = write_group(tmp_path, port_base=20_000, gateway={"peering": "absent.toml"})

    def resume() -> str:
        done = CliRunner().invoke(app, ["peer", "resume", "west", "-c", str(group)])
        assert done.exit_code == 0, done.output
        return done.stdout

    file = OrderFile(tmp_path / "data")
    file.change(lambda held: held.with_peer("west", Order.PAUSED, 1.0))
    assert resume().startswith("west is on here: written down")
    at = file.read().changed_at
    assert at > 1.0
    for _ in range(2):
        assert resume().startswith("west is on here, as before: it was neither paused nor drained")
    assert file.read() == Orders(changed_at=at), "nothing was changed"
    file.change(lambda held: held.with_federation(off=True, at=2.0))
    assert "but the whole federation is off here" in resume()
