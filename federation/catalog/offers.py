"""All holdings logs of this group, one a namespace, fed by changes of the holdings; sans-IO."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from federation.catalog.answers import PAGE_ENTRIES, Answers
from federation.catalog.log import HoldingsLog
from local_group.holdings import Change


class Offers:
    """What peers may learn of.

    Args:
        log_id: 16 bytes, new with each start of the gateway.
        entries_max: changes kept a namespace.
        page_entries: prints in a page of an answer.
        namespaces: fingerprints that some peer may import; changes elsewhere are not logged.
        unattested: those of which unattested blocks are offered too: to peers that take such. Peers that
            do not are told of the others alone, from a log of its own.
        changed: told the fingerprint whose log has moved.
    """

    def __init__(
        self,
        *,
        log_id: bytes,
        entries_max: int,
        page_entries: int = PAGE_ENTRIES,
        namespaces: Iterable[bytes],
        unattested: Collection[bytes] = frozenset(),
        changed: Callable[[bytes], None],
    ) -> None:
        self._logs = {fp: HoldingsLog(log_id, entries_max) for fp in sorted(namespaces)}
        other_id = bytes(byte ^ 0xFF for byte in log_id)  # positions of the two do not compare
        self._attested = {
            fp: HoldingsLog(other_id, entries_max) for fp in self._logs if fp in unattested
        }
        self._answers = {
            id(log): Answers(log, page_entries)
            for log in (*self._logs.values(), *self._attested.values())
        }
        self._changed = changed

    def take(self, change: Change) -> None:
        """A block that peers may have came or went."""
        log = self._logs.get(change.fingerprint)
        if log is None:
            return
        attested = self._attested.get(change.fingerprint) if change.attested else None
        for each in (log, attested):
            if each is not None:
                (each.add if change.added else each.remove)(change.name)
        self._changed(change.fingerprint)

    def answers(self, fingerprint: bytes, unattested: bool = True) -> Answers | None:
        """What subscribers of a namespace are sent, if it is offered to anybody.

        Args:
            unattested: the subscriber takes unattested blocks.
        """
        log = self.log(fingerprint, unattested)
        return None if log is None else self._answers[id(log)]

    def log(self, fingerprint: bytes, unattested: bool = True) -> HoldingsLog | None:
        """The log of a namespace, if it is offered to anybody."""
        attested = None if unattested else self._attested.get(fingerprint)
        return self._logs.get(fingerprint) if attested is None else attested
