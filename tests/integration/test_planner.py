"""Planning on real groups: what two have is got from both, and what is cheaper to compute is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from federation.transfer.speed import SURE_PULLS
from tests.support.federation import NAMESPACE, Federation, read, write
from tests.support.groups import moonmesh
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

FAST = {"namespaces": {"demo": {**NAMESPACE, "prefill_tokens_per_second": 1_000_000_000}}}
"""Engines that compute a block in half a microsecond: no peer is worth it."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder, names = tmp_path_factory.mktemp("plan"), ("east", "north", "west")
    with Federation(
        folder, names, gateway={"admit": "never"}, own={"north": FAST}, dram="128 MiB"
    ) as federation:
        yield federation


def share(federation: Federation, name: str, keys: list[str], *readers: str) -> None:
    """A group writes a chain, and others have its catalog."""
    write(federation.engine(name), keys)
    blocks = federation.status(name)["holdings"]["blocks"]
    for reader in readers:
        federation.engine(reader)
        federation.wait_for_view(reader, name, blocks)


def test_what_two_groups_have_is_got_from_both(three: Federation) -> None:
    keys = [f"both-{n}" for n in range(320)]
    share(three, "east", keys, "west")
    share(three, "north", keys, "west")
    assert read(three.engine("west"), keys, deadline_ms=5000) == ["peer"] * len(keys)
    served = [three.counter(name, "moonmesh_served_blocks_total") for name in ("east", "north")]
    assert sum(served) == len(keys), "each block once"
    assert min(served) >= len(keys) // 4


def test_what_is_cheaper_to_compute_is_left_to_the_engine(three: Federation) -> None:
    north = three.engine("north")
    for n in range(SURE_PULLS):
        keys = [f"learn-{n}-{i}" for i in range(8)]
        share(three, "east", keys, "north")
        assert read(north, keys, deadline_ms=5000) == ["peer"] * 8, "until it is sure, it pulls"
    keys = [f"dear-{i}" for i in range(8)]
    share(three, "east", keys, "north", "west")
    before = three.counter("east", "moonmesh_served_blocks_total")
    assert read(north, keys, deadline_ms=5000) == ["miss"] * 8
    assert three.counter("north", "moonmesh_recompute_blocks_total") >= 8
    assert three.counter("east", "moonmesh_served_blocks_total") == before
    assert read(three.engine("west"), keys, deadline_ms=5000) == ["peer"] * 8, "it does not say"

    # Whoever asks for them to be brought gets them all the same.
    config = three.folder / "north" / "group.toml"
    done = moonmesh("prefetch", "-c", config, *keys)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for(lambda: read(north, keys, deadline_ms=5000) == ["local"] * 8, 10, "them to be here")
    done = moonmesh("locate", "--json", "-c", config, *keys)
    assert '"compute_ms": 0.004' in done.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    limits = {"foreign_percent": 5, "listing_interval_ms": 500}
    folder = tmp_path_factory.mktemp("quota")
    with Federation(
        folder, gateway={"admit": "always"}, limits=limits, master={"lease_ttl_ms": 500}
    ) as federation:
        yield federation


def test_copies_stay_within_their_part_of_the_pool_and_own_blocks_are_left(
    small: Federation,
) -> None:
    west, quota = small.engine("west"), (64 << 20) * 5 // 100
    own = [f"own-{i}" for i in range(50)]
    write(west, own)
    first = [f"copied-0-{i}" for i in range(100)]
    for chain in range(6):  # 600 blocks of 8 KiB, where 409 may be
        keys = [f"copied-{chain}-{i}" for i in range(100)]
        share(small, "east", keys, "west")
        assert set(read(west, keys, deadline_ms=5000)) <= {"peer", "local"}
        wait_for(lambda: small.status("west")["queues"]["admission_blocks"] == 0, 10, "the queue")
        assert small.status("west")["queues"]["copies_bytes"] <= quota
    wait_for(
        lambda: small.counter("west", "moonmesh_copies_given_back_total") > 0, 20, "some to go"
    )
    assert small.counter("west", "moonmesh_admission_over_quota_total") > 0
    assert read(west, own) == ["local"] * len(own), "what engines wrote is left alone"
    # Of the first chain the tail went, and the head is still here.
    tiers = read(west, first, deadline_ms=5000)
    gone = tiers.index("peer")
    assert gone > 0
    assert tiers == ["local"] * gone + ["peer"] * (len(first) - gone)
    # There is room again for what comes next.
    keys = [f"copied-next-{i}" for i in range(20)]
    share(small, "east", keys, "west")
    assert set(read(west, keys, deadline_ms=5000)) == {"peer"}
    wait_for(lambda: read(west, keys, deadline_ms=5000) == ["local"] * 20, 20, "them to be kept")
