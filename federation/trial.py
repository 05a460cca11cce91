"""A changed peering.toml on trial: tried for a minute, and taken back by itself if things get worse.

What was there before is kept in a record in data_dir until the trial is over. Both are replaced whole or not
at all, the record first: so whatever is killed in between, the old file is in force again, or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal

from federation.errors import MoonmeshError
from local_group.slots import SlotFile

TRIAL_SECONDS: Final = 60.0
"""For which a new file is on trial, from when the gateway has read it."""
READY_SECONDS: Final = 30.0
"""In which the gateway has to serve."""
HEARD_SECONDS: Final = 20.0
"""In which peers that were reached before have to be so again; later, how long one of them may be lost."""
SETTLE_SECONDS: Final = 10.0
"""In which errors are not counted: connections are being made."""
BEGUN_SECONDS: Final = 30.0
"""In which a gateway that runs has to have ended, so that another one reads the new file."""
GRACE_SECONDS: Final = 10.0
"""Beyond the time in which the gateway has to decide; then it hangs."""
ERRORS_FEW: Final = 20
"""In a trial, that prove nothing."""
ERRORS_TIMES: Final = 3.0
"""Of the errors a second before: more of them, and the file is taken back."""
FILE_BYTES_MAX: Final = 256 * 1024
"""Of a peering.toml: 63 peers with all that can be said of them take 40 KiB."""
_RECORD_BYTES = 2 * FILE_BYTES_MAX
ERRORS: Final = (
    "moonmesh_pull_errors_total",
    "moonmesh_catalog_errors_total",
    "moonmesh_refused_requests_total",
)
"""Counters of what gets worse with a wrong peering.toml."""

State = Literal["trying", "kept", "rolled back", "superseded"]


class TrialError(MoonmeshError):
    """A new peering.toml cannot be tried, or was not kept."""

    code = "MM325"


class RefusedError(TrialError):
    """It is not tried: nothing has changed."""

    exit_code = 2


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        path: of the peering.toml.
        before: its text before.
        wanted: SHA-256 of the new text.
        alive: peers that answered within `HEARD_SECONDS` before, and that the new file has.
        error_rate: errors a second before.
        changed_at: seconds since 1970.
        started_at: seconds since 1970 when the gateway first read it; 0: it has not.
        starts: times that it has: 0 or 1, since with the next one it is taken back.
        seconds: for which it is on trial.
    """

    path: str
    before: str
    wanted: str
    alive: tuple[str, ...] = ()
    error_rate: float = 0.0
    state: State = "trying"
    why: str = ""
    changed_at: float = 0.0
    started_at: float = 0.0
    starts: int = 0
    seconds: float = TRIAL_SECONDS

    def status(self) -> dict[str, Any]:
        """For `moonmesh status`."""
        changed = datetime.fromtimestamp(self.changed_at, timezone.utc)
        return {
            "state": self.state,
            "why": self.why,
            "changed_at": changed.isoformat(timespec="seconds"),
        }


class TrialFile:
    """The latest trial of a place, durable."""

    def __init__(self, data_dir: Path) -> None:
        self.latest: Trial | None = None
        """As it was read or written last."""
        self.path = data_dir / "trial"
        self._slots = SlotFile(self.path, _RECORD_BYTES, durable=True)

    def read(self) -> Trial | None:
        """The latest; None if there was none, or the record is damaged."""
        try:
            found = json.loads(self._slots.read() or b"null")
            trial = None if found is None else Trial(**{**found, "alive": tuple(found["alive"])})
        except (OSError, ValueError, TypeError, KeyError):
            trial = None
        self.latest = trial
        return trial

    def write(self, trial: Trial) -> None:
        """Replaces it.

        Raises:
            TrialError: it cannot be written.
        """
        self.latest = trial
        try:
            self._slots.write(json.dumps(asdict(trial)).encode())
        except (OSError, ValueError) as error:
            raise TrialError(
                f"the trial cannot be written down: {error}", where=str(self.path)
            ) from error

    def begin(self, trial: Trial, text: str) -> None:
        """Writes down what is there, and puts the new text in its place.

        Raises:
            TrialError: one of them cannot be written; the old text is in force.
        """
        self.write(trial)
        try:
            replace_text(Path(trial.path), text)
        except OSError as error:
            self.write(replace(trial, state="superseded", why="the new file could not be written"))
            raise TrialError(f"cannot be written: {error.strerror}", where=trial.path) from error

    def at_start(self) -> Trial | None:
        """A gateway starts, and has read nothing yet: the trial that goes on with it, if there is one.

        Raises:
            TrialError: the old file cannot be put back.
        """
        trial = self.read()
        if trial is None or trial.state != "trying":
            return None
        if _digest(_text(Path(trial.path))) != trial.wanted:
            # Killed before the new text was there, or somebody has written another one since.
            self.write(replace(trial, state="superseded", why="another file is there"))
            return None
        if trial.starts:
            # Whatever ended it, and however long ago: what has not proved itself is not in force.
            self.take_back(trial, "the gateway ended before it was decided")
            return None
        now = time.time()
        trial = replace(trial, starts=1, started_at=now, changed_at=now)
        self.write(trial)
        return trial

    def keep(self, trial: Trial) -> None:
        """It has proved itself."""
        self.write(replace(trial, state="kept", before="", changed_at=time.time()))

    def take_back(self, trial: Trial, why: str) -> bool:
        """Puts the old text back; False where another one than the new is there by now.

        Raises:
            TrialError: it cannot be.
        """
        ours = _digest(_text(Path(trial.path))) == trial.wanted
        if ours:
            try:
                replace_text(Path(trial.path), trial.before)
            except OSError as error:
                raise TrialError(
                    f"cannot be put back: {error.strerror}", where=trial.path
                ) from error
        state: State = "rolled back" if ours else "superseded"
        self.write(replace(trial, state=state, why=why, changed_at=time.time()))
        return ours


class Judge:
    """Whether things have got worse; sans-IO.

    Args:
        now: when the gateway began to read the new file.
    """

    def __init__(self, trial: Trial, now: float) -> None:
        self._trial = trial
        self._began = now
        self._ready = False
        self._errors: tuple[float, int] | None = None
        self._heard_at = dict.fromkeys(trial.alive, now)

    def look(self, now: float, ready: bool, alive: Collection[str], errors: int) -> str | None:
        """Why it is to be taken back, "" to keep it, None while that is not known.

        Args:
            ready: whether the gateway serves.
            alive: peers that are heard, and that answer.
            errors: so far, of `ERRORS`.
        """
        self._ready |= ready
        if not self._ready:
            late = now - self._began >= READY_SECONDS
            return f"the gateway did not serve within {READY_SECONDS:g} s" if late else None
        for peer in self._heard_at:
            if peer in alive:
                self._heard_at[peer] = now
        lost = [peer for peer, at in self._heard_at.items() if now - at >= HEARD_SECONDS]
        if lost:
            return f"not heard, or not reached, any more: {', '.join(sorted(lost))}"
        if now - self._began >= SETTLE_SECONDS and self._errors is None:
            self._errors = (now, errors)
        if self._errors is not None:
            since, before = self._errors
            usual = self._trial.error_rate * (now - since)
            if errors - before > max(ERRORS_FEW, ERRORS_TIMES * usual):
                return f"{errors - before} errors in {now - since:.0f} s, {usual:.0f} were usual"
        over = now - self._began >= self._trial.seconds
        if over and any(peer not in alive for peer in self._heard_at):
            return None  # it is heard again, or lost, in a moment
        return "" if over else None


def decided_within(trial: Trial) -> float:
    """Seconds from its start in which a gateway that does not hang decides."""
    return max(READY_SECONDS, trial.seconds + HEARD_SECONDS)


class Overdue:
    """What a trial needs that its gateway does not see to, for whoever has started that; sans-IO."""

    def __init__(self) -> None:
        self._seen: tuple[str, float, int] | None = None
        self._since = 0.0

    def look(self, trial: Trial | None, running: bool, now: float) -> Literal["", "end", "decide"]:
        """`end`: the gateway, which reads the new file at its next start. `decide`: take the file back, and
        end the gateway, which hangs.

        Args:
            running: whether there is a gateway's process.
            now: monotonic, so that nothing happens to a trial when the clock is set.
        """
        if trial is None or trial.state != "trying" or not running:
            self._seen = None
            return ""
        step = (trial.wanted, trial.changed_at, trial.starts)
        if step != self._seen:
            self._seen, self._since = step, now
        waited = now - self._since
        if not trial.starts:
            return "end" if waited >= BEGUN_SECONDS else ""
        return "decide" if waited >= decided_within(trial) + GRACE_SECONDS else ""


def replace_text(path: Path, text: str) -> None:
    """Replaces a file whole or not at all; on disk when it returns.

    Raises:
        OSError: it cannot be; the old one stays.
    """
    temporary = path.with_name(f".{path.name}.new")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def digest_of(text: str) -> str:
    """Of a file's text, as `Trial.wanted` has it."""
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(text: str | None) -> str:
    return "" if text is None else digest_of(text)


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
