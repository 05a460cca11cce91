"""Outcomes of the store client as the codes that Mooncake's callers know."""

from __future__ import annotations

from local_group.outcome import Outcome, Status

OK = 0
NOT_FOUND = -704
INVALID_PARAMS = -600
RPC_TIMEOUT = -901


def read_code(outcome: Outcome) -> int:
    """What `batch_get_into` answers for a block: its size, or a negative code."""
    return outcome.size if outcome.status is Status.HIT else failure_code(outcome)


def put_code(outcome: Outcome) -> int:
    """What `batch_put_from` answers for a block: 0, or a negative code."""
    return OK if outcome.status is Status.STORED else failure_code(outcome)


def exist_code(outcome: Outcome) -> int:
    """What `is_exist` answers: 1, 0, or a negative code."""
    if outcome.status is Status.HIT:
        return 1
    return 0 if outcome.status is Status.MISS else failure_code(outcome)


def failure_code(outcome: Outcome) -> int:
    """Mooncake's own code where there is one; a deadline of ours is told as an RPC timeout."""
    if outcome.status is Status.MISS:
        return NOT_FOUND
    return outcome.code if outcome.code < 0 else RPC_TIMEOUT
