"""Who leads: the line of `moonmesh status`, and what `up` waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from federation.cli.leading import await_leader, leading_line, not_led

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
        ({"role": "follower", "leader": LEADER, "barred": "x"}, "neither leads nor follows"),
        ({"role": "alone"}, ""),
        (None, ""),
    ],
)
def test_who_leads(said: Any, line: str) -> None:
    assert leading_line({"epoch": 3, "leading": said}) == line


NOBODY = "nobody is known to lead this group"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"role": "leader"}, ""),
        ({"role": "alone"}, ""),
        ({"role": "follower", "leader": LEADER}, ""),
        (None, ""),
        ({"role": "follower", "leader": None}, f"{NOBODY}: see docs/operations.md, who leads"),
        (
            {"role": "follower", "leader": LEADER, "barred": "its pool"},
            "this gateway neither leads nor follows: its pool",
        ),
    ],
)
def test_what_keeps_a_group_from_being_led(said: Any, why: str) -> None:
    assert not_led({"leading": said, "problems": ["else"]}) == why


def test_the_gateways_own_words_are_used_once_it_has_some() -> None:
    said = {"role": "follower", "leader": None}
    assert not_led({"leading": said, "problems": ["else", f"{NOBODY}: so"]}) == f"{NOBODY}: so"


def test_a_start_waits_for_a_leader_and_no_longer_than_so() -> None:
    answers: list[Any] = ["no answer", {"leading": {"role": "follower"}}, {"leading": None}]
    assert await_leader(lambda socket: answers.pop(0), Path("s"), 20) == ""
    assert await_leader(lambda socket: "no answer", Path("s"), 0) == "no answer"
    lost = {"leading": {"role": "follower"}}
    assert await_leader(lambda socket: lost, Path("s"), 0.05).startswith(NOBODY)
