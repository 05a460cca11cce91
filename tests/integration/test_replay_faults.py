"""What goes wrong in a gateway or in another group does not reach the readers of a replay."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from federation.bench.engine import Answer
from federation.bench.engines import EngineProcess
from federation.bench.groups import NAMESPACE, PORTS_STEP, Layout, init_peers, write_groups
from tests.support.clock import STALL
from tests.support.groups import RunningGroup, free_port_base

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

BLOCK = 8192
CHAIN = 12
DEADLINE_MS = 500


class Two:
    """Two federated groups with an engine each; every answer is kept."""

    def __init__(self, groups: list[RunningGroup], engines: list[EngineProcess], tag: str) -> None:
        self.groups = groups
        self.engines = engines
        self.answers: list[tuple[float, int, Answer]] = []
        self._tag = tag
        self._number = 0

    async def ask(self, group: int, chain: str) -> Answer:
        """Read a chain in a group, and write there what it lacked."""
        self._number += 1
        keys = tuple(f"{self._tag}-{chain}-{i}" for i in range(CHAIN))
        answer = await self.engines[group].ask(self._number, keys, 30)
        self.answers.append((time.monotonic(), group, answer))
        return answer

    async def until_peer_hit(self, name: str, timeout: float) -> Answer:
        """Write fresh chains in group 1 and read them in group 0, until one comes from there."""
        deadline = time.monotonic() + timeout
        for attempt in range(10_000):
            await self.ask(1, f"{name}{attempt}")
            await asyncio.sleep(0.3)  # the catalog is to have told of it: see `catalog_linger_ms`
            answer = await self.ask(0, f"{name}{attempt}")
            if answer.peer == CHAIN:
                return answer
            assert time.monotonic() < deadline, f"no peer hit within {timeout} s: {answer}"
        raise AssertionError

    def harm(self, group: int) -> list[Answer]:
        """Answers of a group with an error, a wrong byte or an overrun that is no stall of the machine."""
        return [
            a
            for _, g, a in self.answers
            if g == group and (a.errors or a.wrong_bytes or a.overrun_ms > 1000 * STALL)
        ]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningGroup]]:
    folder = tmp_path_factory.mktemp("two")
    paths = write_groups(folder, "federated", Layout(2, 64 << 20, 2000, neighbours()))
    asyncio.run(init_peers(folder, paths, folder / "peer-init.log"))
    made = [RunningGroup(path) for path in paths]
    with ThreadPoolExecutor(len(made)) as both, contextlib.ExitStack() as running:
        running.callback(lambda: list(both.map(RunningGroup.down, made)))
        list(both.map(RunningGroup.up, made))
        yield made


@pytest.fixture
async def two(
    groups: list[RunningGroup], tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Two]:
    engines: list[EngineProcess] = []
    try:
        for i, group in enumerate(groups):
            engines.append(await EngineProcess.start(a_spec(group), tmp_path / f"e{i}.log"))
        found = Two(groups, engines, request.node.name)
        await found.until_peer_hit("warm", 30)
        yield found
    finally:
        await asyncio.gather(*(engine.finish() for engine in engines))


def neighbours() -> int:
    """A port base whose successor, which the layout's second group gets, is ours too."""
    claimed: set[int] = set()
    while (base := free_port_base()) - PORTS_STEP not in claimed:
        claimed.add(base)
    return base - PORTS_STEP


def a_spec(group: RunningGroup) -> dict[str, object]:
    config = group.config
    return {
        "factory": "federation.bench.engine_process:open_federated",
        "settings": {
            "config": str(group.path),
            "namespace": NAMESPACE,
            "local_buffer_bytes": 16 << 20,
            "deadline_ms": DEADLINE_MS,
        },
        "namespace": config.namespaces[NAMESPACE].fingerprint().hex(),
        "block_bytes": BLOCK,
        "chain_blocks": CHAIN,
        "threads": 8,
        "deadline_ms": DEADLINE_MS,
        "service": "engine",
        "group": config.name,
        "traces": str(config.trace_dir),
    }


async def load(two: Two, group: int, chains: list[str], end: asyncio.Event) -> None:
    """Read chains over and over, four at once, until `end`."""

    async def one(offset: int) -> None:
        for i in range(100_000):
            if end.is_set():
                return
            await two.ask(group, chains[(offset + i) % len(chains)])
            await asyncio.sleep(0.02)

    await asyncio.gather(*(one(offset) for offset in range(4)))


async def test_a_killed_gateway_reaches_no_reader_and_peer_hits_come_back(two: Two) -> None:
    local = [f"local{i}" for i in range(8)]
    for chain in local:
        await two.ask(0, chain)
    end = asyncio.Event()
    task = asyncio.create_task(load(two, 0, local, end))
    killed = time.monotonic()
    two.groups[0].kill("gateway", signal.SIGKILL)
    for i in range(20):  # what only the other group has: misses now, and no errors
        await two.ask(1, f"foreign{i}")
        await two.ask(0, f"foreign{i}")
    back = await two.until_peer_hit("after", 60)
    end.set()
    await task
    assert back.wrong_bytes == 0
    assert two.groups[0].restarts("gateway") >= 1
    during = [a for at, g, a in two.answers if g == 0 and killed < at < killed + 1.0]
    assert sum(a.local for a in during) > 0, "local hits did not go on"
    assert two.harm(0) == []
    assert two.harm(1) == []


async def test_a_stopped_master_of_one_group_leaves_the_others_deadlines(two: Two) -> None:
    foreign = [f"foreign{i}" for i in range(30)]
    for chain in foreign:
        await two.ask(1, chain)
    local = [f"local{i}" for i in range(8)]
    for chain in local:
        await two.ask(0, chain)
    end = asyncio.Event()
    two.groups[1].kill("master", signal.SIGSTOP)
    try:
        task = asyncio.create_task(load(two, 0, local, end))
        for chain in foreign:  # believed to be there: every one of these is a pull that hangs
            await two.ask(0, chain)
        end.set()
        await task
    finally:
        two.groups[1].kill("master", signal.SIGCONT)
    assert two.harm(0) == []
    assert sum(a.local for _, g, a in two.answers if g == 0) > 0
