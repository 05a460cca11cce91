"""Running a group in the foreground or detached, and showing how it starts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from federation.cli.errors import error_text, print_error
from federation.config import GroupFile
from federation.trial_keeper import keep_trials
from local_group import process_errors  # noqa: F401 - registers the codes that a report may carry
from local_group.child import ChildSpec, Progress
from local_group.errors import MoonmeshError
from local_group.lifecycle import already_running, prepare, run_group
from local_group.logs import log_tail, rotate
from local_group.process_errors import GroupError
from local_group.scheduling import come_first
from local_group.state import GroupLock

SUPERVISOR_LOG_BYTES = 16 << 20
DETACH_MARGIN_S = 30.0
"""Seconds that the supervisor may need beyond `--timeout`, to begin and to clean up."""

END_S = 5.0
"""Seconds for a supervisor that has closed its pipe to be gone."""

_ICONS = {"ready": "[green]✓[/]", "restarting": "[yellow]↻[/]", "stopped": "[dim]■[/]"}


Failures = Mapping[str, MoonmeshError]
"""Errors of what is beside Mooncake, by the child's name."""


class View(Protocol):
    """Where progress is shown."""

    def update(self, progress: Progress) -> None:
        """A child has changed."""

    def started(self, failures: Failures) -> None:
        """Mooncake is ready, and all of the rest that is not in `failures`."""

    def close(self) -> None:
        """Nothing more comes."""


class PlainView:
    """A line for each change: logs, pipes."""

    def __init__(self, group: GroupFile, stream: IO[str], stamped: bool = False) -> None:
        self._group = group
        self._stream = stream
        self._stamped = stamped

    def update(self, progress: Progress) -> None:
        line = f"{progress.child}: {progress.phase}"
        if progress.phase == "ready":
            line += f" after {progress.seconds * 1000:.0f} ms"
        if progress.detail:
            line += f", {progress.detail}"
        self._line(line)

    def started(self, failures: Failures) -> None:
        for error in failures.values():
            print_error(error)
        self._line(started_line(self._group, failures))

    def close(self) -> None:
        pass

    def _line(self, line: str) -> None:
        if self._stamped:
            line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}"
        with contextlib.suppress(OSError):  # nobody reads any more: the group goes on
            print(line, file=self._stream, flush=True)


class LiveView:
    """One line a child, rewritten in place: terminals."""

    def __init__(self, group: GroupFile, console: Console) -> None:
        self._group = group
        self._console = console
        self._rows: dict[str, Progress] = {}
        self._live = Live(console=console, auto_refresh=False)  # an idle group costs nothing
        self._live.start()

    def update(self, progress: Progress) -> None:
        self._rows[progress.child] = progress
        self._live.update(self._table(), refresh=True)

    def started(self, failures: Failures) -> None:
        for error in failures.values():
            self._live.console.print(error_text(error), soft_wrap=True)
        line = started_line(self._group, failures)
        self._live.console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for row in self._rows.values():
            took = f"{row.seconds * 1000:.0f} ms" if row.phase == "ready" else row.detail
            icon = _ICONS.get(row.phase, "…")
            table.add_row(icon, row.child, row.phase, Text(took, style="dim"))
        return table


class ReportView:
    """JSON lines into a pipe, for the `up --detach` that waits; and plain lines into the log."""

    def __init__(self, group: GroupFile, descriptor: int) -> None:
        self._plain = PlainView(group, sys.stdout, stamped=True)
        self._pipe: IO[str] | None = os.fdopen(descriptor, "w")
        os.set_inheritable(descriptor, False)

    def update(self, progress: Progress) -> None:
        self._plain.update(progress)
        self._send({"progress": dataclasses.astuple(progress)})

    def started(self, failures: Failures) -> None:
        self._plain.started(failures)
        self._send({"started": {name: _fields(error) for name, error in failures.items()}})
        self._drop()

    def failed(self, error: MoonmeshError) -> None:
        """Tell the waiting command why there will be no group."""
        self._send({"error": _fields(error)})

    def close(self) -> None:
        self._drop()

    def _send(self, message: dict[str, Any]) -> None:
        if self._pipe is not None:
            try:
                print(json.dumps(message), file=self._pipe, flush=True)
            except BrokenPipeError:  # whoever waited has gone; the group goes on
                self._drop()

    def _drop(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                self._pipe.close()
            self._pipe = None


def started_line(group: GroupFile, failures: Failures) -> str:
    """The last line of a start."""
    if not failures:
        return ready_line(group)
    names = ", ".join(failures)
    return (
        f'group "{group.name}" runs without the federation: Mooncake is ready, master '
        f"{group.master_address}; the {names} is tried again until it is ready: see "
        f"`moonmesh status` and logs in {group.log_dir}"
    )


def ready_line(group: GroupFile) -> str:
    """What a person needs to know of a group that is ready."""
    elsewhere = "" if group.master.address is None else " (elsewhere)"
    line = f'group "{group.name}" is ready: master {group.master_address}{elsewhere}'
    if group.gateway.enabled:
        line += f", engines unix:{group.gateway_socket}"
        line += f", peers {group.gateway.listen}:{group.ports.peers}"
    return f"{line}; logs in {group.log_dir}"


def view_for(group: GroupFile, report_fd: int = -1) -> View:
    """The view that suits where the output goes."""
    if report_fd >= 0:
        return ReportView(group, report_fd)
    console = Console(highlight=False)
    return LiveView(group, console) if console.is_terminal else PlainView(group, sys.stdout)


async def foreground(
    group: GroupFile,
    beside: Sequence[ChildSpec],
    timeout: float,
    view: View,
    lock: GroupLock | None = None,
) -> None:
    """Run a group until a signal; see `local_group.lifecycle.run_group`."""
    come_first()
    trials = None
    if group.gateway.enabled and group.gateway.peering is not None:
        trials = asyncio.create_task(keep_trials(group))
    try:
        await run_group(
            group,
            beside,
            lock=lock,
            timeout=timeout,
            progress=view.update,
            on_started=view.started,
        )
    except MoonmeshError as error:
        if isinstance(view, ReportView):
            view.failed(error)
        raise
    finally:
        if trials is not None:
            trials.cancel()
        view.close()


def detached(path: Path, group: GroupFile, timeout: float) -> bool:
    """Start a supervisor of its own session; return when Mooncake is ready: is all of it?

    The group's lock is taken here and handed over, so that a `down` meanwhile sees that it runs.

    Raises:
        MoonmeshError: what the supervisor met; nothing of the group runs then.
    """
    prepare(group)
    lock = GroupLock(group.lock_file)
    if not lock.acquire():
        raise already_running(group, lock)
    with contextlib.closing(_Detached(group, timeout)) as starting:
        try:
            starting.begin(path, lock)
        finally:
            lock.release()  # the supervisor has it
        return starting.wait()


class _Detached:
    """A supervisor that starts, as the command that waits for it sees it."""

    def __init__(self, group: GroupFile, timeout: float) -> None:
        self._group = group
        self._timeout = timeout
        self._log = group.log_dir / "supervisor.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._reports: IO[str] | None = None
        self._stopped = False
        # `down` may find us instead of the supervisor, while that is being made.
        self._handler = signal.signal(signal.SIGTERM, self._stop)

    def begin(self, path: Path, lock: GroupLock) -> None:
        """Start it, and give it the lock."""
        rotate(self._log, SUPERVISOR_LOG_BYTES)
        reading, writing = os.pipe()
        self._reports = os.fdopen(reading)
        try:
            with open(self._log, "ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "federation.cli", "up", "-c", str(path.absolute()),
                     "--timeout", str(self._timeout), "--report-fd", str(writing),
                     "--lock-fd", str(lock.descriptor)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(writing, lock.descriptor),
                    start_new_session=True,
                )  # fmt: skip
        finally:
            os.close(writing)
        lock.name(self._process.pid)
        if self._stopped:
            self._process.terminate()

    def wait(self) -> bool:
        """Show how it starts; is all ready?"""
        assert self._process is not None
        assert self._reports is not None
        view = view_for(self._group)
        try:
            for message in _messages(self._reports, self._timeout + DETACH_MARGIN_S):
                if "progress" in message:
                    view.update(Progress(*message["progress"]))
                elif "error" in message:
                    self._process.wait(DETACH_MARGIN_S)
                    raise rebuild(*message["error"])
                else:
                    failures = message["started"]
                    view.started({name: rebuild(*each) for name, each in failures.items()})
                    return not failures
            raise self._ended(self._process)
        except BaseException:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(DETACH_MARGIN_S)
            self._process.kill()
            raise
        finally:
            view.close()

    def close(self) -> None:
        """The command no longer waits."""
        signal.signal(signal.SIGTERM, self._handler)
        if self._reports is not None:
            self._reports.close()

    def _stop(self, *_: object) -> None:
        self._stopped = True
        if self._process is not None:
            self._process.terminate()

    def _ended(self, process: subprocess.Popen[bytes]) -> GroupError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if process.wait(END_S) in (0, -signal.SIGTERM):
                return GroupError(f'group "{self._group.name}" was stopped while it started')
        return GroupError(
            "the supervisor ended, or said nothing in time",
            hint=f"the last lines of {self._log}:\n" + log_tail(self._log),
        )


def _fields(error: MoonmeshError) -> list[str]:
    """An error for `rebuild`."""
    return [error.code, error.what, error.where, error.hint]


def _messages(reports: IO[str], timeout: float) -> Iterator[dict[str, Any]]:
    """JSON lines until the pipe's end or `timeout` seconds."""
    import selectors

    deadline = time.monotonic() + timeout
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reports, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(reports.fileno(), 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)


def rebuild(code: str, what: str, where: str, hint: str) -> MoonmeshError:
    """The supervisor's error, of its own class again."""
    classes = [MoonmeshError]
    for each in classes:
        classes += each.__subclasses__()
    kind = next((each for each in classes if each.code == code), GroupError)
    return kind(what, where=where, hint=hint)
