"""What an engine asks its local Mooncake, many keys at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from federation.batch import names_of
from federation.codes import INVALID_PARAMS, RPC_TIMEOUT, codes_of, exist_code
from federation.memory import pointer_to
from federation.timeouts import Deadline
from local_group.outcome import Status
from local_group.store import StoreClient

STEP_KEYS = 16_384
"""Asked after between two looks at the clock: 10 ms of a healthy master."""


def local_exists(
    store: StoreClient,
    stored: Callable[[Sequence[str]], list[str]],
    keys: Sequence[str],
    until: Deadline,
) -> list[int]:
    """Per key 1, 0 or a negative code; what the deadline left no time for is a timeout."""
    found: list[int] = []
    for start in range(0, len(keys), STEP_KEYS):
        if until.left() <= 0:
            break
        names = names_of(stored, keys[start : start + STEP_KEYS])
        if "" in names:  # one that can be none must not spoil the answers of the others
            here = iter(
                codes_of(store.exists([name for name in names if name], until.left()), exist_code)
            )
            found += [next(here) if name else INVALID_PARAMS for name in names]
        else:
            found += codes_of(store.exists(names, until.left()), exist_code)
    return found + [RPC_TIMEOUT] * (len(keys) - len(found))


def local_get(store: StoreClient, name: str, until: Deadline) -> bytes | None:
    """One block, whatever its size; None where it cannot be had."""
    (sized,) = store.sizes([name], until.left())
    if sized.status is not Status.HIT:
        return None
    buffer = bytearray(sized.size)
    pointer, owner = pointer_to(memoryview(buffer))
    (outcome,) = store.get_into([name], [pointer], [sized.size], until.left())
    del owner
    return bytes(memoryview(buffer)[: outcome.size]) if outcome.status is Status.HIT else None
