from __future__ import annotations

import pytest

from federation.bench.admission import admission_report, replay
from federation.bench.lru import lru_hits
from federation.bench.workload import Request, Workload


def workload(*requests: tuple[int, str], groups: int = 2) -> Workload:
    made = (Request(n, None, group, tuple(keys)) for n, (group, keys) in enumerate(requests))
    return Workload(tuple(made), groups, 8192)


def test_what_each_policy_serves_and_moves() -> None:
    # Group 0 computes a chain; group 1 is given it three times.
    work = workload((0, "abc"), (1, "abc"), (1, "abc"), (1, "abc"))
    assert replay(work, "always", 100)[1:4] == (6, 3, 3)
    assert replay(work, "second-hit", 100)[1:4] == (3, 6, 3)
    assert replay(work, "never", 100)[1:4] == (0, 9, 0)


def test_a_run_ends_at_the_first_block_that_nobody_has() -> None:
    work = workload((0, "ab"), (0, "xc"), (1, "abxc"), (1, "qab"))
    served = replay(work, "never", 100)
    assert served.hits == 4, "a and b of the other group, and what lies behind a gap is not read"
    assert replay(workload((0, "ab"), (1, "zab")), "never", 100).hits == 0


def test_copies_push_out_what_only_this_group_has() -> None:
    # Two blocks a group. With a copy of each, b is gone at group 1 when it is wanted again.
    work = workload((0, "a"), (1, "b"), (1, "c"), (1, "a"), (1, "b"))
    assert replay(work, "always", 4).hits == 1
    assert replay(work, "never", 4).hits == 2


def test_one_group_is_one_pool() -> None:
    chains = ["abc", "abd", "xyz", "abc", "xy"]
    work = workload(*((0, chain) for chain in chains), groups=1)
    for capacity in (2, 3, 5, 9):
        assert replay(work, "second-hit", capacity).hits == lru_hits(chains, capacity)[0]


def test_a_near_group_is_asked_first_and_what_came_over_a_dear_line_is_kept() -> None:
    # Groups 0 and 1 are in one region, 2 and 3 in the other. Copies are not offered: 3 asks far as well.
    work = workload((0, "abc"), (2, "abc"), (2, "abc"), (3, "abc"), (1, "abc"), groups=4)
    served = replay(work, "second-hit", 100, regions=2)
    assert (served.local, served.peer, served.dear, served.admitted) == (3, 9, 6, 6)
    blind = replay(work, "second-hit", 100, regions=2, sooner=False)
    assert (blind.local, blind.peer, blind.dear) == (0, 12, 9)
    report = admission_report(work, 4.0)
    assert report.figures["2 regions"]["second-hit"]["dear_over_never"] == 2 / 3
    assert report.figures["2 regions"]["second-hit, not told"]["dear_over_never"] == 1
    assert len(report.targets) == 3


def test_the_report_has_all_policies_and_its_targets() -> None:
    report = admission_report(workload((0, "abc"), (1, "abc"), (1, "abc"), (1, "abc")), 2.0)
    assert report.figures["never"]["moved_over_never"] == 1
    assert report.figures["second-hit"]["moved_over_never"] == pytest.approx(6 / 9)
    assert report.figures["always"]["ratio_to_one_pool"] == 1
    assert {t.name: t.met for t in report.targets} == {
        "second-hit: ratio_to_one_pool": True,
        "second-hit: moved_over_never": True,
    }
