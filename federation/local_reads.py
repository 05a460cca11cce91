"""What an engine asks its local Mooncake, many keys at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from federation.batch import names_of
from federation.codes import INVALID_PARAMS, RPC_TIMEOUT, exist_code
from federation.timeouts import Deadline
from local_group.outcome import Outcome
from local_group.store import StoreClient

STEP_KEYS = 16_384
"""Asked after between two looks at the clock: 10 ms of a healthy master."""


def local_exists(
    store: StoreClient, stored: Callable[[str], str], keys: Sequence[str], until: Deadline
) -> list[int]:
    """Per key 1, 0 or a negative code; what the deadline left no time for is a timeout."""
    found: list[int] = []
    for start in range(0, len(keys), STEP_KEYS):
        if until.left() <= 0:
            break
        names = names_of(stored, keys[start : start + STEP_KEYS])
        if "" in names:  # one that can be none must not spoil the answers of the others
            here = iter(_codes(store.exists([name for name in names if name], until.left())))
            found += [next(here) if name else INVALID_PARAMS for name in names]
        else:
            found += _codes(store.exists(names, until.left()))
    return found + [RPC_TIMEOUT] * (len(keys) - len(found))


def _codes(outcomes: list[Outcome]) -> list[int]:
    """The codes of many outcomes, of which most are one and the same object."""
    if not outcomes:
        return []
    first = outcomes[0]
    if outcomes.count(first) == len(outcomes):
        return [exist_code(first)] * len(outcomes)
    made = {id(outcome): exist_code(outcome) for outcome in outcomes}
    return [made[id(outcome)] for outcome in outcomes]
