"""Guards that must not open for what is nobody's lie and nobody's failure; real processes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import Federation, read, write
from tests.support.wait import wait_for

pytestmark = pytest.mark.real


def outgoing(federation: Federation, name: str) -> dict[str, Any]:
    """The guard of a group with two towards the other."""
    (peer,) = federation.status(name)["peers"]
    return dict(peer["guards"]["outgoing"])


def test_a_group_that_lost_all_its_blocks_is_not_taken_for_a_liar(tmp_path: Path) -> None:
    # Only what serves find gone makes it list.
    with Federation(tmp_path, limits={"listing_interval_ms": 600_000}) as federation:
        east, west = federation.store("east"), federation.store("west", deadline_ms=1000)
        keys = [f"lost-{i}" for i in range(400)]
        write(east, keys)
        federation.wait_for_view("west", "east", len(keys))
        assert read(west, keys[:1]) == ["peer"]
        group = federation.groups["east"]
        old = group.kill("master")
        wait_for(
            lambda: group.phase("master") == "ready" and group.pid("master") != old,
            30,
            "the master to be started again",
        )
        # Every claim is wrong now; what is asked for meanwhile is a miss, in time.
        asked = itertools.cycle(keys[1:])

        def known() -> bool:
            for _ in range(10):
                read(west, [next(asked)])
            (peer,) = federation.status("west")["peers"]
            return sum(view["blocks"] for view in peer["views"]) < len(keys) / 2

        wait_for(known, 30, "the owner to withdraw what it lost")
        assert "dishonest" not in outgoing(federation, "west")["failures"]
        east.close()
        again = federation.store("east")
        fresh = [f"fresh-{i}" for i in range(8)]
        wait_for(lambda: again.put(fresh[0], b"x") == 0, 30, "the new pool to take blocks")
        write(again, fresh[1:])
        wait_for(
            lambda: read(west, fresh[1:]) in (["peer"] * 7, ["local"] * 7),
            20,
            "peer hits to return",
        )
