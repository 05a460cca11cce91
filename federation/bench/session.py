"""A replay from start to end: modes one after the other, and signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from federation.bench.groups import Mode
from federation.bench.replay import Options, Plan, Progress, run_mode
from federation.bench.tally import Tally
from federation.bench.workload import Workload
from federation.errors import MoonmeshError
from local_group.scheduling import NOT_SHARED, one_share

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Outcome:
    """What a session measured.

    Attributes:
        tallies: mode → its sums; modes that did not begin are absent.
        trace_dirs: mode → the folders of its groups' span files.
        signal: the signal that ended it early; 0 for none.
        error: what broke it off, else None.
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    trace_dirs: dict[str, list[Path]] = field(default_factory=dict)
    signal: int = 0
    error: MoonmeshError | None = None


@contextlib.contextmanager
def ended_by_signals(caught: Callable[[int], None]) -> Iterator[None]:
    """Within it SIGINT, SIGTERM and SIGHUP call `caught` with their number, and do nothing else."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, caught, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def session(
    modes: Sequence[Mode],
    plan: Plan,
    workload: Workload,
    options: Options,
    progress: Progress,
) -> Outcome:
    """Run modes one after the other. SIGINT, SIGTERM and SIGHUP end it early, with everything taken
    down; so does an error, which is returned beside what was measured until then."""
    outcome = Outcome()
    stop = asyncio.Event()

    def stopped(number: int) -> None:
        if not stop.is_set():
            outcome.signal = number
            progress.say("stopping: what runs is taken down first")
            stop.set()

    with ended_by_signals(stopped), contextlib.ExitStack() as shares:
        if not shares.enter_context(one_share()):
            progress.say(NOT_SHARED)
        for mode in modes:
            if stop.is_set():
                break
            tally = outcome.tallies[mode] = Tally(mode)
            try:
                outcome.trace_dirs[mode] = await run_mode(
                    mode, plan, workload, options, tally, stop=stop, progress=progress
                )
            except MoonmeshError as error:
                outcome.error = error
                break
    outcome.tallies = {m: t for m, t in outcome.tallies.items() if t.requests or not stop.is_set()}
    return outcome
