"""What groups say of one another on bad days: watched over time; and a second gateway of a group."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from federation.cli.health import ask_status
from federation.config import load_group
from local_group.lifecycle import prepare
from tests.support.federation import NAMESPACE, Federation
from tests.support.groups import environment, write_group

Said = dict[str, Any]


def version(said: Said) -> tuple[int, int]:
    """(epoch, seq) of a peer's newest statement; (0, 0) before the first."""
    epoch, _, seq = (said.get("version") or "0.0").partition(".")
    return int(epoch), int(seq)


def is_well(said: Said) -> bool:
    return (
        said.get("state") == "alive"
        and said["link"] == "both"
        and said["pullable"]
        and said["quarantine"] is None
    )


def is_in(epoch: int) -> Callable[[Said], bool]:
    """Speaks in this epoch."""
    return lambda said: version(said)[0] == epoch


def is_held(reason: str, healed_by: str) -> Callable[[Said], bool]:
    """In quarantine, for that."""

    def held(said: Said) -> bool:
        quarantine = said["quarantine"] or {}
        return (quarantine.get("reason"), quarantine.get("healed_by")) == (reason, healed_by)

    return held


class Watching:
    """Reads what some groups say of one peer, over and over, between `with` and its end.

    Raises AssertionError at the end if its (epoch, seq) went back in the eyes of one of them.
    """

    def __init__(self, five: Federation, peer: str, observers: list[str]) -> None:
        self._five = five
        self._peer = peer
        self.said: dict[str, list[Said]] = {name: [] for name in observers}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        if error is None:
            for name in self.said:
                seen = self.versions(name)
                assert seen == sorted(seen), f"{self._peer} went back at {name}: {seen}"
                assert len(set(seen)) > 1, f"{name} saw nothing"

    def versions(self, observer: str) -> list[tuple[int, int]]:
        return [version(said) for said in list(self.said[observer])]

    def everywhere(self, what: Callable[[Said], bool]) -> bool:
        """Whether each observer has seen that, at one moment or another."""
        return all(any(map(what, list(said))) for said in self.said.values())

    def nowhere(self, what: Callable[[Said], bool]) -> bool:
        return not any(what(each) for said in self.said.values() for each in list(said))

    def _watch(self) -> None:
        ended = False
        while not ended:
            ended = self._end.wait(
                0.02
            )  # once more after it: a round takes a while, and the last one counts
            for name, said in self.said.items():
                if entry := self._five.peer(name, self._peer):
                    said.append(entry)


class Zombie:
    """A second gateway of a group, with its keys and a copy of what it had on the disk.

    Args:
        knows: whether it has a copy of the group's coordination; it begins at epoch 1 without.
    """

    def __init__(self, five: Federation, name: str, folder: Path, *, knows: bool = True) -> None:
        self._inside = five.inside(name)
        self.config = load_group(
            write_group(
                folder,
                name,
                five.ports[name],
                host=five.host(name),
                # The same Mooncake, and the same port at another address: for the peers that is the
                # same group, and they hear it because it greets them.
                gateway={
                    "enabled": True,
                    "listen": "127.0.0.2",
                    "peering": str(five.folder / name / "peering.toml"),
                },
                limits={"hello_interval_ms": 200},
                namespaces={"demo": NAMESPACE},
            )
        )
        self._path = folder / "group.toml"
        prepare(self.config)
        if knows:
            shutil.copytree(five.groups[name].config.coordination_dir, self.config.coordination_dir)

    def status(self) -> Said:
        """What it says of itself; {} while it does not."""
        answer = ask_status(self.config.gateway_socket)
        return answer if isinstance(answer, dict) else {}

    def __enter__(self) -> Zombie:
        with (self.config.log_dir / "gateway.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *self._inside,
                    sys.executable,
                    "-m",
                    "federation.gateway_process",
                    "-c",
                    str(self._path),
                ],
                env=environment(),
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
