"""A changed peering.toml on real groups: tried, kept, or taken back by itself."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.trial import GRACE_SECONDS, READY_SECONDS, TrialFile
from federation.trust.keys import StatementKey
from tests.support.federation import Federation
from tests.support.groups import command, environment, moonmesh
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("apply")) as federation:
        yield federation


def peering(federation: Federation) -> Path:
    return federation.folder / "east" / "peering.toml"


def changed(federation: Federation, old: str, new: str) -> Path:
    """A file beside, with one thing changed."""
    text = peering(federation).read_text()
    assert old in text
    path = federation.folder / "new.toml"
    path.write_text(text.replace(old, new))
    return path


def answered(federation: Federation) -> bool:
    """Whether west has answered east's gateway that runs now: only then a trial can miss it."""
    return federation.peer("east", "west").get("answered_ago_s") is not None


def test_a_good_change_is_kept(pair: Federation) -> None:
    file = changed(pair, 'export = ["demo"]', "export = []")
    done = moonmesh(
        "config", "apply", file, "-c", pair.groups["east"].path, "--seconds", "10", timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "~ peer west: exports demo -> none" in done.stdout
    assert "kept: all is as well as before" in done.stdout
    assert peering(pair).read_text() == file.read_text()
    assert pair.status("east")["trial"]["state"] == "kept"


def test_a_file_that_cannot_be_used_is_refused_before_anything_is_touched(
    pair: Federation,
) -> None:
    before, pid = peering(pair).read_text(), pair.groups["east"].pid("gateway")
    file = changed(pair, 'import = ["demo"]', 'import = ["dmeo"]')
    done = moonmesh("config", "apply", file, "-c", pair.groups["east"].path)
    assert done.returncode == 2
    assert 'did you mean "demo"?' in done.stderr
    assert peering(pair).read_text() == before
    assert pair.groups["east"].pid("gateway") == pid


def on_trial(federation: Federation, file: Path) -> None:
    """The command says that it is, and is killed."""
    process = subprocess.Popen(
        command("config", "apply", file, "-c", federation.groups["east"].path, "--seconds", "10"),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("on trial") for line in lines)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert peering(federation).read_text() == file.read_text()


def begun(federation: Federation, trials: TrialFile) -> int:
    """The pid of the gateway that has read the new file."""
    wait_for(lambda: (t := trials.read()) and t.starts == 1, 30, "the gateway to read it")
    wait_for(lambda: federation.status("east").get("uptime_s") is not None, 30, "it to serve")
    return federation.groups["east"].pid("gateway")


def test_a_gateway_that_ends_while_it_is_on_trial_begins_again_with_what_was_there_before(
    pair: Federation,
) -> None:
    before = peering(pair).read_text()
    trials = TrialFile(pair.groups["east"].config.data_dir)
    on_trial(pair, changed(pair, "export = []", 'export = ["demo"]'))
    os.kill(begun(pair, trials), signal.SIGKILL)
    wait_for(lambda: (t := trials.read()) and t.state == "rolled back", 30, "it to be taken back")
    assert peering(pair).read_text() == before
    wait_for(lambda: pair.peer("east", "west").get("state") == "alive", 30, "west to be heard")
    assert "ended before it was decided" in pair.status("east")["trial"]["why"]


def test_where_the_gateway_hangs_and_the_command_was_killed_up_decides(pair: Federation) -> None:
    before = peering(pair).read_text()
    trials = TrialFile(pair.groups["east"].config.data_dir)
    on_trial(pair, changed(pair, "export = []", 'export = ["demo"]'))
    hung = begun(pair, trials)
    os.kill(hung, signal.SIGSTOP)
    most = READY_SECONDS + GRACE_SECONDS + 20
    wait_for(lambda: (t := trials.read()) and t.state == "rolled back", most, "it to be decided")
    assert peering(pair).read_text() == before
    wait_for(lambda: pair.peer("east", "west").get("state") == "alive", 40, "west to be heard")
    assert pair.groups["east"].pid("gateway") != hung
    assert pair.status("east")["trial"]["why"] == "the gateway did not decide in time"


def test_one_that_loses_a_peer_is_taken_back_although_its_command_was_killed(
    pair: Federation,
) -> None:
    before = peering(pair).read_text()
    wait_for(lambda: answered(pair), 20, "west to answer")
    key = next(line for line in before.splitlines() if line.startswith("key = "))
    nobodys = StatementKey.of(Ed25519PrivateKey.generate())
    file = changed(pair, key, f'key = "{nobodys}"')
    process = subprocess.Popen(
        command("config", "apply", file, "-c", pair.groups["east"].path),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("on trial") for line in lines)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert peering(pair).read_text() == file.read_text()
    trials = TrialFile(pair.groups["east"].config.data_dir)
    wait_for(lambda: (t := trials.read()) and t.state == "rolled back", 60, "it to be taken back")
    assert peering(pair).read_text() == before
    wait_for(lambda: pair.peer("east", "west").get("state") == "alive", 30, "west to be heard")
    why = pair.status("east")["trial"]["why"]
    assert "not heard, or not reached, any more: west" in why or "errors in" in why, why


def test_a_wrong_address_is_found_out_although_the_peer_dials_us(pair: Federation) -> None:
    before = peering(pair).read_text()
    trials = TrialFile(pair.groups["east"].config.data_dir)
    wait_for(lambda: answered(pair), 30, "west to answer")
    address = next(line for line in before.splitlines() if line.startswith("address = "))
    file = changed(pair, address, 'address = "127.0.0.1:9"')
    apply = ("config", "apply", file, "-c", pair.groups["east"].path, "--seconds", "10")
    assert moonmesh(*apply, "--detach").returncode == 0
    begun(pair, trials)
    second = moonmesh(*apply)
    assert (second.returncode, "another file is on trial" in second.stderr) == (2, True)
    assert second.stdout == "", "it is not shown as if it were tried"
    wait_for(lambda: pair.peer("east", "west").get("state") == "alive", 30, "west to be heard")
    assert pair.peer("east", "west")["answers"] is False
    wait_for(lambda: (t := trials.read()) and t.state == "rolled back", 60, "it to be taken back")
    assert peering(pair).read_text() == before
    assert "not reached, any more: west" in (trials.latest.why if trials.latest else "")
