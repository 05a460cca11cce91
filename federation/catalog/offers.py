"""All holdings logs of this group, one a namespace, fed by changes of the holdings; sans-IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
        changed: told the fingerprint whose log has moved.
    """

    def __init__(
        self,
        *,
        log_id: bytes,
        entries_max: int,
        page_entries: int = PAGE_ENTRIES,
        namespaces: Iterable[bytes],
        changed: Callable[[bytes], None],
    ) -> None:
        self._logs = {fp: HoldingsLog(log_id, entries_max) for fp in namespaces}
        self._answers = {fp: Answers(log, page_entries) for fp, log in self._logs.items()}
        self._changed = changed

    def take(self, change: Change) -> None:
        """A block that peers may have came or went."""
        log = self._logs.get(change.fingerprint)
        if log is None:
            return
        if change.added:
            log.add(change.name)
        else:
            log.remove(change.name)
        self._changed(change.fingerprint)

    def answers(self, fingerprint: bytes) -> Answers | None:
        """What subscribers of a namespace are sent, if it is offered to anybody."""
        return self._answers.get(fingerprint)

    def log(self, fingerprint: bytes) -> HoldingsLog | None:
        """The log of a namespace, if it is offered to anybody."""
        return self._logs.get(fingerprint)
