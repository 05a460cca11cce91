"""`moonmesh locate`, and routers, on real groups: who has how much of a chain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from federation.router import Located, Router, RouterError
from federation.trust.credentials import load_engine_credentials
from tests.support.federation import BLOCK, ENVELOPE, Federation, read, write
from tests.support.groups import moonmesh
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

KEYS = [f"located-{n}" for n in range(40)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("locate"), gateway={"engines_tcp": True}) as running:
        yield running


def locate(federation: Federation, name: str, *arguments: str) -> dict[str, dict[str, Any]]:
    config = federation.folder / name / "group.toml"
    done = moonmesh("locate", "--json", "-c", config, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return {each["group"]: each for each in json.loads(done.stdout)["groups"]}


def test_each_group_is_told_with_what_it_has_of_a_chain(federation: Federation) -> None:
    write(federation.engine("east"), KEYS[:30])
    write(federation.engine("west"), KEYS[:10])
    # Nobody has asked for the namespace here yet, so the catalog comes while the command waits.
    west = locate(federation, "west", *KEYS)
    assert list(west) == ["west", "east"]
    assert (west["west"]["blocks"], west["west"]["bytes"]) == (10, 10 * BLOCK)
    assert west["west"]["bytes_estimated"] is False
    assert west["east"]["pull_ms"] is None, "nothing has been pulled yet"

    # What east is told to have follows what it has.
    wait_for(
        lambda: locate(federation, "west", *KEYS)["east"]["blocks"] == 30, 10, "all blocks of east"
    )
    east = locate(federation, "west", *KEYS)["east"]
    assert (east["bytes"], east["bytes_estimated"]) == (30 * BLOCK, True)
    assert (east["usable"], east["reason"]) == (True, "")
    assert 0 <= east["age_ms"] < 11_000


def test_once_something_was_pulled_the_cost_is_told(federation: Federation) -> None:
    store = federation.engine("west")
    chain = [f"costs-{n}" for n in range(16)]
    write(federation.engine("east"), chain)
    federation.wait_for_view("west", "east", federation.status("east")["holdings"]["blocks"])
    assert set(read(store, chain, deadline_ms=5000)) == {"peer"}
    east = locate(federation, "west", *chain)["east"]
    assert 0 < east["pull_ms"] < 5000
    assert east["bytes"] == 16 * BLOCK


def test_a_router_on_another_host_asks_with_the_groups_own_mtls(federation: Federation) -> None:
    config = federation.groups["east"].config
    target = f"127.0.0.1:{config.ports.engines_tcp}"
    chain = [f"routed-{n}" for n in range(8)]
    write(federation.engine("east"), chain)
    folder = federation.folder / "east" / "credentials"
    credentials = load_engine_credentials(folder, "east", "client")
    with Router(target, ENVELOPE, credentials) as router:
        found = router.locate([*chain, "nobody has this"], timeout=5)
    assert [(each.group, each.blocks) for each in found if each.own] == [("east", 8)]
    assert [each.group for each in found] == ["east", "west"]
    foreign = load_engine_credentials(federation.folder / "west" / "credentials", "west", "client")
    with Router(target, ENVELOPE, foreign) as router, pytest.raises(RouterError):
        router.locate(chain)


def test_a_peer_that_is_gone_is_told_as_such(federation: Federation) -> None:
    with Router(f"unix:{federation.groups['west'].config.gateway_socket}", ENVELOPE) as router:

        def east() -> Located:
            return next(each for each in router.locate(KEYS) if each.group == "east")

        wait_for(lambda: east().usable, 10, "east to be well")
        federation.groups["east"].down()
        wait_for(lambda: not east().usable, 20, "east to be missed")
        assert east().reason
        assert east().blocks == 30, "what it had when it was last heard"
    federation.groups["west"].down()
    config = federation.folder / "west" / "group.toml"
    done = moonmesh("locate", "-c", config, *KEYS)
    assert done.returncode == 1
    assert "MM320" in done.stderr
    assert "is the group up?" in done.stderr
