"""Puts of an engine: digests made, blocks stored locally, the gateway told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from federation.batch import Batch, batches
from federation.codes import RPC_TIMEOUT, put_code
from federation.gateway_link import GatewayLink
from federation.identity import Fingerprint
from federation.timeouts import Deadline
from local_group.outcome import Status
from local_group.store import StoreClient


@dataclass(frozen=True, slots=True)
class Writes:
    """How blocks of one namespace are put. No peer has a part in it."""

    store: StoreClient
    link: GatewayLink | None
    fingerprint: Fingerprint
    prefix: str

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
        names = batch.names(self.prefix)
        # Before the put: afterwards the caller may already be writing into its memory again.
        digests = batch.digests(self.fingerprint) if self.link else []
        if until is None:
            outcomes = self.store.put_from_direct(names, batch.pointers, batch.sizes, config)
        else:
            left = until.left()
            outcomes = self.store.put_from(names, batch.pointers, batch.sizes, left, config)
        if self.link is not None:
            for place, (key, outcome) in enumerate(zip(batch.keys, outcomes, strict=True)):
                digest = digests[place]
                if digest is not None and outcome.status is Status.STORED:
                    self.link.report(key, batch.sizes[place], digest, chain_position + place)
        return [put_code(outcome) for outcome in outcomes]
