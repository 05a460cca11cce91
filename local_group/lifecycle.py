"""A group from start to stop: what `moonmesh up`, `down` and `status` do."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

import psutil

from local_group.admin import AdminClient
from local_group.config import GroupConfig
from local_group.mooncake import (
    MooncakePrograms,
    master_command,
    mooncake_environment,
    store_command,
)
from local_group.ports import PortUse, check_free, listeners, mooncake_ports
from local_group.process_errors import AdminError, AlreadyRunning, GroupError
from local_group.processes import (
    ChildSpec,
    Progress,
    ReadyCheck,
    Supervisor,
    SupervisorLimits,
    kill_leftovers,
)
from local_group.state import (
    ChildState,
    GroupLock,
    GroupState,
    ProcessId,
    leftovers,
    read_state,
)

START_TIMEOUT_S = 60.0
"""Seconds for `up`; a group on a quiet machine takes about 1."""
STOP_TIMEOUT_S = 45.0
"""Seconds for a supervisor to stop its group before `down` kills everything: more than three stages
that each need `SupervisorLimits.stop_grace`."""

_CONNECT_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Extra:
    """What runs in a group beside Mooncake: the gateway, given by a layer that knows it."""

    stages: Sequence[Sequence[ChildSpec]] = ()
    ports: Sequence[PortUse] = ()


@dataclass(frozen=True)
class ChildReport:
    """A child as `status` shows it."""

    name: str
    phase: str
    pid: int | None = None
    uptime_s: float | None = None
    restarts: int = 0
    rss_bytes: int | None = None
    last_exit: str = ""


@dataclass(frozen=True)
class GroupReport:
    """A group as `status` shows it."""

    group: str
    phase: str
    """`stopped`, `starting`, `ready`, `degraded` (a child is not ready) or `stopping`."""
    supervisor_pid: int | None = None
    children: Sequence[ChildReport] = field(default_factory=tuple)
    problems: Sequence[str] = field(default_factory=tuple)

    @property
    def ready(self) -> bool:
        """Does everything run and answer?"""
        return self.phase == "ready" and not self.problems


async def run_group(
    config: GroupConfig,
    extra: Extra | None = None,
    *,
    timeout: float = START_TIMEOUT_S,
    progress: Callable[[Progress], None] = lambda _: None,
    on_ready: Callable[[], None] = lambda: None,
    limits: SupervisorLimits | None = None,
    mooncake: Callable[[GroupConfig], Sequence[Sequence[ChildSpec]]] | None = None,
) -> None:
    """Start a group, keep it running until SIGINT, SIGTERM or SIGHUP, stop it.

    Args:
        config: the group.
        extra: started after Mooncake, stopped before it.
        timeout: seconds until all must be ready.
        progress: told of every change.
        on_ready: called once, when all is ready.
        mooncake: the stages of Mooncake; another one in tests.

    Raises:
        AlreadyRunning, PortInUse, MissingPackage, ChildDied, NotReady, GroupError: it could not be
            started; nothing of it runs then.
    """
    extra = extra or Extra()
    lock = GroupLock(config.lock_file)
    prepare(config)
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
        check_free([*mooncake_ports(config), *extra.ports])
        with contextlib.suppress(FileNotFoundError):  # a stale one would look like a gateway
            config.gateway_socket.unlink()
        stages = [*(mooncake or mooncake_stages)(config), *extra.stages]
        supervisor = Supervisor(
            state,
            stages,
            data_dir=config.data_dir,
            state_file=config.state_file,
            log_dir=config.log_dir,
            progress=progress,
            limits=limits,
        )
        stop = _stop_on_signals()
        try:
            if await _unless(stop, supervisor.start(timeout)):
                on_ready()
                await _unless(stop, supervisor.failed())
        finally:
            await supervisor.stop()
            kill_leftovers(leftovers(config.data_dir, None))  # what a gateway may have started
            config.state_file.unlink(missing_ok=True)
    finally:
        lock.release()


@dataclass(frozen=True)
class Stopped:
    """What `down` found.

    Attributes:
        ran: a supervisor ran.
        killed: names of processes that had no supervisor.
    """

    ran: bool
    killed: Sequence[str] = ()


def stop_group(config: GroupConfig, timeout: float = STOP_TIMEOUT_S) -> Stopped:
    """Stop a group, and whatever an earlier supervisor left of it.

    Raises:
        GroupError: something could not be stopped.
    """
    state = read_state(config.state_file)
    lock = GroupLock(config.lock_file)
    holder = lock.holder()
    supervisor = ProcessId.of(holder) if holder else None
    if supervisor is None and state is not None and state.supervisor.alive():
        supervisor = state.supervisor
    if supervisor is not None:
        supervisor.signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while supervisor.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        if supervisor.alive():
            kill_leftovers({"the supervisor": supervisor})
    state = read_state(config.state_file) or state
    left = leftovers(config.data_dir, state)
    kill_leftovers(left)
    config.state_file.unlink(missing_ok=True)
    return Stopped(supervisor is not None, [f"{n} (pid {p.pid})" for n, p in left.items()])


async def group_report(config: GroupConfig) -> GroupReport:
    """What runs of a group now, checked live."""
    state = read_state(config.state_file)
    if state is None or not state.supervisor.alive():
        left = leftovers(config.data_dir, state)
        problems = [f"{name} (pid {process.pid}) was left behind" for name, process in left.items()]
        return GroupReport(config.name, "stopped", problems=problems)
    children = [_child_report(name, child) for name, child in state.children.items()]
    problems = [f"{child.name} is {child.phase}" for child in children if child.phase != "ready"]
    if state.phase == "ready":
        problems += await mooncake_problems(config)
    phase = "degraded" if state.phase == "ready" and problems else state.phase
    return GroupReport(config.name, phase, state.supervisor.pid, children, problems)


async def mooncake_problems(config: GroupConfig) -> list[str]:
    """What is wrong with the running Mooncake; empty when it serves with all its stores."""
    async with AdminClient(config.admin_url, timeout=_CONNECT_TIMEOUT_S) as admin:
        try:
            health = await admin.health()
            if not health.service_ready:
                return [f"the master does not serve ({health.ha_state})"]
            good = sum(segment.ok for segment in await admin.segments())
        except AdminError as error:
            return [str(error)]
    if good < config.stores.count:
        return [f"{good} of {config.stores.count} stores are in the pool"]
    return []


def mooncake_stages(config: GroupConfig) -> list[list[ChildSpec]]:
    """The master, then the stores.

    Raises:
        MissingPackage: Mooncake or a library is missing.
    """
    programs = MooncakePrograms.find()
    env = mooncake_environment(config)
    master = ChildSpec("master", master_command(programs, config), _master_ready(config), env)
    stores = [
        ChildSpec(f"store-{i}", store_command(programs, config, i), _store_ready(config), env)
        for i in range(config.stores.count)
    ]
    return [[master], stores]


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
        async with AdminClient(config.admin_url, timeout=_CONNECT_TIMEOUT_S) as admin:
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
        ports = await asyncio.to_thread(listeners, pid)
        if not ports:
            return "the store to listen"
        async with AdminClient(config.admin_url, timeout=_CONNECT_TIMEOUT_S) as admin:
            try:
                segments = await admin.segments()
            except AdminError:
                return "the master to answer"
        for segment in segments:
            host, _, port = segment.endpoint.rpartition(":")
            if segment.ok and port.isdigit() and int(port) in ports:
                return "" if await _accepts(host, int(port)) else "the store to accept connections"
        return "the master to list the store's memory"

    return ready


async def _accepts(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_TIMEOUT_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


def _child_report(name: str, child: ChildState) -> ChildReport:
    process = child.process
    if process is None or not process.alive():
        ended = child.phase if child.phase in ("waiting", "restarting", "stopped") else "dead"
        return ChildReport(name, ended, restarts=child.restarts, last_exit=child.last_exit)
    phase: str = child.phase
    rss = None
    with contextlib.suppress(psutil.Error):
        running = psutil.Process(process.pid)
        rss = running.memory_info().rss
        if running.status() == psutil.STATUS_STOPPED:
            phase = "frozen"  # SIGSTOP, or a debugger
    uptime = max(0.0, time.time() - child.started_at)
    return ChildReport(name, phase, process.pid, uptime, child.restarts, rss, child.last_exit)


def _stop_on_signals() -> asyncio.Event:
    """Set by SIGINT, SIGTERM or SIGHUP."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: a test
            loop.add_signal_handler(number, stop.set)
    return stop


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do `work` until `stop` is set; True if the work was done."""
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for each in (task, stopped):
            each.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
