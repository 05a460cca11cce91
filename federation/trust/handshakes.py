"""Who was refused here, and why: a bounded record for `status`.

A gateway records the refusals that it decides itself. A refusal within the TLS handshake never
reaches Python: gRPC's C core only writes a line to stderr. `StderrWatch` reads those lines.
"""

from __future__ import annotations

import logging
import os
import re
import select
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

log = logging.getLogger(__name__)

ENTRIES_MAX: Final = 64
"""Refusals kept, by who and why."""
UNKNOWN_TLS: Final = "unknown (TLS)"
"""Who it was, where a handshake failed: the C core's line names no address."""
EITHER_WAY: Final = "unknown (TLS, in or out)"
"""The same, where it may have been a connection of ours too."""


@dataclass(frozen=True)
class Refused:
    """Somebody was refused `count` times for one reason."""

    who: str
    reason: str
    count: int
    last_at: float
    """Seconds since 1970."""


class RefusalLog:
    """The latest refusals, by who and why. Thread-safe.

    Args:
        limit: entries kept; the one that was longest not repeated makes room for a new one, so
            that a stranger who varies its name costs no memory.
    """

    def __init__(self, limit: int = ENTRIES_MAX) -> None:
        if limit < 1:
            raise ValueError("limit must be above 0")
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], Refused] = {}
        self._total = 0

    def record(self, who: str, reason: str, now: float, times: int = 1) -> None:
        """Counts a refusal (`now`: seconds since 1970), or several of the same."""
        self._count(who, reason, now, times)

    def refuse(self, who: str, reason: str, now: float, kind: str | None = None) -> None:
        """`record`, and a line in the log each time that the count has doubled.

        Not each time: who is refused may try again a thousand times a second.

        Args:
            kind: refusals of one kind are one entry, which has the latest reason: for reasons in which a
                peer can write what it wants, or it would fill the log alone.
        """
        count = self._count(who, reason, now, kind=kind)
        if count & (count - 1) == 0:
            log.warning("refused %s: %s (%d so far)", who[:100], reason[:300], count)

    def _count(
        self, who: str, reason: str, now: float, times: int = 1, kind: str | None = None
    ) -> int:
        shown = (who[:100], reason[:300])
        key = shown if kind is None else (who[:100], f"kind {kind}")
        with self._lock:
            self._total += times
            before = self._entries.pop(key, None)
            if before is None and len(self._entries) >= self._limit:
                del self._entries[next(iter(self._entries))]
            count = times + (0 if before is None else before.count)
            # Re-inserted at the end: the dict stays ordered by the time of the last refusal.
            self._entries[key] = Refused(*shown, count, now)
            return count

    def entries(self) -> list[Refused]:
        """What is kept, latest first."""
        with self._lock:
            return list(reversed(self._entries.values()))

    @property
    def total(self) -> int:
        """Refusals since the start, those no longer kept included."""
        return self._total


_FAILED = re.compile(r"Handshake failed with error (?P<error>.+)")
_NO_MATCH = re.compile(r"No match found for server name: (?P<name>\S+)")
_MARKS: Final = (b"Handshake failed with error", b"No match found for server name")
_REASONS: Final = (
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "showed no certificate"),
    ("certificate has expired", "its certificate has expired"),
    ("certificate is not yet valid", "its certificate is not valid yet (is a clock wrong?)"),
    ("BAD_SIGNATURE", "its certificate is signed by another CA"),
    ("local issuer certificate", "its certificate is signed by another CA"),
    ("self signed certificate", "its certificate is signed by another CA"),
    ("self-signed certificate", "its certificate is signed by another CA"),
    ("UNKNOWN_CA", "it refused our certificate: signed by another CA than its own"),
    ("ALERT_CERTIFICATE_EXPIRED", "it refused our certificate: expired"),
    ("ALERT", "it refused our certificate"),
    ("WRONG_VERSION_NUMBER", "did not speak TLS"),
    ("HTTP_REQUEST", "did not speak TLS"),
)


def explain_line(line: str) -> tuple[str, str] | None:
    """(who, reason) of a stderr line of gRPC's C core about a failed handshake; else None.

    The lines of incoming and outgoing connections look the same, save for a wrong server name.
    """
    match = _NO_MATCH.search(line)
    if match:
        return match["name"], "the certificate at its address is for another name"
    match = _FAILED.search(line)
    if not match:
        return None
    error = match["error"]
    for part, reason in _REASONS:
        if part in error:
            return UNKNOWN_TLS, reason
    return UNKNOWN_TLS, "TLS handshake failed: " + error.rsplit("OPENSSL_internal:", 1)[-1].strip()


class StderrWatch:
    """Reads what this process writes to stderr, and records failed handshakes.

    Where stderr is a file (as under `moonmesh up`), the file is read as it grows and nothing stands
    between the process and its log. Otherwise (a terminal, a pipe, journald) file descriptor 2
    becomes a pipe, and a thread passes every byte on; then bytes that are written in the very
    moment of a crash can be lost, and child processes must not be given this stderr.

    Use as a context manager, or `start` and `stop`; one at a time in a process.

    Args:
        log: of who was refused.
        dialled: of connections of our own that failed, which are no refusals of ours; None for a process that
            makes none.
        listens: whether others connect to this process by TLS. If so and it dials too, a line does not say
            which of the two it was, save for a wrong server name: it is in `log`, with words that say so.
    """

    LINE_BYTES_MAX: Final = 4096
    """Bytes of a line that are looked at."""
    FILE_POLL_SECONDS: Final = 0.25
    """How late a line in a file is noticed."""

    def __init__(
        self,
        log: RefusalLog,
        clock: Callable[[], float] = time.time,
        *,
        dialled: RefusalLog | None = None,
        listens: bool = True,
    ) -> None:
        self._log = log
        self._dialled = dialled
        self._listens = listens
        self._clock = clock
        self._partial = b""
        self._thread: threading.Thread | None = None
        self._wake_r = self._wake_w = self._source = self._original = -1

    def __enter__(self) -> StderrWatch:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begins to watch.

        Raises:
            RuntimeError: if it watches already.
        """
        if self._thread is not None:
            raise RuntimeError("this StderrWatch has been started already")
        self._wake_r, self._wake_w = os.pipe()
        follow = self._open_file()
        if not follow:
            self._open_pipe()
        self._thread = threading.Thread(
            target=self._follow if follow else self._pass_on, name="stderr-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Gives stderr back, after what was written has been passed on. Harmless twice."""
        if self._thread is None:
            return
        if self._original >= 0:
            os.dup2(self._original, 2)
        os.write(self._wake_w, b"x")
        self._thread.join(5.0)
        self._thread = None
        for fd in (self._source, self._original, self._wake_r, self._wake_w):
            if fd >= 0:
                os.close(fd)
        self._wake_r = self._wake_w = self._source = self._original = -1

    def _open_file(self) -> bool:
        """Opens the file that stderr is, at its end; False if it is none, or cannot be read."""
        try:
            if not stat.S_ISREG(os.fstat(2).st_mode):
                return False
            self._source = os.open("/proc/self/fd/2", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        os.lseek(self._source, 0, os.SEEK_END)
        return True

    def _open_pipe(self) -> None:
        self._original = os.dup(2)
        self._source, write_end = os.pipe()
        os.set_blocking(self._source, False)
        os.dup2(write_end, 2)
        os.close(write_end)

    def _follow(self) -> None:
        while True:
            ready, _, _ = select.select([self._wake_r], [], [], self.FILE_POLL_SECONDS)
            while data := os.read(self._source, 1 << 16):
                self._look(data)
            if ready:
                return
            if os.lseek(self._source, 0, os.SEEK_CUR) > os.fstat(self._source).st_size:
                os.lseek(self._source, 0, os.SEEK_SET)  # it was truncated

    def _pass_on(self) -> None:
        while True:
            ready, _, _ = select.select([self._source, self._wake_r], [], [])
            try:
                data = os.read(self._source, 1 << 16)
            except BlockingIOError:
                data = b""
            if data:
                self._write_on(data)
                self._look(data)
            elif self._wake_r in ready or self._source in ready:
                return  # told to stop, and the pipe is empty; or its last writer is gone

    def _write_on(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._original, view) :]
            except BlockingIOError:
                select.select([], [self._original], [])
            except OSError:
                return  # nobody reads our stderr any more: the process must not stop for that

    def _look(self, data: bytes) -> None:
        *lines, rest = (self._partial + data).split(b"\n")
        self._partial = rest[: self.LINE_BYTES_MAX]
        for line in lines:
            if not any(mark in line for mark in _MARKS):
                continue
            found = explain_line(line[: self.LINE_BYTES_MAX].decode("utf-8", "replace"))
            if found:
                self._record(*found)

    def _record(self, who: str, reason: str) -> None:
        now = self._clock()
        if self._dialled is None:
            self._log.record(who, reason, now)
        elif not self._listens or who != UNKNOWN_TLS:
            self._dialled.record(who, reason, now)
        else:
            self._log.record(EITHER_WAY, reason, now)
