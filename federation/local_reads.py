"""What an engine asks its local Mooncake, many keys at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from federation.batch import are_plain, names_of
from federation.codes import INVALID_PARAMS, RPC_TIMEOUT, codes_of, exist_code
from federation.halves import HALVES
from federation.memory import pointer_to
from federation.timeouts import Deadline
from local_group.outcome import Outcome, Status
from local_group.store import StoreClient

STEP_KEYS = 16_384
"""Asked after between two looks at the clock: 10 ms of a healthy master."""


def local_exists(
    store: StoreClient,
    stored: Callable[[Sequence[str]], list[str]],
    keys: Sequence[str],
    until: Deadline | None,
) -> list[int]:
    """Per key 1, 0 or a negative code; what the deadline left no time for is a timeout."""

    def asked(part: Sequence[str]) -> list[Outcome]:
        return store.exists(part, _left(until), stored)

    found: list[int] = []
    for start in range(0, len(keys), STEP_KEYS):
        if until is not None and until.left() <= 0:
            break
        part = keys[start : start + STEP_KEYS] if len(keys) > STEP_KEYS else keys
        here = codes_of(HALVES.ask(asked, part) if until is None else asked(part), exist_code)
        # The keys are looked at only now, and not where all are here: that is a pass less over thousands.
        if here.count(1) < len(here) and not are_plain(part):
            here = _without_the_bad(store, names_of(stored, part), here, until)
        found += here
    return found + [RPC_TIMEOUT] * (len(keys) - len(found))


def _without_the_bad(
    store: StoreClient, names: Sequence[str], answers: list[int], until: Deadline | None
) -> list[int]:
    """The answers again, if one of the keys can be none ("" among `names`): it spoils those of the others."""
    if "" not in names:
        return answers
    good = [name for name in names if name]
    here = iter(codes_of(store.exists(good, _left(until)), exist_code))
    return [next(here) if name else INVALID_PARAMS for name in names]


def _left(until: Deadline | None) -> float | None:
    return None if until is None else until.left()


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
