"""A group from start to stop: what `moonmesh up` and `down` do."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

from local_group.admin import AdminClient
from local_group.child import ChildSpec, Progress, ReadyCheck, SupervisorLimits
from local_group.config import GroupConfig, GroupPlace
from local_group.mooncake import (
    MooncakePrograms,
    master_command,
    mooncake_environment,
    store_command,
)
from local_group.pool import CONNECT_TIMEOUT_S, accepts, await_master, own_segments
from local_group.ports import check_free, listeners, mooncake_ports
from local_group.process_errors import AdminError, AlreadyRunning, GroupError
from local_group.processes import Supervisor, kill_leftovers
from local_group.state import (
    PROBLEM_CHARS_MAX,
    ChildState,
    GroupLock,
    GroupState,
    ProcessId,
    clear_state,
    leftovers,
    read_state,
    write_state,
)

START_TIMEOUT_S = 60.0
"""Seconds for `up`; a group on a quiet machine takes about 1."""
STOP_TIMEOUT_S = 45.0
"""Seconds for a supervisor to stop its group before `down` kills everything: more than four steps that
each need `SupervisorLimits.stop_grace`."""
HEARD_TIMEOUT_S = 5.0
"""Seconds for a supervisor to begin to stop its group; one that does not is killed with it."""
SAY_AFTER_S = 1.0
"""Seconds after which `down` says what it waits for; it takes about 1 otherwise."""

_POLL_S = 0.02


async def run_group(
    config: GroupConfig,
    beside: Sequence[ChildSpec] = (),
    *,
    lock: GroupLock | None = None,
    timeout: float = START_TIMEOUT_S,
    progress: Callable[[Progress], None] = lambda _: None,
    on_started: Callable[[Mapping[str, GroupError]], None] = lambda _: None,
    limits: SupervisorLimits | None = None,
    mooncake: Callable[[GroupConfig], Sequence[Sequence[ChildSpec]]] | None = None,
) -> None:
    """Start a group, keep it running until SIGINT, SIGTERM or SIGHUP, stop it.

    Args:
        config: the group.
        beside: what runs beside Mooncake, the gateway and its etcd: started after it, stopped before it,
            the last one first. Mooncake runs without it as well.
        lock: the group's, if it is held already.
        timeout: seconds until all must be ready.
        progress: told of every change.
        on_started: called once, when Mooncake is ready and so is what is beside it, or has failed to
            be: with those errors, by name. It is tried again for ever.
        mooncake: the stages of Mooncake; another one in tests.

    Raises:
        AlreadyRunning, PortInUse, MissingPackage, ChildDied, NotReady, GroupError: Mooncake could not
            be started, or its master, which runs elsewhere, be reached; nothing runs here then.
    """
    prepare(config)
    if lock is None:
        lock = GroupLock(config.lock_file)
        if not lock.acquire():
            raise already_running(config, lock)
    try:
        left = leftovers(config.data_dir, read_state(config.state_file))
        for name in left:
            progress(Progress(name, "killed", "left by an earlier run"))
        kill_leftovers(left)
        me = ProcessId.of(psutil.Process().pid)
        assert me is not None
        state = GroupState(group=config.name, supervisor=me, started_at=time.time())
        check_free(mooncake_ports(config))
        with contextlib.suppress(FileNotFoundError):  # a stale one would look like a gateway
            config.gateway_socket.unlink()
        supervisor = Supervisor(
            state,
            (mooncake or mooncake_stages)(config),
            data_dir=config.data_dir,
            state_file=config.state_file,
            log_dir=config.log_dir,
            beside=beside,
            progress=progress,
            limits=limits,
        )
        stop = _stop_on_signals()

        async def run() -> None:
            until = time.monotonic() + timeout
            if config.master.address is not None:
                await _await_elsewhere(config, state, timeout, progress)
            on_started(await supervisor.start(until - time.monotonic()))
            await supervisor.failed()

        try:
            await _unless(stop, run())
        finally:
            await supervisor.stop()
            kill_leftovers(leftovers(config.data_dir, None))  # what a gateway may have started
            clear_state(config.state_file)
    finally:
        lock.release()


async def _await_elsewhere(
    config: GroupConfig,
    state: GroupState,
    timeout: float,
    progress: Callable[[Progress], None],
) -> None:
    """Waits for a master elsewhere; until it serves, `status` shows what it lacks, as of a child of ours.

    Raises:
        NotReady: see `await_master`.
    """

    def tell(event: Progress) -> None:
        state.children["master"] = ChildState(problem=event.detail[:PROBLEM_CHARS_MAX])
        with contextlib.suppress(OSError):  # the supervisor tells of that, when it writes
            write_state(config.state_file, state)
        progress(event)

    await await_master(config, timeout, tell)
    state.children.pop("master", None)


@dataclass(frozen=True)
class Stopped:
    """What `down` found.

    Attributes:
        ran: a supervisor ran.
        killed: names of processes that had no supervisor.
    """

    ran: bool
    killed: Sequence[str] = ()


def stop_group(
    config: GroupPlace,
    timeout: float = STOP_TIMEOUT_S,
    *,
    heard: float = HEARD_TIMEOUT_S,
    say: Callable[[str], None] = lambda _: None,
) -> Stopped:
    """Stop a group, and whatever an earlier supervisor left of it.

    Args:
        timeout: seconds for the supervisor to stop all.
        heard: seconds for the supervisor to begin with it.
        say: told what is waited for, if it takes more than a moment.

    Raises:
        GroupError: something could not be stopped.
    """
    began = time.monotonic()
    told: set[ProcessId] = set()
    state = None
    said = ""
    while supervisor := _supervisor(config) or next((each for each in told if each.alive()), None):
        state = read_state(config.state_file) or state
        if isinstance(supervisor, ProcessId) and supervisor not in told:
            told.add(supervisor)
            supervisor.signal(signal.SIGTERM)
            supervisor.signal(signal.SIGCONT)  # a frozen one cannot hear the first
        waited = time.monotonic() - began
        stopping = state is not None and state.phase == "stopping"
        if waited >= (timeout if stopping else heard):
            if not isinstance(supervisor, ProcessId):
                raise GroupError(
                    "a supervisor runs, and its pid is not known",
                    where=str(config.lock_file),
                    hint="whoever has that file open is it (`fuser`, `lsof`): stop that process",
                )
            say(f"{_named(supervisor)} does not stop: it is killed, with all of the group")
            kill_leftovers({"the supervisor": supervisor})
            break
        awaited = _awaited(supervisor, state)
        if waited >= SAY_AFTER_S and awaited != said:
            said = awaited
            say(f"waiting for {said}")
        time.sleep(_POLL_S)
    state = read_state(config.state_file) or state
    left = leftovers(config.data_dir, state)
    kill_leftovers(left)
    clear_state(config.state_file)
    return Stopped(bool(told), [f"{n} (pid {p.pid})" for n, p in left.items()])


def _supervisor(config: GroupPlace) -> ProcessId | Literal["unknown"] | None:
    """The supervisor that runs; it may be one that is about to say who it is."""
    holder = GroupLock(config.lock_file).holder()
    process = ProcessId.of(holder) if holder else None
    if process is not None:
        return process
    state = read_state(config.state_file)
    if state is not None and state.supervisor.alive():
        return state.supervisor
    return None if holder is None else "unknown"


def _named(supervisor: ProcessId | Literal["unknown"]) -> str:
    pid = f" (pid {supervisor.pid})" if isinstance(supervisor, ProcessId) else ""
    return f"the supervisor{pid}"


def _awaited(supervisor: ProcessId | Literal["unknown"], state: GroupState | None) -> str:
    running = state.children.items() if state is not None else ()
    names = [name for name, child in running if child.process and child.process.alive()]
    return f"{_named(supervisor)} to stop {', '.join(names) or 'the group'}"


def mooncake_stages(config: GroupConfig) -> list[list[ChildSpec]]:
    """The master, if it is started here, then the stores.

    Raises:
        MissingPackage: Mooncake or a library is missing.
    """
    programs = MooncakePrograms.find()
    env = mooncake_environment(config)
    master = []
    if config.master.address is None:
        command = master_command(programs, config)
        master = [ChildSpec("master", command, _master_ready(config), env)]
    stores = [
        ChildSpec(f"store-{i}", store_command(programs, config, i), _store_ready(config), env)
        for i in range(config.stores.count)
    ]
    return [stage for stage in (master, stores) if stage]


def prepare(config: GroupConfig) -> None:
    """Make the group's folders. Raises GroupError if that cannot be done."""
    for folder in (config.data_dir, config.run_dir, config.log_dir):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder == config.run_dir:
                folder.chmod(0o700)  # whoever reaches the gateway's socket may ask it anything
        except OSError as error:
            raise GroupError(
                f"the data directory cannot be made: {error.strerror}",
                where=str(folder),
                hint="set data_dir in group.toml to a folder that you may write",
            ) from error


def already_running(config: GroupConfig, lock: GroupLock) -> AlreadyRunning:
    """The error for a second `up`."""
    pid = lock.holder()
    return AlreadyRunning(
        f'group "{config.name}" is already running' + (f" (pid {pid})" if pid else ""),
        where=str(config.data_dir),
        hint="`moonmesh status` shows it, `moonmesh down` stops it",
    )


def _master_ready(config: GroupConfig) -> ReadyCheck:
    """A master is ready when it says so and has both its ports: it speaks of the second too soon,
    and a health that another group's master gives on our port is not ours."""

    async def ready(pid: int) -> str:
        async with AdminClient(config.admin_url, timeout=CONNECT_TIMEOUT_S) as admin:
            try:
                health = await admin.health()
            except AdminError:
                return "its admin HTTP to answer"
        if not health.service_ready:
            return "the master to serve"
        ports = await asyncio.to_thread(listeners, pid)
        needed = {config.ports.master_rpc, config.ports.master_admin}
        return "" if needed <= ports else "the master to listen"

    return ready


def _store_ready(config: GroupConfig) -> ReadyCheck:
    """A store is ready when a segment that the master lists as OK is served by this process."""

    async def ready(pid: int) -> str:
        if not await asyncio.to_thread(listeners, pid):
            return "the store to listen"
        async with AdminClient(config.admin_url, timeout=CONNECT_TIMEOUT_S) as admin:
            try:
                segments = await admin.segments()
            except AdminError:
                return "the master to answer"
        for segment in await own_segments(config, segments, pid):
            host, _, port = segment.endpoint.rpartition(":")
            return "" if await accepts(host, int(port)) else "the store to accept connections"
        return "the master to list the store's memory"

    return ready


def _stop_on_signals() -> asyncio.Event:
    """Set by SIGINT, SIGTERM or SIGHUP."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: a test
            loop.add_signal_handler(number, stop.set)
    return stop


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Do `work` until `stop` is set."""
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for each in (task, stopped):
            each.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
