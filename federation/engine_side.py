"""The part of a gateway that works for engines: staging, pulls, admission, and what they may ask."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from federation.config import GroupFile
from federation.limits.guards import Guards
from federation.peers.subscriptions import Subscriptions
from federation.transfer.admission import DEFER_SECONDS, Admission
from federation.transfer.copies import Copies
from federation.transfer.handover import EngineService
from federation.transfer.locating import Locator, RouterService
from federation.transfer.policy import AdmissionPolicy
from federation.transfer.puller import Puller
from federation.transfer.slots import Slots
from federation.transfer.staging import Staging
from local_group.ledger import Ledger
from local_group.store import StoreClient


@dataclass(frozen=True)
class EngineSide:
    """What engines and routers of this group have of a gateway."""

    slots: Slots
    staging: Staging
    admission: Admission
    puller: Puller
    engines: EngineService
    router: RouterService


def engine_side(
    config: GroupFile,
    *,
    exported: frozenset[bytes],
    shared: frozenset[bytes],
    store: StoreClient,
    ledger: Ledger,
    copies: Copies,
    guards: Guards,
    subscriptions: Subscriptions | None,
    slots: Slots,
    on_problem: Callable[[str], None],
) -> EngineSide:
    """Puts the parts together.

    Args:
        copies: what is in the pool of peers' blocks.
        exported, shared: namespaces that some peer may import, and those besides that some peer exports.
        slots: the memory of staging.
        subscriptions: what is known of peers; None for a group that runs alone.
        on_problem: told what an operator has to know.
    """
    limits = config.limits
    staging = Staging(
        bytes_max=limits.staging_bytes,
        hold=limits.staging_hold_ms / 1000,
        shares=guards.staging,
        memory=slots.take,
    )
    in_place = config.protocol == "tcp" or not store.register_buffer(slots.address, slots.size)
    admission = Admission(
        write=store.write_in_place if in_place else store.write,
        ledger=ledger,
        naming=config.naming,
        policy=AdmissionPolicy(
            config.gateway.admit, lambda: copies.turnover(ledger.holdings.written)
        ),
        copies=copies,
        dear=lambda block: puller.planner.dear(
            block.fingerprint, block.origin, len(block.data), time.monotonic()
        ),
        busy=lambda: puller.under_way > 0,
        # Within the time in which staging has it anyway.
        defer=min(DEFER_SECONDS, staging.hold / 2),
        queue_max=limits.admission_queue_blocks,
        on_error=on_problem,
    )
    puller = Puller(
        staging=staging,
        holders=subscriptions.holders if subscriptions else lambda fingerprint: [],
        landed=admission.landed,
        limits=limits,
        unattested=config.unattested,
        block_seconds=config.block_seconds,
        idle=admission.hurry,
    )
    touch = subscriptions.touch if subscriptions else lambda fingerprint: None
    engines = EngineService(
        group=config.name,
        known=config.namespaces.values(),
        namespaces=shared,
        exported=exported,
        ledger=ledger,
        puller=puller,
        promise=lambda fingerprint, key: staging.promise(fingerprint, key, time.monotonic()),
        given=admission.given,
        read_on=admission.read_on,
        prefetched=admission.keep,
        touch=touch,
        limits=limits,
        on_error=on_problem,
        slots=slots,
    )
    locator = Locator(
        group=config.name,
        tracked=exported,
        held=ledger.holdings.get,
        followed=subscriptions.known if subscriptions else lambda fingerprint: [],
        seconds=puller.speeds.seconds,
        block_seconds=config.block_seconds,
    )
    router = RouterService(locator=locator, namespaces=shared, touch=touch, limits=limits)
    return EngineSide(slots, staging, admission, puller, engines, router)
