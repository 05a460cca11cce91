"""A new peering.toml on trial: what is judged, and that no moment leaves half of it."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from federation.trial import (
    BEGUN_SECONDS,
    ERRORS_FEW,
    GRACE_SECONDS,
    HEARD_SECONDS,
    READY_SECONDS,
    SETTLE_SECONDS,
    TRIAL_SECONDS,
    Judge,
    Overdue,
    Trial,
    TrialError,
    TrialFile,
    digest_of,
)
from federation.trial_keeper import TrialKeeper
from local_group.state import ChildState, GroupState, ProcessId, write_state

if TYPE_CHECKING:
    from federation.config import GroupFile

OLD, NEW = "old = 1\n", "new = 2\n"


@pytest.fixture
def file(tmp_path: Path) -> TrialFile:
    (tmp_path / "peering.toml").write_text(OLD)
    return TrialFile(tmp_path / "data")


def trial(file: TrialFile, **facts: float) -> Trial:
    path = file.path.parent.parent / "peering.toml"
    return replace(Trial(str(path), OLD, digest_of(NEW), ("west",)), **facts)  # type: ignore[arg-type]


def text(file: TrialFile) -> str:
    return (file.path.parent.parent / "peering.toml").read_text()


def judge(**facts: float) -> Judge:
    return Judge(replace(Trial("", "", "", ("west",)), **facts), 0.0)  # type: ignore[arg-type]


def test_it_is_kept_when_all_is_as_well_as_before_for_its_time() -> None:
    looks = judge()
    for second in range(int(TRIAL_SECONDS)):
        assert looks.look(float(second), True, ["west"], 3) is None
    assert looks.look(TRIAL_SECONDS, True, ["west"], 3) == ""


def test_a_gateway_that_does_not_serve_is_no_gateway() -> None:
    looks = judge()
    assert looks.look(READY_SECONDS - 0.1, False, (), 0) is None
    assert "did not serve" in str(looks.look(READY_SECONDS, False, (), 0))


def test_a_peer_that_was_heard_has_to_be_again() -> None:
    looks = judge()
    assert looks.look(HEARD_SECONDS - 0.1, True, (), 0) is None
    assert looks.look(HEARD_SECONDS, True, (), 0) == "not heard, or not reached, any more: west"


def test_one_that_is_silent_for_a_moment_is_waited_for() -> None:
    looks = judge()
    assert looks.look(TRIAL_SECONDS - 1, True, ["west"], 0) is None
    assert looks.look(TRIAL_SECONDS, True, (), 0) is None
    assert looks.look(TRIAL_SECONDS + 1, True, ["west"], 0) == ""


def test_errors_count_once_connections_are_made_and_where_they_are_many_more_than_usual() -> None:
    looks = judge(error_rate=1.0)
    assert looks.look(1.0, True, ["west"], 1000) is None, "connections are being made"
    assert looks.look(SETTLE_SECONDS, True, ["west"], 1000) is None
    assert looks.look(SETTLE_SECONDS + 20, True, ["west"], 1060) is None
    assert "61 errors in 20 s" in str(looks.look(SETTLE_SECONDS + 20, True, ["west"], 1061))


def test_a_few_errors_prove_nothing() -> None:
    looks = judge()
    looks.look(SETTLE_SECONDS, True, ["west"], 0)
    assert looks.look(TRIAL_SECONDS, True, ["west"], ERRORS_FEW) == ""


def test_a_trial_begins_goes_on_and_is_kept(file: TrialFile) -> None:
    file.begin(trial(file), NEW)
    assert text(file) == NEW
    going = TrialFile(file.path.parent).at_start()
    assert going is not None
    assert going.starts == 1
    assert going.started_at > 0
    file.keep(going)
    latest = file.read()
    assert latest is not None
    assert (latest.state, text(file)) == ("kept", NEW)
    assert TrialFile(file.path.parent).at_start() is None


def test_what_was_there_before_is_put_back(file: TrialFile) -> None:
    file.begin(trial(file), NEW)
    assert file.take_back(trial(file), "it is worse")
    assert text(file) == OLD
    assert file.latest is not None
    assert file.latest.status()["state"] == "rolled back"
    assert file.latest.status()["why"] == "it is worse"
    at = replace(file.latest, changed_at=1796069356.78).status()["changed_at"]
    assert at == "2026-11-30T20:09:16+00:00", "as that of `switches` is told"


def test_a_command_that_is_killed_before_the_file_is_there_has_changed_nothing(
    file: TrialFile,
) -> None:
    file.write(trial(file))
    assert text(file) == OLD
    assert file.at_start() is None
    latest = file.read()
    assert latest is not None
    assert latest.state == "superseded"


def test_a_file_that_somebody_has_written_since_is_left_alone(file: TrialFile) -> None:
    file.begin(trial(file), NEW)
    Path(trial(file).path).write_text("by hand = 3\n")
    assert not file.take_back(trial(file), "it is worse")
    assert text(file) == "by hand = 3\n"


def test_a_gateway_that_ends_before_it_is_decided_gets_the_old_one_at_its_next_start(
    file: TrialFile,
) -> None:
    file.begin(trial(file), NEW)
    assert file.at_start() is not None
    assert text(file) == NEW
    assert file.at_start() is None
    assert text(file) == OLD
    assert file.latest is not None
    assert (file.latest.state, "ended before" in file.latest.why) == ("rolled back", True)


def test_one_that_hangs_is_decided_for_once_it_should_have_done_so(file: TrialFile) -> None:
    going = trial(file, starts=1, seconds=20.0)
    most = 20.0 + HEARD_SECONDS + GRACE_SECONDS
    overdue = Overdue()
    assert overdue.look(going, True, 5.0) == ""
    assert overdue.look(going, True, 5.0 + most - 0.1) == ""
    assert overdue.look(going, True, 5.0 + most) == "decide"


def test_a_short_trial_is_left_to_a_gateway_that_is_slow_to_serve(file: TrialFile) -> None:
    overdue = Overdue()
    going = trial(file, starts=1, seconds=10.0)
    overdue.look(going, True, 0.0)
    assert READY_SECONDS >= 10.0 + HEARD_SECONDS
    assert overdue.look(going, True, READY_SECONDS + GRACE_SECONDS - 0.1) == ""


def test_a_gateway_that_goes_on_with_the_old_file_is_ended(file: TrialFile) -> None:
    overdue = Overdue()
    assert overdue.look(trial(file), True, 0.0) == ""
    assert overdue.look(trial(file), True, BEGUN_SECONDS - 0.1) == ""
    assert overdue.look(trial(file), True, BEGUN_SECONDS) == "end"
    begun = trial(file, starts=1)
    assert overdue.look(begun, True, BEGUN_SECONDS + 1) == "", "another clock from then on"


def test_what_is_decided_and_what_no_gateway_reads_is_left_alone(file: TrialFile) -> None:
    overdue = Overdue()
    for at in (0.0, 1000.0):
        assert overdue.look(None, True, at) == ""
        assert overdue.look(replace(trial(file), state="kept"), True, at) == ""
        assert overdue.look(trial(file), False, at) == ""
    assert overdue.look(trial(file), True, 2000.0) == "", "it counts from when one runs"


def test_the_keeper_puts_the_old_one_back_and_ends_the_gateway(tmp_path: Path) -> None:
    sleeping = subprocess.Popen(["sleep", "600"])
    try:
        process = ProcessId.of(sleeping.pid)
        assert process is not None
        group = SimpleNamespace(data_dir=tmp_path / "data", state_file=tmp_path / "state")
        (tmp_path / "peering.toml").write_text(OLD)
        file = TrialFile(group.data_dir)
        state = GroupState(group="east", supervisor=process, started_at=0.0)
        state.children["gateway"] = ChildState(process=process)
        write_state(group.state_file, state)
        keeper = TrialKeeper(cast("GroupFile", group))
        keeper.look(0.0)
        file.begin(trial(file), NEW)
        file.at_start()
        keeper.look(1.0)
        keeper.look(TRIAL_SECONDS)
        assert text(file) == NEW
        assert sleeping.poll() is None
        keeper.look(1.0 + TRIAL_SECONDS + HEARD_SECONDS + GRACE_SECONDS)
        assert text(file) == OLD
        latest = file.read()
        assert latest is not None
        assert (latest.state, latest.why) == ("rolled back", "the gateway did not decide in time")
        assert sleeping.wait(10) == -signal.SIGKILL
        keeper.look(1000.0)
    finally:
        sleeping.kill()
        sleeping.wait()


def test_a_file_that_cannot_be_written_leaves_the_old_one_in_force(file: TrialFile) -> None:
    elsewhere = replace(trial(file), path=str(file.path.parent / "absent" / "peering.toml"))
    with pytest.raises(TrialError, match="cannot be written"):
        file.begin(elsewhere, NEW)
    assert file.at_start() is None
    assert text(file) == OLD


@pytest.mark.parametrize("record", ["null", "[]", "{}", json.dumps({"alive": 3}), "x"])
def test_a_record_that_cannot_be_read_is_none(file: TrialFile, record: str) -> None:
    file.write(trial(file))
    file.path.write_text(record)
    assert file.read() is None
    assert file.at_start() is None
