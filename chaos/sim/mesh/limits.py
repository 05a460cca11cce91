"""Nothing above its limit: what is looked at in every gateway of a world, again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from chaos.sim.invariants import Broken
from federation.limits.names import Kind
from federation.limits.orders import Order
from federation.peers.relay import GONE_MAX, HELLOS_WAITING, SAID_MAX

if TYPE_CHECKING:
    from chaos.sim.mesh.group import SimGateway, SimGroup
    from chaos.sim.mesh.serving import SimServing


class Use(NamedTuple):
    """How much there is of something, and how much there may be."""

    what: str
    now: float
    most: float


def check(group: SimGroup) -> None:
    """Everything of a group.

    Raises:
        Broken: something is above its limit, or offered and not its own.
    """
    gateway = group.gateway
    if gateway is not None and gateway.side is not None:
        _hold(group, gateway.node.run(lambda: list(_gateway(group, gateway))))
    serving = group.serving
    if serving is not None and serving.node.running:
        _hold(group, serving.node.run(lambda: list(_serving(group, serving))))
        _check_offered(group, serving)


def _hold(group: SimGroup, uses: list[Use]) -> None:
    for use in uses:
        if use.now > use.most:
            detail = f"{group.name} has {use.now} {use.what}, and {use.most} is the limit"
            raise Broken("everything has a limit", detail, group.name)


def _gateway(group: SimGroup, gateway: SimGateway) -> Iterator[Use]:
    limits, side = group.config.limits, gateway.side
    assert side is not None, "it has started"
    staging = side.staging
    yield Use("bytes in staging", staging.bytes + staging.reserved, limits.staging_bytes)
    yield Use("bytes of slots", side.slots.used_bytes, side.slots.size)
    yield Use("pulls of one peer", side.puller.waiting, limits.pulls_waiting_per_peer)
    yield Use(
        "blocks that wait to be admitted", side.admission.queued, limits.admission_queue_blocks
    )
    yield Use("bytes read and not released", gateway.store.held, limits.bounce_bytes)
    yield Use("bytes of journal", gateway.journal.size, limits.journal_bytes_max)
    yield Use("blocks held", len(gateway.holdings), limits.holdings_blocks)
    if gateway.copies.quota is not None:
        # What was admitted before a restart counts, whatever the quota is now; so does one batch.
        own = gateway.copies.quota + staging.bytes
        yield Use("bytes of copies", gateway.copies.bytes, own)
    views = gateway.peers.sessions.subscriptions.views()
    yield Use("bytes of views", sum(len(view) * 8 for _, _, view in views), limits.views_bytes)
    now = time.monotonic()
    for name, guards in gateway.guards.items():
        guard = guards.outgoing
        off = guard.order in (Order.PAUSED, Order.OFF)
        yield Use(f"streams to {name}", guard.open(Kind.PULL), 0 if off else limits.pulls_per_peer)
        yield Use(
            f"bytes of {name} in staging", guard.status(now)["memory_bytes"], limits.staging_bytes
        )
    shares = gateway.guards.staging
    held = sum(shares.used(name) for name in gateway.guards)
    yield Use(
        "bytes in staging that peers are charged with", held, staging.bytes + staging.reserved
    )
    yield Use(
        "bytes in staging that nobody is charged with", staging.bytes + staging.reserved, held
    )


def _serving(group: SimGroup, serving: SimServing) -> Iterator[Use]:
    limits = group.config.limits
    if serving.server is not None:
        yield Use("calls of peers", serving.server.open_most, serving.server.calls_max)
    if serving.store is not None:
        yield Use("bytes read for peers", serving.store.held, limits.bounce_bytes)
    if serving.relay is not None:
        queues = serving.relay.queues
        yield Use("blocks that are gone, and not told", queues["gone_blocks"], GONE_MAX)
        yield Use("messages to the gateway", queues["said"], SAID_MAX)
        yield Use("hellos of one peer that wait", queues["hellos"], HELLOS_WAITING)
    now = time.monotonic()
    for name, guards in serving.guards.items():
        guard = guards.incoming
        told = guard.status(now)
        yield Use(f"streams of {name}", guard.open(Kind.PULL), limits.serves_per_peer)
        yield Use(
            f"catalog questions of {name}", guard.open(Kind.CATALOG), limits.peer_requests_open
        )
        yield Use(f"bytes leased for {name}", told["leased_bytes"], told["leased_bytes_allowed"])


def _check_offered(group: SimGroup, serving: SimServing) -> None:
    truth = group.world.truth
    for fingerprint, name, held in serving.replica.holdings.items():
        if held.attested:
            truth.offered(group.name, fingerprint, name, "offers")
