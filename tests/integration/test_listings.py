"""What a real Mooncake lists: blocks come, go and are replaced, and the holdings follow in one listing."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from mooncake.store import MooncakeDistributedStore

from federation.config import Limits
from federation.identity import Fingerprint, stored_key
from federation.listings import Listings
from local_group.admin import AdminClient
from local_group.holdings import OWN, Change, Holdings
from local_group.journal import Journal
from local_group.ledger import Ledger, own
from local_group.names import name_of
from tests.support.groups import RunningGroup, write_group
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

FP = Fingerprint(b"f" * 16)
SIZE = 8192


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    folder = tmp_path_factory.mktemp("listings")
    with RunningGroup(write_group(folder, "east")) as running:
        yield running


@pytest.fixture
def plain(group: RunningGroup) -> Iterator[MooncakeDistributedStore]:
    """An engine that knows nothing of Moonmesh."""
    store = MooncakeDistributedStore()
    config = group.config
    code = store.setup(config.host, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", config.master_address)
    assert code == 0
    yield store
    store.remove_all()
    store.close()


class Gateway:
    """The part of one that lists."""

    def __init__(self, group: RunningGroup, folder: Path) -> None:
        self.changes: list[Change] = []
        self.problems: list[str] = []
        self.holdings = Holdings(
            blocks_max=10_000,
            hop_limit=1,
            on_change=self.changes.append,
            unattested_ok=lambda fingerprint: True,
        )
        self.ledger = Ledger(self.holdings, Journal(folder, 1 << 20))
        self.admin = AdminClient(group.config.admin_url)
        self.listings = Listings(
            self.ledger, self.admin, Limits(), self.problems.append, namespaces=[FP]
        )

    async def list(self) -> set[int]:
        """Names that are held after one listing."""
        await self.listings.correct()
        assert self.problems == []
        return set(self.holdings.after(FP, -1, 10_000))

    async def close(self) -> None:
        await self.ledger.close()
        await self.admin.close()


@pytest.fixture
async def gateway(group: RunningGroup, tmp_path: Path) -> AsyncIterator[Gateway]:
    made = Gateway(group, tmp_path)
    await made.listings.restore()
    yield made
    await made.close()


def put(store: MooncakeDistributedStore, *keys: str) -> set[int]:
    """Their names."""
    for key in keys:
        assert store.put(stored_key(FP, key), key.encode() * (SIZE // len(key))) == 0
    return {name_of(FP, key) for key in keys}


async def test_holdings_follow_what_engines_put_and_remove(
    gateway: Gateway, plain: MooncakeDistributedStore
) -> None:
    assert await gateway.list() == set()
    names = put(plain, *(f"k{n}" for n in range(500)))
    plain.put("of nobody", b"x")
    assert await gateway.list() == names
    assert {change.added for change in gateway.changes} == {True}
    gateway.changes.clear()
    assert await gateway.list() == names
    assert gateway.changes == [], "only the difference of two listings is a change"
    assert plain.remove(stored_key(FP, "k7"), True) == 0
    assert await gateway.list() == names - {name_of(FP, "k7")}
    assert gateway.changes == [Change(FP, name_of(FP, "k7"), False, attested=False)]
    plain.remove_all(True)
    assert await gateway.list() == set()


async def test_keys_are_found_for_names(gateway: Gateway, plain: MooncakeDistributedStore) -> None:
    put(plain, "a", "b", "c")
    wanted = {(bytes(FP), name_of(FP, key)) for key in ("a", "c", "gone")}
    found = await gateway.listings.stored_keys(wanted)
    assert sorted(found.values()) == [stored_key(FP, "a"), stored_key(FP, "c")]


async def test_a_master_that_has_lost_everything(
    group: RunningGroup, gateway: Gateway, plain: MooncakeDistributedStore
) -> None:
    names = put(plain, "a", "b")
    await gateway.ledger.report([own(FP, "attested", SIZE, b"d" * 16)])
    put(plain, "attested")
    assert await gateway.list() == names | {name_of(FP, "attested")}
    before = group.restarts("master")
    group.kill("master", signal.SIGKILL)
    wait_for(lambda: group.restarts("master") > before, 20, "the master to be started again")
    wait_for(lambda: group.phase("master") == "ready", 20, "the master to be ready")
    assert await gateway.list() == set()

    def again() -> bool:
        return plain.put(stored_key(FP, "new"), bytes(SIZE)) == 0

    wait_for(again, 30, "Mooncake to take blocks again")
    assert await gateway.list() == {name_of(FP, "new")}


async def test_a_replaced_block_looks_the_same_in_a_listing_and_not_in_a_query(
    gateway: Gateway, plain: MooncakeDistributedStore
) -> None:
    """What can be seen of an upsert: the size, if that changed, and the bytes."""
    put(plain, "k")
    stored = stored_key(FP, "k")
    assert await gateway.list() == {name_of(FP, "k")}
    assert plain.upsert(stored, b"x" * SIZE) == 0
    assert await gateway.list() == {name_of(FP, "k")}
    assert await gateway.admin.query([stored]) == {stored: SIZE}
    assert bytes(plain.get(stored)) == b"x" * SIZE
    assert plain.upsert(stored, b"y" * (SIZE // 2)) == 0
    assert await gateway.admin.query([stored]) == {stored: SIZE // 2}
    held = gateway.holdings.get(FP, "k")
    assert held is not None
    assert held.origin == OWN
