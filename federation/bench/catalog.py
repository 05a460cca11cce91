"""`moonmesh bench catalog` without its command line: each figure, what it should be, and the plain way.

The plain way is a Python set of 64-bit hashes that go over the wire in eight bytes each.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from federation.bench.catalog_fuzz import MEMORY_MAX, run_restricted
from federation.bench.report import Report, Target
from federation.catalog.answers import PAGE_ENTRIES, Answers
from federation.catalog.coverage import ENOUGH_VIEWS, locate
from federation.catalog.log import Changes, HoldingsLog, Position
from federation.catalog.overlay import MERGE_AT
from federation.catalog.prints import Hashes, distinct, prints_of
from federation.catalog.view import CatalogView
from federation.catalog.wire import Assembler, pages
from federation.transfer.planner import Plan, Planner
from federation.transfer.speed import SURE_PULLS, Speeds
from moonmesh.v1 import peer_pb2

PEERS: Final = 8
CHAIN: Final = 8000
CHAINS: Final = 40
"""Chains that are looked up, each once: their blocks are in no cache of the processor."""
CHANGES_PER_S: Final = 5000
ANSWERS_PER_S: Final = 20
"""An owner gathers changes for `catalog_linger_ms`."""
LOG_ENTRIES: Final = 262_144
SAMPLE: Final = 2_000_000
PLAIN_BLOCKS: Final = 1_000_000
"""Of the plain way: ten times as many would take a gigabyte a peer."""


@dataclass(frozen=True, kw_only=True)
class CatalogBench:
    """Options of `moonmesh bench catalog`; see its help."""

    blocks: int = 10_000_000
    seconds: float = 60.0
    mutations: int = 20_000
    seed: int = 1


def catalog_report(options: CatalogBench, say: Callable[[str], None]) -> Report:
    """Measures all of it.

    Args:
        say: told what goes on.
    """
    report = Report("catalog")
    rng = np.random.default_rng(options.seed)
    for blocks in sorted({options.blocks // 10, options.blocks}):
        say(f"A snapshot of {blocks:,} blocks: bytes, time, what it finds.")
        _snapshot(report, rng, blocks)
    say("Changes at the owner.")
    _owner(report, rng, options)
    say(f"{PEERS} views of {options.blocks:,} blocks: look-ups.")
    views, chains, gone = _views(rng, options)
    _locate(report, rng, views, chains, "")
    say(f"{CHANGES_PER_S:,} changes a second from each of {PEERS} peers, {options.seconds:g} s.")
    _changes(report, rng, views, gone)
    _locate(report, rng, views, chains, " under changes")
    del views
    say(f"{options.mutations:,} damaged messages.")
    _fuzz(report, options)
    say("The plain way.")
    _plain(report, rng)
    report.notes += [
        "Look-ups are of chains not looked up before: what they find is in no cache of the processor.",
        "Each of the peers is believed to hold all of the chain but its last block. A plan shares it out "
        f"among the {ENOUGH_VIEWS} fastest, and asks the others for the last alone; `leading run of each` "
        "asks each view for each block.",
        f"The plain way is measured with {PLAIN_BLOCKS:,} blocks a peer.",
    ]
    return report


def _hashes(rng: np.random.Generator, number: int) -> Hashes:
    return rng.integers(0, 1 << 64, number, dtype=np.uint64)


def _snapshot(report: Report, rng: np.random.Generator, blocks: int) -> None:
    hashes = _hashes(rng, blocks)
    log = HoldingsLog(bytes(16), LOG_ENTRIES)
    log.extend(hashes)
    view = CatalogView(blocks_max=2 * blocks)
    carried = asyncio.run(_carry(Answers(log, PAGE_ENTRIES), view))
    missed = sum(
        int((~view.holds(hashes[at : at + SAMPLE])).sum()) for at in range(0, blocks, SAMPLE)
    )
    false = float(view.holds(_hashes(rng, SAMPLE)).mean())
    name = f"{blocks:,} blocks"
    report.figures[name] = {
        "wire, bytes a block": carried.size / blocks,
        "view, bytes of memory a block": view.nbytes / blocks,
        "log of the owner, bytes of memory a block": log.nbytes / blocks,
        "pages made at the owner, s": carried.making,
        "pages read at the subscriber, s": carried.reading,
        "longest stall of look-ups meanwhile, ms": 1e3 * carried.stall,
        "false positives, %": 100 * false,
    }
    report.targets += [
        Target(f"{name}: bytes a block on the wire", carried.size / blocks, "<=", 2.5, "B"),
        Target(f"{name}: bytes a block in a view", view.nbytes / blocks, "<=", 2.5, "B"),
        Target(f"{name}: bytes a block at the owner", log.nbytes / blocks, "<=", 40, "B"),
        Target(f"{name}: snapshot made and read", carried.making + carried.reading, "<=", 5, "s"),
        Target(f"{name}: look-ups stalled meanwhile", 1e3 * carried.stall, "<=", 5, "ms"),
        Target(f"{name}: held blocks not found", missed, "==", 0),
        Target(f"{name}: blocks found that are not held", 100 * false, "<=", 0.05, "%"),
    ]


@dataclass
class _Carried:
    size: int = 0
    making: float = 0.0
    reading: float = 0.0
    stall: float = 0.0


async def _carry(answers: Answers, view: CatalogView) -> _Carried:
    """An answer from owner to subscriber in one process, in which look-ups go on in between."""
    carried = _Carried()
    over = asyncio.Event()

    async def look_ups() -> None:
        before = time.perf_counter()
        while not over.is_set():
            await asyncio.sleep(0)
            now = time.perf_counter()
            carried.stall = max(carried.stall, now - before)
            view.has(1, 0.0)
            before = now

    async def transfer() -> None:
        assembler = Assembler(view.blocks_max, view.bits if view.position is not None else None)
        source = answers.since(view.position)
        while True:
            began = time.perf_counter()
            raw = next(source, None)
            carried.making += time.perf_counter() - began
            await asyncio.sleep(0)
            if raw is None:
                break
            carried.size += len(raw)
            began = time.perf_counter()
            news = assembler.feed(peer_pb2.CatalogPage.FromString(raw))
            if news is not None:
                view.apply(news, 0.0)
            carried.reading += time.perf_counter() - began
            await asyncio.sleep(0)
        over.set()

    await asyncio.gather(look_ups(), transfer())
    return carried


def _owner(report: Report, rng: np.random.Generator, options: CatalogBench) -> None:
    """One answer after another, each of a twentieth of a second of changes; half of them remove."""
    log = HoldingsLog(bytes(16), LOG_ENTRIES)
    rounds = int(options.seconds * ANSWERS_PER_S)
    hashes = _hashes(rng, max(options.blocks, rounds * CHANGES_PER_S // ANSWERS_PER_S))
    log.extend(hashes)
    answers = Answers(log, PAGE_ENTRIES)
    each = CHANGES_PER_S // ANSWERS_PER_S
    taking = telling = longest = 0.0
    size = 0
    at = log.position
    for turn in range(rounds):
        gone = hashes[turn * each : turn * each + each // 2].tolist()
        come = _hashes(rng, each - len(gone)).tolist()
        began = time.perf_counter()
        for old, new in zip(gone, come, strict=True):
            log.remove(old)
            log.add(new)
        taken = time.perf_counter()
        told = list(answers.since(at))
        ended = time.perf_counter()
        taking, telling = taking + taken - began, telling + ended - taken
        longest = max(longest, ended - began)
        size += sum(map(len, told))
        at = log.position
    share = (taking + telling) / (rounds / ANSWERS_PER_S)
    report.figures["owner: share of a core for 5,000 changes a second"] = share
    report.figures["owner: longest answer made, ms"] = 1e3 * longest
    report.targets.append(
        Target("a change on the wire", size / (rounds * each), "<=", 5, "B"),
    )


def _views(
    rng: np.random.Generator, options: CatalogBench
) -> tuple[list[tuple[str, CatalogView]], list[list[int]], list[Hashes]]:
    """Views with blocks of their own, and all with all chains but the last block of each; the chains; and of
    each view those of its own blocks that will go.

    Each has another part of the changes behind it with which merging begins, as views have that are followed
    for long: so merges are spread evenly over the time in which changes come.
    """
    chains = [_hashes(rng, CHAIN) for _ in range(4 * CHAINS + 2)]
    shared = np.concatenate([chain[:-1] for chain in chains])
    views, gone = [], []
    going = int(options.seconds * CHANGES_PER_S) // 2
    for peer in range(PEERS):
        own = _hashes(rng, max(going, options.blocks - len(shared)))
        gone.append(own[:going].copy())
        log = HoldingsLog(bytes(16), LOG_ENTRIES)
        log.extend(np.concatenate([shared, own]))
        view = CatalogView(blocks_max=2 * len(log))
        asyncio.run(_carry(Answers(log, PAGE_ENTRIES), view))
        log.extend(_hashes(rng, MERGE_AT * peer // PEERS))
        asyncio.run(_carry(Answers(log, PAGE_ENTRIES), view))
        views.append((f"peer{peer}", view))
    return views, [chain.tolist() for chain in chains], gone


def _locate(
    report: Report,
    rng: np.random.Generator,
    views: Sequence[tuple[str, CatalogView]],
    chains: list[list[int]],
    when: str,
) -> None:
    planner = Planner(_speeds([peer for peer, _ in views]), lambda _: 1.0)

    def plan(chain: list[int]) -> Plan:
        return planner.plan(b"", chain, views, 0.0)

    assert plan(chains.pop()).located == CHAIN - 1, "as they were made"
    planned = _p50(plan, (chains.pop() for _ in range(CHAINS)))
    every = [view for _, view in views]
    runs = _p50(lambda chain: locate(chain, every, 0.0), (chains.pop() for _ in range(CHAINS)))
    absent = [_hashes(rng, CHAIN).tolist() for _ in range(CHAINS)]
    nobody = _p50(plan, absent)
    name = f"{CHAIN:,} keys, {len(views)} views{when}"
    report.figures[f"{name}: nobody has any, p50 ms"] = nobody
    report.targets += [
        Target(f"{name}: planned, p50", planned, "<=", 5, "ms"),
        Target(f"{name}: leading run of each, p50", runs, "<=", 5, "ms"),
    ]


def _speeds(peers: Sequence[str]) -> Speeds:
    """Peers of which each is slower than the one before."""
    speeds = Speeds(rate_max=1e9)
    for n, peer in enumerate(peers, 1):
        for _ in range(SURE_PULLS):
            timed = speeds.begin(peer, 0.0)
            timed.came(1 << 20, 0.01 * n)
            timed.came(1 << 24, 0.1 * n)
            timed.done()
    return speeds


def _p50(
    what: Callable[[list[int]], object], chains: Sequence[list[int]] | Iterator[list[int]]
) -> float:
    taken = []
    for chain in chains:
        began = time.perf_counter()
        what(chain)
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


def _changes(
    report: Report,
    rng: np.random.Generator,
    views: Sequence[tuple[str, CatalogView]],
    gone: Sequence[Hashes],
) -> None:
    """Answers as they come from owners, twenty a second from each, half of the changes removals."""
    each = CHANGES_PER_S // ANSWERS_PER_S
    half = each // 2
    rounds = len(gone[0]) // half
    # Made before: what an owner does for them is measured with the owner.
    answers = [
        [
            _answer(
                view.bits, _hashes(rng, each - half), old[turn * half : (turn + 1) * half], turn
            )
            for (_, view), old in zip(views, gone, strict=True)
        ]
        for turn in range(rounds)
    ]
    # Answers that a gateway does not have in its memory are nothing that its collector would go through.
    gc.collect()
    gc.freeze()
    merges = sum(view.merges for _, view in views)
    longest = longest_cpu = late = 0.0
    began, used = time.perf_counter(), time.process_time()
    for turn, round_ in enumerate(answers):
        due = began + turn / ANSWERS_PER_S
        time.sleep(max(0.0, due - time.perf_counter()))
        for (_, view), raw in zip(views, round_, strict=True):
            at, cpu = time.perf_counter(), time.thread_time()
            news = Assembler(view.blocks_max, view.bits).feed(peer_pb2.CatalogPage.FromString(raw))
            assert news is not None, "an answer of one page"
            view.apply(news, 0.0)
            longest = max(longest, time.perf_counter() - at)
            longest_cpu = max(longest_cpu, time.thread_time() - cpu)
        late = max(late, time.perf_counter() - due)
    wall = max(time.perf_counter() - began, rounds / ANSWERS_PER_S)
    share = (time.process_time() - used) / wall
    gc.unfreeze()
    report.figures["changes: longest that one answer kept the views, ms"] = 1e3 * longest
    report.figures["changes: of that on a core, at most, ms"] = 1e3 * longest_cpu
    report.figures["changes: views behind their answers, at most, ms"] = 1e3 * late
    report.figures["changes: merges ended meanwhile"] = (
        sum(view.merges for _, view in views) - merges
    )
    name = f"{CHANGES_PER_S:,} changes a second from each of {len(views)} peers"
    report.targets += [
        Target(f"{name}: share of a core", share, "<", 0.25),
        Target(f"{name}: views behind", late, "<=", 1, "s"),
        Target(f"{name}: look-ups stalled", 1e3 * longest, "<=", 5, "ms"),
    ]


def _answer(bits: int, come: Hashes, gone: Hashes, n: int) -> bytes:
    added, removed = (distinct(np.sort(prints_of(hashes, bits))) for hashes in (come, gone))
    (page,) = pages(Changes(Position(bytes(16), n), bits, added, removed), PAGE_ENTRIES)
    return page.SerializeToString()


def _fuzz(report: Report, options: CatalogBench) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        outcome = pool.apply(run_restricted, (options.mutations, options.seed))
    report.figures["damaged messages"] = {
        "tried": outcome.tried,
        "refused": outcome.refused,
        "believed": outcome.believed,
    }
    for what, times in outcome.escaped.most_common(5):
        report.notes.append(f"A damaged message ended in {what} ({times} times).")
    escaped = outcome.escaped.total()
    report.targets.append(Target("damaged messages: other exceptions", escaped, "==", 0))
    if outcome.grown_bytes is None:
        report.notes.append(
            "The memory of damaged messages was not measured: no /proc/self/clear_refs."
        )
        return
    grown = outcome.grown_bytes / (1 << 20)
    report.figures["damaged messages"]["memory, MiB more"] = grown
    report.targets.append(Target("damaged messages: memory", grown, "<=", MEMORY_MAX >> 20, "MiB"))


# The plain way


def _plain(report: Report, rng: np.random.Generator) -> None:
    chain = _hashes(rng, CHAIN).tolist()
    hashes = [*_hashes(rng, PLAIN_BLOCKS - CHAIN).tolist(), *chain[:-1]]
    began = time.perf_counter()
    packed = np.array(hashes, dtype="<u8").tobytes()
    held = set(np.frombuffer(packed, dtype="<u8").tolist())
    built = time.perf_counter() - began
    memory = sys.getsizeof(held) + 32 * len(held)
    views = [held] * PEERS
    rng_plain = random.Random(1)
    began = time.perf_counter()
    for _ in range(100):
        page = rng_plain.randbytes(8 * 250)
        changed = np.frombuffer(page, dtype="<u8").tolist()
        held.difference_update(changed[:125])
        held.update(changed[125:])
    change = (time.perf_counter() - began) / 100 / 250
    began = time.perf_counter()
    for view in views:
        for key_hash in chain:
            if key_hash not in view:
                break
    report.figures["plain way"] = {
        "wire, bytes a block": len(packed) / len(hashes),
        "view, bytes of memory a block": memory / len(held),
        "a change on the wire, bytes": 8,
        "a change in a view, us": 1e6 * change,
        f"{CHAIN:,} keys, {PEERS} views: all but the last, ms": 1e3 * (time.perf_counter() - began),
        "made and read without a pause, ms": 1e3 * built,
    }
