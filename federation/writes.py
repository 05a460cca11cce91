"""Puts of an engine: digests made, blocks stored locally, the gateway told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from federation.batch import Batch, batches
from federation.codes import OK, RPC_TIMEOUT, codes_of, put_code
from federation.counters import counters
from federation.gateway_link import GatewayLink
from federation.identity import Fingerprint
from federation.timeouts import Deadline
from local_group.outcome import DEADLINE_PASSED, Outcome, Status, failed
from local_group.store import StoreClient

CONFIRM_SECONDS = 0.5
"""How long the question may take whether a put is there, where the put had no deadline."""


@dataclass(frozen=True, slots=True)
class Writes:
    """How blocks of one namespace are put. No peer has a part in it.

    Attributes:
        stored: makes of a key that under which Mooncake holds the block.
    """

    store: StoreClient
    link: GatewayLink | None
    fingerprint: Fingerprint
    stored: Callable[[str], str]

    def put(
        self,
        keys: Sequence[str],
        pointers: Sequence[int],
        sizes: Sequence[int],
        until: Deadline | None,
        config: Any,
        chain_position: int,
    ) -> list[int]:
        """A code per key; what the deadline left no time for is a timeout."""
        codes: list[int] = []
        for batch in batches(keys, pointers, sizes, until):
            codes += self._batch(batch, until, config, chain_position + len(codes))
        return codes + [RPC_TIMEOUT] * (len(keys) - len(codes))

    def _batch(
        self, batch: Batch, until: Deadline | None, config: Any, chain_position: int
    ) -> list[int]:
        # Before the put: afterwards the caller may already be writing into its memory again.
        digests = batch.digests(self.fingerprint) if self.link else []
        fresh = self._fresh(batch, digests)
        if len(fresh) == len(batch.keys):
            return self._store(batch, digests, range(len(fresh)), until, config, chain_position)
        codes = [OK] * len(batch.keys)
        if fresh:
            some = [digests[place] for place in fresh]
            put = self._store(batch.only(fresh), some, fresh, until, config, chain_position)
            for place, code in zip(fresh, put, strict=True):
                codes[place] = code
        return codes

    def _fresh(self, batch: Batch, digests: Sequence[bytes | None]) -> Sequence[int]:
        """The places of what is not just written back as it came from a peer: whether there shall be a copy
        of that here is the gateway's to say, and the engine has what it wanted."""
        link = self.link
        if link is None or not len(link.taken) or not link.usable:
            return range(len(batch.keys))
        fresh = [
            place
            for place, (key, digest) in enumerate(zip(batch.keys, digests, strict=True))
            if not link.taken.same(key, digest)
        ]
        counters.add("moonmesh_puts_given_back_total", len(batch.keys) - len(fresh))
        return fresh

    def _store(
        self,
        batch: Batch,
        digests: Sequence[bytes | None],
        places: Sequence[int],
        until: Deadline | None,
        config: Any,
        chain_position: int,
    ) -> list[int]:
        """Puts a batch and reports what was stored; `places` are those of its blocks in the caller's."""
        names = batch.names(self.stored)
        if until is None:
            outcomes = self.store.put_from_direct(names, batch.pointers, batch.sizes, config)
        else:
            left = until.left()
            outcomes = self.store.put_from(names, batch.pointers, batch.sizes, left, config)
        outcomes = self._confirmed(names, outcomes, until)
        if self.link is not None:
            self.link.report_all(
                [
                    (key, size, digest, chain_position + place)
                    for key, size, digest, place, outcome in zip(
                        batch.keys, batch.sizes, digests, places, outcomes, strict=True
                    )
                    if digest is not None and outcome.status is Status.STORED
                ]
            )
        return codes_of(outcomes, put_code)

    def _confirmed(
        self, names: Sequence[str], outcomes: list[Outcome], until: Deadline | None
    ) -> list[Outcome]:
        """The outcomes, with what was acknowledged and is not there after a stall as timed out."""
        stored = [n for n, outcome in enumerate(outcomes) if outcome.status is Status.STORED]
        if not stored or not self.store.unsettled():
            return outcomes
        left = CONFIRM_SECONDS if until is None else min(until.left(), CONFIRM_SECONDS)
        found = self.store.exists([names[n] for n in stored], left)
        absent = [
            n for n, there in zip(stored, found, strict=True) if there.status is not Status.HIT
        ]
        if absent:
            counters.add("moonmesh_puts_unconfirmed_total", len(absent))
        confirmed = list(outcomes)
        for place in absent:
            confirmed[place] = failed(DEADLINE_PASSED)
        return confirmed
