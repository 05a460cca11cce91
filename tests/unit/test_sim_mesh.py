"""The simulator of whole gateways: equal seeds are equal runs, and what is broken on purpose is found."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from chaos.sim.golden import ScriptError, difference, play
from chaos.sim.invariants import Broken
from chaos.sim.mesh.faults import draw_plan
from chaos.sim.mesh.line import UNHEARD_SECONDS, Connection, Lines
from chaos.sim.mesh.loop import LivelockError, Node, VirtualLoop, virtual
from chaos.sim.mesh.run import ROUNDS_MIN, Request, run_world
from chaos.sim.mesh.truth import Truth, bytes_of
from chaos.sim.network import Conditions, Network
from federation.catalog.offers import Offers
from federation.cli.main import app
from federation.errors import UsageError
from federation.limits.bulkhead import Shares
from federation.peers.feed import Feed
from federation.transfer import handover, intake
from federation.transfer.job import Job
from federation.transfer.server import BlockServer
from federation.transfer.staging import Staging
from local_group.holdings import Holdings
from local_group.ledger import Ledger
from local_group.names import name_of
from tests.support.groups import REPOSITORY

WORLD = Request(groups=3, seed=4, rounds=ROUNDS_MIN)
FAULTY = Request(groups=3, seed=7, rounds=ROUNDS_MIN + 10, faults="all")
GOLDEN = sorted((REPOSITORY / "tests" / "data" / "mesh").glob("*.txt"))
FP = b"f" * 16


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    def fail(context: dict[str, Any]) -> None:
        raise context["exception"]

    made = VirtualLoop(fail)
    with virtual(made, "test"):
        yield made
    made.close()


# Worlds


def test_a_world_without_faults_holds_and_peers_are_of_use() -> None:
    result = run_world(WORLD)
    assert result.failure is None
    assert result.tally["peer"] > 20
    assert result.tally["local"] > 100
    assert result.tally["unanswered"] == 0


def test_equal_seeds_are_equal_runs_in_any_process() -> None:
    first = run_world(FAULTY)
    assert first.failure is None
    code = (
        "from chaos.sim.mesh.run import Request, run_world; "
        f"print(run_world(Request(groups={FAULTY.groups}, seed={FAULTY.seed}, "
        f"rounds={FAULTY.rounds}, faults='all')).digest)"
    )
    for hashing in ("1", "77"):
        other = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert other.stdout.split()[-1] == first.digest
    assert run_world(Request(groups=3, seed=8, rounds=ROUNDS_MIN)).digest != first.digest


def test_a_world_leaves_nothing_behind() -> None:
    run_world(FAULTY)
    clock, descriptors = time.monotonic, len(os.listdir("/proc/self/fd"))
    run_world(FAULTY)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert time.monotonic is clock


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_scenario_of_gateways_goes_as_it_is_written(path: Path) -> None:
    found = difference(path)
    assert not found, f"{found}\nif that is as it should be: moonmesh sim golden --write"


def test_there_are_scenarios_of_gateways() -> None:
    assert len(GOLDEN) >= 3


def test_an_invariant_that_breaks_is_in_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    believe_all(monkeypatch)
    assert "BROKEN: no wrong bytes" in play("> mesh groups=2\n> run 30\n")


@pytest.mark.parametrize(
    "script",
    ["> run 1\n> mesh", "> mesh colour=red", "> mesh groups=99", "> mesh\n> kill g9",
     "> mesh\n> run 0", "> mesh\n> run 9999", "> mesh\n> mooncake g0 odd", "> mesh\n> freeze g0 long",
     "> mesh\n> order g0 paused g9", "> mesh\n> order g0 sold g1", "> mesh\n> mesh"],
)  # fmt: skip
def test_a_script_of_gateways_that_cannot_be_played_is_refused(script: str) -> None:
    with pytest.raises(ScriptError) as error:
        play(f"{script}\n", "file.txt")
    assert error.value.where is not None
    assert error.value.where.startswith("file.txt:")


def test_plans_have_every_fault_sooner_or_later() -> None:
    names = [f"g{n}" for n in range(8)]
    texts: list[str] = []
    for seed in range(60):
        plan = draw_plan(Random(seed), names, 60, 24)
        assert all(fault.until <= plan.heals_at + 4 for fault in plan.faults)
        texts += [fault.text for fault in plan.faults]
    for part in ("without its disk", "hostile", "evicts all", "takes nothing", "cut off", "empty"):
        assert any(part in text for text in texts), part


def keep_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "part_with", lambda self: None)


def charge_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shares, "give", lambda self, name, n: None)


def expire_early(monkeypatch: pytest.MonkeyPatch) -> None:
    expire = Staging.expire
    monkeypatch.setattr(Staging, "expire", lambda self, now: expire(self, now + 1.5))


def answer_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "ANSWER_MARGIN_SECONDS", -0.5)
    monkeypatch.setattr(BlockServer, "serve", never)


async def never(*arguments: Any, **options: Any) -> Any:
    await asyncio.sleep(60)
    yield b""


def believe_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "verify", lambda *arguments, **options: None)
    good = BlockServer._good

    def wrong(self: BlockServer, *arguments: Any) -> Any:
        found = good(self, *arguments)
        return None if found is None else (found[0], memoryview(b"x" * len(found[1])))

    monkeypatch.setattr(BlockServer, "_good", wrong)


def take_for_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(self: Ledger, e: Any, now: float) -> bool:
        return self.holdings.report(e.fingerprint, e.name, e.size, e.digest, now)

    monkeypatch.setattr(Ledger, "_hold", own)


def lose_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Offers.take

    def some(self: Offers, change: Any) -> None:
        if change.name % 8:
            take(self, change)

    monkeypatch.setattr(Offers, "take", some)


def serve_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holdings, "exportable", lambda self, fingerprint, block: None)


def raise_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Feed) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Feed, "next", fail)


@pytest.mark.parametrize(
    ("defect", "invariant"),
    [
        (keep_ring, "memory is given back"),
        (charge_for_ever, "everything has a limit"),
        (expire_early, "what exists is here"),
        (answer_late, "deadlines are kept"),
        (believe_all, "no wrong bytes"),
        (take_for_own, "nothing is passed on"),
        (lose_changes, "views converge"),
        (serve_nothing, "peers' blocks come again"),
        (raise_somewhere, "nothing raises"),
    ],
)
def test_what_is_broken_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    found = []
    for seed in range(3):
        failure = run_world(Request(groups=3, seed=seed, rounds=ROUNDS_MIN)).failure
        found.append(None if failure is None else failure.invariant)
        if found[-1] == invariant:
            return
    raise AssertionError(f"{found}, and not {invariant!r}")


# The truth


def test_a_block_that_its_writer_removes_is_told_from_one_that_is_evicted() -> None:
    truth = Truth(["g0", "g1"])
    for key in "abc":
        truth.put("g0", FP, key, f"stored-{key}", fresh=True)
    truth.landed("g0", FP, name_of(FP, "b"))
    truth.lost("g0", "stored-a", removed=False)
    truth.lost("g0", "stored-b", removed=True)
    with pytest.raises(Broken, match="own blocks stay"):
        truth.lost("g0", "stored-c", removed=True)


def test_the_bytes_of_a_block_are_of_its_key_and_namespace() -> None:
    assert bytes_of(FP, "a") != bytes_of(FP, "b")
    assert bytes_of(FP, "a") != bytes_of(b"g" * 16, "a")
    truth = Truth(["g0"])
    truth.given("g0", FP, "a", bytes_of(FP, "a"), "here")
    with pytest.raises(Broken, match="no wrong bytes"):
        truth.given("g0", FP, "a", bytes_of(FP, "b"), "here")


# Time, processes and lines


def test_time_passes_by_itself_alone_and_clocks_differ(loop: VirtualLoop) -> None:
    node = Node("n", "g", offset=1000.25)
    seen: list[tuple[float, float]] = []

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(100)
            seen.append((loop.now, time.monotonic()))
        loop.stop()

    began = time.perf_counter()
    node.start(loop, work())
    loop.run_forever()
    assert seen == [(100.0, 1100.25), (200.0, 1200.25), (300.0, 1300.25)]
    assert time.perf_counter() - began < 30


def test_a_frozen_process_does_what_is_due_when_it_is_thawed(loop: VirtualLoop) -> None:
    frozen, other = Node("f", "g"), Node("o", "g")
    seen: list[tuple[str, float]] = []

    async def work(node: Node) -> None:
        await asyncio.sleep(1)
        seen.append((node.name, loop.now))

    frozen.start(loop, work(frozen))
    other.start(loop, work(other))
    loop.at(0.5, None, frozen.stall)
    loop.at(7.0, None, frozen.thaw, loop)
    loop.at(9.0, None, loop.stop)
    loop.run_forever()
    assert seen == [("o", 1.0), ("f", 7.0)]


def test_of_a_killed_process_nothing_happens_any_more(loop: VirtualLoop) -> None:
    node = Node("n", "g")
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            seen.append("its end")

    node.start(loop, work())
    loop.at(0.5, None, node.kill)
    loop.at(9.0, None, loop.stop)
    loop.run_forever()
    assert seen == []


def test_what_goes_on_for_ever_at_one_moment_is_found(loop: VirtualLoop) -> None:
    async def work() -> None:
        while True:  # noqa: ASYNC110 - it is what is to be found
            await asyncio.sleep(0)

    Node("n", "g").start(loop, work())
    with pytest.raises(LivelockError, match="for ever"):
        loop.run_forever()


def test_what_a_cut_holds_up_comes_once_it_is_healed(loop: VirtualLoop) -> None:
    network = Network(Random(1), Conditions(delay=0.25))
    lines = Lines(loop, Random(2), network, lambda *_: None)
    ours, theirs = Node("a", "ga"), Node("b", "gb")
    connection = Connection(lines, ours, theirs)
    came: list[tuple[int, float]] = []
    connection.send(ours, 1, lambda n: came.append((n, loop.now)), 1)
    network.cut([("ga", "gb")])
    connection.send(ours, 1, lambda n: came.append((n, loop.now)), 2)
    connection.send(ours, 1, lambda n: came.append((n, loop.now)), 3)
    loop.at(1.0, None, network.heal, [("ga", "gb")])
    loop.at(1.0, None, lines.changed)
    loop.at(9.0, None, loop.stop)
    loop.run_forever()
    assert [n for n, _ in came] == [1, 2, 3]
    assert [at for _, at in came] == pytest.approx([0.25, 1.25, 1.25], abs=0.001)
    assert connection.open


def test_a_connection_on_which_nothing_passes_ends_for_both(loop: VirtualLoop) -> None:
    network = Network(Random(1), Conditions(delay=0.25))
    lines = Lines(loop, Random(2), network, lambda *_: None)
    ours, theirs = Node("a", "ga"), Node("b", "gb")
    connection = Connection(lines, ours, theirs)
    ended: list[tuple[str, float]] = []
    connection.ends[ours].append(lambda: ended.append(("a", loop.now)))
    connection.ends[theirs].append(lambda: ended.append(("b", loop.now)))
    network.cut([("ga", "gb")])
    connection.send(ours, 1, lambda: None)
    loop.at(9.0, None, loop.stop)
    loop.run_forever()
    assert ended == [("a", UNHEARD_SECONDS), ("b", UNHEARD_SECONDS)]


# The command line


def test_the_command_shows_what_came_of_it() -> None:
    found = CliRunner().invoke(
        app, ["sim", "mesh", "--groups", "2", "--rounds", str(ROUNDS_MIN), "--seed", "5"]
    )
    assert found.exit_code == 0, found.output
    assert "1 of 1" in found.output
    assert "blocks from peers" in found.output
    assert "hash of all that happened" in found.output


def test_a_broken_world_ends_the_command_with_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    believe_all(monkeypatch)
    found = CliRunner().invoke(
        app, ["sim", "mesh", "--groups", "3", "--rounds", str(ROUNDS_MIN), "--seed", "0"]
    )
    assert found.exit_code == 1
    assert "BROKEN, seed 0" in found.output
    assert f"moonmesh sim mesh --groups 3 --seed 0 --rounds {ROUNDS_MIN}" in found.output


def test_too_few_rounds_are_a_usage_error() -> None:
    found = CliRunner().invoke(app, ["sim", "mesh", "--rounds", "10"])
    assert isinstance(found.exception, UsageError)
    assert f"at least {ROUNDS_MIN} rounds" in str(found.exception)
