"""Groups of coordinating members on real processes: started, killed, frozen, and read."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from federation.config import load_group
from local_group.coordination.connect import ETCD_PYTHON
from local_group.coordination.managed import etcd_child
from tests.support.groups import environment, free_port_base, write_group
from tests.support.wait import wait_for

Event = dict[str, Any]
NAMES = ("a", "b", "c")
BACKENDS = ("file", "etcd", "raft") if sys.version_info[:2] >= ETCD_PYTHON else ("file", "raft")


class Process:
    """A member's process; every line that it prints is kept. `inside`: what to put before its command."""

    def __init__(self, path: Path, name: str, *options: str, inside: Sequence[str] = ()) -> None:
        self.name = name
        self.events: list[Event] = []
        self.errors = path.parent / f"{name}.stderr"
        with self.errors.open("ab") as stderr:
            self._process = subprocess.Popen(
                [
                    *inside,
                    sys.executable,
                    "-m",
                    "tests.support.coordination_member",
                    str(path),
                    name,
                    *options,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment(),
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def tell(self, command: str) -> None:
        """Have it do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal to it, if it runs."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone and all that it said is read."""
        self._process.kill()
        self._finish()

    def begin_to_end(self) -> None:
        """Let it resign and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Returns when it has ended; killed if it does not."""
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._finish()

    def all(self, event: str) -> list[Event]:
        """All of one kind, so far."""
        return [each for each in list(self.events) if each["event"] == event]

    def last_epoch(self) -> int:
        """Of its newest term; 0 before the first."""
        return max((int(each["epoch"]) for each in self.all("leads")), default=0)

    @property
    def ended(self) -> bool:
        """Is the process gone?"""
        return self._process.poll() is not None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def _finish(self) -> None:
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Etcd:
    """One real etcd, as `moonmesh up` would run it.

    Args:
        tls: its certificate, its key, and the CA of those whom it lets in; as one of your own would have.
    """

    def __init__(self, path: Path, tls: tuple[Path, Path, Path] | None = None) -> None:
        config = load_group(path)
        self._argv = etcd_child(config).argv
        if tls is not None:
            of_clients = ("--listen-client", "--advertise-client")
            self._argv = tuple(
                each.replace("http:", "https:") if each.startswith(of_clients) else each
                for each in self._argv
            )
            self._argv += (f"--cert-file={tls[0]}", f"--key-file={tls[1]}", "--client-cert-auth")
            self._argv += (f"--trusted-ca-file={tls[2]}",)
        self.address = f"{config.host}:{config.ports.etcd_client}"
        self._log = path.parent / "etcd.log"
        self.folder = config.coordination_dir / "etcd"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; the members find it when it is ready."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to it."""
        assert self._process is not None
        self._process.send_signal(number)


class Members:
    """Members of one group with one backend and its usual lease; nothing survives, whatever happened.

    Args:
        options: of every member's command line.
    """

    def __init__(
        self, folder: Path, backend: str, names: Sequence[str], options: Sequence[str] = ()
    ) -> None:
        self.backend = backend
        self.names = names
        self._options = options
        self.paths: dict[str, Path] = {}
        self.members: dict[str, Process] = {}
        self.past: list[Process] = []
        self.etcd: Etcd | None = None
        base = free_port_base()
        secret = folder / "secret"
        secret.write_text("0123456789abcdef0123456789abcdef\n")
        settings: dict[str, Any] = {"backend": backend}
        if backend == "raft":
            settings["raft_members"] = [f"127.0.0.1:{base + 10 + i}" for i in range(len(names))]
            settings["raft_secret"] = str(secret)
        for i, name in enumerate(names):
            if backend == "raft":
                settings["raft_self"] = settings["raft_members"][i]
            place = folder / name if backend == "raft" else folder / "all"
            self.paths[name] = write_group(place, port_base=base, coordination=settings)
        if backend == "etcd":
            self.etcd = Etcd(self.paths[names[0]])

    def __enter__(self) -> Members:
        if self.etcd is not None:
            self.etcd.start()
        for name in self.names:
            self.start(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.members.values():
            process.begin_to_end()
        for process in self.members.values():
            process.end()
        if self.etcd is not None:
            self.etcd.kill()
        said = {p.name: p.errors.read_text() for p in self.members.values()}
        assert not any("Traceback" in text for text in said.values()), f"members had errors: {said}"

    def start(self, name: str, *options: str) -> Process:
        """Start a member, anew."""
        if name in self.members:
            self.past.append(self.members[name])
        self.members[name] = Process(self.paths[name], name, *self._options, *options)
        return self.members[name]

    def leader(self, above: int = 0, timeout: float = 15.0) -> Process:
        """The member that leads in an epoch above `above`, once there is one and all have started."""

        def find() -> Process | None:
            run = [p for p in self.members.values() if not p.ended]
            leads = [
                p for p in run if p.last_epoch() > above and all(r.all("started") for r in run)
            ]
            return max(leads, key=Process.last_epoch, default=None)

        found = wait_for(find, timeout, f"a leader above epoch {above}")
        assert found is not None
        return found

    def writes(self, more: int = 5, timeout: float = 10.0) -> None:
        """Wait until whoever leads has written so many more values."""
        enough = len(self.events("put")) + more
        wait_for(lambda: self._puts() >= enough, timeout, f"{more} puts")

    def _puts(self) -> int:
        return sum(len(p.all("put")) for p in self.everybody())

    def etcd_restarts(self) -> None:
        """Kill etcd and start it again, if there is one."""
        if self.etcd is not None:
            self.etcd.kill()
            self.etcd.start()

    def another(self, than: Process) -> Process:
        """A member that runs, and is not this one."""
        return next(p for p in self.members.values() if p is not than and not p.ended)

    def settled_puts(self) -> list[Event]:
        """All acknowledged puts, once no more come."""
        seen = -1

        def settled() -> bool:
            nonlocal seen
            before, seen = seen, self._puts()
            return before == seen

        wait_for(settled, 10, "the last put", every=0.2)
        return self.events("put")

    def epoch(self) -> int:
        """The highest so far."""
        return max(p.last_epoch() for p in self.everybody())

    def everybody(self) -> list[Process]:
        """All processes that there ever were."""
        return [*self.past, *self.members.values()]

    def events(self, kind: str) -> list[Event]:
        """All of one kind, of all processes, in order of time."""
        return sorted(
            (each for p in self.everybody() for each in p.all(kind)), key=lambda each: each["at"]
        )

    def folder(self, name: str) -> Path:
        """Where a member of Raft keeps what it knows."""
        return self.paths[name].parent / "data" / "coordination" / "raft"
