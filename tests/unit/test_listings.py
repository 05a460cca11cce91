"""What follows from a listing: blocks that nobody attested, and whose they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from federation.config import Limits
from federation.identity import Fingerprint, read_stored_key, stored_key
from federation.listings import DUTY, FAILED_PAUSE_S, LOST_DUTY, Listings
from local_group.holdings import CHANGED, HOPS_MAX, OWN, UNKNOWN, Change, Holdings
from local_group.journal import FILE_NAME, Entry, Journal
from local_group.ledger import Ledger, own
from local_group.names import name_of
from local_group.process_errors import AdminError

FP = Fingerprint(b"f" * 16)
PULLED = Fingerprint(b"p" * 16)
"""Blocks of this one come from peers as well."""
PRIVATE = Fingerprint(b"x" * 16)
DIGEST = b"d" * 16
KEYS = {
    name_of(fingerprint, key): key
    for fingerprint in (FP, PULLED)
    for key in [
        "a",
        "b",
        "k",
        "before",
        "plain",
        "gone",
        "new",
        "own",
        "doubtful",
        "later",
        "pulled",
    ]
}


def change(key: str, added: bool, attested: bool = False) -> Change:
    return Change(FP, name_of(FP, key), added, attested)


class Master:
    """Lists what it has; `meanwhile` happens while it does."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.error: AdminError | None = None
        self.meanwhile = lambda: None
        self.elsewhere = False

    async def list_keys(self, take: Callable[[list[bytes]], None], max_bytes: int) -> int:
        take([key.encode() for key in self.keys])
        self.meanwhile()
        if self.error is not None:
            raise self.error
        return 0

    def put(self, *keys: str, fingerprint: Fingerprint = FP) -> None:
        self.keys |= {stored_key(fingerprint, key) for key in keys}

    def evict(self, *keys: str, fingerprint: Fingerprint = FP) -> None:
        self.keys -= {stored_key(fingerprint, key) for key in keys}


class Run:
    """A gateway's holdings from its start on, beside a Mooncake that outlives it."""

    def __init__(self, folder: Path, master: Master, *, alone: bool = True) -> None:
        self.changes: list[Change] = []
        self.problems: list[str] = []
        self.holdings = Holdings(
            blocks_max=1000,
            hop_limit=1,
            on_change=self.changes.append,
            unattested_ok=lambda fingerprint: True,
        )
        self.ledger = Ledger(
            self.holdings,
            Journal(folder, 1 << 20),
            imported=[PULLED],
            alone=alone,
            elsewhere=lambda: master.elsewhere,
        )
        self.listings = Listings(
            self.ledger,
            master,  # type: ignore[arg-type]
            Limits(),
            self.problems.append,
            namespaces=[FP, PULLED],
        )

    def origins(self) -> dict[str, str]:
        return {KEYS[name]: held.origin for _, name, held in self.holdings.items()}

    async def list(self) -> dict[str, str]:
        await self.listings.correct()
        return self.origins()


@pytest.fixture
def master() -> Master:
    return Master()


async def start(folder: Path, master: Master, *, alone: bool = True) -> Run:
    run = Run(folder, master, alone=alone)
    await run.listings.restore()
    return run


def test_stored_keys_are_read() -> None:
    assert read_stored_key(stored_key(FP, "a/b")) == (FP, "a/b")
    for other in ("", "key", "/key", "a/b", f"{FP.hex()}/", "AB" * 16 + "/k", "+" * 32 + "/k"):
        assert read_stored_key(other) is None


async def test_blocks_of_others_are_found_and_lost_again(tmp_path: Path, master: Master) -> None:
    master.put("before")
    run = await start(tmp_path, master)
    assert run.origins() == {"before": OWN}
    master.put("plain")
    master.put("secret", fingerprint=PRIVATE)
    master.keys.add("no key of ours")
    assert await run.list() == {"before": OWN, "plain": OWN}
    run.changes.clear()
    assert await run.list() == {"before": OWN, "plain": OWN}
    assert run.changes == [], "nothing is new"
    master.evict("before")
    assert await run.list() == {"plain": OWN}
    assert run.changes == [change("before", False)]
    master.keys.clear()  # remove_all, or a failover that loses everything
    assert await run.list() == {}


async def test_what_is_reported_and_what_goes_while_it_is_listed(
    tmp_path: Path, master: Master
) -> None:
    run = await start(tmp_path, master)
    master.put("gone")
    await run.list()

    def meanwhile() -> None:
        run.holdings.report(FP, "new", 5, DIGEST, asyncio.get_running_loop().time())
        run.holdings.withdraw(FP, "gone")

    master.meanwhile = meanwhile
    assert await run.list() == {"new": OWN}, "put after the listing, and evicted after it"


async def test_without_an_answer_nothing_changes(tmp_path: Path, master: Master) -> None:
    run = await start(tmp_path, master)
    master.put("plain")
    await run.list()
    master.error = AdminError("the master does not answer")
    assert await run.list() == {"plain": OWN}
    began = time.monotonic()
    assert run.listings.trouble(began + 7) == "no key listing for 7 s: the master does not answer"
    assert run.problems == [], "it is no thing of the past yet"
    master.error = None
    await run.list()
    assert run.listings.trouble(began) == ""
    assert run.problems == ["key listings failed for 0 s: the master does not answer"]


async def test_what_another_groups_master_lists_says_nothing(
    tmp_path: Path, master: Master
) -> None:
    master.put("own")
    run = await start(tmp_path, master)
    await run.ledger.report([own(FP, "own", 4, DIGEST)])
    theirs = Master()
    theirs.put("new")
    theirs.elsewhere = True
    await run.ledger.close()
    again = await start(tmp_path, theirs)
    assert again.origins() == {"own": OWN}, "nor at a start"
    assert await again.list() == {"own": OWN}
    theirs.elsewhere = False
    assert await again.list() == {"new": OWN}
    assert again.problems == []
    await again.ledger.close()
    once_more = await start(tmp_path, master)
    assert once_more.holdings.get(FP, name_of(FP, "own")).digest == DIGEST  # type: ignore[union-attr]


async def test_a_peers_block_is_known_as_such_when_a_listing_finds_it(
    tmp_path: Path, master: Master
) -> None:
    run = await start(tmp_path, master)
    pulled = Entry(PULLED, name_of(PULLED, "pulled"), 5, DIGEST, "west", 3, 1)
    await run.ledger.announce([pulled])
    master.put("pulled", fingerprint=PULLED)  # and nobody heard that the put went well
    assert await run.list() == {"pulled": "west"}
    assert run.changes == []
    await run.ledger.close()
    again = await start(tmp_path, master)
    assert again.origins() == {"pulled": "west"}
    await again.ledger.close()


async def test_after_the_journal_was_lost_nothing_that_may_be_a_peers_is_offered(
    tmp_path: Path, master: Master
) -> None:
    master.put("own")
    master.put("doubtful", fingerprint=PULLED)
    run = await start(tmp_path, master)
    assert run.origins() == {"own": OWN, "doubtful": UNKNOWN}
    assert run.changes == [change("own", True)]
    master.put("later", fingerprint=PULLED)
    assert (await run.list())["later"] == OWN
    await run.ledger.close()
    again = await start(tmp_path, master)  # with a journal; what it does not say is not forgotten
    assert again.origins() == {"own": OWN, "doubtful": UNKNOWN, "later": OWN}
    assert again.holdings.exportable(PULLED, "doubtful") is None
    await again.ledger.report([own(PULLED, "doubtful", 5, DIGEST)])
    assert again.holdings.exportable(PULLED, "doubtful") is not None
    await again.ledger.close()


async def test_a_damaged_journal_is_a_lost_one(tmp_path: Path, master: Master) -> None:
    run = await start(tmp_path, master)
    await run.ledger.report([own(PULLED, "a", 5, DIGEST), own(PULLED, "b", 5, DIGEST)])
    await run.ledger.close()
    master.put("a", "b", "plain", fingerprint=PULLED)
    file = tmp_path / FILE_NAME
    whole = file.read_bytes()
    for damaged, plain in ((whole[:-3], OWN), (whole[:-3] + b"xyz", UNKNOWN)):
        file.write_bytes(damaged)
        run = await start(tmp_path, master)
        assert run.origins()["a"] == OWN
        assert run.origins()["plain"] == plain
        await run.ledger.close()


async def test_of_several_gateways_any_may_have_pulled_what_nobody_knows(
    tmp_path: Path, master: Master
) -> None:
    run = await start(tmp_path, master, alone=False)
    master.put("own")
    master.put("doubtful", fingerprint=PULLED)
    assert await run.list() == {"own": OWN, "doubtful": UNKNOWN}
    await run.ledger.close()


async def test_a_block_whose_bytes_were_replaced_stays_one_after_a_restart(
    tmp_path: Path, master: Master
) -> None:
    run = await start(tmp_path, master)
    master.put("k")
    await run.ledger.report([own(FP, "k", 5, DIGEST)])
    run.ledger.withhold(FP, name_of(FP, "k"))
    assert await run.list() == {"k": CHANGED}
    await run.ledger.close()
    again = await start(tmp_path, master)
    held = again.holdings.get(FP, "k")
    assert held is not None
    assert (held.hops, again.holdings.exportable(FP, "k")) == (HOPS_MAX, None)
    master.evict("k")
    assert await again.list() == {}
    await again.ledger.close()


async def test_listings_are_paced_by_what_they_take(tmp_path: Path, master: Master) -> None:
    run = await start(tmp_path, master)
    limits = Limits()
    usual = limits.listing_soonest_ms / 1000, limits.listing_interval_ms / 1000
    run.listings.seconds = 0.01
    assert run.listings.pauses() == usual
    run.listings.seconds = 10.0
    assert run.listings.pauses() == (10.0 * (LOST_DUTY - 1), 10.0 * (DUTY - 1))
    # One that failed has taken the master as long as one that did not.
    master.error = AdminError("too long")
    master.meanwhile = lambda: time.sleep(0.6)
    await run.listings.correct()
    soonest, interval = run.listings.pauses()
    assert soonest >= 0.6 * (LOST_DUTY - 1)
    assert interval >= 0.6 * (DUTY - 1)
    run.listings.seconds = 30.0  # of a master that hung
    assert run.listings.pauses() == (30.0 * (LOST_DUTY - 1), FAILED_PAUSE_S)
    await run.ledger.close()
