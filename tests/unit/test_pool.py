"""Which segments of a pool are a place's own: other places of the group have theirs in it too."""

from __future__ import annotations

from pathlib import Path

import pytest

from federation.config import GroupFile, load_group
from local_group.admin import Segment
from local_group.pool import own_segments
from tests.support.groups import write_group


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupFile:
    ports = {1: {15001, 18010}, 2: {15002}}
    monkeypatch.setattr("local_group.pool.listeners", lambda pid: ports.get(pid, set()))
    return load_group(write_group(tmp_path, port_base=18000, host="localhost"))


@pytest.mark.parametrize(
    ("endpoint", "status", "pid", "own"),
    [
        ("localhost:15001", "OK", 1, True),
        ("127.0.0.1:15001", "OK", 1, True),
        ("localhost:15001", "LOST", 1, False),
        ("localhost:15001", "OK", 2, False),
        ("localhost:15001", "OK", 3, False),
        ("10.0.0.9:15001", "OK", 1, False),
        ("localhost", "OK", 1, False),
        ("localhost:x", "OK", 1, False),
    ],
)
async def test_a_segment_is_own_if_it_is_in_use_and_this_process_serves_it(
    place: GroupFile, endpoint: str, status: str, pid: int, own: bool
) -> None:
    segment = Segment("s", endpoint, 1, 0, status)
    assert await own_segments(place, [segment], pid) == [segment] * own
