"""What an order ends of what is under way."""

from __future__ import annotations

import asyncio

from federation.limits.names import Kind
from federation.peers.call import OpenCalls

CALLS = 64


async def test_calls_are_ended_in_the_order_in_which_they_began_and_no_others() -> None:
    calls, ended = OpenCalls(), list[int]()
    began = 0

    async def call(number: int, peer: str) -> None:
        nonlocal began
        part = calls.begin(peer, Kind.CATALOG)
        began += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(number)
            raise
        finally:
            calls.over(peer, Kind.CATALOG, part)

    tasks = [asyncio.create_task(call(n, "west")) for n in range(CALLS)]
    other = asyncio.create_task(call(CALLS, "north"))
    await asyncio.sleep(0)  # each begins
    assert began == CALLS + 1
    calls.end("west", Kind.CATALOG)
    await asyncio.wait(tasks)
    assert ended == list(range(CALLS))
    assert not other.done()
    other.cancel()
    await asyncio.wait([other])
