"""`moonmesh bench listing`: what holdings take, and what a key listing costs the master and the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from federation.bench.groups import NAMESPACE, GroupSet, Layout, write_groups
from federation.bench.report import Report, Target
from federation.bench.resources import free_port_base
from federation.bench.session import ended_by_signals
from federation.bench.tally import quantile
from federation.bench.workspace import Workspace
from federation.catalog.log import HoldingsLog
from federation.config import GroupFile, Limits, load_group
from federation.identity import stored_key
from federation.listings import DUTY, Listings
from local_group.admin import AdminClient
from local_group.holdings import Holdings
from local_group.journal import Journal
from local_group.ledger import Ledger
from local_group.scheduling import one_share
from local_group.store import StoreClient
from local_group.store_config import StoreSettings

FP: Final = b"f" * 16
KEY_BYTES: Final = 88
BLOCK: Final = 16
"""Bytes of a block in the master's pool: it is the keys that count."""
STORE_BYTES: Final = 3 << 30
FILL_AT_ONCE: Final = 1000
SAMPLE: Final = 100_000
NAMES_AT_ONCE: Final = 4096
"""So few that they take no memory to speak of."""
TICK_S: Final = 0.001
PUT_S: Final = 30.0
DUTIES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ListingBench:
    """Options of `moonmesh bench listing`; see its help."""

    keys: int = 1_000_000
    memory: bool = True
    rounds: int = 6
    seconds: float = 5.0
    port_base: int = 7600


def listing_report(options: ListingBench, say: Say) -> tuple[Report, int]:
    """Measures all of it; the report, and the signal that ended it early.

    Raises:
        BenchError: if the group does not start.
    """
    report = Report("listing")
    for blocks in (options.keys, 10 * options.keys) if options.memory else ():
        say(f"Holdings of {blocks:,} blocks.")
        figures = _in_a_process(_holdings, blocks)
        report.figures[f"holdings of {blocks:,}"] = figures
        name = f"{blocks:,} blocks"
        held = figures["gateway, bytes of memory a block"]
        report.targets.append(Target(f"{name}: memory of the gateway a block", held, "<=", 40, "B"))
    layout = Layout(
        groups=1,
        store_bytes=STORE_BYTES,
        lease_ttl_ms=10_000,
        port_base=free_port_base(1, options.port_base),
    )
    with Workspace("listing", say) as space:
        signal = asyncio.run(_session(options, layout, space.path, report, say))
    report.interrupted = signal != 0
    report.notes = [
        "Puts are of one key, one after another. `listed` are those made while listings are made without a "
        f"pause; a gateway makes one in one of {DUTY} parts of the time: `paced` is what puts are then.",
        "The gateway's stall is how late a timer of a ms is, at worst, while its loop reads and compares.",
    ]
    return report, signal


# Holdings alone, each in a process of its own: what others leave behind is not counted


def _in_a_process(work: Callable[[Connection, int], None], argument: Any) -> dict[str, float]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(theirs, argument))
    process.start()
    theirs.close()
    try:
        found: dict[str, float] = ours.recv()
    finally:
        process.join()
    return found


def _resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * 4096


def _names(blocks: int, seed: int = 1) -> Iterator[list[int]]:
    rng = np.random.default_rng(seed)
    for at in range(0, blocks, NAMES_AT_ONCE):
        yield rng.integers(0, 1 << 64, min(NAMES_AT_ONCE, blocks - at), dtype=np.uint64).tolist()


def _holdings(pipe: Connection, blocks: int) -> None:
    log = HoldingsLog(bytes(16), 262_144)
    held = Holdings(blocks_max=2 * blocks, hop_limit=1, on_change=lambda _: None)
    for part in _names(NAMES_AT_ONCE):  # what the first use of anything takes is not of the blocks
        for name in part:
            held.report(FP, name, 1 << 20, b"d" * 16, 1.0)
            held.withdraw(FP, name)
    before = _resident()
    began = time.perf_counter()
    for part in _names(blocks):
        for name in part:
            held.report(FP, name, 1 << 20, b"d" * 16, 1.0)
    reported = time.perf_counter() - began
    del part, name
    fresh = _resident() - before
    began = time.perf_counter()
    for part in _names(SAMPLE):
        for name in part:
            held.get(FP, name)
    found = time.perf_counter() - began
    for part, other in zip(_names(blocks // 5), _names(blocks // 5, seed=2), strict=True):
        for gone, name in zip(part, other, strict=True):  # a fifth goes, another comes
            held.withdraw(FP, gone)
            held.report(FP, name, 1 << 20, b"d" * 16, 2.0)
    del part, other, gone, name
    churned = _resident() - before
    log.extend(np.random.default_rng(1).integers(0, 1 << 64, blocks, dtype=np.uint64))
    listed = np.array(held.after(FP, -1, 2 * blocks), dtype=np.uint64)
    slices = []
    began = time.perf_counter()
    for _ in held.compare(FP, listed, 3.0):
        slices.append(time.perf_counter() - began)
        began = time.perf_counter()
    pipe.send(
        {
            "gateway, bytes of memory a block": churned / len(held),
            "before a fifth was replaced": fresh / len(held),
            "catalog's log in the serving process, bytes a block": log.nbytes / len(held),
            "a report, us": 1e6 * reported / blocks,
            "a look-up, us": 1e6 * found / SAMPLE,
            "compared with a listing of the same, ms": 1e3 * sum(slices),
            "longest slice of that, ms": 1e3 * max(slices),
        }
    )


# A real master


async def _session(
    options: ListingBench, layout: Layout, folder: Path, report: Report, say: Say
) -> int:
    stop = asyncio.Event()
    caught = 0

    def stopped(number: int) -> None:
        nonlocal caught
        caught = number
        stop.set()

    configs = write_groups(folder / "listing", "one-pool", layout)
    groups = GroupSet(configs, folder, say, stop)
    with ended_by_signals(stopped), one_share():
        try:
            await groups.up()
            if not stop.is_set():
                await asyncio.to_thread(
                    _measure, options, load_group(configs[0]), report, stop, say
                )
        finally:
            await groups.down()
    return caught


def _measure(
    options: ListingBench, config: GroupFile, report: Report, stop: asyncio.Event, say: Say
) -> None:
    client = StoreClient.connect(StoreSettings(config.master_address))
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    lister = spawn.Process(
        target=_lister, args=(theirs, config.admin_url, bytes(_fingerprint(config)))
    )
    lister.start()
    try:
        writer = _Writer(client, _fingerprint(config))
        say(f"{options.keys:,} keys are put.")
        began = time.monotonic()
        writer.fill(options.keys, stop)
        filled = time.monotonic() - began
        quiet: list[float] = []
        idle: list[float] = []
        listed: list[float] = []
        listings: list[dict[str, float]] = []
        for number in range(options.rounds):
            if stop.is_set():
                break
            say(f"Round {number + 1} of {options.rounds}.")
            pipe.send((False, options.seconds))
            quiet += writer.put(time.monotonic() + options.seconds)
            idle.append(pipe.recv())
            pipe.send((True, options.seconds))
            listed += writer.put(time.monotonic() + options.seconds)
            listings += pipe.recv()
        if not listings or not quiet:
            return
        _judge(report, options, filled, quiet, listed, listings, idle)
    finally:
        with contextlib.suppress(OSError):
            pipe.send(None)
        lister.join(10)
        lister.kill()
        client.close()


def _judge(
    report: Report,
    options: ListingBench,
    filled: float,
    quiet: list[float],
    listed: list[float],
    listings: list[dict[str, float]],
    idle: list[float],
) -> None:
    usual = float(np.quantile(quiet, 0.99))
    paced = _mixed(quiet, listed, 1 / DUTY, 0.99)
    fits = [d for d in DUTIES if _mixed(quiet, listed, 1 / d, 0.99) <= 1.05 * usual]
    later = listings[1:] or listings
    report.figures["a listing"] = {
        "keys": options.keys,
        "bytes": later[0]["bytes"],
        "puts a second while filled": options.keys / filled,
        "seconds, p50": quantile([each["seconds"] for each in later], 0.5),
        "CPU of the gateway, s": quantile([each["cpu"] for each in later], 0.5),
        "stall of the gateway, ms, p50": quantile([each["stall_ms"] for each in later], 0.5),
        "stall of the gateway, ms, worst": max(each["stall_ms"] for each in later),
        "the same while nothing is listed, p50": quantile(idle, 0.5),
        "the first one, that finds all: s": listings[0]["seconds"],
        "stall by the first one, ms": listings[0]["stall_ms"],
    }
    report.figures["puts"] = {
        "quiet: puts": len(quiet),
        "quiet: p50, ms": quantile(quiet, 0.5),
        "quiet: p99, ms": usual,
        "listed: puts": len(listed),
        "listed: p50, ms": quantile(listed, 0.5),
        "listed: p99, ms": quantile(listed, 0.99),
        "paced: p99, ms": paced,
        "within 5 % where a listing is made in one part of the time in": min(fits, default=None),
    }
    stall = quantile([each["stall_ms"] for each in later], 0.5)
    report.targets += [
        Target("p99 of a put while the master is listed, paced, over without", paced / usual, "<=", 1.05),
        Target("the gateway stalls while it lists", stall, "<=", 5, "ms"),
    ]  # fmt: skip


def _mixed(usual: list[float], other: list[float], part: float, q: float) -> float:
    """A quantile of what is `other` for a part of the time."""
    values = np.concatenate([usual, other])
    weights = np.concatenate(
        [np.full(len(usual), (1 - part) / len(usual)), np.full(len(other), part / len(other))]
    )
    order = np.argsort(values)
    at = int(np.searchsorted(np.cumsum(weights[order]), q))
    return float(values[order][min(at, len(values) - 1)])


def _fingerprint(config: GroupFile) -> Any:
    return config.namespaces[NAMESPACE].fingerprint()


class _Writer:
    """Puts small blocks under keys of the usual length."""

    def __init__(self, client: StoreClient, fingerprint: Any) -> None:
        self._client = client
        self._prefix = stored_key(fingerprint, "")
        self._memory = (ctypes.c_char * (FILL_AT_ONCE * BLOCK))()
        self._number = 0

    def fill(self, keys: int, stop: asyncio.Event) -> None:
        while self._number < keys and not stop.is_set():
            self._put(min(FILL_AT_ONCE, keys - self._number))

    def put(self, until: float) -> list[float]:
        """One block after another; ms of each."""
        took: list[float] = []
        while time.monotonic() < until:
            began = time.perf_counter()
            self._put(1)
            took.append(1e3 * (time.perf_counter() - began))
        return took

    def _put(self, blocks: int) -> None:
        width = KEY_BYTES - len(self._prefix)
        keys = [f"{self._prefix}{self._number + n:0{width}d}" for n in range(blocks)]
        first = ctypes.addressof(self._memory)
        pointers = [first + n * BLOCK for n in range(blocks)]
        self._client.put_from(keys, pointers, [BLOCK] * blocks, PUT_S)
        self._number += blocks


def _lister(pipe: Connection, url: str, fingerprint: bytes) -> None:
    """A gateway's listings, in a process of their own."""

    async def work() -> None:
        held = Holdings(blocks_max=100_000_000, hop_limit=1, on_change=lambda _: None)
        ledger = Ledger(held, Journal(Path("/nonexistent"), 0))
        async with AdminClient(url) as admin:
            listings = Listings(ledger, admin, Limits(), print, namespaces=[fingerprint])
            while (order := await asyncio.to_thread(pipe.recv)) is not None:
                lists, seconds = order
                if not lists:
                    ticker = _Ticker()
                    await asyncio.sleep(seconds)
                    pipe.send(1e3 * await ticker.stop())
                    continue
                made: list[dict[str, float]] = []
                until = time.monotonic() + seconds
                while not made or time.monotonic() < until:
                    began, cpu = time.monotonic(), time.process_time()
                    ticker = _Ticker()
                    await listings.correct()
                    made.append(
                        {
                            "seconds": time.monotonic() - began,
                            "cpu": time.process_time() - cpu,
                            "stall_ms": 1e3 * await ticker.stop(),
                            "bytes": listings.keys * (KEY_BYTES + 1),
                        }
                    )
                pipe.send(made)

    asyncio.run(work())


class _Ticker:
    """How late a timer is, at worst."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(TICK_S)
            self._worst = max(self._worst, time.monotonic() - began - TICK_S)

    async def stop(self) -> float:
        """Seconds."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self._worst
