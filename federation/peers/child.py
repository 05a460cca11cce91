"""The serving process as its gateway sees it: started, fed, watched, and started anew when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from federation.config import Limits
from federation.counters import counters
from federation.ending import ended
from federation.errors import MoonmeshError
from federation.limits.orders import Orders
from federation.peers.channel import PING_SECONDS, Channel, ChannelError, message_bytes_max
from federation.peers.details import GUARDS, shortened
from federation.peers.feed import Feed
from federation.peers.hearing import Gossip
from federation.peers.setup import Setup, write_setup
from federation.peers.spawn import LOG_BYTES, Spawner, has_ended, resident_bytes
from federation.peers.verdicts import Verdicts
from federation.peers.watch import Absorber, ReserveClock, Watch, next_tick
from federation.timeouts import timeout
from federation.trust.handshakes import RefusalLog
from local_group.logs import how_it_ended, truncate
from moonmesh.v1 import peer_pb2, serving_pb2

log = logging.getLogger(__name__)

TICK_SECONDS = PING_SECONDS
"""Between two looks at its memory too: what it can grow by in between exceeds the cap."""
START_SECONDS = 30.0
"""Until it serves, silence is no fault: Python loads, and Mooncake holds the interpreter while it connects
(4.4 s to a master that has just gone)."""
BACKOFF_SECONDS = (0.1, 10.0)
"""First and longest pause before it is started again; doubled in between."""
STABLE_SECONDS = 60.0
"""Serving for so long, its back-off starts anew."""
REPORT_TICKS = 4
"""Ticks from one report of its counters to the next."""
DETAILS_TICKS = 40
"""Ticks from one report with details to the next, where nobody asks for `status`: they have the guards of all
peers, and making and reading them costs more than all else that an idle process does."""
LOG_CHECK_TICKS = 120


class ServingProcess:
    """Keeps one serving process running between `start` and `close`.

    Args:
        setup: what each is told first.
        spawner: where they come from; closed with this. Several may have the same, and end together.
        feed: what is offered; nothing is sent of it before `begin`.
        gone: told of a block that Mooncake has not, or not as it was written: fingerprint, name, `since`, and
            whether it has other bytes.
        lost: called when most of what is looked for is gone.
        refusals: gets the refusals that it reports.
        on_problem: told what an operator has to know.
    """

    def __init__(
        self,
        setup: Setup,
        spawner: Spawner,
        feed: Feed,
        gossip: Gossip,
        *,
        gone: Callable[[bytes, int, float, bool], None],
        lost: Callable[[], None],
        refusals: RefusalLog,
        on_problem: Callable[[str], None],
    ) -> None:
        self._setup = write_setup(setup)
        self._callers = setup.callers
        self._limits: Limits = setup.group.limits
        self._spawner = spawner
        self._feed = feed
        self._gossip = gossip
        self._gone = gone
        self._lost = lost
        self._refusals = refusals
        self._on_problem = on_problem
        self._process: subprocess.Popen[bytes] | None = None
        self._watch = Watch()
        self._absorber = Absorber(refusals)
        self._details: Mapping[str, Any] = {}  # of the last one, while the next has told nothing
        self._runner: asyncio.Task[None] | None = None
        self._may_feed = asyncio.Event()
        self._wake = asyncio.Event()
        self._listening = asyncio.Event()
        self._failed: MoonmeshError | None = None
        self._verdicts = Verdicts(gossip.newest)
        self._orders = Orders()
        self._ping = 0
        self._report_wanted = self._details_wanted = False
        self._reported = asyncio.Event()
        self._started_at = self._greeted_at = 0.0
        self._last_exit = ""
        self.restarts = 0
        """Times that it had to be started again."""

    # For the gateway

    def start(self) -> None:
        """Starts it, for as long as `close` is not called."""
        self._runner = asyncio.create_task(self._keep())

    def begin(self) -> None:
        """The holdings are what they were before the gateway's start: tell them."""
        self._may_feed.set()

    def order(self, orders: Orders) -> None:
        """An operator has switched something off, or on: it is told before all else."""
        self._orders = orders
        self._wake.set()

    def obeys(self, orders: Orders) -> bool:
        """Whether it has told that it goes by them, or serves nobody."""
        told = {name: (self.guards(name) or {}).get("order") for name in self._callers}
        return not self.serves or all(told[name] == orders.of(name).value for name in told)

    def nudge(self) -> None:
        """There is something new to tell: blocks, or a greeting."""
        self._wake.set()

    async def listening(self) -> None:
        """Returns once peers are served.

        Raises:
            MoonmeshError: it says that this cannot be, before it ever was.
        """
        assert self._runner is not None, "start comes first"
        waiting = asyncio.create_task(self._listening.wait())
        try:
            await asyncio.wait({waiting, self._runner}, return_when=asyncio.FIRST_COMPLETED)
            if self._runner.done():
                self._runner.result()
        finally:
            waiting.cancel()

    async def failed(self) -> None:
        """Never returns; raises what ended the keeping of it, which is a defect."""
        assert self._runner is not None, "start comes first"
        await asyncio.shield(self._runner)

    @property
    def serves(self) -> bool:
        """Whether peers are served now, as far as is known."""
        return self._listening.is_set()

    @property
    def well(self) -> bool:
        """Whether it serves, and its Mooncake client works."""
        return self.serves and self._absorber.store_well

    async def refresh(self, seconds: float) -> None:
        """Its newest counters and refusals, or those it told last if it does not answer in time."""
        if not self.serves:
            return
        self._reported.clear()
        self._report_wanted = self._details_wanted = True
        self._wake.set()
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(seconds):
                await self._reported.wait()

    def status(self) -> dict[str, Any]:
        """For `moonmesh status`."""
        process = self._process
        running = process is not None and process.poll() is None
        told = {name: said for name, said in self._details.items() if name != GUARDS}
        return told | {  # whatever it tells, what we know of it stands
            "pid": process.pid if process is not None and running else None,
            "reserve_pid": self._spawner.reserve_pid,
            "state": "serving" if self.serves else "starting" if running else "restarting",
            "restarts": self.restarts,
            "uptime_s": round(time.monotonic() - self._started_at, 3) if running else None,
            "rss_bytes": resident_bytes(process.pid) if process is not None and running else None,
            "memory_limit_bytes": self._limits.serving_memory,
            "last_exit": self._last_exit,
            "snapshots": self._feed.snapshots,
        }

    @property
    def pulls(self) -> int:
        """Open now, as it last told."""
        return self._absorber.pulls

    def guards(self, peer: str) -> dict[str, Any] | None:
        """How it guards against a peer; None where none has told so far."""
        guards = self._details.get(GUARDS)
        found = guards.get(peer) if isinstance(guards, dict) else None
        return found if isinstance(found, dict) else None

    async def close(self) -> None:
        """Ends it. Nothing of it runs when this returns."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._spawner.close()

    # Its life

    async def _keep(self) -> None:
        pause = BACKOFF_SECONDS[0]
        served = False
        while True:
            began = time.monotonic()
            how = await self._one_life()
            served = served or self.serves
            self._listening.clear()
            if self._failed is not None and not served:
                raise self._failed
            if time.monotonic() - began >= STABLE_SECONDS:
                pause = BACKOFF_SECONDS[0]
            self._last_exit = how
            self.restarts += 1
            counters.add("moonmesh_serving_restarts_total")
            self._on_problem(f"the serving process {how}; again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACKOFF_SECONDS[1])

    async def _one_life(self) -> str:
        """From start to end of one process; how it ended."""
        try:
            spawned = self._spawner.take()
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        process = self._process = spawned.process
        self._started_at = spawned.at
        self._watch = Watch()
        self._absorber = Absorber(self._refusals)
        self._failed = None
        self._feed.restart()
        self._verdicts.restart()
        channel: Channel | None = None
        parts: list[asyncio.Task[str]] = []
        why = ""
        try:
            channel = await Channel.open(spawned.end, message_bytes_max(self._limits))
            parts += [
                asyncio.create_task(self._tell(channel)),
                asyncio.create_task(self._hear(channel)),
                asyncio.create_task(self._look_after(process)),
            ]
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            why = next((said for task in parts if task.done() and (said := task.result())), "")
            # Otherwise its end of the channel is closed: it has ended, or is about to.
            if not why and not await has_ended(process):
                why = "closed its channel and was killed"
        except asyncio.CancelledError:
            process.terminate()
            await has_ended(process)
            raise
        finally:
            await ended(parts)
            process.kill()
            await has_ended(process)
            if channel is None:
                spawned.end.close()
            else:
                channel.close()
        return self._told_why() or why or how_it_ended(process.returncode)

    def _told_why(self) -> str:
        return "" if self._failed is None else f"cannot serve: {self._failed}"

    # What goes on in it. Each part returns why the process has to be killed.

    async def _look_after(self, process: subprocess.Popen[bytes]) -> str:
        silent_ticks = max(1, round(self._limits.serving_silence_ms / 1000 / TICK_SECONDS))
        start_ticks = round(START_SECONDS / TICK_SECONDS)
        reserve = ReserveClock()
        ticks = served = 0
        while True:
            await asyncio.sleep(next_tick(time.monotonic(), self._greeted_at, TICK_SECONDS))
            ticks += 1
            served += self.serves
            if self._spawner.reserve_pid is None and reserve.due(served):
                with contextlib.suppress(OSError):  # should it be needed, `take` tells why
                    self._spawner.prepare()
            allowed = silent_ticks if self.serves else start_ticks
            if self._watch.tick() >= allowed:
                counters.add("moonmesh_serving_silent_total")
                return f"did not answer for {allowed * TICK_SECONDS:g} s and was killed"
            used = resident_bytes(process.pid)
            if used is not None and used > self._limits.serving_memory:
                counters.add("moonmesh_serving_over_memory_total")
                return f"used {used >> 20} MiB of memory and was killed"
            self._ping += 1
            self._report_wanted |= ticks % REPORT_TICKS == 0
            self._details_wanted |= ticks % DETAILS_TICKS == REPORT_TICKS
            self._wake.set()
            if ticks % LOG_CHECK_TICKS == 0:
                await asyncio.to_thread(truncate, self._spawner.log, LOG_BYTES)

    async def _tell(self, channel: Channel) -> str:
        pinged = self._ping
        greeted: peer_pb2.HelloReply | None = None
        ordered: Orders | None = None
        try:
            await channel.send(serving_pb2.ToServing(setup=self._setup))
            while True:
                self._wake.clear()
                told: list[serving_pb2.ToServing] = []
                if ordered is not self._orders:
                    ordered = self._orders
                    record = serving_pb2.Orders(record=ordered.encode())
                    told.append(serving_pb2.ToServing(orders=record))
                if self._ping != pinged or self._report_wanted:
                    pinged = self._ping
                    report = self._report_wanted
                    details = report and self._details_wanted
                    ping = serving_pb2.Ping(n=pinged, report=report, details=details)
                    self._report_wanted = False
                    self._details_wanted &= not report
                    told.append(serving_pb2.ToServing(ping=ping))
                told += (serving_pb2.ToServing(verdict=each) for each in self._verdicts.take())
                greeting = self._gossip.greeting()
                if greeting != greeted:
                    greeted, self._greeted_at = greeting, time.monotonic()
                    told.append(serving_pb2.ToServing(greeting=greeting))
                if told:
                    await channel.send(*told)
                message = self._feed.next() if self._may_feed.is_set() else None
                if message is not None:
                    await channel.send(message)
                    await asyncio.sleep(0)  # a long snapshot must not keep the loop
                else:
                    await self._wake.wait()
        except OSError:
            return ""  # it has ended, or is about to
        except ChannelError as error:
            return f"cannot be told what it has to know ({error}) and was killed"

    async def _hear(self, channel: Channel) -> str:
        while True:
            try:
                message = await channel.receive(serving_pb2.FromServing)
                if message is None:
                    return ""
                self._take(message)
            except Exception as error:  # whatever it sends, the gateway goes on
                if not isinstance(error, (ChannelError, ValueError)):
                    log.warning("a message of the serving process", exc_info=True)
                counters.add("moonmesh_serving_nonsense_total")
                return f"sent what it may not ({error!s:.200}) and was killed"

    def _take(self, message: serving_pb2.FromServing) -> None:
        which = message.WhichOneof("what")
        if which == "pong":
            self._watch.pong()
            if message.pong.HasField("report"):
                report = message.pong.report
                self._absorber.absorb(report)
                if report.details_json:
                    self._details = self._absorber.details
                    self._reported.set()
        elif which == "heard":
            for heard in message.heard.hellos:
                self._take_hello(self._known(heard.peer), heard.hello)
            self._gossip.all_heard()
        elif which == "disbelieved":
            said = message.disbelieved
            peer, detail = self._known(said.peer), shortened(said.detail)
            self._gossip.disbelieved(peer, said.reason, detail, said.count)
        elif which == "gone":
            for block in message.gone.blocks:
                self._gone(message.gone.fingerprint, block.name, block.since, block.changed)
        elif which == "lost":
            self._lost()
        elif which == "listening":
            self._listening.set()
        elif which == "failed":
            why = message.failed
            self._failed = MoonmeshError(
                shortened(why.what), where=shortened(why.where), hint=shortened(why.hint)
            )

    def _take_hello(self, peer: str, raw: bytes) -> None:
        try:
            hello = peer_pb2.HelloRequest.FromString(raw)
        except DecodeError:
            raise ValueError("a hello that is none") from None
        believed = self._gossip.heard(peer, hello)
        if self._verdicts.judged(peer, hello, believed=believed):
            self._wake.set()

    def _known(self, peer: str) -> str:
        if peer not in self._callers:
            raise ValueError("a hello of no peer")
        return peer
