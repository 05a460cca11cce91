"""The supervisor with small children of its own making: no Mooncake, but real processes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from local_group.child import ChildSpec, Progress, ReadyCheck, SupervisorLimits
from local_group.ports import PortUse
from local_group.process_errors import ChildDied, GroupError, MissingPackage, NotReady, PortInUse
from local_group.processes import Supervisor, kill_leftovers
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

    def supervisor(
        self,
        *stages: list[ChildSpec],
        limits: SupervisorLimits = LIMITS,
        beside: Sequence[ChildSpec] = (),
    ) -> Supervisor:
        return Supervisor(
            self.state,
            stages,
            data_dir=self.folder,
            state_file=self.folder / "run" / "state",
            log_dir=self.folder / "logs",
            beside=beside,
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
    saved = read_state(setting.folder / "run" / "state")
    assert saved == setting.state
    assert (setting.folder / "run" / "state").stat().st_mode & 0o777 == 0o600
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


async def test_what_is_beside_may_fail_and_is_tried_for_ever(setting: Setting) -> None:
    folder = setting.folder
    script = (
        f"test -e {folder}/good || {{ echo 'error MM301: no key'; echo '  make one'; exit 1; }};"
    )
    gateway = sleeper(setting, "gateway", script)
    supervisor = setting.supervisor([sleeper(setting, "a")], beside=[gateway])
    failures = await supervisor.start(10)
    assert type(failures["gateway"]) is ChildDied
    assert "error MM301: no key\n" in failures["gateway"].hint
    assert setting.state.phase == "ready"
    master, child = setting.state.children["a"], setting.state.children["gateway"]
    await until(lambda: child.restarts >= 3, "attempts to start it")
    assert child.problem == "error MM301: no key; make one"
    assert child.last_exit == "exited with code 1"
    assert (master.phase, master.restarts) == ("ready", 0)
    (folder / "good").touch()
    await until(lambda: child.phase == "ready", "it is ready")
    assert child.problem == ""
    await supervisor.stop()
    assert leftovers(folder, setting.state) == {}


async def test_what_is_beside_may_be_late(setting: Setting) -> None:
    gateway = sleeper(
        setting, "gateway", f"while ! test -e {setting.folder}/go; do sleep 0.02; done;"
    )
    supervisor = setting.supervisor([sleeper(setting, "a")], beside=[gateway])
    failures = await supervisor.start(3.0)
    assert type(failures["gateway"]) is NotReady
    assert "still waiting for its file" in failures["gateway"].what
    child = setting.state.children["gateway"]
    (setting.folder / "go").touch()
    await until(lambda: child.phase == "ready", "it is ready")
    assert child.restarts == 0  # it was left alone
    await supervisor.stop()
    assert setting.told[-1].child == "a"  # the other one was stopped before
    assert leftovers(setting.folder, setting.state) == {}


async def test_a_port_beside_that_is_taken(setting: Setting) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        spec = sleeper(setting, "gateway")
        spec = dataclasses.replace(spec, ports=[PortUse("127.0.0.1", port, "the peers")])
        supervisor = setting.supervisor([sleeper(setting, "a")], beside=[spec])
        failures = await supervisor.start(10)
    assert type(failures["gateway"]) is PortInUse
    await until(lambda: setting.state.children["gateway"].phase == "ready", "it is ready")
    await supervisor.stop()


async def test_the_stages_are_kept_while_what_is_beside_starts(setting: Setting) -> None:
    gateway = setting.shell("gateway", "exec sleep 1000")
    supervisor = setting.supervisor([sleeper(setting, "a")], beside=[gateway])
    starting = asyncio.create_task(supervisor.start(10))
    await until(lambda: setting.state.children["gateway"].phase == "starting", "its start")
    os.kill(setting.pid("a"), signal.SIGKILL)
    await until(lambda: setting.state.children["a"].restarts == 1, "a restart")
    await until(lambda: setting.state.children["a"].phase == "ready", "it is ready again")
    (setting.folder / "gateway").touch()
    assert await starting == {}
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
    assert sum("state cannot be written" in detail for detail in told) == 1
    assert any("a cannot be started" in detail for detail in told)
    for folder in (run, logs):
        folder.unlink()
        folder.with_suffix(".away").rename(folder)
    await until(lambda: child.phase == "ready", "it is ready again")
    assert read_state(run / "state") == setting.state
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
    await until(lambda: not leftovers(setting.folder, setting.state), "the end of its own children")


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
from local_group.child import ChildSpec
from local_group.processes import Supervisor
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
