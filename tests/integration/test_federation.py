"""Two real groups, one federation: what is written in one is reused in the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from chaos.invariants.bounds import BOUNDS, broken, held
from federation.config import Limits
from federation.environment import store_from_environment
from federation.errors import UsageError
from federation.identity import Envelope
from tests.support.federation import BLOCK, NAMESPACE, Buffer, Federation, content, read, write
from tests.support.groups import moonmesh
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder, limits = tmp_path_factory.mktemp("pair"), {"listing_interval_ms": 500}
    with Federation(folder, limits=limits, master={"lease_ttl_ms": 2000}) as federation:
        yield federation


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A and C know B, not each other."""
    names = ("aaa", "bbb", "ccc")
    folder = tmp_path_factory.mktemp("row")
    with Federation(folder, names, without=[("aaa", "ccc")]) as federation:
        yield federation


def test_a_prefix_written_in_one_group_is_reused_in_the_other(pair: Federation) -> None:
    east, west = pair.engine("east"), pair.engine("west", deadline_ms=5000)
    keys = [f"reuse-{i}" for i in range(40)]
    write(east, keys)
    pair.wait_for_view("west", "east", pair.status("east")["holdings"]["blocks"])
    assert read(west, keys) == ["peer"] * 40
    # It is in the local Mooncake soon: the second read needs nobody.
    wait_for(lambda: read(west, keys) == ["local"] * 40, 10, "the blocks to be admitted")
    # And east never holds what west got from it as foreign.
    assert read(east, keys) == ["local"] * 40


def test_a_chain_is_continued_up_to_the_first_block_that_nobody_has(pair: Federation) -> None:
    east, west = pair.engine("east"), pair.engine("west")
    keys = [f"gap-{i}" for i in range(10)]
    held = pair.status("east")["holdings"]["blocks"]
    write(east, [*keys[:4], *keys[5:]])
    pair.wait_for_view("west", "east", held + 9)
    write(west, keys[8:])
    tiers = read(west, keys)
    assert tiers[:5] == ["peer"] * 4 + ["miss"]
    assert tiers[8:] == ["local"] * 2


def test_a_block_that_is_asked_for_twice_is_right_both_times(pair: Federation) -> None:
    """Of a key that is twice in a call Mooncake itself fills one place, and says that it has filled both."""
    east, west = pair.engine("east"), pair.engine("west", deadline_ms=5000)
    keys = ["twice-0", "twice-1"]
    held = pair.status("east")["holdings"]["blocks"]
    write(east, [*keys, *keys])
    pair.wait_for_view("west", "east", held + 2)
    # `read` compares every byte of what is not a miss.
    assert set(read(west, [*keys, *reversed(keys)])) <= {"peer", "local"}
    assert read(east, ["twice-0", "nobody-has-this", *keys, "twice-0"]) == [
        "local",
        "miss",
        *["local"] * 3,
    ]
    wait_for(lambda: set(read(west, [*keys, *keys])) == {"local"}, 10, "the blocks to be admitted")
    assert pair.status("east")["holdings"]["blocks"] >= held + 2, "and east still offers them"


def test_all_that_may_pile_up_is_in_the_status_and_within_its_limit(pair: Federation) -> None:
    rows = {row.name for row in BOUNDS} - {"pulls open, in", "pulls open, out"}  # none is, now
    for name in ("east", "west"):
        seen = dict(held(pair.status(name)))
        assert not rows - seen.keys()
        assert broken(seen, Limits(), 0.0) == []


def test_get_and_put_of_one_block(pair: Federation) -> None:
    east, west = pair.engine("east"), pair.engine("west")
    value = content("single", 100_000).tobytes()
    held = pair.status("east")["holdings"]["blocks"]
    assert east.put("single", value) == 0
    assert east.put("single", b"another") == 0, "a duplicate put keeps the first value"
    assert east.get("single") == value
    assert east.flush_reports()
    wait_for(lambda: west.get("single") == value, 10, f"west to see it; east held {held} before")
    assert west.get("nobody-has-this") == b""
    assert west.last_tiers() == ["miss"]
    assert east.put("", b"x") == -600
    assert east.put("empty", b"") == -600


def test_exists_starts_the_pull_and_says_only_what_has_landed(pair: Federation) -> None:
    east, west = pair.engine("east"), pair.engine("west")
    keys = [f"exists-{i}" for i in range(12)]
    held = pair.status("east")["holdings"]["blocks"]
    write(east, keys)
    pair.wait_for_view("west", "east", held + 12)
    assert west.batch_is_exist(keys, for_write=True) == [0] * 12, "write-side checks are local"
    wait_for(lambda: west.batch_is_exist(keys, wait_ms=500) == [1] * 12, 10, "all to land")
    assert set(read(west, keys)) <= {"peer", "local"}
    assert west.is_exist("nobody-has-this") == 0


def test_who_looks_ahead_has_a_handle_that_is_done_when_all_has_landed(pair: Federation) -> None:
    east, west = pair.engine("east"), pair.engine("west")
    keys = [f"ahead-{i}" for i in range(12)]
    held = pair.status("east")["holdings"]["blocks"]
    write(east, keys)
    pair.wait_for_view("west", "east", held + 12)
    assert west.look_ahead(keys, wait_ms=5000).result(10) == [1] * 12
    assert set(read(west, keys)) == {"peer"}


def test_two_envelopes_never_meet_under_one_key(pair: Federation) -> None:
    other = Envelope(**{**NAMESPACE, "kv_dtype": "fp8_e4m3"})
    one, two = pair.engine("east"), pair.engine("east", namespace=other)
    keys = ["same-key-0", "same-key-1"]
    write(one, keys, salt="one")
    buffer = Buffer(2).fill(keys, "two")
    assert two.batch_put_from(keys, buffer.pointers, buffer.sizes) == [0, 0]
    assert read(one, keys, "one") == ["local"] * 2
    assert read(two, keys, "two") == ["local"] * 2
    assert two.stats()["gateway"] == "local only: no namespace of group.toml has this envelope"


def test_blocks_of_many_sizes_cross_whole(pair: Federation) -> None:
    east, west = pair.engine("east"), pair.engine("west")
    sizes = [1, 4095, 4096, 1 << 20, (1 << 20) + 1, 3_000_000]
    keys = [f"size-{size}" for size in sizes]
    for key, size in zip(keys, sizes, strict=True):
        assert east.put(key, content(key, size).tobytes()) == 0
    assert east.flush_reports()
    for key, size in zip(keys, sizes, strict=True):
        wait_for(
            lambda key=key, size=size: west.get(key) == content(key, size).tobytes(),  # type: ignore[misc]
            10,
            f"{key} to cross",
        )


def test_many_askers_of_one_block_are_one_pull(pair: Federation) -> None:
    east = pair.engine("east")
    stores = [pair.store("west") for _ in range(4)]
    keys = [f"many-{i}" for i in range(20)]
    held = pair.status("east")["holdings"]["blocks"]
    before = pair.counter("west", "moonmesh_peer_blocks_total")
    write(east, keys)
    pair.wait_for_view("west", "east", held + 20)
    tiers: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda s=store: tiers.append(read(s, keys)))  # type: ignore[misc]
        for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [set(t) <= {"peer", "local"} for t in tiers] == [True] * 4
    assert pair.counter("west", "moonmesh_peer_blocks_total") - before == 20


def test_an_evicted_block_is_a_miss_and_is_withdrawn(pair: Federation) -> None:
    east, west = pair.engine("east"), pair.engine("west")
    keys = [f"evict-{i}" for i in range(8)]
    held = pair.status("east")["holdings"]["blocks"]
    before = pair.counter("west", "moonmesh_peer_blocks_total")
    write(east, keys)
    pair.wait_for_view("west", "east", held + 8)
    assert east._store is not None
    names = east._stored(keys)
    assert {o.status.value for o in east._store.remove(names, 5.0, force=True)} == {"hit"}
    assert read(west, keys) == ["miss"] * 8
    pair.wait_for_view("west", "east", held)
    assert pair.counter("west", "moonmesh_peer_blocks_total") == before
    # Written anew, it is offered anew.
    write(east, keys)
    wait_for(lambda: read(west, keys)[0] != "miss", 10, "west to find it again")


def test_what_was_pulled_is_not_offered_onward_not_even_after_a_restart(row: Federation) -> None:
    """What B has from A stays at B."""
    a, b, c = (row.store(name, deadline_ms=3000) for name in ("aaa", "bbb", "ccc"))
    keys = [f"hop-{i}" for i in range(10)]
    write(a, keys)
    row.wait_for_view("bbb", "aaa", 10)
    assert read(b, keys) == ["peer"] * 10
    wait_for(lambda: read(b, keys) == ["local"] * 10, 10, "b to admit them")
    write(b, ["own-of-b"])
    row.wait_for_view("ccc", "bbb", 1)
    assert read(c, keys) == ["miss"] * 10
    # An engine of b writes back what it was given: that does not make it b's own.
    write(b, keys)
    assert read(c, ["own-of-b"]) == ["peer"]
    assert read(c, keys) == ["miss"] * 10

    group = row.groups["bbb"]
    old = group.kill("gateway")
    wait_for(
        lambda: group.phase("gateway") == "ready" and group.pid("gateway") != old,
        30,
        "b's gateway to be started again",
    )
    row.wait_until_alive()
    # After the restart b still knows which of its blocks are its own ...
    row.wait_for_view("ccc", "bbb", 1)
    wait_for(lambda: len(b.stats()) > 0 and b._link is not None and b._link.usable, 10, "b's link")
    write(b, keys)
    assert row.status("bbb")["holdings"]["blocks"] == 11
    # ... and offers nothing of a's.
    row.wait_for_view("ccc", "bbb", 1)
    assert read(c, keys) == ["miss"] * 10
    assert row.counter("ccc", "moonmesh_peer_blocks_total") == 1


def test_writing_back_at_once_does_not_make_a_pulled_block_our_own(row: Federation) -> None:
    """A backs-up engine writes back before the gateway has admitted what it handed over."""
    a, b, c = (row.store(name, deadline_ms=5000) for name in ("aaa", "bbb", "ccc"))
    keys = [f"back-{i}" for i in range(300)]
    of_a = row.status("aaa")["holdings"]["blocks"]
    write(a, keys)
    row.wait_for_view("bbb", "aaa", of_a + 300)
    write(b, ["another-of-b"])
    wait_for(lambda: read(c, ["another-of-b"]) != ["miss"], 20, "c to see what is b's own")
    for start in range(0, 300, 30):
        part = keys[start : start + 30]
        assert set(read(b, part)) == {"peer"}
        missing = [
            k for k, e in zip(part, b.batch_is_exist(part, for_write=True), strict=True) if not e
        ]
        if missing:
            write(b, missing)
    wait_for(lambda: read(b, keys) == ["local"] * 300, 20, "all to be admitted")
    (seen,) = [p for p in row.status("ccc")["peers"] if p["name"] == "bbb"]
    own = sum(view["blocks"] for view in seen["views"])
    assert own <= 2, "b offers its own blocks alone"
    assert read(c, keys) == ["miss"] * 300


def test_a_chain_longer_than_a_request_crosses_whole(pair: Federation) -> None:
    east, west = pair.engine("east"), pair.engine("west", deadline_ms=30_000)
    keys = [f"long-{i:05}-{'x' * 250}" for i in range(5000)]
    held = pair.status("east")["holdings"]["blocks"]
    small = Buffer(len(keys), 64).fill(keys)
    assert set(east.batch_put_from(keys, small.pointers, small.sizes)) == {0}
    assert east.flush_reports(20)
    pair.wait_for_view("west", "east", held + 5000)
    out = Buffer(len(keys), 64)
    assert west.batch_get_into(keys, out.pointers, out.sizes) == [64] * 5000
    assert (out.array == small.array).all()
    assert set(west.last_tiers()) == {"peer"}


def test_bad_arguments_are_refused_one_by_one_and_cost_the_others_nothing(
    pair: Federation,
) -> None:
    east, west = pair.engine("east"), pair.engine("west", deadline_ms=5000)
    held = pair.status("east")["holdings"]["blocks"]
    write(east, ["good-0", "good-1"])
    pair.wait_for_view("west", "east", held + 2)
    keys = ["good-0", "", "k" * 1100, "good-1", "absent"]
    buffer = Buffer(len(keys))
    for _ in range(3):
        results = west.batch_get_into(keys, buffer.pointers, buffer.sizes)
        assert results == [BLOCK, -600, -704, BLOCK, -704]
    assert west.stats()["gateway"] == "federated"
    assert east.batch_put_from(["x"], [-8], [64]) == [-600]
    assert east.batch_put_from(["x", "y"], [1], [64, 64]) == [-600, -600]
    assert east.batch_put_from(["x"], [None], [64]) == [-600]  # type: ignore[list-item]
    assert east.put("k" * 2000, b"local only: peers do not take such a key") == 0
    assert east.get("k" * 2000).startswith(b"local only")
    assert east.put("after", b"the long key holds nothing up") == 0
    assert east.flush_reports()
    wait_for(lambda: west.get("after") != b"", 10, "what came after to be offered")
    for call in (
        lambda: west.get("k", deadline_ms=0),
        lambda: west.batch_is_exist(["k"], deadline_ms=-1),
        lambda: west.setup("127.0.0.1", namespace=NAMESPACE),
    ):
        with pytest.raises(UsageError):
            call()


def test_a_forked_child_is_told_and_does_not_hang(pair: Federation) -> None:
    east = pair.engine("east")
    child = os.fork()
    if child == 0:
        try:
            east.get("k", deadline_ms=500)
        except UsageError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_a_gateway_it_is_plain_mooncake(pair: Federation) -> None:
    config = pair.groups["east"].config
    alone = pair.engine("east")
    assert alone._link is not None
    plain = type(alone)()
    assert (
        plain.setup(config.host, master_server_addr=config.master_address, namespace=NAMESPACE) == 0
    )
    keys = [f"plain-{i}" for i in range(4)]
    buffer = Buffer(4).fill(keys)
    assert plain.batch_put_from(keys, buffer.pointers, buffer.sizes) == [0] * 4
    assert read(plain, keys) == ["local"] * 4
    assert read(plain, ["absent"]) == ["miss"]
    assert plain.batch_is_exist([*keys, "absent"]) == [1, 1, 1, 1, 0]
    assert plain.stats()["gateway"] == "none"
    assert plain.close() == 0
    assert buffer.size == BLOCK


def test_an_engine_that_is_told_of_mooncake_by_the_environment(
    pair: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pair.groups["east"].config
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    monkeypatch.setenv("MOONCAKE_MASTER", config.master_address)
    monkeypatch.setenv("MOONCAKE_LOCAL_HOSTNAME", config.host)
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0")
    monkeypatch.setenv("MOONCAKE_LOCAL_BUFFER_SIZE", "16mb")
    store = store_from_environment(namespace=NAMESPACE, gateway=f"unix:{config.gateway_socket}")
    try:
        assert store.put("by-environment", b"value") == 0
        assert pair.engine("east").get("by-environment") == b"value"
        assert store.stats()["gateway"] == "federated"
    finally:
        store.close()


def test_what_came_from_a_peer_can_be_purged(pair: Federation) -> None:
    east, west = pair.engine("east"), pair.engine("west", deadline_ms=5000)
    theirs, own = [f"purge-{i}" for i in range(20)], [f"kept-{i}" for i in range(5)]
    write(east, theirs)
    write(west, own)
    # What a listing alone has found is not offered here: see test_without_a_gateway_it_is_plain_mooncake.
    holdings = pair.status("east")["holdings"]
    pair.wait_for_view("west", "east", holdings["blocks"] - holdings["unattested"])
    for _ in range(2):  # on the second hit they are admitted
        read(west, theirs)
    wait_for(lambda: west.batch_is_exist(theirs, for_write=True) == [1] * 20, 10, "admission")
    config = str(pair.folder / "west" / "group.toml")
    done = moonmesh("purge", "--origin", "east", "-c", config)
    assert done.returncode == 0, done.stderr
    assert "that came from east" in done.stdout
    assert west.batch_is_exist(theirs, for_write=True) == [0] * 20
    assert west.batch_is_exist(own, for_write=True) == [1] * 5, "own blocks stay"
    assert read(west, theirs) == ["peer"] * 20, "they are pulled anew, while it is imported"
    again = moonmesh("purge", "--origin", "nobody", "-c", config)
    assert (again.returncode, "no block is known here" in again.stdout) == (1, True)
