"""Pulls over a link of a known rate: how much of it they use, and what a first token waits for on it.

The link is the proxy of the chaos suite (`chaos.faults.proxy`), a process of its own: no privileges.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from federation.bench.engines import BenchError
from federation.bench.groups import GroupSet, Layout, init_peers, write_groups
from federation.bench.pull_parts import MESSAGE_BYTES, PULL_S
from federation.bench.report import Target
from federation.bench.resources import free_port_base
from federation.bench.tally import quantile
from federation.bench.worker import Work, Worker
from federation.transfer.fair import PullClass
from federation.transfer.handover import EXISTS_METHOD
from moonmesh.v1 import engine_pb2

PROXY_PORT: Final = 50
"""Offset of the proxy's port in those of the owner."""
MESSAGES_TARGET: Final = 2.0
"""Times of a full message that a first token may wait longer where prefetches fill the link."""
SHARE_TARGET: Final = 0.95
PREFETCHES: Final = 8
"""At once, while first tokens are waited for."""
PREFETCH_BLOCKS: Final = 32
"""Of each. It is asked for again and again: nothing is admitted, and staging forgets it in between."""
SINGLES: Final = 64
"""Blocks that first tokens are waited for, in turns: each is forgotten when it is asked for again."""
GAP_MESSAGES: Final = 4
"""Times of a message between two of them: prefetches fill the line again before the next."""
SETTLE_PULLS: Final = 32
"""Pulls of first tokens before those that count: the window is found meanwhile."""
FAST_MBIT: Final = 1000.0
"""Of the link of which the share is measured."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class ShapedBench:
    """What to measure.

    Attributes:
        singles: pulls of one block, on the idle link and beside prefetches.
        mbit: rate of the link for those, in Mbit/s.
        rounds: pulls of all blocks, for the share of a link of `FAST_MBIT`.
    """

    singles: int = 500
    mbit: float = 400.0
    rounds: int = 4


@dataclass
class ShapedOutcome:
    """Milliseconds of each pull."""

    idle_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    prefetched: float = 0.0
    """Bytes that the prefetches brought a second."""
    whole_ms: list[float] = field(default_factory=list)

    def figures(self, options: ShapedBench, pull_bytes: int) -> dict[str, Any]:
        """For the report; empty if nothing was measured."""
        if not self.idle_ms:
            return {}
        found: dict[str, Any] = {
            "mbit": options.mbit,
            "message_ms": 8e-3 * MESSAGE_BYTES / options.mbit,
            "singles": len(self.beside_ms),
        }
        for name, each in (("idle", self.idle_ms), ("beside", self.beside_ms)):
            found[f"{name}_ms_p50"] = quantile(each, 0.5)
            found[f"{name}_ms_p99"] = quantile(each, 0.99)
        rate = options.mbit * 1e6 / 8
        found["prefetch_share"] = self.prefetched / rate
        if self.whole_ms:
            bits = 8 * pull_bytes * len(self.whole_ms)
            found["link_share"] = bits / (1e3 * FAST_MBIT * sum(self.whole_ms))
        return found


def shaped_targets(found: Mapping[str, Any]) -> list[Target]:
    """What is to be held of a link."""
    late = None
    if found.get("beside_ms_p99") is not None:
        late = (found["beside_ms_p99"] - found["idle_ms_p99"]) / found["message_ms"]
    return [
        Target(
            "first token beside prefetches, p99 over idle", late, "<=", MESSAGES_TARGET, "messages"
        ),
        Target("share of a shaped link", found.get("link_share"), ">=", SHARE_TARGET),
    ]


class Shaper:
    """The link: whoever connects to `listen` gets to `target`. Lines over stdin, see `chaos.faults.proxy`."""

    def __init__(self, listen: int, target: int, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chaos.faults.proxy"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        link = {"source": "reader", "to": "owner", "listen": listen, "target": target}
        try:
            self._say({"links": [link]})
        except BaseException:
            self.close()
            raise

    def rate(self, mbit: float) -> None:
        """What the owner sends goes at `mbit` Mbit/s from now on."""
        self._say({"source": "owner", "to": "reader", "mode": "rate", "mbit": mbit})

    def close(self) -> None:
        """The link is no more."""
        self._process.kill()
        self._process.wait()

    def _say(self, what: Mapping[str, Any]) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(OSError):
            stdin.write(json.dumps(what) + "\n")
            stdin.flush()
        if not stdout.readline():
            raise BenchError("the proxy has ended", where="chaos.faults.proxy")


def prefetcher(socket: str, fingerprint: bytes) -> Work:
    """Asks for chains all the time, from `start` to `stop`."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def ask(name: str) -> None:
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            exists = channel.unary_unary(EXISTS_METHOD)
            request = engine_pb2.ExistsRequest(
                fingerprint=fingerprint,
                keys=[f"{name}/{place}" for place in range(PREFETCH_BLOCKS)],
                wait_ms=int(1000 * PULL_S),
                pull_class=PullClass.PREFETCH.name,
            ).SerializeToString()
            while not stop.is_set():
                exists(request, timeout=2 * PULL_S)
                stop.wait(0.6)  # until staging has forgotten them

    def work(what: str, about: Mapping[str, Any]) -> float:
        if what == "start":
            for number in range(PREFETCHES):
                threads.append(threading.Thread(target=ask, args=(f"ahead-{number}",), daemon=True))
                threads[-1].start()
            return 0.0
        stop.set()
        for thread in threads:
            thread.join(2 * PULL_S)
        return 0.0

    return work


async def with_shaped_groups(
    layout: Layout,
    limits: Mapping[str, Any],
    folder: Path,
    stop: asyncio.Event,
    say: Say,
    measure: Callable[[GroupSet, Shaper], None],
) -> None:
    """Two groups, of which the second reaches the first over a link; taken down again whatever happens."""
    await asyncio.to_thread(folder.mkdir)
    configs = write_groups(folder, "federated", layout, limits)
    groups = GroupSet(configs, folder, say, stop)
    owner = groups.groups[0]
    port = owner.port_base + PROXY_PORT
    address = {owner.name: f"{owner.gateway.listen}:{port}"}
    await init_peers(folder, configs, folder / "peer-init.log", address)
    shaper = await asyncio.to_thread(Shaper, port, owner.ports.peers, folder / "proxy.log")
    try:
        await groups.up()
        if not stop.is_set():
            await asyncio.to_thread(measure, groups, shaper)
    finally:
        left = await groups.down()
        shaper.close()
    if left:
        raise BenchError(f"could not be stopped: {', '.join(left)}", where=str(folder))


def measure_shaped(
    options: ShapedBench,
    outcome: ShapedOutcome,
    shaper: Shaper,
    reader: Worker,
    ahead: Worker,
    sizes: tuple[int, int],
    moved: Callable[[], int],
    stop: asyncio.Event,
    say: Say,
) -> None:
    """All of it, once the blocks are written and known: `one-N/0`, `ahead-N/M` and `whole-N/M`.

    Args:
        sizes: blocks of a whole pull, and bytes of a block.
        moved: bytes that the reader's gateway has pulled so far.
    """
    blocks, block_bytes = sizes

    gap_s = GAP_MESSAGES * 8 * MESSAGE_BYTES / (options.mbit * 1e6)

    def singles(count: int, into: list[float]) -> None:
        for number in range(count):
            if stop.is_set():
                return
            time.sleep(gap_s)  # what else goes on has the line meanwhile
            into.append(reader.ask("read", name=f"one-{number % SINGLES}", count=1, tier="peer"))

    shaper.rate(options.mbit)
    say(f"pulls of one block over {options.mbit:g} Mbit/s: {options.singles}")
    singles(SETTLE_PULLS, [])
    singles(options.singles, outcome.idle_ms)
    say(f"the same beside {PREFETCHES} prefetches")
    ahead.ask("start")
    singles(SETTLE_PULLS, [])
    before, began = moved(), time.monotonic()
    singles(options.singles, outcome.beside_ms)
    others = moved() - before - block_bytes * len(outcome.beside_ms)
    outcome.prefetched = others / (time.monotonic() - began)
    shaper.rate(FAST_MBIT)
    ahead.ask("stop")
    say(f"pulls of {blocks} blocks over {FAST_MBIT:g} Mbit/s: {options.rounds}")
    for number in range(options.rounds):
        if not stop.is_set():
            outcome.whole_ms.append(
                reader.ask("read", name=f"whole-{number}", count=blocks, tier="peer")
            )


def shaped_layout(written: int, lease_ms: int, port_base: int) -> Layout:
    """Of two groups that hold so many bytes; nothing that is pulled is admitted."""
    return Layout(
        groups=2,
        store_bytes=2 * written + (1 << 30),
        lease_ttl_ms=lease_ms,
        port_base=free_port_base(2, port_base),
        admit="never",
    )
