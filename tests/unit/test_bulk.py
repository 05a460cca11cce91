"""Several connections to one gateway of a peer: pulls are spread over those that stand."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from federation.peers.bulk import Bulk

READY = grpc.ChannelConnectivity.READY
BROKEN = grpc.ChannelConnectivity.TRANSIENT_FAILURE
IDLE = grpc.ChannelConnectivity.IDLE


class Connection:
    """A channel whose calls never end."""

    def __init__(self, state: grpc.ChannelConnectivity) -> None:
        self.state = state
        self.calls = 0
        self.dialled = False

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        self.dialled = self.dialled or try_to_connect
        return self.state

    def unary_stream(self, method: str) -> Any:
        def call(raw: bytes, **about: Any) -> Any:
            self.calls += 1
            return Call()

        return call


class Call:
    async def read(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    def cancel(self) -> None:
        return


async def pulls(*states: grpc.ChannelConnectivity, count: int) -> list[Connection]:
    """Of so many at once, over connections that are like that."""
    made = [Connection(state) for state in states]
    waiting = iter(made)
    bulk = Bulk("east", lambda: next(waiting), len(made), 1000)  # type: ignore[arg-type, return-value]
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
