"""Engines that use Mooncake directly, in real groups: their blocks are found, cross, and are read there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore

from federation.identity import Envelope
from tests.support.federation import NAMESPACE, Federation, content, read, write
from tests.support.groups import moonmesh
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

SHA = "0123456789abcdef" * 4


def table(model: str, keys: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
    """A namespace, as in group.toml and as an engine is given it."""
    named = {"keys": list(keys)} if keys else {}
    return {**NAMESPACE, "model": model, **named, **changes}


SGLANG = table("org/s-7b", ["sglang-hicache"], tp=2, unattested=True)
MLA = table("m-7b", ["sglang-hicache-mla:prod"], unattested=True)
VLLM = table("org/v-7b", ["vllm-mooncake"], unattested=True)
LMCACHE = table("l-7b", ["lmcache"], unattested=True)
CLOSED = table("c-7b", ["closed/{hex}"])
DIFFERENT = table("d-7b", ["d/{hex}"], unattested=True)
EAST = {
    "sglang": SGLANG,
    "mla": MLA,
    "vllm": VLLM,
    "lmcache": LMCACHE,
    "closed": {**CLOSED, "unattested": True},
    "different": DIFFERENT,
}
WEST = {
    **EAST,
    "vllm": table("org/v-7b", unattested=True),  # has no plain engines of it
    "closed": CLOSED,
    "different": {**DIFFERENT, "kv_dtype": "fp8_e4m3"},
}
KEYS = {
    "sglang": [f"org-s-7b_{n:064x}_{n % 2}_{kv}" for n in range(6) for kv in "kv"],
    "mla": [f"prod_m-7b_{n:064x}__k" for n in range(5)],
    "vllm": [f"v-7b@tp_rank:0@pcp0@dcp0@pp_rank:0@group:{n % 2}@{n:040x}ab" for n in range(1, 8)],
    "lmcache": [f"l-7b@1@0@{n:x}@bfloat16" for n in range(-3, 3)],
    "closed": [f"closed/{n:x}" for n in range(4)],
    "different": [f"d/{n:x}" for n in range(4)],
}


class Plain:
    """An engine that knows nothing of Moonmesh."""

    def __init__(self, federation: Federation, group: str) -> None:
        config = federation.groups[group].config
        self._store = MooncakeDistributedStore()
        code = self._store.setup(
            config.host, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", config.master_address
        )
        assert code == 0

    def put(self, keys: Sequence[str]) -> None:
        for key in keys:
            assert self._store.put(key, content(key).tobytes()) == 0

    def has(self, keys: Sequence[str]) -> bool:
        return self._store.batch_is_exist(list(keys)) == [1] * len(keys)

    def right(self, keys: Sequence[str]) -> bool:
        return all(bytes(self._store.get(key)) == content(key).tobytes() for key in keys)

    def close(self) -> None:
        self._store.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    own = {"east": {"namespaces": EAST}, "west": {"namespaces": WEST}}
    limits = {"listing_interval_ms": 500, "listing_soonest_ms": 100}
    folder = tmp_path_factory.mktemp("plain")
    with Federation(folder, own=own, shared="*", limits=limits) as federation:
        yield federation


@pytest.fixture(scope="module")
def plain(pair: Federation) -> Iterator[dict[str, Plain]]:
    engines = {name: Plain(pair, name) for name in ("east", "west")}
    yield engines
    for engine in engines.values():
        engine.close()


def seen(pair: Federation, group: str, peer: str, namespace: str) -> int:
    """Blocks of a namespace that `group` believes `peer` to have; -1 before it knows."""
    views = pair.peer(group, peer).get("views", [])
    return next((int(v["blocks"]) for v in views if v["namespace"] == namespace), -1)


def wait_until_seen(pair: Federation, group: str, peer: str, namespace: str, blocks: int) -> None:
    wait_for(
        lambda: seen(pair, group, peer, namespace) == blocks,
        20,
        f"{group} to see {blocks} blocks of {namespace} of {peer}: "
        f"{seen(pair, group, peer, namespace)}, {pair.status(peer).get('namespaces')}",
    )


@pytest.mark.parametrize("name", ["sglang", "mla", "vllm", "lmcache"])
def test_blocks_of_a_plain_writer_cross_and_are_read_by_plain_readers(
    pair: Federation, plain: dict[str, Plain], name: str
) -> None:
    keys = KEYS[name]
    plain["east"].put(keys)
    west = pair.engine("west", namespace=WEST[name])
    wait_until_seen(pair, "west", "east", name, len(keys))
    assert read(west, keys) == ["peer"] * len(keys)
    wait_for(lambda: read(west, keys) == ["local"] * len(keys), 10, "the blocks to be admitted")
    # Under the engine's own keys where west has plain engines of it, and nowhere else.
    assert plain["west"].has(keys) == ("keys" in WEST[name])
    if "keys" in WEST[name]:
        assert plain["west"].right(keys)
    # Whose they are is known, though they look like what west's own engines write: none is offered back.
    pair.engine("east", namespace=EAST[name])
    listings = pair.counter("west", "moonmesh_listings_total")
    wait_for(
        lambda: (
            pair.counter("west", "moonmesh_listings_total") > listings + 1
            and seen(pair, "east", "west", name) == 0
        ),
        20,
        "west to list what it has, and to offer nothing of it",
    )


def test_federated_and_plain_engines_share_one_pool(
    pair: Federation, plain: dict[str, Plain]
) -> None:
    east = pair.engine("east", namespace=SGLANG)
    ours = [f"org-s-7b_{n:064x}_0_k" for n in range(1000, 1004)]
    theirs = [f"org-s-7b_{n:064x}_1_v" for n in range(1000, 1004)]
    write(east, ours)
    plain["east"].put(theirs)
    assert plain["east"].right(ours)
    assert read(east, theirs) == ["local"] * 4
    # A key that is of no pattern of the namespace does not lie about in the pool under it.
    write(east, ["something-else"])
    assert not plain["east"].has(["something-else"])
    assert read(east, ["something-else"]) == ["local"]


def test_blocks_that_nobody_attested_cross_where_both_sides_allow_it_alone(
    pair: Federation, plain: dict[str, Plain]
) -> None:
    keys = KEYS["closed"]
    plain["east"].put(keys)
    east, west = (
        pair.engine("east", namespace=EAST["closed"]),
        pair.engine("west", namespace=WEST["closed"]),
    )
    attested = [f"closed/{n:x}" for n in range(100, 104)]
    write(east, attested)
    wait_for(
        lambda: pair.status("east")["namespaces"].get("closed", {}).get("held") == 8,
        10,
        "east to find all eight",
    )
    wait_until_seen(pair, "west", "east", "closed", 4)
    pulled = pair.counter("west", "moonmesh_pulled_unattested_total")
    assert read(west, keys) == ["miss"] * 4
    assert read(west, attested) == ["peer"] * 4
    assert pair.counter("west", "moonmesh_pulled_unattested_total") == pulled
    # The other way round it is east that would take them, and west that does not offer any.
    others = [f"closed/{n:x}" for n in range(200, 204)]
    plain["west"].put(others)
    wait_for(
        lambda: pair.status("west")["namespaces"].get("closed", {}).get("held", 0) >= 4,
        10,
        "west to find them",
    )
    assert read(east, others) == ["miss"] * 4
    why = rows(pair, "west")["closed"]["why"]
    assert why == "attested blocks alone: this group has not unattested = true"


def test_envelopes_that_differ_in_one_field_share_nothing_and_it_is_named(
    pair: Federation, plain: dict[str, Plain]
) -> None:
    keys = KEYS["different"]
    plain["east"].put(keys)
    west = pair.engine("west", namespace=WEST["different"])
    wait_for(
        lambda: pair.status("east")["namespaces"].get("different", {}).get("held") == 4,
        10,
        "east to find them",
    )
    assert read(west, keys) == ["miss"] * 4
    for group, ours, theirs in (("east", "bf16", "fp8_e4m3"), ("west", "fp8_e4m3", "bf16")):
        row = rows(pair, group)["different"]
        assert row["differs"] == {"kv_dtype": {"ours": ours, "theirs": theirs}}
        assert (row["out"], row["in"], row["same"]) == (False, False, False)
        shown = moonmesh("namespaces", "-c", pair.groups[group].path)
        assert shown.returncode == 0
        assert "kv_dtype" in shown.stdout
    # Who asks for what is not shared is told so, and the gateway asks once a minute.
    found = moonmesh(
        "locate", "--json", "--namespace", "different", "-c", pair.groups["west"].path, *keys
    )
    (east,) = [each for each in json.loads(found.stdout)["groups"] if each["group"] == "east"]
    assert east["blocks"] is None
    assert "does not share this namespace with this group (it refused: " in east["reason"]
    (peer,) = pair.status("west")["peers"]
    (view,) = [each for each in peer["views"] if each["namespace"] == "different"]
    assert view["trouble"] == east["reason"]
    refused = [
        r for r in pair.status("east")["refused"] if "may not import (catalog)" in r["reason"]
    ]
    assert [r["count"] for r in refused] == [1]
    row = rows(pair, "east")["sglang"]
    assert (row["out"], row["in"], row["why"]) == (True, True, "")


def test_an_engine_with_other_keys_than_its_gateway_is_told_so(pair: Federation) -> None:
    store = pair.engine(
        "east",
        namespace=Envelope(**{k: v for k, v in SGLANG.items() if k in NAMESPACE or k == "tp"}),
    )
    assert "give it the same `keys`" in store.stats()["gateway"]


def rows(pair: Federation, group: str) -> dict[str, dict[str, Any]]:
    """What `moonmesh namespaces` says of the only peer of a group, by namespace."""
    done = moonmesh("namespaces", "--json", "-c", pair.groups[group].path)
    assert done.returncode == 0, done.stdout + done.stderr
    (peer,) = json.loads(done.stdout)["peers"]
    assert peer["problem"] == ""
    return {row["namespace"]: row for row in peer["namespaces"]}


def test_a_prefetch_brings_what_plain_engines_find(
    pair: Federation, plain: dict[str, Plain]
) -> None:
    keys = [f"prod_m-7b_{n:064x}__k" for n in range(500, 520)]
    plain["east"].put(keys)
    run = ("prefetch", "--namespace", "mla", "-c", pair.groups["west"].path)
    done = moonmesh(*run, "--seconds", "20", *keys)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 of 20 blocks are here; 20 were brought" in done.stdout
    assert plain["west"].right(keys)
    done = moonmesh(*run, "--seconds", "1", *keys, f"prod_m-7b_{999:064x}__k")
    assert done.returncode == 1
    assert "20 of 21 blocks are here; 0 were brought" in done.stdout
    done = moonmesh("prefetch", "-c", pair.groups["west"].path, *keys)
    assert done.returncode == 2
    assert "which namespace are the keys of?" in done.stderr


def test_after_a_lost_journal_nothing_is_offered_that_may_be_a_peers(
    pair: Federation, plain: dict[str, Plain]
) -> None:
    keys = [f"l-7b@1@0@{n:x}@bfloat16" for n in range(300, 308)]
    plain["east"].put(keys)
    west = pair.engine("west", namespace=WEST["lmcache"])
    wait_for(lambda: "miss" not in read(west, keys), 20, "the blocks to cross")
    read(west, keys)  # on the second hit they are admitted
    wait_for(lambda: plain["west"].has(keys), 10, "the blocks to be admitted")
    pair.engine("east", namespace=EAST["lmcache"])
    group = pair.groups["west"]
    (group.config.journal_dir / "provenance.log").unlink()
    group.kill("gateway")
    own = [f"l-7b@1@0@{n:x}@bfloat16" for n in range(400, 403)]

    def listed() -> bool:
        return pair.counter("west", "moonmesh_listings_total") > 0

    wait_for(listed, 20, "the gateway to be back, and to know what is in its pool")
    plain["west"].put(own)
    # What is written now is west's own, and all that east hears of; what was there it cannot tell apart.
    wait_until_seen(pair, "east", "west", "lmcache", len(own))
    listings = pair.counter("west", "moonmesh_listings_total")
    wait_for(
        lambda: pair.counter("west", "moonmesh_listings_total") > listings + 1,
        10,
        "two more listings",
    )
    assert seen(pair, "east", "west", "lmcache") == len(own)
    assert pair.status("west")["holdings"]["unattested"] >= len(own) + len(keys)
