"""Keys and bytes of the load's blocks: derived from names alone, so that every process agrees on them."""

from __future__ import annotations

from federation.bench.workload import BlockBytes
from federation.identity import Envelope

DEMO = "demo"
"""The namespace that honest groups share, and in which no wrong byte may ever be read."""
GUEST = "guest"
"""A namespace in which a hostile peer is trusted: what it writes wrong stays in here."""

ENVELOPES: dict[str, dict[str, object]] = {
    name: {
        "model": f"chaos-{name}",
        "revision": "1",
        "engine": "chaos",
        "kv_dtype": "bf16",
        "block_tokens": 512,
        "layout": "page_first",
    }
    for name in (DEMO, GUEST)
}


def chain(tag: str, owner: str, number: int, blocks: int) -> list[str]:
    """The keys of one prefix chain, written by group `owner` in the run `tag`."""
    return [f"{tag}.{owner}.{number:06d}.{place}" for place in range(blocks)]


def owner(key: str) -> str:
    """The group that writes the block under a key of a chain; empty for other keys."""
    parts = key.split(".")
    return parts[1] if len(parts) == 4 else ""


def contents(namespace: str, block_bytes: int) -> BlockBytes:
    """Makes and checks the bytes of blocks of a namespace."""
    return BlockBytes(Envelope.of(ENVELOPES[namespace]).fingerprint(), block_bytes)
