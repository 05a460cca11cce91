from __future__ import annotations

from federation.bench.staleness import Written


def test_what_another_group_wrote_just_before_is_stale_to_miss() -> None:
    written = Written(fresh_s=5.0)
    written.note(["a", "b", "c"], 0, 10.0)
    assert written.stale(["a", "b", "x", "c"], 1, 12.0) == 2  # what lies behind a gap is of no use
    assert written.stale(["a", "b", "c"], 0, 12.0) == 0  # its own pool, not a view
    assert written.stale(["a"], 1, 10.0) == 0  # it was written while this one was under way
    assert written.stale(["a"], 1, 15.5) == 0  # it may be gone again
    assert written.stale([], 1, 12.0) == 0


def test_what_is_not_fresh_any_more_is_forgotten() -> None:
    written = Written(fresh_s=5.0)
    for second in range(100):
        written.note([f"{second}"], 0, float(second))
    assert len(written) == 6
    written.note(["98"], 1, 100.0)
    assert written.stale(["98"], 0, 101.0) == 1  # the last writer counts
