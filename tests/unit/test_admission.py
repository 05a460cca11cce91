"""Admission: provenance first, then the block; what does not fit or fails is left out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import pytest

from federation.config import Admit
from federation.keys.naming import Naming
from federation.transfer.admission import Admission
from federation.transfer.copies import Copies
from federation.transfer.policy import AdmissionPolicy
from federation.transfer.staging import StagedBlock
from local_group import ledger as ledger_module
from local_group import sources
from local_group.holdings import Holdings
from local_group.journal import Journal, JournalError
from local_group.ledger import Ledger, own
from local_group.names import Names, name_of
from local_group.outcome import Outcome, Status
from tests.support.wait import wait_for_async

FP = b"f" * 16


def names_listed(*keys: str) -> Callable[[bytes], Names]:
    """A listing that has these and no others."""
    return lambda fingerprint: np.array(
        sorted(name_of(fingerprint, key) for key in keys), dtype=np.uint64
    )


def block(key: str) -> StagedBlock:
    return StagedBlock(FP, key, memoryview(b"x" * 10), b"d" * 16, "west", 7, 1.0, 2.0)


class FakeStore:
    """Remembers what it was told to write, and what the journal held by then."""

    def __init__(self, directory: Path, status: Status = Status.STORED) -> None:
        self._directory = directory
        self._status = status
        self.written: list[str] = []
        self.journalled: list[set[int]] = []

    async def write(
        self, items: Sequence[tuple[str, bytes | memoryview]], timeout: float
    ) -> list[Outcome]:
        self.written += [name for name, _ in items]
        self.journalled.append({e.name for e in Journal(self._directory, 1 << 20).load()})
        return [Outcome(self._status, len(data), 0) for _, data in items]


class Setup:
    def __init__(
        self,
        tmp_path: Path,
        status: Status = Status.STORED,
        queue_max: int = 100,
        admit: Admit = "always",
        dear: Collection[str] = (),
        defer: float = 0.0,
        foreign_max: int = 100,
    ) -> None:
        self.busy = True
        self.waits = threading.Event()
        self.copies = Copies(25)
        self.holdings = Holdings(
            blocks_max=100,
            hop_limit=1,
            on_change=lambda change: None,
            on_hidden=lambda change: self.copies.follow(
                self.holdings, change.fingerprint, change.name
            ),
        )
        self.journal = Journal(tmp_path, 1 << 20)
        self.ledger = Ledger(self.holdings, self.journal, foreign_max=foreign_max)
        self.store = FakeStore(tmp_path, status)
        self.errors: list[str] = []
        self.admission = Admission(
            write=self.store.write,
            ledger=self.ledger,
            naming=Naming(()),
            policy=AdmissionPolicy(admit),
            copies=self.copies,
            dear=lambda block: block.key in dear,
            queue_max=queue_max,
            on_error=self.errors.append,
            busy=self._is_busy,
            defer=defer,
        )

    def _is_busy(self) -> bool:
        self.waits.set()
        return self.busy

    async def __aenter__(self) -> Setup:
        await self.ledger.load(None)
        self.task = asyncio.create_task(self.admission.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.ledger.close()


async def test_provenance_is_on_disk_before_the_block_is_put(tmp_path: Path) -> None:
    async with Setup(tmp_path) as setup:
        for key in "abc":
            setup.admission.landed(block(key))
        await wait_for_async(lambda: len(setup.holdings) == 3, 5, "three blocks to be admitted")
    assert setup.store.written == [f"{FP.hex()}/{key}" for key in "abc"]
    assert setup.store.journalled[-1] == {name_of(FP, key) for key in "abc"}
    held = setup.holdings.get(FP, "a")
    assert held is not None
    assert (held.origin, held.epoch, held.hops) == ("west", 7, 1)
    assert setup.holdings.exportable(FP, "a") is None


async def test_what_mooncake_refuses_is_not_held(tmp_path: Path) -> None:
    async with Setup(tmp_path, status=Status.ERROR) as setup:
        setup.admission.landed(block("a"))
        await wait_for_async(lambda: bool(setup.store.written), 5, "the put")
        await asyncio.sleep(0)
    assert len(setup.holdings) == 0


async def test_without_the_journal_nothing_is_put(tmp_path: Path) -> None:
    async with Setup(tmp_path) as setup:
        setup.journal.close()
        setup.admission.landed(block("a"))
        await wait_for_async(lambda: bool(setup.errors), 5, "the error to be told")
    assert setup.store.written == []
    assert len(setup.holdings) == 0


async def test_what_an_engine_wrote_meanwhile_is_left_alone(tmp_path: Path) -> None:
    async with Setup(tmp_path) as setup:
        setup.holdings.report(FP, "a", 10, b"d" * 16, 1.5)
        setup.admission.landed(block("a"))
        setup.admission.landed(block("b"))
        await wait_for_async(lambda: len(setup.holdings) == 2, 5, "the other to be admitted")
    assert setup.store.written == [f"{FP.hex()}/b"]


async def test_an_entry_from_before_the_pull_was_of_a_copy_that_is_gone(tmp_path: Path) -> None:
    async with Setup(tmp_path) as setup:
        setup.holdings.report(FP, "a", 10, b"d" * 16, 0.5)
        setup.admission.landed(block("a"))
        await wait_for_async(lambda: bool(setup.store.written), 5, "the put")
        await wait_for_async(lambda: len(setup.holdings) == 1, 5, "the entry")
    held = setup.holdings.get(FP, "a")
    assert held is not None
    assert held.origin == "west", "what is here now came from there"


async def test_writing_back_before_it_is_admitted_does_not_make_it_our_own(tmp_path: Path) -> None:
    async with Setup(tmp_path) as setup:
        setup.task.cancel()  # admission hangs; an engine has the block, and backs it up
        setup.admission.landed(block("a"))
        await setup.ledger.report([own(FP, "a", 10, b"d" * 16), own(FP, "b", 10, b"d" * 16)])
    assert setup.holdings.exportable(FP, "a") is None
    assert setup.holdings.exportable(FP, "b") is not None
    held = setup.holdings.get(FP, "a")
    assert held is not None
    assert held.origin == "west"


async def test_writing_back_after_it_was_evicted_and_after_a_restart_neither(
    tmp_path: Path,
) -> None:
    async with Setup(tmp_path) as setup:
        setup.admission.landed(block("a"))
        await wait_for_async(lambda: len(setup.holdings) == 1, 5, "it to be admitted")
    again = Setup(tmp_path)
    assert await again.ledger.load(names_listed()) == 0, "Mooncake has lost it"
    await again.ledger.report([own(FP, "a", 10, b"d" * 16)])
    assert again.holdings.exportable(FP, "a") is None
    await again.ledger.close()
    assert [e.origin for e in Journal(tmp_path, 1 << 20).load()][-1] == "west"


async def test_other_bytes_under_the_key_of_a_pulled_block_are_our_own(tmp_path: Path) -> None:
    async with Setup(tmp_path) as setup:
        setup.task.cancel()
        setup.admission.landed(block("a"))
        await setup.ledger.report([own(FP, "a", 10, b"e" * 16)])
    held = setup.holdings.exportable(FP, "a")
    assert held is not None
    assert held.digest == b"e" * 16


async def test_at_the_limit_the_oldest_pulled_blocks_are_forgotten(tmp_path: Path) -> None:
    async with Setup(tmp_path, foreign_max=4) as setup:
        setup.task.cancel()
        for key in "abcde":
            setup.admission.landed(block(key))
        assert setup.ledger.remembered == 3
        await setup.ledger.report([own(FP, key, 10, b"d" * 16) for key in "abcde"])
    own_now = [setup.holdings.exportable(FP, k) is not None for k in "abcde"]
    assert own_now == [True, True, False, False, False]


async def test_a_full_queue_sheds_and_never_waits(tmp_path: Path) -> None:
    setup = Setup(tmp_path, queue_max=2)
    for key in "abc":
        setup.admission.landed(block(key))
    assert setup.admission.queued == 2


def test_ledger_takes_back_what_mooncake_still_has(tmp_path: Path) -> None:
    async def first() -> None:
        setup = Setup(tmp_path)
        async with setup:
            for key in "ab":
                setup.admission.landed(block(key))
            await wait_for_async(lambda: len(setup.holdings) == 2, 5, "both")

    async def second() -> Setup:
        setup = Setup(tmp_path)
        assert await setup.ledger.load(names_listed("b")) == 1
        await setup.ledger.close()
        return setup

    asyncio.run(first())
    setup = asyncio.run(second())
    assert setup.holdings.after(FP, -1, 9) == [name_of(FP, "b")]
    assert setup.holdings.exportable(FP, "b") is None, "foreign after a restart as before"


async def test_a_block_of_which_the_newest_entry_has_no_room_is_not_what_it_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, 1 << 20)
    journal.rewrite(
        [own(FP, "a", 10, b"d" * 16), own(FP, "a", 10, b"d" * 16)._replace(origin="west")]
    )
    journal.close()
    monkeypatch.setattr(sources, "SOURCES_MAX", 1)
    again = Setup(tmp_path)
    await again.ledger.load(None)
    assert again.holdings.exportable(FP, "a") is None, "it is a peer's"
    await again.ledger.close()


async def test_a_full_journal_is_compacted_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 400
    monkeypatch.setattr(ledger_module, "REWRITE_SECONDS", 0.0)
    journal = Journal(tmp_path, limit)
    ledger = Ledger(Holdings(blocks_max=9, hop_limit=1, on_change=lambda change: None), journal)
    await ledger.load(None)
    for n in range(20):
        ledger.holdings.withdraw(FP, f"k{n - 1}")
        await ledger.report([own(FP, f"k{n}", 10, b"d" * 16)])
    assert name_of(FP, "k19") in {e.name for e in Journal(tmp_path, limit).load()}
    assert (tmp_path / "provenance.log").stat().st_size <= limit
    await ledger.close()


async def test_a_journal_that_live_entries_fill_is_not_rewritten_over_and_over(
    tmp_path: Path,
) -> None:
    limit = 400
    journal = Journal(tmp_path, limit)
    ledger = Ledger(Holdings(blocks_max=99, hop_limit=1, on_change=lambda change: None), journal)
    await ledger.load(None)
    rewrites = 0
    begin_anew = journal.begin_anew

    def counted() -> None:
        nonlocal rewrites
        rewrites += 1
        begin_anew()

    journal.begin_anew = counted  # type: ignore[method-assign]
    errors = 0
    for n in range(20):
        try:
            await ledger.report([own(FP, f"k{n}", 10, b"d" * 16)])
        except JournalError:
            errors += 1
    assert errors > 0
    assert rewrites == 1
    assert len(ledger.holdings) == 20, "what is not on disk is offered until a restart"
    await ledger.close()


async def test_what_an_engine_is_given_twice_is_admitted(tmp_path: Path) -> None:
    async with Setup(tmp_path, admit="second-hit") as setup:
        for key in "ab":
            setup.admission.landed(block(key))
            setup.admission.given(block(key))
        assert setup.ledger.remembered == 2, "whose they are is known from their landing on"
        setup.admission.given(block("a"))
        await wait_for_async(lambda: len(setup.holdings) == 1, 5, "the one to be admitted")
    assert setup.store.written == [f"{FP.hex()}/a"]


async def test_what_came_over_a_dear_line_is_admitted_the_first_time(tmp_path: Path) -> None:
    async with Setup(tmp_path, admit="second-hit", dear="a") as setup:
        for key in "ab":
            setup.admission.landed(block(key))
            setup.admission.given(block(key))
        await wait_for_async(lambda: len(setup.holdings) == 1, 5, "the one to be admitted")
    assert setup.store.written == [f"{FP.hex()}/a"]


async def test_what_is_over_the_quota_is_not_admitted(tmp_path: Path) -> None:
    async with Setup(tmp_path) as setup:
        setup.copies.pool_is(4 * 35)  # three blocks of 10 bytes, and a half
        for key in "abcd":
            setup.admission.landed(block(key))
        await wait_for_async(lambda: len(setup.holdings) == 3, 5, "three to be admitted")
        setup.admission.landed(block("e"))
        await wait_for_async(lambda: setup.admission.queued == 0, 5, "the queue to be empty")
    assert len(setup.store.written) == 3
    assert setup.copies.bytes == 30


async def test_of_a_chain_the_tail_is_first_to_go_whatever_order_it_was_admitted_in(
    tmp_path: Path,
) -> None:
    async with Setup(tmp_path, admit="second-hit", dear="abcdef") as setup:
        for before, key in zip("abc", "bcd", strict=False):
            setup.admission.given(block(key), before)
        await wait_for_async(lambda: len(setup.holdings) == 3, 5, "three to be admitted")
        setup.admission.given(block("f"))
        setup.admission.given(block("a"))
        await wait_for_async(lambda: len(setup.holdings) == 5, 5, "the others to be admitted")
        setup.admission.read_on(FP, "d")
    setup.copies.pool_is(0)
    order = [next(k for k in "abcdef" if name_of(FP, k) == n) for _, n in setup.copies.surplus(9)]
    assert order == ["f", "d", "c", "b", "a"]


async def test_what_is_fetched_ahead_is_admitted_whatever_the_policy_says(tmp_path: Path) -> None:
    async with Setup(tmp_path, admit="never") as setup:
        setup.admission.landed(block("a"))
        setup.admission.landed(block("b"))
        setup.admission.keep(block("a"))
        await wait_for_async(lambda: len(setup.holdings) == 1, 5, "the one to be admitted")
    assert setup.store.written == [f"{FP.hex()}/a"]


async def test_nothing_is_put_while_blocks_are_pulled(tmp_path: Path) -> None:
    async with Setup(tmp_path, defer=3600.0) as setup:
        setup.admission.landed(block("a"))
        await wait_for_async(setup.waits.is_set, 5, "it to look")
        setup.admission.landed(block("b"))
        await asyncio.sleep(0)
        assert setup.store.written == []
        setup.busy = False
        setup.admission.hurry()
        await wait_for_async(lambda: len(setup.holdings) == 2, 5, "both to be admitted")


async def test_a_block_waits_no_longer_than_its_time(tmp_path: Path) -> None:
    async with Setup(tmp_path, defer=0.05) as setup:
        setup.admission.landed(block("a"))
        await wait_for_async(lambda: len(setup.holdings) == 1, 5, "it to be admitted")
        assert setup.busy


async def test_a_queue_that_fills_is_not_waited_with(tmp_path: Path) -> None:
    async with Setup(tmp_path, queue_max=6, defer=3600.0) as setup:
        for key in "abc":  # one of them is no longer in the queue
            setup.admission.landed(block(key))
        await wait_for_async(setup.waits.is_set, 5, "it to look")
        assert setup.store.written == []
        setup.admission.landed(block("d"))
        await wait_for_async(lambda: len(setup.holdings) == 4, 5, "all to be admitted")
