"""Puts of an engine: digests made, blocks stored locally, the gateway told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

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
BESIDE_BYTES: Final = 1 << 20
"""Of a batch, from which on its digests are made by another thread while Mooncake puts it: 0.1 ms of work,
and a thread is woken in half of that."""


class Writes:
    """How blocks of one namespace are put. No peer has a part in it. Thread-safe.

    Args:
        stored: makes of keys those under which Mooncake holds the blocks.
    """

    def __init__(
        self,
        store: StoreClient,
        link: GatewayLink | None,
        fingerprint: Fingerprint,
        stored: Callable[[Sequence[str]], list[str]],
    ) -> None:
        self._client = store
        self._link = link
        self._fingerprint = fingerprint
        self._stored = stored
        self._beside = ThreadPoolExecutor(1, "digests")

    def close(self) -> None:
        """Ends the thread that makes digests."""
        self._beside.shutdown()

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
        places: Sequence[int] = range(len(batch.keys))
        link = self._link
        if link is None or not link.usable or not link.taken.any_of(batch.keys):
            return self._store(batch, self._digests(batch), places, until, config, chain_position)
        digests = batch.digests(self._fingerprint)
        # Not what is just written back as it came from a peer: whether there shall be a copy of that here
        # is the gateway's to say, and the engine has what it wanted.
        places = [
            place
            for place, (key, digest) in enumerate(zip(batch.keys, digests, strict=True))
            if not link.taken.same(key, digest)
        ]
        counters.add("moonmesh_puts_given_back_total", len(batch.keys) - len(places))
        some = [digests[place] for place in places]
        codes = [OK] * len(batch.keys)
        put = self._store(batch.only(places), lambda: some, places, until, config, chain_position)
        for place, code in zip(places, put, strict=True):
            codes[place] = code
        return codes

    def _digests(self, batch: Batch) -> Callable[[], list[bytes | None]]:
        """Begins to make the digests of a batch, beside its put; they are there when it is called.

        To be called before the put returns to its caller, who may write into its memory then.
        """
        if self._link is None:
            return list  # nobody is told of them
        if sum(batch.sizes) < BESIDE_BYTES:
            return lambda: batch.digests(self._fingerprint)
        try:
            made = self._beside.submit(batch.digests, self._fingerprint)
        except RuntimeError:  # closed: the put will say so
            return list
        # The thread may be at those of others, or not have come to run.
        return lambda: batch.digests(self._fingerprint) if made.cancel() else made.result()

    def _store(
        self,
        batch: Batch,
        digests: Callable[[], list[bytes | None]],
        places: Sequence[int],
        until: Deadline | None,
        config: Any,
        chain_position: int,
    ) -> list[int]:
        """Puts a batch and reports what was stored; `places` are those of its blocks in the caller's."""
        if not batch.keys:
            return []
        names = batch.names(self._stored)
        blocks = names, batch.pointers, batch.sizes
        try:
            if until is None:
                outcomes = self._client.put_from_direct(*blocks, config)
            else:
                outcomes = self._client.put_from(*blocks, until.left(), config)
        finally:
            made = digests()  # whatever became of the put: its caller has its memory back now
        outcomes = self._confirmed(names, outcomes, until)
        if self._link is not None:
            self._link.report_all(
                [
                    (key, size, digest, chain_position + place)
                    for key, size, digest, place, outcome in zip(
                        batch.keys, batch.sizes, made, places, outcomes, strict=True
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
        if not stored or not self._client.unsettled():
            return outcomes
        left = CONFIRM_SECONDS if until is None else min(until.left(), CONFIRM_SECONDS)
        found = self._client.exists([names[n] for n in stored], left)
        absent = [
            n for n, there in zip(stored, found, strict=True) if there.status is not Status.HIT
        ]
        if absent:
            counters.add("moonmesh_puts_unconfirmed_total", len(absent))
        confirmed = list(outcomes)
        for place in absent:
            confirmed[place] = failed(DEADLINE_PASSED)
        return confirmed
