"""Orders that switch peers and the federation off and on, in tests."""

from __future__ import annotations

from tests.support.federation import Federation
from tests.support.groups import moonmesh
from tests.support.wait import wait_for


def order(federation: Federation, name: str, *words: str) -> str:
    """Gives an order, and returns what was said; it is in force then."""
    done = moonmesh(*words, "-c", federation.groups[name].path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def all_on(pair: Federation) -> None:
    """Takes every order back, and waits until east and west deal with each other again."""
    for name in pair.groups:
        order(pair, name, "federation", "on", "--forget")
    for name, other in (("east", "west"), ("west", "east")):

        def usable(name: str = name, other: str = other) -> bool:
            peer = pair.peer(name, other)
            return peer.get("order") == "on" and not peer["reason"].startswith("it refuses: ")

        wait_for(usable, 10, f"{name} to be on with {other} again: {pair.peer(name, other)}")
