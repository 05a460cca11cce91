"""Five real groups on bad days: one runs twice, loses its disk or its key, is cut off one way, or is frozen.
On five hosts, where root can make them; else on one, with a proxy between two of them.

What is asserted is what the others say of it in `moonmesh status --json`, and each test ends with all well.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from federation.trust.authority import Authority
from tests.support.bad_days import Watching, Zombie, is_held, is_in, is_well, version
from tests.support.coordination import Process
from tests.support.federation import Federation, read, write
from tests.support.groups import RunningGroup, moonmesh
from tests.support.hosts import PROBLEM, Hosts
from tests.support.line import Line
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

NAMES = ("ash", "birch", "cedar", "elm", "fir")
HELLO_S = 0.2
DOWN_AFTER_S = 12 * HELLO_S
"""Of silence; others are asked before."""


@pytest.fixture(scope="module")
def line_and_five(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Line | Hosts, Federation]]:
    """Five groups: each in a network of its own where that can be had, else all on one host."""
    folder = tmp_path_factory.mktemp("five")
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts(NAMES, folder)) if PROBLEM is None else None
        five = Federation(
            folder,
            NAMES,
            dram="16 MiB",
            own={"elm": {"coordination": {"backend": "etcd"}}},
            hosts=hosts,
        )
        line = hosts or stack.enter_context(Line(five, "birch", "cedar"))
        stack.enter_context(five)
        yield line, five


@pytest.fixture
def five(line_and_five: tuple[Line | Hosts, Federation]) -> Federation:
    return line_and_five[1]


@pytest.fixture
def line(line_and_five: tuple[Line | Hosts, Federation]) -> Line | Hosts:
    return line_and_five[0]


def others(but: str) -> list[str]:
    return [name for name in NAMES if name != but]


def wait_until_well(five: Federation) -> None:
    for name in NAMES:

        def well(name: str = name) -> bool:
            peers = five.status(name).get("peers", [])
            return bool(peers) and all(map(is_well, peers))

        try:
            wait_for(well, 20, f"all to be well at {name}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {five.status(name).get('peers')}") from None


def restart(group: RunningGroup) -> None:
    """Ends its gateway, and returns once there is another."""
    old = group.kill("gateway")
    wait_for(
        lambda: group.phase("gateway") == "ready" and group.pid("gateway") != old,
        20,
        "a new gateway",
    )


def test_a_line_that_is_cut_one_way(five: Federation, line: Line | Hosts) -> None:
    birch, cedar = five.store("birch"), five.store("cedar")
    keys = [f"cut-{i}" for i in range(4)]
    write(cedar, keys)
    five.wait_for_view("birch", "cedar", len(keys))
    with (
        Watching(five, "cedar", others("cedar")) as of_cedar,
        Watching(five, "birch", others("birch")) as of_birch,
    ):
        with line.cut("cedar", "birch"):

            def shown() -> bool:
                deaf, unheard = five.peer("birch", "cedar"), five.peer("cedar", "birch")
                if deaf["pullable"] or unheard["pullable"]:
                    return False
                links = deaf["link"], unheard["link"]
                if isinstance(line, Line):
                    return links == ("we_do_not_hear", "not_heard")
                # The kernel's TCP needs both ways: what is not acknowledged is soon sent no more.
                return deaf["link"] in ("we_do_not_hear", "neither") and "both" not in links

            wait_for(shown, 10, "the cut to show at both ends, and to stop pulls")
            pair = of_cedar.said["birch"], of_birch.said["cedar"]
            shown_at = [len(seen) for seen in pair]
            assert read(birch, keys[:2]) == ["miss"] * 2
            enough = version(five.peer("birch", "cedar"))[1] + 1.5 * DOWN_AFTER_S / HELLO_S
            wait_for(
                lambda: version(five.peer("birch", "cedar"))[1] > enough,
                20,
                "others to tell birch of cedar for longer than it would take to be DOWN",
            )
            wait_for(shown, 10, "the cut, still")
            since = [
                said["pullable"]
                for seen, at in zip(pair, shown_at, strict=True)
                for said in seen[at + 1 :]  # one may have been asked for before
            ]
            assert len(since) > 10
            assert not any(since), "pulls stay stopped"
        wait_until_well(five)
    assert of_cedar.nowhere(lambda said: said["state"] == "down")
    assert of_birch.nowhere(lambda said: said["state"] == "down")
    for name in ("ash", "elm", "fir"):
        assert {said["link"] for said in of_cedar.said[name]} == {"both"}
    assert set(read(birch, keys, deadline_ms=5000)) == {"peer"}


def test_a_group_that_runs_twice(five: Federation) -> None:
    wait_until_well(five)
    ash, all_others = five.groups["ash"], others("ash")
    first = five.status("ash")["epoch"]
    zombie = Zombie(five, "ash", five.folder / "zombie")
    with Watching(five, "ash", all_others) as seen:
        restart(ash)
        wait_for(lambda: seen.everywhere(is_in(first + 1)), 20, "its next epoch")
        with zombie:  # with the same disk, it begins in the same one
            wait_for(
                lambda: seen.everywhere(
                    is_held("two_speakers", "a valid statement of a higher epoch")
                ),
                20,
                "all to name it",
            )
            for name in all_others:
                said = five.peer(name, "ash")
                assert said["quarantine"]["detail"] == f"two processes speak in epoch {first + 1}"
                assert not said["pullable"]
                problems = five.status(name)["problems"]
                assert any("ash is in quarantine (two_speakers)" in text for text in problems)
        restart(ash)
        wait_until_well(five)
        assert {epoch for name in all_others for epoch, _ in seen.versions(name)} == {
            first,
            first + 1,
            first + 2,
        }


def test_a_twin_that_coordinates_with_nobody(five: Federation) -> None:
    wait_until_well(five)
    ash, all_others = five.groups["ash"], others("ash")
    epoch, restarts = five.status("ash")["epoch"], ash.restarts("gateway")
    assert epoch > 1
    twin = Zombie(five, "ash", five.folder / "twin", knows=False)
    with Watching(five, "ash", all_others) as seen:
        with twin:

            def named() -> bool:
                said = twin.status()
                told = f"another process speaks for this group, in epoch {epoch}"
                return said.get("epoch") == 1 and any(told in each for each in said["problems"])

            wait_for(named, 20, "the twin to say so of itself")
            for name in all_others:
                assert five.peer(name, "ash")["rejected"].get("old_epoch"), "they have heard it"
            # It is refused, hello after hello, and the group that it is a twin of is not.
            refused = [peer["reason"] for peer in twin.status()["peers"]]
            assert all("your statement is not believed" in each for each in refused), refused
            counted = five.counter("ash", "moonmesh_hello_errors_total")
            until = version(five.peer("fir", "ash"))[1] + 10
            wait_for(lambda: version(five.peer("fir", "ash"))[1] > until, 20, "ten more hellos")
            assert five.counter("ash", "moonmesh_hello_errors_total") == counted
            assert {peer["reason"] for peer in five.status("ash")["peers"]} == {""}
        wait_until_well(five)
        assert seen.nowhere(lambda said: said["quarantine"] is not None)
        assert {each for name in all_others for each, _ in seen.versions(name)} == {epoch}
    assert ash.restarts("gateway") == restarts


def test_a_key_that_is_not_the_one_in_peering_toml(five: Federation, tmp_path: Path) -> None:
    wait_until_well(five)
    group, folder = five.groups["cedar"], five.folder / "cedar" / "credentials"
    right = {name: (folder / name).read_bytes() for name in ("identity.key", "identity.pub")}
    for name in right:
        (folder / name).unlink()
    Authority(five.folder / "ca", "test").group("cedar", folder)
    with Watching(five, "cedar", others("cedar")) as seen:
        restart(group)
        wait_for(
            lambda: seen.everywhere(
                is_held("bad_signature", "a newer valid statement, from the peer itself")
            ),
            20,
            "all to name it",
        )
        shown = moonmesh("status", "--json", "-c", five.groups["fir"].path)
        peers = {peer["name"]: peer for peer in json.loads(shown.stdout)["gateway"]["peers"]}
        assert peers["cedar"]["quarantine"]["reason"] == "bad_signature"
        assert not peers["cedar"]["pullable"]
        for name in others("cedar"):
            unconcerned = [p for p in five.status(name)["peers"] if p["name"] != "cedar"]
            assert all(map(is_well, unconcerned)), unconcerned
        # They tell it of its own past, signed by a key that it does not know. That is not their fault.
        assert [peer["quarantine"] for peer in five.status("cedar")["peers"]] == [None] * 4
        for name, content in right.items():
            (folder / name).write_bytes(content)
        restart(group)
        wait_until_well(five)


def test_a_group_that_lost_its_disk(five: Federation) -> None:
    wait_until_well(five)
    fir, all_others = five.groups["fir"], others("fir")

    def quarantines() -> list[int]:
        return [five.counter(name, "moonmesh_gossip_quarantines_total") for name in all_others]

    assert five.status("fir")["epoch"] == 1
    counted = [quarantines()]
    # At first it begins in the epoch that the others remember, as a second process would; then below it.
    with Watching(five, "fir", all_others):
        for goes_on in (2, 3):
            shutil.rmtree(fir.config.coordination_dir)
            restart(fir)
            wait_for(lambda n=goes_on: five.status("fir")["epoch"] == n, 20, f"epoch {goes_on}")  # type: ignore[misc]
            wait_until_well(five)
            assert any("the epoch was lost" in text for text in five.status("fir")["problems"])
            for name in all_others:
                assert version(five.peer(name, "fir"))[0] == goes_on
            counted.append(quarantines())
    before, first, second = counted
    assert sum(before) < sum(first), (
        "whoever hears it before it has heard of its past takes it for two"
    )
    assert first == second, "below its past it is only behind"


def test_a_leader_that_was_frozen_past_its_lease(five: Federation) -> None:
    wait_until_well(five)
    elm, all_others = five.groups["elm"], others("elm")
    epoch, pid = five.status("elm")["epoch"], elm.pid("gateway")
    rival = Process(elm.path, "rival", "--idle", inside=five.inside("elm"))
    try:
        wait_for(lambda: rival.all("started"), 20, "another gateway that wants to lead")
        with Watching(five, "elm", all_others) as seen:
            elm.kill("gateway", signal.SIGSTOP)
            wait_for(lambda: rival.all("leads"), 20, "the lease to end")
            last = {name: five.peer(name, "elm") for name in all_others}
            elm.kill("gateway", signal.SIGCONT)
            wait_for(lambda: f"epoch {epoch} is over" in elm.log("gateway"), 20, "it to notice")
            for name in all_others:
                enough = last[name]["heard_ago_s"] + DOWN_AFTER_S
                wait_for(
                    lambda n=name, s=enough: five.peer(n, "elm")["heard_ago_s"] > s,  # type: ignore[misc]
                    20,
                    "a long silence, awake",
                )
                assert version(five.peer(name, "elm")) == version(last[name])
            assert five.status("elm")["gossip"]["speaking"] is False
            rival.begin_to_end()
            wait_until_well(five)
        assert {e for name in all_others for e, _ in seen.versions(name)} == {epoch, epoch + 2}
        assert seen.nowhere(lambda said: said["quarantine"] is not None)
        assert rival.last_epoch() == epoch + 1
        assert elm.pid("gateway") == pid, "it leads again without a restart"
    finally:
        rival.begin_to_end()
        rival.end()
