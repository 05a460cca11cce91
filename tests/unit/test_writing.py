"""A message is sent while the next one is made: one at a time, and none is left behind."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from federation.limits.errors import StallError
from federation.peers.call import Call, Writing


class Line:
    """A call whose messages take until they are let through."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.sent: list[bytes] = []
        self.gate = asyncio.Event()
        self.stalls = False

    async def write(self, message: bytes) -> None:
        self.begun.append(message)
        await self.gate.wait()
        if self.stalls:
            raise StallError("nothing was read", where="west")
        self.sent.append(message)


def writing(line: Line) -> Writing:
    return Writing(cast(Call, line))


async def test_the_caller_goes_on_while_one_is_sent_and_waits_with_the_next() -> None:
    line = Line()
    async with writing(line) as out:
        await out.write(b"one")
        assert (line.begun, line.sent) == ([b"one"], [])
        second = asyncio.create_task(out.write(b"two"))
        await asyncio.sleep(0)
        assert line.begun == [b"one"], "one at a time"
        line.gate.set()
        await second
        await out.done()
    assert line.sent == [b"one", b"two"]


async def test_a_message_that_is_not_read_ends_the_next_one() -> None:
    line = Line()
    line.stalls = True
    line.gate.set()
    async with writing(line) as out:
        await out.write(b"one")
        with pytest.raises(StallError):
            await out.write(b"two")
    assert line.begun == [b"one"]


async def test_an_error_is_told_after_the_message_that_is_on_its_way() -> None:
    line = Line()

    async def fails() -> None:
        async with writing(line) as out:
            await out.write(b"one")
            raise ValueError("no more")

    failing = asyncio.create_task(fails())
    await asyncio.wait({failing}, timeout=0.02)
    assert line.begun == [b"one"]
    assert not failing.done()
    line.gate.set()
    with pytest.raises(ValueError, match="no more"):
        await failing
    assert line.sent == [b"one"]


async def test_who_is_cancelled_waits_for_nothing() -> None:
    line = Line()

    async def serves() -> None:
        async with writing(line) as out:
            await out.write(b"one")
            await asyncio.Event().wait()

    serving = asyncio.create_task(serves())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert line.sent == []
    assert len(asyncio.all_tasks()) == 1
