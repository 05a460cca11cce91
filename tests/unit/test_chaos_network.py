"""The network of the chaos runner: which one is chosen, and what the kernel is told to do."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from chaos import cleanup
from chaos.cleanup import Run, RunFile, clean_up
from chaos.errors import ChaosError
from chaos.network import choose as choosing
from chaos.network import delay, rules, tools
from chaos.network.base import Fault, Network, Places
from chaos.network.choose import choose, why_not_on
from chaos.network.loopback import Loopback, free_ports
from chaos.network.namespaces import Namespaces
from chaos.network.rules import Way
from chaos.suites import find, load_scenario
from federation.errors import UsageError
from local_group.state import ProcessId

PLACES = Places(("east", "west"), ("evil",), 29_000)


def namespaces(places: Places = PLACES) -> Namespaces:
    return Namespaces(places, "1-2-1", lambda names: None, Path("unused"))


@pytest.mark.parametrize("network", [Loopback(PLACES, Path("unused")), namespaces()])
def test_a_group_is_reached_by_a_way_of_its_own(network: Network) -> None:
    ways = [(a, b) for a in PLACES.names for b in PLACES.names if a != b]
    reached = {network.address(a, b) for a, b in ways if {a, b} <= set(PLACES.groups)}
    assert len(reached) == 2
    assert network.address("east", "evil") == f"{network.listen('evil')}:29202"


def test_on_loopback_groups_dial_the_proxy_and_in_namespaces_each_other() -> None:
    assert Loopback(PLACES, Path("unused")).address("west", "east") == "127.0.0.1:29160"
    assert namespaces().address("west", "east") == "10.71.1.2:29002"


async def test_loopback_cannot_lose_packets() -> None:
    with pytest.raises(ChaosError, match="loss cannot be made on loopback"):
        await Loopback(PLACES, Path("unused")).change("east", "west", Fault("loss", share=0.1))


def test_free_ports_leave_out_what_is_taken() -> None:
    first = free_ports(["east", "west"], [], 1, 29_200)
    with pytest.raises(ChaosError, match="no free ports"):
        free_ports(["east"] * 8, [], 1, 29_900)
    assert first.base("west") == first.base("east") + 100


def test_a_filter_is_for_one_direction_and_replaces_all_others() -> None:
    text = rules.filters(
        {
            Way(2, 1): Fault("reset"),
            Way(1, 2): Fault("cut"),
            Way(1, 3): Fault("rate", mbit=10),
            Way(3, 1): Fault("loss", share=0.05),
        }
    )
    assert text.splitlines() == [
        "*filter",
        ":FORWARD ACCEPT [0:0]",
        "-A FORWARD -s 10.71.1.2 -d 10.71.2.2 -j DROP",
        "-A FORWARD -s 10.71.2.2 -d 10.71.1.2 -p tcp -j REJECT --reject-with tcp-reset",
        "-A FORWARD -s 10.71.3.2 -d 10.71.1.2 -m statistic --mode random "
        "--probability 0.050000 -j DROP",
        "COMMIT",
    ]


def test_a_limit_is_for_what_comes_from_one_place() -> None:
    added = rules.limit(Way(1, 12), 0.5).splitlines()
    assert added[0] == "class add dev place12 parent 1: classid 1:1 htb rate 500000bit burst 64kb"
    assert added[2].endswith("u32 match ip src 10.71.1.2/32 flowid 1:1")
    assert rules.unlimit(Way(1, 12)).splitlines()[1] == "class del dev place12 classid 1:1"


def test_a_detour_is_taken_by_what_comes_from_the_place_itself() -> None:
    arguments = " ".join(rules.detour(Way(1, 2)))
    assert arguments == "iif place1 from 10.71.1.2 to 10.71.2.2 lookup 100"


def test_packets_leave_in_order_and_never_early() -> None:
    line = delay.Line()
    line.seconds = 0.1
    line.put(b"a", 1.0)
    line.seconds = 0.0
    line.put(b"b", 1.05)
    assert line.next == pytest.approx(1.1)
    assert line.take(1.09) == []
    assert line.take(1.1) == [b"a", b"b"]
    assert line.next is None


def test_under_jitter_packets_stay_in_order_and_under_reordering_some_are_overtaken() -> None:
    line = delay.Line(random.Random(1))
    line.mode, line.seconds = "jitter", 0.1
    packets = [bytes([n]) for n in range(50)]
    for number, packet in enumerate(packets):
        line.put(packet, number / 1000)
    assert line.take(0.05) != packets, "some are late"
    line = delay.Line(random.Random(1))
    line.mode, line.seconds = "jitter", 0.1
    for number, packet in enumerate(packets):
        line.put(packet, number / 1000)
    assert line.take(1.0) == packets
    line = delay.Line(random.Random(1))
    line.mode, line.seconds, line.share = "reorder", 0.02, 0.2
    for number, packet in enumerate(packets):
        line.put(packet, number / 1000)
    came = line.take(1.0)
    assert came != packets
    assert sorted(came) == packets
    assert 3 <= line.overtaken <= 20


def test_a_full_line_drops_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "QUEUE_BYTES", 4)
    line = delay.Line()
    for packet in (b"ab", b"cd", b"e"):
        line.put(packet, 0.0)
    assert line.dropped == 1
    assert line.take(0.0) == [b"ab", b"cd"]
    line.put(b"e", 0.0)
    assert line.take(0.0) == [b"e"], "there is room again"


@pytest.mark.parametrize(
    ("uid", "missing", "says", "hint"),
    [
        (1000, (), "need root", "sudo"),
        (0, ("iptables-restore",), "iptables-restore, which is", "apt-get install iptables"),
        (0, ("ip", "tc"), "ip, tc, which are", "apt-get install iproute2"),
        (0, ("tc", "iptables-restore"), "need tc, ", "apt-get install iproute2 iptables"),
    ],
)
def test_without_root_or_tools_it_says_what_to_do(
    uid: int, missing: tuple[str, ...], says: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools.os, "geteuid", lambda: uid)
    monkeypatch.setattr(
        shutil, "which", lambda tool, path: None if tool in missing else f"/sbin/{tool}"
    )
    with pytest.raises(UsageError) as caught:
        choose("namespaces", lambda line: None)
    assert says in caught.value.what
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2
    said: list[str] = []
    assert choose("auto", said.append) == "loopback"
    assert len(said) == 1
    assert says in said[0]


def test_a_kernel_that_cannot_is_found_out_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool, path: f"/sbin/{tool}")
    failed = subprocess.CompletedProcess([], 1, "", "one\nunshare failed: not permitted\n")
    monkeypatch.setattr(tools.subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(UsageError, match="cannot be made here: unshare failed: not permitted"):
        choose("namespaces", lambda line: None)


def test_where_it_works_auto_is_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "why_not", lambda: None)
    said: list[str] = []
    assert choose("auto", said.append) == choose("namespaces", said.append) == "namespaces"
    assert choose("loopback", said.append) == "loopback"
    assert said == []


def test_a_fault_that_a_network_cannot_make_says_which_can() -> None:
    for name in ("lossy-link", "loss-20", "reordering"):
        (path,) = find([f"network/{name}"])
        scenario = load_scenario(path)
        assert why_not_on("namespaces", scenario) is None
        why = why_not_on("loopback", scenario)
        assert why is not None
        assert "of a link cannot be made on loopback (run it with --network namespaces" in why


@pytest.mark.parametrize("kind", ["loopback", "namespaces"])
def test_both_networks_can_make_every_fault_of_smoke(kind: choosing.Kind) -> None:
    for path in find(["smoke"]):
        assert why_not_on(kind, load_scenario(path)) is None, path.stem


def test_the_next_start_removes_namespaces_after_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "netns"
    runs = tmp_path / "runs"
    named.mkdir()
    runs.mkdir(mode=0o700)
    ours = ["mm-7-8-1", "mm-7-8-1-east"]
    for name in [*ours, "mm-7-88-1", "blue"]:
        (named / name).touch()
    monkeypatch.setattr(tools, "NAMED", named)
    monkeypatch.setattr(cleanup, "NAMED", named)
    steps: list[str] = []

    def kill_all(processes: object, seconds: float) -> list[ProcessId]:
        steps.append("processes")
        return []

    def run(command: list[str], **options: object) -> None:
        steps.append(command[-1])
        if command[-1] == "mm-7-8-1":
            raise subprocess.CalledProcessError(1, command)
        (named / command[-1]).unlink()

    monkeypatch.setattr(cleanup, "kill_all", kill_all)
    monkeypatch.setattr(tools.subprocess, "run", run)
    gone = subprocess.Popen(["sleep", "60"])
    runner = ProcessId.of(gone.pid)
    assert runner is not None
    gone.kill()
    gone.wait()
    # One is in the file alone, as if its making had been cut short; one in the folder alone.
    record = RunFile(
        run="7-8", runner=runner, folders=(), namespaces=("mm-7-8-1", "mm-7-8-1-x", "blue")
    )
    (runs / "7-8.json").write_text(record.model_dump_json())
    (found,) = clean_up(runs)
    assert steps == ["processes", *ours]
    assert (found.namespaces, found.kept) == (2, ("mm-7-8-1",))
    assert (runs / "7-8.json").exists(), "what is left is tried again by the next start"
    assert sorted(path.name for path in named.iterdir()) == ["blue", "mm-7-8-1", "mm-7-88-1"]


def test_what_could_not_be_removed_at_the_end_is_left_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "remove", sorted)
    with Run(tmp_path) as run:
        run.owns_namespaces(["mm-a"])
        assert run.end() == ["network namespace mm-a"]
    assert (tmp_path / f"{run.id}.json").exists()


def test_the_record_names_namespaces_before_they_are_made(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.owns_namespaces(["mm-a", "mm-b"])
        (file,) = tmp_path.glob("*.json")
        assert RunFile.model_validate_json(file.read_bytes()).namespaces == ("mm-a", "mm-b")
