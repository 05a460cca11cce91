"""The supervisor with small children of its own making: no Mooncake, but real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from local_group.logs import how_it_ended, log_tail, rotate, truncate
from local_group.process_errors import ChildDied, GroupError, MissingPackage, NotReady
from local_group.processes import (
    ChildSpec,
    Progress,
    ReadyCheck,
    Supervisor,
    SupervisorLimits,
    kill_leftovers,
)
from local_group.state import GroupState, ProcessId, leftovers, read_state
from tests.support.groups import environment
from tests.support.wait import wait_for

LIMITS = SupervisorLimits(
    stop_grace=0.5, backoff_first=0.05, backoff_max=0.2, ready_timeout=5, ready_poll=0.01
)


class Setting:
    """A folder, a state and the progress that was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        me = ProcessId.of(os.getpid())
        assert me is not None
        self.state = GroupState(group="east", supervisor=me)
        self.told: list[Progress] = []

    def supervisor(self, *stages: list[ChildSpec], limits: SupervisorLimits = LIMITS) -> Supervisor:
        return Supervisor(
            self.state,
            stages,
            data_dir=self.folder,
            state_file=self.folder / "run" / "state.json",
            log_dir=self.folder / "logs",
            progress=self.told.append,
            limits=limits,
        )

    def shell(self, name: str, script: str, ready: ReadyCheck | None = None) -> ChildSpec:
        return ChildSpec(name, ("/bin/sh", "-c", script), ready or self.touched(name))

    def touched(self, name: str) -> ReadyCheck:
        """Ready once the child has made a file of its name."""

        async def ready(_: int) -> str:
            return "" if (self.folder / name).exists() else "its file"

        return ready

    def pid(self, name: str) -> int:
        process = self.state.children[name].process
        assert process is not None
        return process.pid


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


async def until(condition: Callable[[], bool], what: str, timeout: float = 10.0) -> None:
    await asyncio.to_thread(wait_for, condition, timeout, what)


def sleeper(setting: Setting, name: str, before: str = "") -> ChildSpec:
    return setting.shell(name, f"{before} touch {setting.folder}/{name}; exec sleep 1000")


async def test_stages_start_in_order_and_stop_in_reverse(setting: Setting) -> None:
    first, second, third = (sleeper(setting, name) for name in "abc")
    supervisor = setting.supervisor([first], [second, third])
    await supervisor.start(10)
    saved = read_state(setting.folder / "run" / "state.json")
    assert saved == setting.state
    assert (setting.folder / "run" / "state.json").stat().st_mode & 0o777 == 0o600
    assert saved is not None
    assert saved.phase == "ready"
    assert all(os.getpgid(setting.pid(name)) == setting.pid(name) for name in "abc")
    await supervisor.stop()
    order = [(each.child, each.phase) for each in setting.told if not each.detail]
    assert order.index(("a", "ready")) < order.index(("b", "starting"))
    assert order[-1] == ("a", "stopped")
    assert leftovers(setting.folder, setting.state) == {}


async def test_a_child_that_dies_while_starting_ends_the_start(setting: Setting) -> None:
    talk = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; done; exit 3"
    supervisor = setting.supervisor([sleeper(setting, "a")], [setting.shell("b", talk)])
    with pytest.raises(ChildDied, match="b exited with code 3 while it started") as caught:
        await supervisor.start(10)
    assert "logs/b.log" in caught.value.hint
    assert "line 2\n" in caught.value.hint
    assert caught.value.hint.endswith("line 9")
    assert "line 1\n" not in caught.value.hint  # the last eight
    await supervisor.stop()
    assert leftovers(setting.folder, setting.state) == {}


async def test_a_silent_death_says_that_the_log_is_empty(setting: Setting) -> None:
    supervisor = setting.supervisor([setting.shell("a", "kill -9 $$")])
    with pytest.raises(ChildDied, match="a was killed by SIGKILL") as caught:
        await supervisor.start(10)
    assert caught.value.hint.endswith("a.log is empty")
    await supervisor.stop()


async def test_the_loader_s_message_names_the_package(setting: Setting) -> None:
    message = "x: error while loading shared libraries: libnuma.so.1: cannot open shared object"
    supervisor = setting.supervisor([setting.shell("a", f"echo '{message}' >&2; exit 127")])
    with pytest.raises(MissingPackage, match=r"libnuma\.so\.1 is not installed") as caught:
        await supervisor.start(10)
    assert caught.value.hint == "apt-get install libnuma1"
    await supervisor.stop()


async def test_a_ready_child_that_dies_before_the_others_are_ready(setting: Setting) -> None:
    short = f"touch {setting.folder}/a; sleep 0.2; echo port taken; exit 1"
    supervisor = setting.supervisor([setting.shell("a", short)], [setting.shell("b", "sleep 1000")])
    with pytest.raises(ChildDied, match="a exited with code 1 while it started") as caught:
        await supervisor.start(10)
    assert caught.value.hint.endswith("port taken")
    await supervisor.stop()
    assert leftovers(setting.folder, setting.state) == {}


async def test_not_ready_in_time(setting: Setting) -> None:
    supervisor = setting.supervisor([setting.shell("a", "echo hello; exec sleep 1000")])
    with pytest.raises(NotReady, match="a is not ready in time: still waiting for its file"):
        await supervisor.start(0.3)
    await supervisor.stop()
    assert leftovers(setting.folder, setting.state) == {}


async def test_a_check_that_hangs_does_not_hang_the_start(setting: Setting) -> None:
    async def hangs(_: int) -> str:
        await asyncio.Event().wait()
        return ""

    supervisor = setting.supervisor([setting.shell("a", "exec sleep 1000", hangs)])
    with pytest.raises(NotReady, match="waiting for an answer"):
        await supervisor.start(0.2)
    await supervisor.stop()


async def test_a_program_that_is_not_there(setting: Setting) -> None:
    spec = ChildSpec("a", ("/no/such/program",), setting.touched("a"))
    supervisor = setting.supervisor([spec])
    with pytest.raises(ChildDied, match="a exited with code 1") as caught:
        await supervisor.start(10)
    assert caught.value.hint.endswith("/no/such/program: No such file or directory")
    await supervisor.stop()


async def test_a_dead_child_is_started_again_and_counted(setting: Setting) -> None:
    supervisor = setting.supervisor([sleeper(setting, "a")])
    await supervisor.start(10)
    child = setting.state.children["a"]

    def back(count: int) -> bool:
        return child.restarts == count and child.phase == "ready"

    for count in (1, 2):
        before = setting.pid("a")
        os.kill(before, signal.SIGKILL)
        await until(partial(back, count), "a restart")
        assert setting.pid("a") != before
    assert child.last_exit == "was killed by SIGKILL"
    await supervisor.stop()


async def test_the_back_off_doubles_up_to_its_bound(setting: Setting) -> None:
    # Ready once, then it dies at every start.
    script = f"test -e {setting.folder}/a && exit 1; touch {setting.folder}/a; sleep 0.1; exit 1"
    supervisor = setting.supervisor([setting.shell("a", script)])
    await supervisor.start(10)
    (setting.folder / "a").unlink()  # from now on never ready again
    (setting.folder / "a").mkdir()
    await until(lambda: setting.state.children["a"].restarts >= 5, "five restarts")
    waits = [
        each.detail.rpartition("again in ")[2] for each in setting.told if "again" in each.detail
    ]
    assert waits[:5] == ["0.05 s", "0.1 s", "0.2 s", "0.2 s", "0.2 s"]
    await supervisor.stop()
    assert leftovers(setting.folder, setting.state) == {}


async def test_a_full_disk_does_not_stop_a_group(setting: Setting) -> None:
    supervisor = setting.supervisor([sleeper(setting, "a")])
    await supervisor.start(10)
    run, logs = setting.folder / "run", setting.folder / "logs"
    for folder in (run, logs):  # what cannot be written to, for root neither: not a folder
        folder.rename(folder.with_suffix(".away"))
        folder.write_text("")
    os.kill(setting.pid("a"), signal.SIGKILL)
    child = setting.state.children["a"]
    await until(lambda: child.restarts >= 2, "attempts to start it")
    told = [each.detail for each in setting.told]
    assert any("state.json cannot be written" in detail for detail in told)
    assert any("a cannot be started" in detail for detail in told)
    for folder in (run, logs):
        folder.unlink()
        folder.with_suffix(".away").rename(folder)
    await until(lambda: child.phase == "ready", "it is ready again")
    saved = read_state(run / "state.json")
    assert saved == setting.state
    await supervisor.stop()


async def test_stopping_during_a_restart_leaves_nothing(setting: Setting) -> None:
    limits = SupervisorLimits(backoff_first=0.2, ready_poll=0.01)
    supervisor = setting.supervisor([sleeper(setting, "a")], limits=limits)
    await supervisor.start(10)
    os.kill(setting.pid("a"), signal.SIGKILL)
    await until(lambda: setting.state.children["a"].phase == "restarting", "its death")
    await supervisor.stop()
    assert leftovers(setting.folder, setting.state) == {}


async def test_a_deaf_child_is_killed_after_the_grace(setting: Setting) -> None:
    deaf = f"trap '' TERM; touch {setting.folder}/a; while true; do sleep 0.05; done"
    supervisor = setting.supervisor([setting.shell("a", deaf)])
    await supervisor.start(10)
    began = time.monotonic()
    await supervisor.stop()
    assert time.monotonic() - began >= LIMITS.stop_grace
    assert leftovers(setting.folder, setting.state) == {}


async def test_what_a_dead_child_leaves_in_its_group_goes_too(setting: Setting) -> None:
    script = f"sleep 1000 & touch {setting.folder}/a; wait"
    supervisor = setting.supervisor([setting.shell("a", script)])
    await supervisor.start(10)
    os.kill(setting.pid("a"), signal.SIGKILL)
    await until(lambda: setting.state.children["a"].restarts == 1, "a restart")
    await until(lambda: setting.state.children["a"].phase == "ready", "it is ready again")
    await supervisor.stop()
    assert leftovers(setting.folder, None) == {}


_DOOMED = """
import asyncio, os, sys
from pathlib import Path
from local_group.processes import ChildSpec, Supervisor
from local_group.state import GroupState, ProcessId
folder = Path(sys.argv[1])
async def ready(pid):
    return "" if (folder / "a").exists() else "its file"
async def main():
    state = GroupState(group="east", supervisor=ProcessId.of(os.getpid()))
    # The grandchild has a session of its own, as a daemon has: it must be found all the same.
    script = f"setsid sleep 1000 & touch {folder}/a; exec sleep 1000"
    spec = ChildSpec("a", ("/bin/sh", "-c", script), ready)
    supervisor = Supervisor(state, [[spec]], data_dir=folder,
        state_file=folder / "state.json", log_dir=folder / "logs")
    await supervisor.start(20)
    print(state.children["a"].process.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_children_die_with_a_killed_supervisor_and_orphans_are_found(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _DOOMED, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    child = ProcessId.of(int(process.stdout.readline()))
    assert child is not None
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for(lambda: not child.alive(), 10, "the child's death")
    # Its state lost, the daemon is found by its environment alone.
    left = leftovers(tmp_path, None)
    assert list(left) == ["a"]
    assert leftovers(tmp_path / "other", None) == {}
    kill_leftovers(left)
    assert leftovers(tmp_path, None) == {}


def test_a_later_process_with_the_same_pid_is_not_taken_for_ours() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        real = ProcessId.of(process.pid)
        assert real is not None
        assert real.alive()
        for other in (
            real.model_copy(update={"start_ticks": real.start_ticks - 1}),
            real.model_copy(update={"boot_id": "another boot"}),
        ):
            assert not other.alive()
            other.signal(signal.SIGKILL)
        assert process.poll() is None
        process.kill()
        # A zombie does not run.
        wait_for(lambda: not real.alive(), 10, "its death")
    finally:
        process.kill()
        process.wait()


def test_what_cannot_be_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    monkeypatch.setattr(ProcessId, "signal", lambda *_, **__: None)
    with pytest.raises(GroupError, match=rf"master \(pid {me.pid}\) cannot be killed"):
        kill_leftovers({"master": me}, timeout=0.02)


def test_logs_are_rotated_at_start_and_cut_while_running(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a.log"
    rotate(log, 10)  # makes the folder
    log.write_text("x" * 10)
    rotate(log, 10)
    assert log.exists()
    log.write_text("x" * 11)
    rotate(log, 10)
    assert not log.exists()
    assert log.with_suffix(".log.1").read_text() == "x" * 11
    with log.open("ab", buffering=0) as writer:
        writer.write(b"0123456789abc")
        truncate(log, 10)
        assert log.with_suffix(".log.1").read_text() == "3456789abc"
        writer.write(b"next")
    assert log.read_text() == "next"
    truncate(tmp_path / "none.log", 10)


def test_log_tail_and_endings(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert log_tail(log) == ""
    log.write_bytes(b"\xff" + "\n".join(f"line {i}" for i in range(5000)).encode())
    assert log_tail(log, 2) == "line 4998\nline 4999"
    assert how_it_ended(0) == "exited with code 0"
    assert how_it_ended(-15) == "was killed by SIGTERM"
    assert how_it_ended(-99) == "was killed by signal 99"


def test_a_damaged_state_is_no_state(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert read_state(file) is None
    for text in ("", "{", "[]", '{"group": 1}'):
        file.write_text(text)
        assert read_state(file) is None
