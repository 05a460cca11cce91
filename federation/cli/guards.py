"""How `moonmesh status` shows the guards of a peer: what is not at rest, in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIRECTIONS = {"outgoing": "out", "incoming": "in"}


def guards_line(peer: Mapping[str, Any]) -> str:
    """Both directions of one peer; "" where all is at rest.

    What it says comes from a gateway: odd shapes are left out.
    """
    guards = _mapping(peer.get("guards"))
    found = {short: _direction(_mapping(guards.get(name))) for name, short in DIRECTIONS.items()}
    return "; ".join(f"{short}: {', '.join(parts)}" for short, parts in found.items() if parts)


def _direction(guard: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    breaker = guard.get("breaker", "closed")
    if breaker != "closed":
        parts.append(f"breaker {breaker}")
    lately = _mapping(guard.get("lately"))
    for what, word in (("failures", "failed"), ("refusals", "refused")):
        counts = [f"{name} {n}" for name, n in _mapping(lately.get(what)).items() if n]
        if counts:
            parts.append(f"{word} lately ({', '.join(counts)})")
    for kind, seconds in _mapping(guard.get("paused_s")).items():
        parts.append(f"{kind}s paused {seconds} s")
    leased, allowed = guard.get("leased_bytes"), guard.get("leased_bytes_allowed")
    if isinstance(leased, int) and isinstance(allowed, int) and leased > 0:
        parts.append(f"leased {leased / 2**20:.1f} of {allowed / 2**20:.0f} MiB")
    left, few = guard.get("retries_left"), guard.get("retries_few")
    if isinstance(left, (int, float)) and isinstance(few, int) and left < few:
        parts.append(f"retries left {left:g} of {few}")
    if off := guard.get("off"):
        parts.append(f"OFF: {', '.join(map(str, off)) if isinstance(off, list) else off}")
    return parts


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
