"""Who leads a group, as `moonmesh status` says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def leading_line(gateway: Mapping[str, Any]) -> str:
    """One line; "" for a group that runs alone, or a gateway that does not say."""
    said = gateway.get("leading")
    if not isinstance(said, Mapping) or said.get("role") not in ("leader", "follower"):
        return ""
    if said["role"] == "leader":
        followers = said.get("followers")
        names = ", ".join(map(str, followers)) if isinstance(followers, list) else ""
        line = f"leads in epoch {gateway.get('epoch')}"
        return f"{line}; followed by {names}" if names else line
    leader, copy = said.get("leader"), said.get("following")
    if not isinstance(leader, Mapping):
        return "follows: nobody is known to lead"
    line = f"follows {leader.get('member')}, which leads in epoch {leader.get('epoch')}"
    if not isinstance(copy, Mapping):
        return line
    if copy.get("connected"):
        state = "a whole copy" if copy.get("complete") else "its copy is under way"
        line += f"; {state}, {copy.get('age_s')} s old"
    else:
        line += "; no connection"
    if waiting := copy.get("untold_blocks"):
        line += f"; {waiting} blocks to be told"
    return f"{line}; {copy['error']}" if copy.get("error") else line
