"""The way to one peer: over whichever of its gateways answers, held to by one guard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from federation.catalog.wire import CatalogError
from federation.config import Limits
from federation.errors import PeerError
from federation.limits.errors import BreakerOpenError, ShedError, StallError
from federation.limits.guard import Guard
from federation.limits.names import Failure, GuardName, Kind
from federation.limits.orders import REASON_CHARS, SAID_HERE
from federation.limits.ticket import Cost, Refusal, Ticket
from federation.peers.choice import Choice
from federation.peers.gateways import Gateway
from federation.peers.wire import LostError, SilentError, UnreachableError, parse, received, sent
from federation.transfer.allowance import Allowance
from federation.transfer.landing import Answer, Room
from federation.trust.credentials import Credentials
from moonmesh.v1 import peer_pb2

if TYPE_CHECKING:
    from federation.peering import PeerConfig

HELLO = Cost(kind=Kind.HELLO)

SILENT_INTERVALS = 2
"""Hello intervals for which a gateway that was silent is not asked for a catalog."""


class PeerLink:
    """One peer, as this gateway reaches it.

    Hellos go to every gateway of the peer. Catalog questions go to the one that speaks for its group, pulls
    to that one or, where it cannot be reached, to another: see `federation.peers.choice`.

    Args:
        guard: what may be asked of the peer. Hellos and catalog questions get their tickets here, pulls
            in the puller, which knows what came of them.
        alive: whether gossip has heard the peer lately and it can serve.
        epoch: the epoch of its newest statement.
    """

    def __init__(
        self,
        peer: PeerConfig,
        credentials: Credentials,
        limits: Limits,
        *,
        guard: Guard,
        alive: Callable[[float], bool],
        epoch: Callable[[], int],
    ) -> None:
        self.name = peer.name
        self.on_answer: Callable[[peer_pb2.HelloReply], None] = lambda reply: None
        """Told of each answer to a hello."""
        self.on_silence: Callable[[], None] = lambda: None
        """Called when no gateway of it answers hellos; once for each hello, while it is so."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when there is room for a hello, if `full` was asked and said that there was none."""
        self.gateways = [
            Gateway(
                peer.name,
                address,
                credentials,
                limits,
                guard,
                answered=partial(self._heard, place),
                unanswered=partial(self._unanswered, place),
                room=self._has_room,
            )
            for place, address in enumerate(peer.gateways)
        ]
        self._choice = Choice(
            len(self.gateways), SILENT_INTERVALS * limits.hello_interval_ms / 1000
        )
        self._trouble = ""
        self._refuses = ""
        """Why it says that it serves us nothing now."""
        self._silent = False
        """It was told that the last hello is not answered."""
        self._limits = limits
        self._alive = alive
        self._epoch = epoch
        self.guard = guard
        self._return: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"PeerLink({self.name} at {self.address}: {self.reason or 'ok'})"

    @property
    def address(self) -> str:
        """Of the gateway that is pulled from now."""
        return self._first().address

    @property
    def reason(self) -> str:
        """Why the peer cannot be reached, or why its last pull failed; empty if all is well."""
        if here := SAID_HERE[self.guard.order]:
            return here
        if self._choice.leaderless:
            why = (f"; {g.address}: {g.reason}" for g in self.gateways if g.reason)
            return f"no gateway of it that answers leads{''.join(why)}"
        return self._first().reason or self._refuses or self._trouble

    @property
    def epoch(self) -> int:
        """Epoch of the peer's newest statement; 0 before the first."""
        return self._epoch()

    def usable(self, now: float) -> bool:
        """Whether pulls may be planned on this peer."""
        return self._alive(now) and not self._refuses and self.guard.ready(Kind.PULL, now)

    def breaker_state(self, now: float) -> str:
        """For `status`: closed, open or half_open."""
        return self.guard.breaker(now)

    def status(self) -> list[dict[str, str]]:
        """Each gateway of the peer, for `status`: its address, whether it leads, why it cannot be reached."""
        return [
            {
                "address": gateway.address,
                "state": self._choice.word(place).value,
                "reason": gateway.reason,
            }
            for place, gateway in enumerate(self.gateways)
        ]

    def failed(self, error: PeerError) -> None:
        """The peer did something that no call of ours ended with."""
        self.guard.note(Failure(error.failure), time.monotonic())
        self.blame(error)

    def blame(self, error: PeerError) -> None:
        """Keeps what went wrong for `status`."""
        self._trouble = error.what

    def absolve(self) -> None:
        """A pull ended well: what went wrong before is over."""
        self._trouble = ""

    def back(self) -> None:
        """Gossip hears the peer anew, or in another term: another gateway of it may speak now.

        Its breaker lets a probe pass, once blocks can come again. Not before the bulk connection stands: it
        dials by itself, and a probe that fails for the want of it would only double the time.
        """
        self._choice.doubt(time.monotonic())
        if self._return is None or self._return.done():
            self._return = asyncio.create_task(self._reconsider())

    async def _reconsider(self) -> None:
        if (
            await self._first().bulk_ready()
        ):  # else it is heard, and cannot be reached: one way only
            self.guard.back(time.monotonic())

    def greet(self, hello: peer_pb2.HelloRequest) -> None:
        """Says to every gateway of the peer who we are. Returns at once; what comes of it is told.

        It is one hello, whatever gateways there are: each has a guard of its own for us.

        Raises:
            ShedError: the peer is left alone for now.
        """
        now = time.monotonic()
        if (refusal := self.guard.go_on(HELLO, now)) is not None:
            raise self._left_alone(refusal)
        self._silent = False
        raw = sent(hello)
        for gateway in self.gateways:
            gateway.greeter.say(raw, now)

    def hush(self) -> None:
        """Says nothing more, not even a hello that waits for room; until `greet`."""
        for gateway in self.gateways:
            gateway.greeter.hush()

    def full(self, now: float) -> bool:
        """Whether a hello waits for room, at the gateway that speaks for the peer, or at all if none does."""
        speaker = self._choice.speaker
        if speaker is not None:
            return self.gateways[speaker].greeter.full(now)
        return all(gateway.greeter.full(now) for gateway in self.gateways)

    async def catalog(
        self, request: peer_pb2.CatalogRequest, timeout: float
    ) -> AsyncGenerator[peer_pb2.CatalogPage, None]:
        """The pages of one answer, of the gateway that speaks for the peer.

        Cancelled from here, as if by the caller, when another one turns out to speak: to be asked anew.

        Raises:
            SilentError: none of them does now; that says nothing against the peer.
            PeerError: none of them answered, or not properly.
        """
        error: PeerError = SilentError(
            "none of its gateways speaks for its group now", where=self.name
        )
        for place in self._choice.for_catalog(time.monotonic()):
            began = False
            try:
                async with aclosing(self._catalog(place, request, timeout)) as pages:
                    async for page in pages:
                        if not began:
                            self._speaks(place)
                        began = True
                        yield page
                return
            except (SilentError, UnreachableError) as failed:
                self._missed(place, failed)
                if began:
                    raise
                error = failed
        raise error

    async def pull(
        self,
        request: peer_pb2.PullRequest,
        timeout: float,
        allowance: Allowance | None = None,
        room: Room | None = None,
    ) -> Answer:
        """One answer: see `federation.transfer.landing.Way`. The caller has the ticket.

        Raises:
            PeerError: the peer did not answer, or not properly, or not in time.
        """
        raw, until = sent(request), time.monotonic() + timeout
        *others, last = self._choice.for_pull(time.monotonic())
        for place in (*others, last):
            began = False
            left = until - time.monotonic()
            try:
                async with aclosing(
                    self.gateways[place].pull(raw, left, allowance, room)
                ) as messages:
                    async for message in messages:
                        began = True
                        yield message
                return
            except (UnreachableError, StallError) as error:
                if not isinstance(error, LostError):
                    self._missed(place, error)
                elsewhere = isinstance(error, UnreachableError) and place != last
                if began or not elsewhere or time.monotonic() >= until:
                    raise

    async def namespaces(self, timeout: float) -> peer_pb2.NamespacesReply:
        """What the peer says of the namespaces that it shares with us; not yet checked.

        Raises:
            PeerError: the peer did not answer, or not properly.
        """
        ticket = self._ticket(Cost(kind=Kind.CATALOG))
        try:
            raw = sent(peer_pb2.NamespacesRequest())
            answer = await self._first().namespaces(raw, timeout)
            return parse(peer_pb2.NamespacesReply, received(answer), self.name)
        except PeerError as error:
            raise self._ended(ticket, error) from error
        finally:
            ticket.done(time.monotonic())

    async def close(self) -> None:
        """Closes the connections; calls on them end with an error."""
        if self._return is not None:
            self._return.cancel()
        await asyncio.gather(*(gateway.close() for gateway in self.gateways))

    def _first(self) -> Gateway:
        return self.gateways[self._choice.for_pull(time.monotonic())[0]]

    async def _catalog(
        self, place: int, request: peer_pb2.CatalogRequest, timeout: float
    ) -> AsyncGenerator[peer_pb2.CatalogPage, None]:
        """The pages of one gateway's answer."""
        ticket = self._ticket(Cost(kind=Kind.CATALOG, lane=request.fingerprint))
        try:
            async with aclosing(self.gateways[place].catalog(sent(request), timeout)) as answer:
                async for raw in answer:
                    size = len(raw)
                    refusal = ticket.hold(GuardName.CATALOG_BYTES, size, time.monotonic())
                    if refusal is not None:
                        self.guard.refuse(refusal.reason, time.monotonic())
                        limit = self._limits.peer_catalog_bytes
                        raise CatalogError(f"more than {limit} bytes of catalogs", where=self.name)
                    if pause := ticket.spend(size, time.monotonic()):
                        await asyncio.sleep(min(pause, timeout))
                    yield parse(peer_pb2.CatalogPage, received(raw), self.name)
        except CatalogError:
            raise  # told to `failed`
        except PeerError as error:
            raise self._ended(ticket, error) from error
        finally:
            # A success or not: catalog answers that cannot be are told to `failed`.
            ticket.done(time.monotonic())

    def _heard(self, place: int, reply: peer_pb2.HelloReply) -> None:
        # First to gossip: a statement of a new term puts in doubt what was known before it.
        self.on_answer(reply)
        if reply.silent:
            self._choice.silent(place, time.monotonic())
        else:
            if self._refuses and not reply.refuses:
                self.absolve()
            self._refuses = _plain(reply.refuses)
            self._speaks(place)

    def _unanswered(self, place: int, error: PeerError) -> None:
        self._missed(place, error)
        if self._silent or any(gateway.greeter.hopeful for gateway in self.gateways):
            return
        self._silent = True
        pause = error.retry_after if isinstance(error, ShedError) else 0.0
        self.guard.unanswered(HELLO, Failure(error.failure), time.monotonic(), retry_after=pause)
        self.on_silence()

    def _has_room(self) -> None:
        self.on_room()

    def _speaks(self, place: int) -> None:
        before = self._choice.speaker
        self._choice.spoke(place, time.monotonic())
        speaker = self._choice.speaker
        if speaker != before:
            # A question to one that hangs would otherwise wait for it, as long as for news.
            for other, gateway in enumerate(self.gateways):
                if other != speaker:
                    gateway.hang_up()

    def _missed(self, place: int, error: PeerError) -> None:
        """A call did not end as it should: what that says of this one gateway."""
        now = time.monotonic()
        if isinstance(error, SilentError):
            self._choice.silent(place, now)
        elif not isinstance(error, ShedError):  # which is an answer, and says no more
            self._choice.failed(place, now)
        if isinstance(error, StallError):
            self._choice.hung(place, now)

    def _ticket(self, cost: Cost) -> Ticket:
        answer = self.guard.admit(cost, time.monotonic())
        if isinstance(answer, Ticket):
            return answer
        raise self._left_alone(answer)

    def _left_alone(self, refusal: Refusal) -> ShedError:
        kind = BreakerOpenError if refusal.reason is GuardName.BREAKER else ShedError
        return kind(
            SAID_HERE[self.guard.order] or f"left alone for now ({refusal.reason.value})",
            retry_after=refusal.retry_after,
            where=self.name,
        )

    @staticmethod
    def _ended(ticket: Ticket, error: PeerError) -> PeerError:
        """Ends the ticket by an error; the error, to be raised."""
        ticket.done(
            time.monotonic(),
            ok=False,
            kind_of_failure=Failure(error.failure),
            retry_after=error.retry_after if isinstance(error, ShedError) else 0.0,
        )
        return error


def _plain(said: str) -> str:
    """What a peer says of why it refuses us, as it may be shown; "" for nothing."""
    text = said[:REASON_CHARS]
    return (
        f"it refuses: {text if text.isprintable() else 'in words that cannot be shown'}"
        if text
        else ""
    )
