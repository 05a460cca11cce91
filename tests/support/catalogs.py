"""Catalogs for tests: hashes that look like real ones, and views that have them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from federation.catalog.log import Position
from federation.catalog.prints import Hashes, Prints, distinct, prints_of
from federation.catalog.snapshot import Snapshot
from federation.catalog.view import CatalogView, News

LOG = b"l" * 16
NONE = np.empty(0, dtype=np.uint64)


def spread(*numbers: int) -> list[int]:
    """A hash for each number, far from those of others."""
    return [(number + 1) * 0x9E3779B97F4A7C15 % (1 << 64) for number in numbers]


def hashes_of(values: Iterable[int]) -> Hashes:
    """As an array."""
    return np.array(list(values), dtype=np.uint64)


def prints(hashes: Iterable[int], bits: int) -> Prints:
    """Of hashes, sorted."""
    return distinct(np.sort(prints_of(hashes_of(hashes), bits)))


def whole(hashes: Iterable[int], n: int = 1) -> News:
    """A snapshot of hashes."""
    return News(Position(LOG, n), Snapshot.of(hashes_of(hashes)), NONE, NONE)


def news(view: CatalogView, n: int, added: Iterable[int] = (), removed: Iterable[int] = ()) -> News:
    """Changes for a view."""
    bits = view.bits
    return News(Position(LOG, n), None, prints(added, bits), prints(removed, bits))


def view_of(hashes: Iterable[int], blocks_max: int = 100) -> CatalogView:
    """A view of what has these hashes."""
    view = CatalogView(blocks_max=blocks_max)
    view.apply(whole(hashes), 0.0)
    return view
