"""The line of `moonmesh status` that says who leads."""

from __future__ import annotations

from typing import Any

import pytest

from federation.cli.leading import leading_line

LEADER = {"member": "a:7402", "address": "unix:/a", "epoch": 3}
COPY = {"connected": True, "complete": True, "age_s": 0.4, "untold_blocks": 0, "error": ""}
LOST = {**COPY, "connected": False, "untold_blocks": 7, "error": "it leads no more"}
FOLLOWS = "follows a:7402, which leads in epoch 3"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"role": "leader", "followers": []}, "leads in epoch 3"),
        (
            {"role": "leader", "followers": ["b:7502", "c:7602"]},
            "leads in epoch 3; followed by b:7502, c:7602",
        ),
        ({"role": "follower", "leader": LEADER, "following": None}, FOLLOWS),
        (
            {"role": "follower", "leader": LEADER, "following": COPY},
            f"{FOLLOWS}; a whole copy, 0.4 s old",
        ),
        (
            {"role": "follower", "leader": LEADER, "following": {**COPY, "complete": False}},
            f"{FOLLOWS}; its copy is under way, 0.4 s old",
        ),
        (
            {"role": "follower", "leader": LEADER, "following": LOST},
            f"{FOLLOWS}; no connection; 7 blocks to be told; it leads no more",
        ),
        ({"role": "follower", "leader": None}, "follows: nobody is known to lead"),
        ({"role": "alone"}, ""),
        (None, ""),
    ],
)
def test_who_leads(said: Any, line: str) -> None:
    assert leading_line({"epoch": 3, "leading": said}) == line
