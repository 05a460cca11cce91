"""`moonmesh config apply`: a new peering.toml, tried before it is taken."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from federation.cli.group import ConfigOption

if TYPE_CHECKING:
    from federation.config import GroupFile
    from federation.peering import Peering
    from federation.trial import Trial, TrialFile

MARGIN_SECONDS = 30.0
"""Beyond what it takes until it is decided in any case: a gateway takes its time to end, and to start."""
POLL_SECONDS = 0.25


def apply(
    file: Annotated[Path, typer.Argument(help="The new peering.toml.")],
    config: ConfigOption = Path("group.toml"),
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is on trial; `status` says on.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=10, max=3600, help="For how long it is on trial.")
    ] = 60.0,
) -> None:
    """Try a new peering.toml: checked whole, shown as a difference, and taken back if things get worse.

    The gateway is restarted with it, and it is on trial: if the gateway does not serve, a peer
    that was heard is lost, or errors are far more than before, what was there before is put back. That is the
    gateway's doing, or that of `up` where it hangs, so this command may be killed. Exit code 1 if it was
    taken back.
    """
    from federation.config import load_group
    from federation.errors import UsageError
    from federation.trial import FILE_BYTES_MAX, RefusedError, TrialFile
    from federation.trial_keeper import end_gateway

    group = load_group(config)
    path = group.gateway.peering
    if path is None:
        raise UsageError("this group runs alone: set peering in [gateway]", where=str(config))
    try:
        text = file.read_text("utf-8")
        old = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(file)) from error
    if max(len(text.encode()), len(old.encode())) > FILE_BYTES_MAX:
        raise UsageError(f"above {FILE_BYTES_MAX} bytes", where=str(file))
    new = _checked(group, file, path)
    trials = TrialFile(group.data_dir)
    latest = trials.read()
    if latest is not None and latest.state == "trying" and latest.started_at:
        raise RefusedError(
            "another file is on trial",
            where=str(path),
            hint="wait until it is decided: `moonmesh status` shows how it is",
        )
    lines = list(difference(_old(path), new))
    for line in lines or ["nothing that matters changes"]:
        typer.echo(line)
    if text == old:
        return
    trial = replace(_trial(group, path, old, text, new), seconds=seconds)
    trials.begin(trial, text)
    if not end_gateway(group):
        typer.echo("its gateway does not run: it is tried once it does")
        return
    typer.echo("on trial: the gateway is restarted with it")
    if not detach:
        _await(group, trials, trial)


def difference(old: Peering | None, new: Peering) -> Iterator[str]:
    """What is another than before, a line each."""
    if old is None:
        yield "the old file cannot be read: all of the new one is new"
        return
    for what, one, other in (
        ("federation", old.federation, new.federation),
        ("self.group", old.own.group, new.own.group),
        ("self.credentials", old.own.credentials, new.own.credentials),
    ):
        if one != other:
            yield f"~ {what}: {one} -> {other}"
    before = {peer.name: peer for peer in old.peers}
    after = {peer.name: peer for peer in new.peers}
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"- peer {name}"
        elif name not in before:
            yield f"+ peer {name} at {', '.join(after[name].gateways)}"
        else:
            for what in ("gateways", "keys", "exports", "imports"):
                was, now = getattr(before[name], what), getattr(after[name], what)
                if was != now:
                    yield f"~ peer {name}: {what} {_said(was)} -> {_said(now)}"


def _said(values: tuple[Any, ...]) -> str:
    return ", ".join(map(str, values)) or "none"


def _checked(group: GroupFile, file: Path, path: Path) -> Peering:
    """The new file as it would be in its place: with its credentials, and as group.toml needs it."""
    from federation.errors import TrustError
    from federation.peering import load_peering
    from federation.trial import RefusedError
    from federation.trust.credentials import load_credentials

    new = load_peering(file, folder=path.parent)
    new.check_against(group)
    try:
        load_credentials(new.own.credentials, group.name, new.federation)
    except TrustError as error:
        raise RefusedError(error.what, where=error.where, hint=error.hint) from error
    return new


def _old(path: Path) -> Peering | None:
    from federation.errors import MoonmeshError
    from federation.peering import load_peering

    try:
        return load_peering(path)
    except MoonmeshError:
        return None


def _trial(group: GroupFile, path: Path, old: str, text: str, new: Peering) -> Trial:
    from federation.cli.health import ask_status
    from federation.trial import ERRORS, HEARD_SECONDS, Trial, digest_of

    status = ask_status(group.gateway_socket)
    alive: list[str] = []
    rate = 0.0
    if isinstance(status, dict):
        counted = status.get("counters") or {}
        rate = sum(counted.get(name, 0) for name in ERRORS) / max(1.0, status.get("uptime_s", 1.0))
        kept = {peer.name for peer in new.peers}
        alive = [
            peer["name"]
            for peer in status.get("peers") or []
            if peer["name"] in kept
            and (ago := peer.get("answered_ago_s")) is not None
            and ago < HEARD_SECONDS  # not only now: one hello that was lost proves nothing
        ]
    return Trial(str(path), old, digest_of(text), tuple(alive), rate, changed_at=time.time())


def _await(group: GroupFile, trials: TrialFile, trial: Trial) -> None:
    from federation.trial import BEGUN_SECONDS, GRACE_SECONDS, TrialError, decided_within

    most = BEGUN_SECONDS + decided_within(trial) + GRACE_SECONDS + MARGIN_SECONDS
    until = time.monotonic() + most
    while True:
        latest = trials.read()
        if latest is None or latest.wanted != trial.wanted or latest.state != "trying":
            break
        if time.monotonic() >= until:
            raise TrialError(
                "neither the gateway nor `up` has decided in time",
                where=trial.path,
                hint="does `up` hang? At the next start of the gateway what was there before is put back",
            )
        time.sleep(POLL_SECONDS)
    if latest is not None and latest.wanted == trial.wanted and latest.state == "kept":
        typer.echo("kept: all is as well as before")
        return
    why = latest.why if latest is not None else "its record is gone"
    state = latest.state if latest is not None else "unknown"
    raise TrialError(f"{state}: {why}", where=trial.path, hint="`moonmesh status` shows how it is")
