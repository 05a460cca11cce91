"""The serving process's end of the channel: hellos go up to the gateway, its answers come down.

What waits to be sent is bounded (a few hellos of each peer, a count of bad ones), so a peer that floods
us costs the gateway no more than one that does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from federation.counters import counters
from federation.limits.orders import Orders
from federation.peers.callers import Callers
from federation.peers.channel import PING_SECONDS, Channel
from federation.peers.feed import Replica
from federation.peers.verdicts import Refused
from federation.timeouts import timeout
from gossip.config import GossipConfig
from gossip.hello import check_hello
from gossip.reply import Greeting
from gossip.statement import Reason, StatementError
from local_group.holdings import Held
from local_group.names import name_of
from moonmesh.v1 import peer_pb2, serving_pb2

GONE_MAX = 65_536
"""Withdrawals that wait to be told; more are not, and the next key listing finds them."""
GONE_PER_MESSAGE = 256
SAID_MAX = 8
"""Messages that wait before all others: one of each kind, since a later one says the same or more."""
QUIET_S = 1.5
"""Seconds without a word of the gateway, which pings every 0.25, after which it is taken for frozen: another
may lead by now, so nothing is said for the group until it speaks again."""
GATHER_PINGS = 1.2
"""Pings for which hellos of all peers are gathered into one message, which goes with the answer to one: two
processes wake up for it, which costs more than what it says. By itself it goes where none comes in time."""
GATHER_SHARE = 0.3
"""Of a hello interval, above which that would be too late: they go after `hello_min_gap`, a tenth of it."""
AWAY_INTERVALS = 2
"""Hello intervals without a hello of a peer, after which its next one is passed on at once."""
HELLOS_WAITING = 8
"""Hellos of one peer that wait to be passed on, each with things of its own to say; a newer one takes the
place of the newest, since it has the newest statement."""


class Relay:
    """Hellos of peers, checked here as far as a single one can be; withdrawals; pings.

    Args:
        callers: who may ask.
        report: what this process says of itself, for the gateway's `status`; with or without details.
        hushed: called when the gateway speaks for its group no more, and now and then while it is frozen.
        ordered: told what an operator has switched off.
    """

    def __init__(
        self,
        channel: Channel,
        replica: Replica,
        *,
        callers: Callers,
        config: GossipConfig,
        report: Callable[[bool], serving_pb2.ServingReport],
        hushed: Callable[[], None] = lambda: None,
        ordered: Callable[[Orders], None] = lambda orders: None,
    ) -> None:
        self._channel = channel
        self._replica = replica
        self._callers = callers
        self._config = config
        self._report = report
        self._hushed = hushed
        self._ordered = ordered
        self._greeting: Greeting | None = None
        self._told_at = time.monotonic()
        self._refused = Refused()
        self._wake = asyncio.Event()
        self._may_serve = asyncio.Event()
        self._untidy = asyncio.Event()
        # Waiting to be sent.
        self._urgent: list[serving_pb2.FromServing] = []
        self._heard: dict[str, deque[bytes]] = {}
        self._heard_at: dict[str, float] = {}
        self._gathering: asyncio.TimerHandle | None = None
        late = GATHER_SHARE * config.hello_interval < GATHER_PINGS * PING_SECONDS
        self._gather = config.hello_min_gap if late else GATHER_PINGS * PING_SECONDS
        self._disbelieved: dict[tuple[str, Reason], tuple[str, int]] = {}
        self._gone: dict[tuple[bytes, int], tuple[float, bool]] = {}

    # For PeerService

    def receive(self, peer: str, hello: peer_pb2.HelloRequest, raw: bytes) -> bool:
        """Passes a hello on, as it came; False where it, or the one before it, is not believed.

        Whether it is signed as it has to be, and what it says against earlier ones, the gateway finds out,
        after it was answered; so an answer may be one hello late. A signature costs as much to verify as
        all else that is done with a hello here, and the gateway takes nobody's word for it anyway.
        """
        try:
            check_hello(hello, self._config)
        except StatementError as error:
            _, count = self._disbelieved.get((peer, error.reason), ("", 0))
            self._disbelieved[(peer, error.reason)] = (error.detail, count + 1)
            self._wake.set()
            return False
        waiting = self._heard.setdefault(peer, deque())
        if len(waiting) == HELLOS_WAITING:
            counters.add("moonmesh_hellos_superseded_total")
            waiting.pop()
        waiting.append(raw)
        heard_at = self._heard_at.get(peer, float("-inf"))
        if time.monotonic() - heard_at > AWAY_INTERVALS * self._config.hello_interval:
            self._wake.set()
        elif self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(self._gather, self._wake.set)
        return self._refused.why(peer, hello) is None

    def refusal(self, peer: str, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloReply | None:
        """What one that is refused is told of its group's past; None where there is nothing to tell."""
        why = self._refused.why(peer, hello)
        if why is None or not why.HasField("newest"):
            return None
        return peer_pb2.HelloReply(yours=why.newest, silent=self.silent)

    @property
    def silent(self) -> bool:
        """Whether the gateway does not speak for its group now."""
        return self._greeting is None or self._greeting.message is None or self._quiet

    def reply(self, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloReply:
        """The gateway's newest statement, where the hello shows that it is lacked."""
        if self._greeting is None:  # nobody is served yet
            return peer_pb2.HelloReply()
        if self._quiet:
            return peer_pb2.HelloReply(silent=True)
        return self._greeting.reply_to(hello)

    def gone(self, fingerprint: bytes, key: str, held: Held, changed: bool) -> None:
        """Mooncake turned out not to have a block, or to have it with other bytes (`changed`)."""
        if len(self._gone) >= GONE_MAX:
            counters.add("moonmesh_withdrawals_untold_total")
            return
        self._gone[(fingerprint, name_of(fingerprint, key))] = (held.since, changed)
        self._wake.set()

    def lost(self) -> None:
        """Most of what serves look for is gone."""
        self.say(serving_pb2.FromServing(lost=serving_pb2.Lost()))

    # For the composition root

    async def may_serve(self) -> None:
        """Returns once blocks and greeting are here."""
        await self._may_serve.wait()

    def say(self, message: serving_pb2.FromServing) -> None:
        """Sends something before everything else, instead of what waits and is of its kind."""
        which = message.WhichOneof("what")
        self._urgent = [waits for waits in self._urgent if waits.WhichOneof("what") != which]
        self._urgent.append(message)
        self._wake.set()

    @property
    def queues(self) -> dict[str, int]:
        """What waits to be sent, for `status`; of hellos those of the peer with most."""
        return {
            "gone_blocks": len(self._gone),
            "said": len(self._urgent),
            "hellos": max(map(len, self._heard.values()), default=0),
        }

    async def listen(self) -> None:
        """Takes what the gateway says; returns when it is gone."""
        while True:
            message = await self._channel.receive(serving_pb2.ToServing)
            if message is None:
                return
            self._told_at = time.monotonic()
            which = message.WhichOneof("what")
            if which == "ping":
                pong = serving_pb2.Pong(n=message.ping.n)
                if message.ping.report:
                    pong.report.CopyFrom(self._report(message.ping.details))
                self.say(serving_pb2.FromServing(pong=pong))
            elif which == "greeting":
                greeting = message.greeting
                spoke = not self.silent
                self._greeting = Greeting(greeting if greeting.HasField("statement") else None)
                if spoke and self.silent:
                    self._hushed()
            elif which == "orders":
                self._ordered(Orders.decode(message.orders.record))
            elif which == "verdict":
                self._refused.take(message.verdict)
            else:
                self._replica.apply(message)
                if which == "snapshot_end":
                    self._untidy.set()
            self._look()

    async def watch(self) -> None:
        """Notices that the gateway is frozen; never returns."""
        while True:
            await asyncio.sleep(QUIET_S / 4)
            if self._quiet:
                self._hushed()

    @property
    def _quiet(self) -> bool:
        return time.monotonic() - self._told_at > QUIET_S

    async def tidy(self) -> None:
        """Withdraws what a new snapshot has not named, beside everything else; never returns."""
        while True:
            await self._untidy.wait()
            self._untidy.clear()
            more = True
            while more:
                more = self._replica.withdraw_some()
                await asyncio.sleep(0)  # pings are answered in between
            self._look()

    async def speak(self) -> None:
        """Sends what there is to say, until the gateway is gone."""
        while True:
            self._wake.clear()
            later = float("inf")
            try:
                urgent, self._urgent = self._urgent, []
                hellos, later = self._take_hellos()
                if urgent or hellos:
                    await self._channel.send(*urgent, *hellos)
                for message in self._waiting():
                    await self._channel.send(message)
            except OSError:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(None if later == float("inf") else later):
                    await self._wake.wait()

    def _look(self) -> None:
        if self._greeting is not None and self._replica.complete:
            self._may_serve.set()

    def _waiting(self) -> Iterator[serving_pb2.FromServing]:
        while self._disbelieved:
            (peer, reason), (detail, count) = self._disbelieved.popitem()
            yield serving_pb2.FromServing(
                disbelieved=serving_pb2.Disbelieved(
                    peer=peer, reason=reason.value, detail=detail, count=count
                )
            )
        while self._gone:
            fingerprint = next(iter(self._gone))[0]
            message = serving_pb2.FromServing()
            message.gone.fingerprint = fingerprint
            for name in list(islice(self._gone, GONE_PER_MESSAGE)):
                if name[0] == fingerprint:
                    since, changed = self._gone.pop(name)
                    message.gone.blocks.add(name=name[1], since=since, changed=changed)
            yield message

    def _take_hellos(self) -> tuple[list[serving_pb2.FromServing], float]:
        """The hellos of peers that have not been passed on just now, as a message if there are some; seconds
        until the next."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        soonest = float("inf")
        message = serving_pb2.FromServing()
        size, now = 0, time.monotonic()
        for peer in list(self._heard):
            wait = self._heard_at.get(peer, float("-inf")) + self._config.hello_min_gap - now
            if wait > 0:
                soonest = min(soonest, wait)
                continue
            waiting = self._heard[peer]
            if size and size + len(waiting[0]) > self._config.max_hello_bytes:
                soonest = 0.0  # in another message
                break
            self._heard_at[peer] = now
            raw = waiting.popleft()
            message.heard.hellos.add(peer=peer, hello=raw)
            size += len(raw)
            if waiting:
                soonest = min(soonest, self._config.hello_min_gap)
            else:
                del self._heard[peer]
        return [message] if size else [], soonest
