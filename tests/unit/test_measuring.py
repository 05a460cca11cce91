"""The serving process's own questions to the master, while less is read for peers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from federation.limits.shedding import SAMPLES_FEW, TICK_SECONDS, Shedding, SheddingLimits
from federation.transfer.measuring import PROBE_KEY, PROBES_MAX, measure
from tests.support.wait import wait_for_async

LIMITS = SheddingLimits(windows_max=32.0, windows_min=0.1, times=3.0, rise_s=0.01)


class Master:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.lets = asyncio.Event()
        self.lets.set()
        self.asked = self.waiting = self.most = 0

    async def query(self, keys: Sequence[str]) -> dict[str, int | None]:
        assert list(keys) == [PROBE_KEY]
        self.asked += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self.lets.wait()
        finally:
            self.waiting -= 1
        return {}


async def test_a_master_that_does_not_answer_is_asked_on_and_not_without_end() -> None:
    loop = asyncio.get_running_loop()
    shedding, master = Shedding(LIMITS, loop.time()), Master()
    measuring = asyncio.create_task(measure(shedding, master))
    await wait_for_async(lambda: shedding.knows, 10, "the usual to be learned")
    shedding.windows = 1.0  # it has been cut
    master.lets.clear()
    await wait_for_async(lambda: master.waiting == PROBES_MAX, 10, "as many as may wait")
    asked = master.asked
    await asyncio.sleep(2 * TICK_SECONDS)
    assert (master.asked, master.most) == (asked, PROBES_MAX)
    master.lets.set()
    await wait_for_async(lambda: master.asked >= asked + SAMPLES_FEW, 10, "it to be asked again")
    assert shedding.cuts >= 1, "what it took so long for was slow"
    master.lets.clear()
    await wait_for_async(lambda: master.waiting > 0, 10, "a question under way")
    measuring.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await measuring
    await wait_for_async(lambda: master.waiting == 0, 5, "none to be left behind")
