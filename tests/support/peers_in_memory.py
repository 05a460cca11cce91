"""Peers in memory, and a puller that pulls from them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from federation.catalog.view import CatalogView
from federation.config import Limits
from federation.identity import key_hash
from federation.transfer.fair import PullClass
from federation.transfer.puller import Ask, Puller
from federation.transfer.staging import StagedBlock, Staging
from tests.support.catalogs import view_of
from tests.support.links import FP, SIZE, FakeLink, guard_for

KEYS = [f"k{i}" for i in range(6)]


class Bench:
    """A puller over fake peers, whose views claim `claims` (what they hold, if not given)."""

    def __init__(
        self,
        *sources: FakeLink,
        claims: dict[str, Sequence[str]] | None = None,
        staging_bytes: int = 1 << 20,
        staging: Staging | None = None,
        limits: Limits | None = None,
    ) -> None:
        if limits is not None:
            for source in sources:
                source.guard = guard_for(source.name, limits)
        self.staging = Staging(bytes_max=staging_bytes, hold=10.0) if staging is None else staging
        self.landed: list[StagedBlock] = []
        self.views: dict[str, CatalogView] = {}
        for source in sources:
            claimed = (claims or {}).get(source.name, list(source.held))
            self.views[source.name] = view_of(key_hash(FP, key) for key in claimed)
        self.puller = Puller(
            staging=self.staging,
            holders=lambda _: [(source, self.views[source.name]) for source in sources],
            landed=self.landed.append,
            limits=limits or Limits(),
        )

    def ask(self, keys: Sequence[str] = KEYS, **options: Any) -> Ask:
        options = {"timeout": 5.0, "pull_class": PullClass.FIRST_TOKEN} | options
        return self.puller.ask(FP, keys, [SIZE] * len(keys), **options)

    async def collect(self, ask: Ask) -> list[bytes | None]:
        until = asyncio.get_running_loop().time() + 5.0
        blocks = [await ask.block(i, until) for i in range(len(ask))]
        ask.leave()
        return [None if block is None else bytes(block.data) for block in blocks]
