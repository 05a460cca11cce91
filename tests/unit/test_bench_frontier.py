"""The policies of admission beside each other, as a replay over real groups tells them."""

from __future__ import annotations

from federation.bench.command import ReplayCommand
from federation.bench.frontier import frontier_figures, frontier_targets
from federation.bench.tally import Tally


def tally(mode: str, hits: int, moved: int) -> Tally:
    counters = {"moonmesh_peer_bytes_total": moved, "moonmesh_admitted_total": 5}
    return Tally(mode, peer_hits=hits, misses=100 - hits, gateways=[{"counters": counters}] * 2)


def test_each_policy_is_told_with_its_hits_and_what_it_moved() -> None:
    tallies = {
        "federated": tally("federated", 48, 40),
        "one-pool": Tally("one-pool", local_hits=50, misses=50),
        "always": tally("always", 45, 30),
        "never": tally("never", 49, 50),
    }
    columns = frontier_figures(tallies, "second-hit")
    assert list(columns) == ["never", "second-hit", "always"]
    assert [c["ratio_to_one_pool"] for c in columns.values()] == [0.98, 0.96, 0.9]
    assert [c["foreign_bytes"] for c in columns.values()] == [100, 80, 60]
    assert [c["foreign_over_never"] for c in columns.values()] == [1, 0.8, 0.6]
    assert [t.met for t in frontier_targets(columns, "second-hit")] == [True, True]


def test_with_one_policy_there_is_nothing_to_compare() -> None:
    assert frontier_figures({"federated": tally("federated", 48, 40)}, "never") == {}
    two = {"federated": tally("federated", 48, 40), "always": tally("always", 45, 30)}
    columns = frontier_figures(two, "second-hit")
    assert columns["always"]["foreign_over_never"] is None
    assert frontier_targets(columns, "second-hit") == []


def test_a_frontier_is_a_mode_more_for_each_other_policy() -> None:
    assert ReplayCommand().modes == ("federated", "isolated", "one-pool")
    assert ReplayCommand(mode="federated", frontier=True).modes == ("federated", "always", "never")
    assert ReplayCommand(mode="federated", frontier=True, admit="never").modes == (
        "federated",
        "always",
    )
