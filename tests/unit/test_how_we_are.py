"""What a group says of its own health: others leave it alone for that, so it must not last by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from federation.config import Limits
from federation.how_we_are import tell_how_we_are
from gossip.statement import Allowance, Health, Load
from local_group.breaker import BreakerState


@dataclass
class Said:
    """What gossip was told."""

    health: list[tuple[Health, str]] = field(default_factory=list)
    load: list[tuple[Load, Allowance]] = field(default_factory=list)

    def set_health(self, health: Health, reason: str) -> None:
        self.health.append((health, reason))

    def set_load(self, load: Load, allowance: Allowance) -> None:
        self.load.append((load, allowance))


@dataclass
class Serving:
    serves: bool = True
    well: bool = True


@dataclass
class Store:
    breaker: str = BreakerState.CLOSED.value

    def stats(self) -> Store:
        return self


def told(serving: Serving, store: Store) -> tuple[Health, str]:
    said, anything = Said(), Load()
    arguments: Any = (said, serving, store, anything, Limits())
    tell_how_we_are(*arguments)
    assert said.load == [(anything, Allowance(Limits().peer_bytes_per_s, Limits().serves_per_peer))]
    (health,) = said.health
    return health


@pytest.mark.parametrize(
    ("serving", "store", "reason"),
    [
        (Serving(), Store(BreakerState.OPEN.value), "its local Mooncake does not answer"),
        (Serving(serves=False), Store(), "its serving process is being started"),
        (Serving(well=False), Store(), "its local Mooncake does not answer"),
    ],
)
def test_what_keeps_peers_away_is_said(serving: Serving, store: Store, reason: str) -> None:
    assert told(serving, store) == (Health.DEGRADED, reason)


@pytest.mark.parametrize("state", [BreakerState.CLOSED, BreakerState.HALF_OPEN])
def test_who_waits_for_a_probe_does_not_send_away_who_would_be_it(state: BreakerState) -> None:
    assert told(Serving(), Store(state.value)) == (Health.OK, "")
