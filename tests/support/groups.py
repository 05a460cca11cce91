"""Real groups for tests: a group.toml, free ports, and a group that surely stops."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from federation.config import GroupFile, load_group
from local_group.lifecycle import stop_group
from local_group.ports import PortUse, check_free
from local_group.process_errors import GroupError
from local_group.state import ProcessId, leftovers, read_state

REPOSITORY = Path(__file__).parents[2]
PORT_RANGE = os.environ.get("MOONMESH_TEST_PORTS", "24000-31900")
"""Below the kernel's own range (32768 up) and above Mooncake's (12300-17000)."""
PORT_STEP = 25
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
CHAOS_PORTS = str(29_000 - _WORKER % 4 * 500)
"""Where a chaos run looks for free ports. It claims none, so each process of tests has its own place."""

_claims: list[int] = []  # open descriptors: a claim lasts as long as this process


def free_port_base() -> int:
    """A port base that no other test, of any process on this host, has or gets meanwhile."""
    first, last = (int(part) for part in PORT_RANGE.split("-"))
    folder = Path(tempfile.gettempdir(), f"moonmesh-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for base in range(first, last - PORT_STEP + 2, PORT_STEP):
        descriptor = os.open(folder / str(base), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            offsets = (*range(6), *range(10, 18))
            check_free(PortUse("127.0.0.1", base + offset, "a test") for offset in offsets)
        except (OSError, GroupError):
            os.close(descriptor)
            continue
        _claims.append(descriptor)
        return base
    raise AssertionError(f"no free ports in {PORT_RANGE}")


def to_toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """TOML text of nested mappings of numbers, texts, booleans and lists of those."""
    lines = [f"{key} = {_value(item)}" for key, item in table.items() if not _is_table(item)]
    for key, item in table.items():
        if _is_table(item):
            lines += ["", f"[{prefix}{key}]", to_toml(item, f"{prefix}{key}.").rstrip()]
    return "\n".join(lines).strip() + "\n"


def write_group(
    folder: Path, name: str = "east", port_base: int | None = None, **overrides: Any
) -> Path:
    """Write `folder/group.toml` and return its path.

    Without overrides: one store of 64 MiB, no gateway, data in `folder/data`, free ports. A dict
    given for a table is merged into it: `stores={"count": 2}`, `gateway={"enabled": True}`.
    """
    content: dict[str, Any] = {
        "name": name,
        "data_dir": "data",
        "port_base": free_port_base() if port_base is None else port_base,
        "stores": {"count": 1, "dram": "64 MiB"},
        "gateway": {"enabled": False},
    }
    for key, value in overrides.items():
        if _is_table(value) and _is_table(content.get(key)):
            content[key] = {**content[key], **value}
        else:
            content[key] = value
    if overrides.get("stores", {}).get("count") == 0:
        content["stores"] = overrides["stores"]  # without memory
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "group.toml"
    path.write_text(to_toml(content))
    return path


def moonmesh(
    *arguments: str | Path,
    timeout: float = 90.0,
    env: Mapping[str, str] | None = None,
    inside: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `moonmesh` and wait for it; its output is captured as text. `inside`: what to put before it."""
    return subprocess.run(
        [*inside, *command(*arguments)],
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def command(*arguments: str | Path) -> list[str]:
    """The command line of `moonmesh` in this Python."""
    return [sys.executable, "-m", "federation.cli", *map(str, arguments)]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment, with the repository importable."""
    paths = [str(REPOSITORY), str(REPOSITORY / "proto"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, paths)), **(extra or {})}


class RunningGroup:
    """A group that runs between `with` and its end; nothing of it survives, whatever happened.

    Args:
        path: its group.toml.
        timeout: seconds for `up`.
        env: added to the environment of the group's processes.
        inside: what to put before a command so that it runs on the group's host.
    """

    def __init__(
        self,
        path: Path,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.config: GroupFile = load_group(path)
        self._timeout = timeout
        self._env = env
        self.inside = tuple(inside)

    def __enter__(self) -> RunningGroup:
        try:
            self.up()
        except BaseException:
            self.down()  # Mooncake runs, where only what is beside it has failed
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def up(self) -> None:
        """`moonmesh up --detach`; AssertionError with its output if it fails."""
        result = moonmesh(
            "up", "-c", self.path, "--detach", "--timeout", str(self._timeout),
            timeout=self._timeout + 60,
            env=self._env,
            inside=self.inside,
        )  # fmt: skip
        assert result.returncode == 0, f"up failed:\n{result.stdout}{result.stderr}"

    def down(self) -> None:
        """What `moonmesh down` does, without a process for it; also thaws what a test has stopped, so that
        it can end."""
        for process in self.processes().values():
            process.signal(signal.SIGCONT, group=True)
        stop_group(self.config)
        left = leftovers(self.config.data_dir, None)
        assert not left, f"still running after down: {left}"

    def processes(self) -> dict[str, ProcessId]:
        """The group's children that run now, by name: `master`, `store-0`, `gateway`."""
        return leftovers(self.config.data_dir, read_state(self.config.state_file))

    def pid(self, child: str) -> int:
        """The pid of a child, or of the `supervisor`."""
        state = read_state(self.config.state_file)
        assert state is not None, "the group does not run"
        if child == "supervisor":
            return state.supervisor.pid
        process = state.children[child].process
        assert process is not None, f"{child} does not run"
        return process.pid

    def kill(self, child: str, sig: int = signal.SIGKILL) -> int:
        """Send a signal to one child (or the `supervisor`); its pid."""
        pid = self.pid(child)
        os.kill(pid, sig)
        return pid

    def restarts(self, child: str) -> int:
        """How often a child was started again."""
        state = read_state(self.config.state_file)
        return state.children[child].restarts if state else 0

    def phase(self, child: str) -> str:
        """`ready`, `restarting`, ...; "" if the group does not run."""
        state = read_state(self.config.state_file)
        return state.children[child].phase if state else ""

    def log(self, child: str) -> str:
        """What a child has logged so far."""
        return (self.config.log_dir / f"{child}.log").read_text(errors="replace")

    def rss(self, child: str) -> int:
        """Resident bytes of a child."""
        return int(psutil.Process(self.pid(child)).memory_info().rss)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
