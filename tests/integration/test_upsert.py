"""A block whose bytes were replaced in Mooncake: no peer is given it, neither the old bytes nor the new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mooncake.store import MooncakeDistributedStore

from federation.identity import stored_key
from tests.support.federation import BLOCK, FINGERPRINT, NAMESPACE, Federation, read, write
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

REPLACED = {"same size": BLOCK, "shorter": BLOCK // 2, "longer": 2 * BLOCK}
UNTOUCHED = "untouched"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    limits = {"listing_interval_ms": 300, "listing_soonest_ms": 100}
    # Unattested blocks may cross as well: what was replaced must not come back as one of those.
    table = {"namespaces": {"demo": {**NAMESPACE, "unattested": True}}}
    own = {"east": table, "west": table}
    with Federation(tmp_path_factory.mktemp("upsert"), own=own, limits=limits) as federation:
        yield federation


def test_a_replaced_block_goes_to_nobody(pair: Federation) -> None:
    east, west = pair.store("east"), pair.store("west", deadline_ms=3000)
    write(east, [*REPLACED, UNTOUCHED])
    pair.wait_for_view("west", "east", 4)
    replace(pair)
    for key in REPLACED:
        assert read(west, [key]) == ["miss"]
    assert read(west, [UNTOUCHED]) == ["peer"]
    wait_for(lambda: holdings(pair).get("changed") == 3, 10, f"east to know: {holdings(pair)}")
    assert pair.counter("east", "moonmesh_serve_size_mismatch_total") == 2
    assert pair.counter("east", "moonmesh_serve_digest_mismatch_total") == 1
    wait_for_listings(pair, 2)
    pair.wait_for_view("west", "east", 1)
    for key in REPLACED:
        assert read(west, [key]) == ["miss"], "listed all the while"


def test_that_stays_so_when_the_gateway_is_started_anew(pair: Federation) -> None:
    before = pair.groups["east"].restarts("gateway")
    pair.groups["east"].kill("gateway")
    wait_for(lambda: pair.groups["east"].restarts("gateway") > before, 20, "a new gateway")
    wait_for_listings(pair, 2)
    assert holdings(pair)["unattested"] == 3, "the journal has them"
    pair.wait_for_view("west", "east", 1)
    west = pair.store("west", deadline_ms=3000)
    for key in REPLACED:
        assert read(west, [key]) == ["miss"]
    assert read(west, [UNTOUCHED]) != ["miss"], "it is asked, and has the others no more"


def replace(pair: Federation) -> None:
    """Upserts by an engine of east that uses Mooncake directly."""
    config = pair.groups["east"].config
    plain = MooncakeDistributedStore()
    code = plain.setup(config.host, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", config.master_address)
    assert code == 0
    try:
        for key, size in REPLACED.items():
            assert plain.upsert(stored_key(FINGERPRINT, key), b"x" * size) == 0
    finally:
        plain.close()


def holdings(pair: Federation) -> dict[str, int]:
    return dict(pair.status("east").get("holdings", {}))


def wait_for_listings(pair: Federation, more: int) -> None:
    before = pair.counter("east", "moonmesh_listings_total")
    wait_for(
        lambda: pair.counter("east", "moonmesh_listings_total") >= before + more,
        20,
        f"{more} key listings",
    )
