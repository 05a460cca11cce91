"""Tasks end although they did not hear the first word, and a process by its deadline."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap

import pytest

from federation.ending import AGAIN_MAX, AGAIN_SECONDS, EX_HUNG, ended
from federation.interruptible import Interruptible, interruptible


async def swallows(times: int) -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            times -= 1
            if times < 0:
                raise


@pytest.mark.parametrize("times", [0, 1, AGAIN_MAX - 1])
def test_a_lost_cancellation_is_said_again(times: int) -> None:
    async def run() -> bool:
        task = asyncio.create_task(swallows(times))
        await asyncio.sleep(0)
        await ended([task])
        return task.cancelled()

    assert asyncio.run(run())


def test_what_goes_on_whatever_is_said_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> float:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(swallows(AGAIN_MAX + 1))
        await asyncio.sleep(0)
        began = loop.time()
        await ended([task])
        assert not task.done()
        task.cancel()
        return loop.time() - began

    assert asyncio.run(run()) >= AGAIN_MAX * AGAIN_SECONDS
    assert sum("goes on although" in line for line in caplog.messages) == AGAIN_MAX


def test_how_tasks_ended_is_nobodys_business() -> None:
    async def fails() -> None:
        raise OSError("the disk is full")

    async def run() -> list[bool]:
        tasks = [asyncio.create_task(fails()), asyncio.create_task(swallows(0))]
        await asyncio.sleep(0)
        await ended(tasks)
        return [task.done() for task in tasks]

    assert asyncio.run(run()) == [True, True]


def test_nothing_to_end() -> None:
    asyncio.run(ended([]))


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 cannot tell one cancellation from two"
)
def test_a_task_cancelled_as_its_part_is_interrupted_ends() -> None:
    async def run() -> tuple[bool, bool]:
        parts: list[Interruptible] = []
        after = False

        async def work() -> None:
            nonlocal after
            with interruptible() as part:
                parts.append(part)
                await asyncio.Event().wait()
            after = True
            await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        parts[0].interrupt()
        task.cancel()
        await asyncio.wait([task], timeout=1)
        return task.cancelled(), after

    assert asyncio.run(run()) == (True, False)


def test_an_interrupted_part_does_not_end_its_task() -> None:
    async def run() -> str:
        parts: list[Interruptible] = []

        async def work() -> str:
            with interruptible() as part:
                parts.append(part)
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            return "goes on"

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        parts[0].interrupt()
        return await task

    assert asyncio.run(run()) == "goes on"


HANGS = """
    import threading
    from federation.ending import end_by_deadline

    def held_up():
        threading.Event().wait(60)

    end_by_deadline(0.1)
    held_up()
"""


def test_a_process_that_hangs_ends_by_its_deadline_and_says_where() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HANGS)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == EX_HUNG
    assert "has not ended within 0.1 s" in done.stderr
    assert "held_up" in done.stderr


def test_a_process_that_ends_in_time_is_not_touched() -> None:
    code = "from federation.ending import end_by_deadline; end_by_deadline(60)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
