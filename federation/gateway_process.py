"""The gateway as a process: starts the serving process, then loads everything and runs.

python -m federation.gateway_process -c group.toml
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from federation.aside import threads_aside
from federation.config import GroupFile, load_group
from federation.descriptors import room_for_engines
from federation.ending import end_by_deadline
from federation.errors import MoonmeshError
from federation.peers.spawn import Spawner
from federation.trial import TrialFile
from federation.trial_watch import TrialWatch
from federation.watchdog import StallBook, Watchdog

if TYPE_CHECKING:
    from federation.peering import Membership

log = logging.getLogger("moonmesh.gateway")


def _end(stop: asyncio.Event) -> None:
    end_by_deadline()
    stop.set()


async def _serve(
    config: GroupFile,
    member: Membership | None,
    spawner: Spawner | None,
    stalls: StallBook,
    trials: TrialWatch,
) -> None:
    from federation.gateway import Gateway

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(threads_aside())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, stop)
    await Gateway(config, member, spawner, stalls, trials).run(stop)


def _member(config: GroupFile, trials: TrialFile) -> Membership | None:
    """What peering.toml says; what it said before, where a new one is on trial and cannot be used."""
    from federation.peering import load_membership

    trial = trials.at_start() if config.gateway.peering is not None else None
    try:
        return load_membership(config)
    except MoonmeshError as error:
        if trial is None or not trials.take_back(trial, f"it cannot be used: {error.what}"):
            raise
        return load_membership(config)


def _start_serving(config: GroupFile) -> Spawner | None:
    """The first serving process, which loads while we do; None for a group alone."""
    if config.gateway.peering is None:
        return None
    spawner = Spawner(config)
    try:
        spawner.prepare()
    except OSError as error:
        raise MoonmeshError(
            f"the serving process cannot be started: {error.strerror}",
            where=str(error.filename or ""),
        ) from error
    return spawner


def main() -> int:
    """Runs a gateway in the foreground; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m federation.gateway_process")
    parser.add_argument("-c", "--config", type=Path, required=True, help="the group's group.toml")
    path = parser.parse_args().config
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    shutdown = None
    try:
        config = load_group(path)
        if lacking := room_for_engines(config):
            log.warning("%s", lacking)
        spawner = _start_serving(config)
        from federation import telemetry
        from federation.allocator import keep_memory_of_messages

        shutdown = telemetry.shutdown
        keep_memory_of_messages()
        trials = TrialFile(config.data_dir)
        member = _member(config, trials)
        telemetry.setup("gateway", config.name, config.trace_dir)
        stalls = Watchdog("gateway").install().book
        asyncio.run(_serve(config, member, spawner, stalls, TrialWatch(trials)))
    except MoonmeshError as error:
        print(f"error {error.code}: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        if shutdown is not None:
            shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
