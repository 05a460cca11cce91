"""What a group holds, as its gateway tracks it and its serving process offers it; by the configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from federation.catalog.offers import Offers
from federation.config import GroupFile
from federation.identity import Fingerprint
from federation.peers.feed import Replica
from local_group.holdings import Change, Holdings


def holdings_of(
    config: GroupFile, moved: Callable[[Change], None], hidden: Callable[[Change], None]
) -> Holdings:
    """The gateway's.

    Args:
        moved: told of each block that comes, goes, or is amended.
        hidden: as `on_hidden` in `Holdings`.
    """
    return Holdings(
        blocks_max=config.limits.holdings_blocks,
        hop_limit=config.limits.hop_limit,
        on_change=moved,
        on_amended=moved,
        on_hidden=hidden,
        unattested_ok=config.unattested.__contains__,
    )


def offering(
    config: GroupFile, exported: Iterable[Fingerprint], changed: Callable[[bytes], None]
) -> tuple[Offers, Replica]:
    """The serving process's: catalogs, in a log of their own, and the copy that they follow.

    Args:
        exported: namespaces that some peer may import.
        changed: as in `Offers`.
    """
    offers = Offers(
        log_id=os.urandom(16),
        entries_max=config.limits.log_entries,
        page_entries=config.limits.catalog_page_entries,
        namespaces=exported,
        unattested=config.unattested,
        changed=changed,
    )
    replica = Replica(
        blocks_max=config.limits.holdings_blocks,
        hop_limit=config.limits.hop_limit,
        on_change=offers.take,
        unattested_ok=config.unattested.__contains__,
    )
    return offers, replica
