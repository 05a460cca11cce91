"""Guards for tests: made from limits, asked, and expected to say yes or no."""

from __future__ import annotations

import random
from typing import Any

from federation.config import Limits
from federation.limits.guard import Guard
from federation.limits.guards import Guards
from federation.limits.names import GuardName, Kind
from federation.limits.ticket import Cost, Refusal, Ticket

MIB = 1 << 20
PULL = Cost()
HELLO = Cost(kind=Kind.HELLO)
CATALOG = Cost(kind=Kind.CATALOG, lane=b"one")


def guards(*off: GuardName, peers: tuple[str, ...] = ("west",), **limits: Any) -> Guards:
    limits.setdefault("peer_breaker_failures", 3)
    return Guards(Limits(**limits), peers, random.Random(1), off=frozenset(off))


def incoming(*off: GuardName, **limits: Any) -> Guard:
    return guards(*off, **limits)["west"].incoming


def outgoing(*off: GuardName, **limits: Any) -> Guard:
    return guards(*off, **limits)["west"].outgoing


def let_in(guard: Guard, cost: Cost = PULL, now: float = 0.0) -> Ticket:
    answer = guard.admit(cost, now)
    assert isinstance(answer, Ticket), answer
    return answer


def refused(guard: Guard, cost: Cost = PULL, now: float = 0.0) -> Refusal:
    answer = guard.admit(cost, now)
    assert isinstance(answer, Refusal), answer
    return answer
