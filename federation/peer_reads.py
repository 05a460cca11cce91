"""What an engine asks its gateway for after the local Mooncake has answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from federation.codes import INVALID_PARAMS
from federation.gateway_link import GatewayLink
from federation.memory import pointer_to


def fill_from_peers(
    link: GatewayLink | None,
    keys: Sequence[str],
    pointers: Sequence[int],
    sizes: Sequence[int],
    results: Sequence[int],
    wait: float,
) -> Iterator[tuple[int, int]]:
    """Puts what peers have of the missing blocks into the caller's memory.

    Args:
        results: of the local read: what is not above 0 is missing.
        wait: seconds at most.

    Yields:
        Place and size of each block that has arrived.
    """
    absent = _absent(link, keys, results)
    if link is None or not absent:
        return
    wanted = [keys[place] for place in absent]
    room = [int(sizes[place]) for place in absent]
    # Copies are made by the caller's thread, before its call returns: nobody touches its memory later.
    into = [int(pointers[place]) for place in absent]
    before = keys[absent[0] - 1] if absent[0] else ""
    nobody_has = dict.fromkeys(wanted)
    for index, size in link.pull(wanted, room, lambda index, size: into[index], wait, before):
        nobody_has.pop(wanted[index], None)
        yield absent[index], size
    link.taken.forget(nobody_has)


def pull_one(link: GatewayLink, key: str, wait: float) -> Iterator[bytes]:
    """The block, if a peer has it, within `wait` seconds."""
    memory = bytearray()

    def into(index: int, size: int) -> int:
        memory.extend(bytes(size))
        return pointer_to(memoryview(memory))[0]

    for _ in link.pull([key], [link.limits.block_bytes], into, wait):
        yield bytes(memory)


def landed_from_peers(
    link: GatewayLink | None,
    keys: Sequence[str],
    results: Sequence[int],
    wait: float,
    timeout: float,
) -> list[int]:
    """Starts pulling what is missing; the places of what has landed within `wait` seconds."""
    absent = _absent(link, keys, results)
    if link is None or not absent:
        return []
    landed = link.exists([keys[place] for place in absent], wait, timeout)
    return [place for place, here in zip(absent, landed, strict=True) if here]


def _absent(link: GatewayLink | None, keys: Sequence[str], results: Sequence[int]) -> list[int]:
    """Places to ask peers for: what is not here, less what nobody could hold."""
    if link is None or (results and min(results) > 0):
        return []
    return [
        place
        for place, result in enumerate(results)
        if result <= 0 and result != INVALID_PARAMS and link.limits.takes(keys[place])
    ]
