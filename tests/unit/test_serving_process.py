"""What a gateway makes of a serving process that is broken, or somebody else's by now."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from federation.cli.guards import guards_line
from federation.config import GroupFile, Limits, load_group
from federation.counters import COUNTER_NAMES, Counters, counters
from federation.limits.guards import Guards
from federation.limits.names import Failure, GuardName, Kind
from federation.limits.ticket import Cost, Ticket
from federation.peers.callers import Caller, Callers
from federation.peers.channel import Channel, ChannelError
from federation.peers.child import ServingProcess
from federation.peers.details import DETAILS_BYTES, read_details
from federation.peers.feed import Feed
from federation.peers.setup import Setup
from federation.peers.spawn import Spawned, Spawner
from federation.peers.watch import (
    LEAD_SECONDS,
    RESERVE_TICKS,
    RESERVE_TICKS_MAX,
    ReserveClock,
    next_tick,
)
from federation.timeouts import timeout
from federation.trust.credentials import TlsIdentity
from federation.trust.handshakes import RefusalLog
from local_group.holdings import Holdings
from moonmesh.v1 import peer_pb2, serving_pb2
from tests.support.groups import write_group
from tests.support.wait import wait_for

CAP = 1 << 20


class Gossip:
    """Hears what there is to hear, unless it is defective."""

    defect: Exception | None = None

    def heard(self, peer: str, hello: peer_pb2.HelloRequest) -> bool:
        if self.defect is not None:
            raise self.defect
        return True

    def all_heard(self) -> None:
        return

    def disbelieved(self, peer: str, reason: str, detail: str, count: int) -> None:
        return

    def newest(self, peer: str) -> None:
        return None

    def greeting(self) -> peer_pb2.HelloReply:
        return peer_pb2.HelloReply()


@pytest.fixture
def group(tmp_path: Path) -> GroupFile:
    return load_group(write_group(tmp_path, port_base=7400))


@pytest.fixture
def gossip() -> Gossip:
    return Gossip()


@pytest.fixture
async def serving(group: GroupFile, gossip: Gossip) -> AsyncIterator[ServingProcess]:
    tls = TlsIdentity("", b"", b"", b"", datetime.now(timezone.utc))
    holdings = Holdings(blocks_max=10, hop_limit=1, on_change=lambda _: None)
    process = ServingProcess(
        Setup(group, Callers("f", [Caller("west", [], frozenset())]), tls),
        Spawner(group),
        Feed(holdings, []),
        gossip,
        gone=lambda fingerprint, key, since: None,
        lost=lambda: None,
        refusals=RefusalLog(),
        on_problem=lambda what: None,
    )
    yield process
    await process.close()


def report(details: str) -> serving_pb2.FromServing:
    said = serving_pb2.ServingReport(details_json=details, store_well=True)
    return serving_pb2.FromServing(pong=serving_pb2.Pong(n=1, report=said))


async def heard_from(serving: ServingProcess, message: serving_pb2.FromServing) -> str:
    """What comes of a message and the end of the channel."""
    ours, theirs = socket.socketpair()
    near, far = await Channel.open(ours, CAP), await Channel.open(theirs, CAP)
    try:
        await far.send(message)
        far.close()
        async with timeout(5):
            return await serving._hear(near)
    finally:
        near.close()
        far.close()


@pytest.mark.parametrize(
    "details",
    [
        "[" * 200_000,
        '{"a":' * 100_000,
        '{"a":' * 40_000,
        '{"a":' * 10 + "1" + "}" * 10,
        '{"guards": 5}',
        "5",
        '{"blocks": NaN}',
        '{"blocks": -Infinity}',
        '{"blocks": 1' + "0" * 4000 + "}",
        '{"blocks": "' + "x" * 301 + '"}',
        '{"store": {"\\ud800": 1}}',
        '{"store": {"x": ["\\u001b[2J"]}}',
        json.dumps({"store": list(range(100_000))}),
    ],
    ids=lambda text: text[:20],
)
async def test_details_that_are_none_are_a_reason_to_kill(
    serving: ServingProcess, details: str
) -> None:
    before = counters.snapshot().get("moonmesh_serving_nonsense_total", 0)
    assert "sent what it may not" in await heard_from(serving, report(details))
    assert counters.snapshot()["moonmesh_serving_nonsense_total"] == before + 1
    assert serving.guards("west") is None


def reported(**said: Any) -> serving_pb2.FromServing:
    given = serving_pb2.ServingReport(details_json="{}", **said)
    return serving_pb2.FromServing(pong=serving_pb2.Pong(n=1, report=given))


@pytest.mark.parametrize(
    "message",
    [
        reported(counters={f"moonmesh_x{n}_total": 1 for n in range(COUNTER_NAMES + 1)}),
        reported(refused=[serving_pb2.RefusedEntry(who=str(n), count=1) for n in range(65)]),
        reported(refused=[serving_pb2.RefusedEntry(who="x", count=1, last_at=float("nan"))]),
    ],
    ids=["counters", "refused", "no time"],
)
async def test_lists_longer_than_there_can_be_are_a_reason_to_kill(
    serving: ServingProcess, message: serving_pb2.FromServing
) -> None:
    assert "sent what it may not" in await heard_from(serving, message)


async def test_counters_that_change_their_names_do_not_pile_up(
    serving: ServingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("federation.peers.watch.counters", Counters())
    heard, n = "", 0
    while not heard and n < 8:
        names = [f"moonmesh_y{n}_{i}_total" for i in range(COUNTER_NAMES // 4)]
        heard = await heard_from(serving, reported(counters=dict.fromkeys(names, 1)))
        n += 1
    assert "sent what it may not" in heard
    assert n == 5, "four reports have as many names as there can be"


async def test_whatever_passes_can_be_written_shown_and_is_small(serving: ServingProcess) -> None:
    west = {
        "lately": {"failures": {"x": "y"}, "refusals": {"": 1e19}},
        "paused_s": {"pull": [[]]},
        "leased_bytes": 1 << 64,
        "leased_bytes_allowed": -(1 << 64),
        "retries_left": -1.5,
        "retries_few": 1 << 64,
        "off": [None, {"a": {}}],
        "breaker": {},
    }
    details = {"guards": {"west": west}, "queues": "x" * 300, "another": list(range(30_000))}
    assert await heard_from(serving, report(json.dumps(details))) == ""
    assert "another" not in serving.status()
    shown = json.dumps({**serving.status(), "guards": serving.guards("west")}, allow_nan=False)
    assert len(shown) < 2000
    assert guards_line({"guards": {"incoming": serving.guards("west")}})


async def test_why_it_cannot_serve_is_told_in_short(serving: ServingProcess) -> None:
    failed = serving_pb2.Failed(what="x" * 500_000, where="y" * 1000, hint="z" * 1000)
    await heard_from(serving, serving_pb2.FromServing(failed=failed))
    assert len(serving._told_why()) < 1000


def test_an_honest_report_is_within_the_bounds() -> None:
    names = [f"peer-{n:058}" for n in range(63)]
    guards = Guards(Limits(), names, random.Random(1), off=frozenset(GuardName))
    for each in guards.values():
        for guard in GuardName:
            each.incoming.refuse(guard, 1e9)
        for failure in Failure:
            each.incoming.note(failure, 1e9)
        for kind in Kind:
            ticket = each.incoming.admit(Cost(kind=kind), 1e9)
            assert isinstance(ticket, Ticket)
            ticket.done(1e9, ok=False, kind_of_failure=Failure.SHED, retry_after=10)
            each.incoming.admit(Cost(kind=kind), 1e9)
    said = {"guards": {name: each.incoming.status(1e9) for name, each in guards.items()}}
    raw = json.dumps(said)
    assert len(raw) < DETAILS_BYTES // 2, "half of it is for the rest"
    assert read_details(raw) == said


@pytest.mark.parametrize("defect", [AttributeError("x"), RecursionError(), OSError("y")])
async def test_whatever_goes_wrong_with_a_message_the_gateway_goes_on(
    serving: ServingProcess, gossip: Gossip, defect: Exception
) -> None:
    gossip.defect = defect
    said = serving_pb2.FromServing()
    said.heard.hellos.add(peer="west")
    assert "sent what it may not" in await heard_from(serving, said)


async def test_a_message_that_is_too_long_to_be_told_is_a_reason_to_kill(
    serving: ServingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(self: Channel, message: object) -> None:
        raise ChannelError("too long")

    monkeypatch.setattr(Channel, "send", send)
    ours, theirs = socket.socketpair()
    with theirs:
        channel = await Channel.open(ours, CAP)
        async with timeout(5):
            assert "too long" in await serving._tell(channel)
        channel.close()


async def test_what_it_tells_does_not_hide_what_is_known_of_it(serving: ServingProcess) -> None:
    details: dict[str, Any] = {
        **dict.fromkeys(serving.status(), "forged"),
        "blocks": 7,
        "guards": {"west": {"breaker": "closed"}, "north": 5},
    }
    known = serving.status()
    assert await heard_from(serving, report(json.dumps(details))) == ""
    assert serving.status() == {**known, "blocks": 7}
    assert serving.guards("west") == {"breaker": "closed"}
    assert serving.guards("north") is None
    assert serving.guards("nobody") is None


# The one in reserve


def started(*code: str) -> Spawned:
    ours, theirs = socket.socketpair()
    theirs.close()
    return Spawned(subprocess.Popen([sys.executable, "-c", *code]), ours, 0.0)


def test_a_reserve_that_has_ended_is_none_and_is_replaced(
    group: GroupFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner = Spawner(group)
    made: list[Spawned] = []

    def spawn() -> Spawned:
        made.append(started("input()" if made else "pass"))
        return made[-1]

    monkeypatch.setattr(spawner, "_spawn", spawn)
    monkeypatch.setattr("os.setpriority", lambda *_: None)
    try:
        spawner.prepare()
        wait_for(lambda: spawner.reserve_pid is None, 10, "the first to end")
        spawner.prepare()
        assert len(made) == 2
        assert made[0].end.fileno() == -1, "nothing is left of the first"
    finally:
        spawner.close()
        for each in made:
            each.process.kill()
            each.process.wait()


def test_one_that_cannot_be_ended_is_not_waited_for_without_a_limit(group: GroupFile) -> None:
    class Undead:
        waited: float | None = None

        def poll(self) -> None:
            return None

        def kill(self) -> None:
            return

        def wait(self, timeout: float | None = None) -> int:
            assert timeout is not None
            self.waited = timeout
            raise subprocess.TimeoutExpired("undead", timeout)

    ours, theirs = socket.socketpair()
    theirs.close()
    undead = Undead()
    spawner = Spawner(group)
    spawner._reserve = Spawned(undead, ours, 0.0)  # type: ignore[arg-type]
    spawner.close()
    assert undead.waited is not None
    assert ours.fileno() == -1


async def test_the_keeper_looks_after_the_reserve(
    serving: ServingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = 0

    class Dying:
        reserve_pid = None
        log = Path("/dev/null")

        def prepare(self) -> None:
            nonlocal prepared
            prepared += 1

        def close(self) -> None:
            return

    serving._spawner.close()
    serving._spawner = Dying()  # type: ignore[assignment]
    serving._listening.set()
    monkeypatch.setattr("federation.peers.child.TICK_SECONDS", 1e-4)
    monkeypatch.setattr("federation.peers.watch.RESERVE_TICKS", 1)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1)
    try:
        looking = asyncio.create_task(serving._look_after(process))  # type: ignore[arg-type]
        async with timeout(10):
            while prepared < 3 and not looking.done():
                serving._watch.pong()
                await asyncio.sleep(0)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    finally:
        process.kill()
        await process.wait()
    assert prepared == 3


def test_reserves_that_end_at_once_are_replaced_after_pauses_that_double() -> None:
    clock = ReserveClock()
    due = [served for served in range(20_000) if clock.due(served)]
    pauses = [due[n + 1] - due[n] for n in range(len(due) - 1)]
    assert due[0] == RESERVE_TICKS
    assert pauses[:4] == [RESERVE_TICKS * 2**n for n in range(4)]
    assert max(pauses) == pauses[-1] == RESERVE_TICKS_MAX


def test_one_that_lasted_is_replaced_at_once_and_ends_the_doubling() -> None:
    clock = ReserveClock()
    last = max(served for served in range(10_000) if clock.due(served))
    later = last + 2 * RESERVE_TICKS_MAX
    assert clock.due(later)
    assert not clock.due(later + RESERVE_TICKS - 1)
    assert clock.due(later + RESERVE_TICKS)


def test_ticks_fall_into_step_with_rounds_and_stay_there() -> None:
    now, round_at = 10.07, 10.0
    gaps = []
    for n in range(400):
        gaps.append(next_tick(now, round_at, 0.25))
        now += gaps[-1] + (0.003 if n % 2 else -0.001)  # timers are not exact
        if now > round_at + 1.002:
            round_at += 1.002
    assert 0.125 <= gaps[0] < 0.375
    assert all(0.24 < gap < 0.26 for gap in gaps[1:])
    assert (now - round_at + LEAD_SECONDS) % 0.25 < 0.005


def test_ticks_come_at_least_so_often_whatever_rounds_do() -> None:
    for interval in (0.02, 0.1, 0.33, 0.7, 1.3):
        now, round_at = 5.0, 5.0
        for _ in range(200):
            wait = next_tick(now, round_at, 0.25)
            assert 0.125 <= wait <= 0.375 + 1e-9
            now += wait
            while now > round_at + interval:
                round_at += interval
