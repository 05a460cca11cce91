"""Groups whose gateways lead by a managed etcd: what happens when that is gone, and when it comes back."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.federation import Federation
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(
        tmp_path_factory.mktemp("etcd"), coordination={"backend": "etcd"}
    ) as federation:
        yield federation


def state_of_west(pair: Federation) -> str:
    (west,) = pair.status("east")["peers"]
    return str(west["state"])


def test_a_group_leads_by_its_own_etcd(pair: Federation) -> None:
    west = pair.groups["west"]
    assert set(west.processes()) >= {"master", "store-0", "etcd", "gateway"}
    assert pair.status("west")["epoch"] == 1
    west.kill("gateway")
    wait_for(lambda: pair.status("west").get("epoch") == 2, 30, "its next epoch")


def test_without_a_term_it_is_silent_and_goes_on_serving(pair: Federation) -> None:
    """Frozen, etcd renews nothing. The gateway lives on; its peers hear nothing new of it."""
    west = pair.groups["west"]
    pair.wait_until_alive()
    epoch, gateway = pair.status("west")["epoch"], west.pid("gateway")
    west.kill("etcd", signal.SIGSTOP)
    try:
        wait_for(lambda: state_of_west(pair) != "alive", 20, "east to miss west")
        assert f"epoch {epoch} is over" in west.log("gateway")
        assert pair.status("west")["epoch"] == epoch
        assert west.pid("gateway") == gateway
    finally:
        west.kill("etcd", signal.SIGCONT)
    wait_for(lambda: pair.status("west").get("epoch", 0) > epoch, 30, "a new term")
    pair.wait_until_alive()
    assert west.pid("gateway") == gateway, "it went on in a new epoch, without a restart"
