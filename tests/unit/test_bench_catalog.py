"""`moonmesh bench catalog`, small: all is measured, and what no machine changes is as it should be."""

from __future__ import annotations

import pytest

from federation.bench import catalog
from federation.bench.catalog import CatalogBench, catalog_report


def test_every_target_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    smaller = {"CHAIN": 100, "CHAINS": 2, "SAMPLE": 200_000, "PLAIN_BLOCKS": 1000}
    for name, value in smaller.items():
        monkeypatch.setattr(catalog, name, value)
    said: list[str] = []
    options = CatalogBench(blocks=200_000, seconds=0.1, mutations=100)
    report = catalog_report(options, said.append)
    assert len(said) == 7
    assert all(target.value is not None for target in report.targets)
    timed = [t for t in report.targets if t.unit in ("ms", "s") or "share of a core" in t.name]
    missed = [t.name for t in report.targets if t not in timed and not t.met]
    # Its ring of changes is as large for any number of blocks.
    assert missed == ["20,000 blocks: bytes a block at the owner"]
