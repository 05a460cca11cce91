"""Who leads a group, as `moonmesh up` and `status` say it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LED_WITHIN_S = 10.0
"""Seconds for which `up --detach` waits for a gateway of the group to lead: a takeover takes less."""
_POLL_S = 0.1


def not_led(gateway: Mapping[str, Any]) -> str:
    """What keeps this gateway from leading, and from following; "" for nothing. In the gateway's own words,
    where it has some."""
    said = gateway.get("leading")
    if not isinstance(said, Mapping) or said.get("role") != "follower":
        return ""
    if barred := said.get("barred"):
        return f"this gateway neither leads nor follows: {barred}"
    if isinstance(said.get("leader"), Mapping):
        return ""
    problems = gateway.get("problems")
    told = [str(each) for each in problems] if isinstance(problems, list) else []
    own = (each for each in told if each.startswith("nobody is known to lead"))
    return next(own, "nobody is known to lead this group: see docs/operations.md, who leads")


def await_leader(
    ask: Callable[[Path], dict[str, Any] | str], socket: Path, within: float = LED_WITHIN_S
) -> str:
    """Waits until the group of a gateway is led, `within` seconds at most; why it is not, "" if it is.

    Args:
        ask: the gateway's status, or why there is none.
    """
    until = time.monotonic() + within
    while True:
        status = ask(socket)
        why = status if isinstance(status, str) else not_led(status)
        if not why or time.monotonic() >= until:
            return why
        time.sleep(_POLL_S)


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
    if said.get("barred"):
        return "neither leads nor follows"
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
