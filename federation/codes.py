"""Outcomes of the store client as the codes that Mooncake's callers know."""

from __future__ import annotations

from collections.abc import Callable

from local_group import outcome as ours
from local_group.outcome import Outcome, Status

OK = 0
NOT_FOUND = -704
INVALID_PARAMS = -600
RPC_FAIL = -900
RPC_TIMEOUT = -901

_OURS = {
    ours.DEADLINE_PASSED: RPC_TIMEOUT,
    # Too large for bounce memory, as Mooncake says of what is too large for its local buffer.
    ours.BOUNCE_EXCEEDED: INVALID_PARAMS,
}
"""Our own codes; those not named here say that the call was not tried, and become `RPC_FAIL`."""


def codes_of(outcomes: list[Outcome], code: Callable[[Outcome], int]) -> list[int]:
    """The codes of many outcomes, of which most are one and the same object."""
    if not outcomes:
        return []
    first = outcomes[0]
    if outcomes.count(first) == len(outcomes):
        return [code(first)] * len(outcomes)
    made = {id(outcome): code(outcome) for outcome in outcomes}
    return [made[id(outcome)] for outcome in outcomes]


def read_code(outcome: Outcome) -> int:
    """What `batch_get_into` answers for a block: its size, or a negative code.

    While the breaker of the local Mooncake is open, a block is not there: an engine computes it.
    """
    if outcome.status is Status.HIT:
        return outcome.size
    return NOT_FOUND if outcome.code == ours.BREAKER_OPEN else failure_code(outcome)


def put_code(outcome: Outcome) -> int:
    """What `batch_put_from` answers for a block: 0, or a negative code."""
    return OK if outcome.status is Status.STORED else failure_code(outcome)


def exist_code(outcome: Outcome) -> int:
    """What `is_exist` answers: 1, 0, or a negative code. An open breaker is a 0, as in `read_code`."""
    if outcome.status is Status.HIT:
        return 1
    if outcome.status is Status.MISS or outcome.code == ours.BREAKER_OPEN:
        return 0
    return failure_code(outcome)


def failure_code(outcome: Outcome) -> int:
    """Mooncake's own code where there is one; what only we know is told in Mooncake's words."""
    if outcome.status is Status.MISS:
        return NOT_FOUND
    if outcome.code <= ours.DEADLINE_PASSED:
        return _OURS.get(outcome.code, RPC_FAIL)
    return outcome.code if outcome.code < 0 else RPC_TIMEOUT
