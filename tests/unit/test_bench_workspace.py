from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from federation.bench import workspace
from federation.bench.workspace import RUN_FILE, Workspace, reap_abandoned
from local_group.process_errors import GroupError
from local_group.state import ProcessId
from tests.support.groups import write_group


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def said() -> list[str]:
    return []


def test_the_folder_goes_unless_it_is_to_be_looked_at(place: Path, said: list[str]) -> None:
    with Workspace("test", said.append) as space:
        (space.path / "x").write_text("x")
    assert not space.path.exists()
    assert said == []
    with pytest.raises(RuntimeError), Workspace("test", said.append) as space:
        raise RuntimeError
    assert said == [f"the logs are kept in {space.path}"]
    reap_abandoned(said.append)
    assert space.path.is_dir()
    assert len(said) == 1


def gone() -> ProcessId:
    """A process that has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    found = ProcessId.of(process.pid)
    process.communicate()
    assert found is not None
    return found


def a_left_folder(place: Path, owner: ProcessId, name: str = "mm-bench-x") -> Path:
    folder = place / name
    # A short data_dir: a unix socket would lie in it.
    write_group(folder / "federated" / "g0", "g0", 23100, data_dir="/tmp/mm-no-such-data")
    (folder / RUN_FILE).write_text(owner.model_dump_json())
    return folder


def test_what_a_killed_run_left_is_taken_down_at_the_next_start(
    place: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(workspace, "stop_group", lambda group: stopped.append(group.name))
    folder = a_left_folder(place, gone())
    with Workspace("test", said.append):
        pass
    assert stopped == ["g0"]
    assert not folder.exists()
    assert str(folder) in said[0]


def test_a_run_that_goes_on_and_other_folders_are_left_alone(
    place: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "stop_group", lambda _: pytest.fail("it runs"))
    me = ProcessId.of(os.getpid())
    assert me is not None
    left = [a_left_folder(place, me, "mm-demo-y"), a_left_folder(place, gone(), "other-z")]
    left.append(place / "mm-broken-z")
    left[-1].mkdir()
    (left[-1] / RUN_FILE).write_text("{}")
    link = place / "mm-link-z"
    link.symlink_to(left[1])
    reap_abandoned(said.append)
    assert all(folder.is_dir() for folder in [*left, link])
    assert said == []


def test_a_folder_of_another_user_is_not_followed(
    place: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "stop_group", lambda _: pytest.fail("it is not ours"))
    folder = a_left_folder(place, gone())
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    reap_abandoned(said.append)
    assert folder.is_dir()


def test_a_group_that_cannot_be_stopped_is_named_and_left(
    place: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(_: object) -> None:
        raise GroupError("master cannot be stopped")

    monkeypatch.setattr(workspace, "stop_group", stuck)
    folder = a_left_folder(place, gone())
    reap_abandoned(said.append)
    assert folder.is_dir()
    assert "master cannot be stopped" in said[-1]
