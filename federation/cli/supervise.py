"""Running a group in the foreground or detached, and showing how it starts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from federation.config import GroupFile
from local_group import process_errors  # noqa: F401 - registers the codes that a report may carry
from local_group.errors import MoonmeshError
from local_group.lifecycle import Extra, already_running, prepare, run_group
from local_group.logs import log_tail, rotate
from local_group.process_errors import GroupError
from local_group.processes import Progress
from local_group.state import GroupLock

SUPERVISOR_LOG_BYTES = 16 << 20
DETACH_MARGIN_S = 30.0
"""Seconds that the supervisor may need beyond `--timeout`, to begin and to clean up."""

_ICONS = {"ready": "[green]✓[/]", "restarting": "[yellow]↻[/]", "stopped": "[dim]■[/]"}


class View(Protocol):
    """Where progress is shown."""

    def update(self, progress: Progress) -> None:
        """A child has changed."""

    def ready(self) -> None:
        """All are ready."""

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

    def ready(self) -> None:
        self._line(ready_line(self._group))

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

    def ready(self) -> None:
        self._live.console.print(ready_line(self._group), markup=False, soft_wrap=True)

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

    def ready(self) -> None:
        self._plain.ready()
        self._send({"ready": True})
        self._drop()

    def failed(self, error: MoonmeshError) -> None:
        """Tell the waiting command why there will be no group."""
        self._send({"error": [error.code, error.what, error.where, error.hint]})

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


def ready_line(group: GroupFile) -> str:
    """What a person needs to know of a group that is ready."""
    line = f'group "{group.name}" is ready: master {group.master_address}'
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


async def foreground(group: GroupFile, extra: Extra, timeout: float, view: View) -> None:
    """Run a group until a signal; see `local_group.lifecycle.run_group`."""
    try:
        await run_group(group, extra, timeout=timeout, progress=view.update, on_ready=view.ready)
    except MoonmeshError as error:
        if isinstance(view, ReportView):
            view.failed(error)
        raise
    finally:
        view.close()


def detached(path: Path, group: GroupFile, timeout: float) -> None:
    """Start a supervisor of its own session; return when the group is ready.

    Raises:
        MoonmeshError: what the supervisor met; nothing of the group runs then.
    """
    prepare(group)
    lock = GroupLock(group.lock_file)
    if lock.holder() is not None:
        raise already_running(group, lock)
    log = group.log_dir / "supervisor.log"
    rotate(log, SUPERVISOR_LOG_BYTES)
    reading, writing = os.pipe()
    with open(log, "ab") as output, os.fdopen(reading) as reports:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "federation.cli", "up", "-c", str(path.absolute()),
                 "--timeout", str(timeout), "--report-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(writing,),
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(writing)
        view = view_for(group)
        try:
            for message in _messages(reports, timeout + DETACH_MARGIN_S):
                if "progress" in message:
                    view.update(Progress(*message["progress"]))
                elif "error" in message:
                    process.wait(DETACH_MARGIN_S)
                    raise rebuild(*message["error"])
                else:
                    view.ready()
                    return
        except BaseException:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DETACH_MARGIN_S)
            raise
        finally:
            view.close()
        process.kill()
        raise GroupError(
            "the supervisor ended, or said nothing in time",
            hint=f"the last lines of {log}:\n" + log_tail(log),
        )


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
