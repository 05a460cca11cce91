"""Several connections to one gateway of a peer: pulls are spread over those that stand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest

from federation.peers import bulk as bulk_module
from federation.peers.bulk import Bulk
from federation.peers.wire import WORKER, which_worker
from federation.transfer.landing import Taken

READY = grpc.ChannelConnectivity.READY
BROKEN = grpc.ChannelConnectivity.TRANSIENT_FAILURE
IDLE = grpc.ChannelConnectivity.IDLE


class Connection:
    """A channel whose calls never end.

    Args:
        worker: where it leads, as answers say; with one that does, their first message comes.
    """

    def __init__(self, state: grpc.ChannelConnectivity, worker: str = "") -> None:
        self.state = state
        self.worker = worker
        self.closed = False
        self.calls = 0
        self.dialled = False

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        self.dialled = self.dialled or try_to_connect
        return self.state

    def unary_stream(self, method: str) -> Any:
        def call(raw: bytes, **about: Any) -> Any:
            self.calls += 1
            return Call(self.worker)

        return call

    async def close(self, grace: float | None) -> None:
        self.closed = True


class Call:
    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._said = False

    async def initial_metadata(self) -> list[tuple[str, str]]:
        return [(WORKER, self._worker)]

    async def read(self) -> bytes:
        if self._worker and not self._said:
            self._said = True
            return b"x"
        await asyncio.Event().wait()
        return b""

    def cancel(self) -> None:
        return


async def pulls(*states: grpc.ChannelConnectivity, count: int) -> list[Connection]:
    """Of so many at once, over connections that are like that."""
    made = [Connection(state) for state in states]
    waiting = iter(made)
    bulk = Bulk("east", lambda: next(waiting), len(made), 1000)  # type: ignore[arg-type, return-value]
    bulk._heard(0, bulk.channels[0], (0, len(made)))
    answers = [bulk.pull(b"", 10.0, 10.0, metadata=()) for _ in range(count)]
    tasks = [asyncio.create_task(anext(answer)) for answer in answers]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert bulk._open == [0] * len(made)
    return made


@pytest.mark.parametrize(
    ("states", "calls"),
    [
        ((READY, READY), [3, 3]),
        ((READY, READY, READY), [2, 2, 2]),
        ((BROKEN, READY), [0, 6]),
        ((READY, IDLE), [6, 0]),
        ((IDLE, IDLE), [3, 3]),
        ((BROKEN, IDLE), [0, 6]),
        ((BROKEN, BROKEN), [3, 3]),
    ],
)
async def test_pulls_go_over_what_stands_and_all_are_dialled(
    states: tuple[grpc.ChannelConnectivity, ...], calls: list[int]
) -> None:
    made = await pulls(*states, count=6)
    assert [each.calls for each in made] == calls
    assert all(each.dialled for each in made)


async def first(bulk: Bulk) -> AsyncGenerator[bytes | Taken, None]:
    """A pull of which the first message has come."""
    answer = bulk.pull(b"", 10.0, 10.0, metadata=())
    assert await anext(answer) == b"x"
    return answer


async def test_connections_are_made_anew_until_they_lead_to_different_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_module, "MOVE_SECONDS", 0.0)
    made: list[Connection] = []

    def make() -> Any:
        made.append(Connection(READY, ["0/2", "0/2", "0/2", "1/2", "1/2"][len(made)]))
        return made[-1]

    bulk = Bulk("east", make, 2, 1000)
    assert len(made) == 1, "one, as long as it is not known that there are more processes"
    held = [await first(bulk), await first(bulk)]  # both lead to the first
    third = await first(bulk)
    assert len(made) == 2, "none is closed under a pull"
    for answer in (*held, third):
        await answer.aclose()
    for _ in range(6):
        held = [await first(bulk), await first(bulk)]
        for answer in held:
            await answer.aclose()
    assert sorted(each.worker for each in bulk.channels) == ["0/2", "1/2"]  # type: ignore[attr-defined]
    assert len(made) == 4, "and then no more"
    await bulk.close()
    assert all(each.closed for each in made)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("1/4", (1, 4)),
        ("4/4", (0, 1)),
        ("1/", (0, 1)),
        ("-1/4", (0, 1)),
        ("1/99999", (0, 1)),
        ("x", (0, 1)),
    ],
)
def test_what_a_peer_says_of_its_processes_is_read_with_care(
    said: str, found: tuple[int, int]
) -> None:
    assert which_worker([("other", "0/2"), (WORKER, said)]) == found
    assert which_worker(None) == (0, 1)
