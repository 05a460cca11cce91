"""All holdings logs of this group, one a namespace, fed by changes of the holdings; sans-IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from federation.catalog.log import HoldingsLog
from federation.identity import key_hash
from local_group.holdings import Change


class Offers:
    """What peers may learn of.

    Args:
        log_id: 16 bytes, new with each start of the gateway.
        entries_max: changes kept a namespace.
        namespaces: fingerprints that some peer may import; changes elsewhere are not logged.
        changed: told the fingerprint whose log has moved.
    """

    def __init__(
        self,
        *,
        log_id: bytes,
        entries_max: int,
        namespaces: Iterable[bytes],
        changed: Callable[[bytes], None],
    ) -> None:
        self._logs = {fp: HoldingsLog(log_id, entries_max) for fp in namespaces}
        self._changed = changed

    def take(self, change: Change) -> None:
        """A block that peers may have came or went."""
        log = self._logs.get(change.fingerprint)
        if log is None:
            return
        before = log.position
        name = key_hash(change.fingerprint, change.key)
        if change.added:
            log.add(name)
        else:
            log.remove(name)
        if log.position != before:
            self._changed(change.fingerprint)

    def log(self, fingerprint: bytes) -> HoldingsLog | None:
        """The log of a namespace, if it is offered to anybody."""
        return self._logs.get(fingerprint)
