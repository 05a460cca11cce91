from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from federation.bench.command import ReplayCommand, fill_report
from federation.bench.gateway_figures import cost_figures, gateway_figures, view_age_s
from federation.bench.groups import Layout
from federation.bench.lru import lru_hit_rate
from federation.bench.report import Report
from federation.bench.session import Outcome
from federation.bench.tally import Tally
from federation.bench.trace import TraceError
from federation.cli.bench import app
from federation.cli.progress import ReplayProgress
from federation.errors import UsageError
from federation.span_export import SPAN_FILE_GLOB

GATEWAY = {
    "counters": {
        "moonmesh_peer_bytes_total": 8192,
        "moonmesh_metadata_sent_bytes_total": 100,
    },
    "pulls": {
        "pull_ms": {"count": 10, "mean": 5.0, "p50": 4.0, "p99": 9.0},
        "view_age_ms": {"count": 10, "mean": 50.0, "p50": 40.0, "p99": 90.0},
    },
}


@pytest.mark.parametrize(
    ("args", "error", "what"),
    [
        (["--groups", "1"], UsageError, "at least two groups"),
        (["--json", "/no/such/folder/out.json"], UsageError, "no such folder"),
        (["--trace", "/no/such/trace"], TraceError, "No such file"),
        (["--block-bytes", str(32 << 20)], UsageError, "memory in each engine"),
        (
            ["--block-bytes", "524288", "--capacity-fraction", "100"],
            UsageError,
            "GiB are available",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    args: list[str], error: type[Exception], what: str
) -> None:
    result = CliRunner().invoke(app, ["replay", *args])
    assert isinstance(result.exception, error)
    assert what in str(result.exception)


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--concurrency", "7"], "'--concurrency'"),
        (["--block-bytes", str(64 << 20)], "'--block-bytes'"),
    ],
)
def test_what_a_replay_cannot_do_is_a_wrong_option(args: list[str], what: str) -> None:
    result = CliRunner().invoke(app, ["replay", *args])
    assert result.exit_code == 2
    assert what in "".join(result.output.replace("│", "").split())


def an_outcome(**change: object) -> Outcome:
    tally = Tally("federated", requests=10, local_hits=5, peer_hits=3, misses=2, elapsed_s=2.0)
    tally.gateways = [GATEWAY, GATEWAY, {}]  # the third did not answer
    return Outcome(tallies={"federated": tally}, **change)  # type: ignore[arg-type]


def test_figures_from_gateways() -> None:
    found = gateway_figures(an_outcome())  # 5 requests a second
    assert found == {
        "peer_bytes": 16384,
        "metadata_bytes": 200,
        "view_age_requests": pytest.approx(0.25),
        "pull_ms_p50": 4.0,
        "pull_ms_p99": 9.0,
    }


def test_what_stale_hints_and_metadata_cost() -> None:
    outcome = an_outcome()
    tally = outcome.tallies["federated"]
    tally.stale_misses = 1
    counted = {
        "moonmesh_pull_missing_total": 1,
        "moonmesh_peer_blocks_total": 2,
        "moonmesh_admitted_total": 4,
        "moonmesh_metadata_sent_bytes_total": 500,
    }
    tally.gateways = [{"counters": counted}, {"counters": counted}, {}]
    # Two that were not there, and four that came of which three were read; ten blocks looked up.
    assert cost_figures(outcome, block_bytes=1000) == {
        "stale_misses": 1,
        "wasted_pulls": 3,
        "wasted_share": 0.3,
        "metadata_share": pytest.approx(1000 / ((2 + 8) * 1000)),
    }
    assert set(cost_figures(Outcome(), 1000).values()) == {None}


def test_pulls_are_taken_from_spans_where_there_are_some(tmp_path: Path) -> None:
    (tmp_path / SPAN_FILE_GLOB.replace("*", "gateway.1")).write_text(
        "".join(
            f'{{"trace": "aa", "span": "0{i}", "parent": "", "name": "peer.pull", "kind": "x", '
            f'"service": "gateway", "group": "g0", "start_ns": 0, "end_ns": {i * 10**6}, '
            '"attributes": {}}\n'
            for i in range(1, 6)
        )
    )
    found = gateway_figures(an_outcome(trace_dirs={"federated": [tmp_path]}))
    assert (found["pull_ms_p50"], found["pull_ms_p99"]) == (3.0, 5.0)


def test_without_gateways_nothing_is_claimed() -> None:
    assert set(gateway_figures(Outcome()).values()) == {None}
    assert view_age_s([{"pulls": {"view_age_ms": {"count": 0, "mean": None}}}]) is None


def filled(fraction: float, store_bytes: int, outcome: Outcome) -> Report:
    command = ReplayCommand(requests=10, capacity_fraction=fraction, rate=30.0)
    report = Report("replay")
    layout = Layout(2, store_bytes, 1000, 8000)
    fill_report(report, command, command.workload(), layout, outcome)
    return report


def test_a_report_says_what_the_capacity_became() -> None:
    report = filled(2.0, 16 << 20, an_outcome())
    setup = report.figures["setup"]
    assert setup["pool_bytes"] == 32 << 20
    assert setup["usable_blocks"] == int((32 << 20) * 0.9) // 8192
    assert "became" in report.notes[-1]
    assert report.interrupted is False
    assert report.figures["hit_rate"] == 0.8


def test_the_age_of_views_is_told_in_requests_as_they_were_really_sent() -> None:
    """30 requests a second were asked for, and 5 became of it."""
    assert filled(2.0, 16 << 20, an_outcome()).figures["view_age_requests"] == pytest.approx(0.25)


def test_the_computed_pool_plays_what_was_played() -> None:
    """Of ten requests the first two were answered: the computed figure is of those."""
    report = filled(2.0, 16 << 20, an_outcome(signal=2))
    assert report.figures["one_pool_lru_hit_rate"] is None
    outcome = an_outcome(signal=2)
    outcome.tallies["federated"].played = {0, 1}
    command = ReplayCommand(requests=10)
    expected = lru_hit_rate([r.keys for r in command.workload().requests[:2]], 1000)
    whole = lru_hit_rate([r.keys for r in command.workload().requests], 1000)
    found = filled(2.0, 16 << 20, outcome).figures["one_pool_lru_hit_rate"]
    assert found == expected
    assert found != whole


def test_results_that_failed_are_told_in_a_note() -> None:
    outcome = an_outcome()
    pool = outcome.tallies["one-pool"] = Tally("one-pool", requests=10, misses=10)
    pool.codes["put -900"] = 7
    notes = filled(2.0, 16 << 20, outcome).notes
    assert "one-pool: 7 results" in notes[-1]
    assert "not judged" in notes[-1]
    assert not any("federated: " in note for note in notes)


def test_a_report_of_a_run_that_broke_off_is_marked() -> None:
    assert filled(2.0, 16 << 20, an_outcome(signal=2)).interrupted
    assert filled(2.0, 16 << 20, an_outcome(error=UsageError("x"))).interrupted


def test_progress_without_a_terminal_is_plain_lines() -> None:
    out = io.StringIO()
    progress = ReplayProgress(Console(file=out, width=100))
    progress.begin("federated", 100)
    tally = Tally("federated")
    for _ in range(100):
        tally.requests += 1
        progress.advance(tally)
    progress.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "federated: 100 requests"
    assert 9 <= len(lines) - 1 <= 10
    assert "\x1b" not in out.getvalue()


def test_progress_on_a_terminal_is_a_bar() -> None:
    out = io.StringIO()
    progress = ReplayProgress(Console(file=out, width=100, force_terminal=True))
    progress.begin("federated", 2)
    tally = Tally("federated", requests=2, local_hits=7)
    progress.advance(tally)
    progress.say("done")
    progress.close()
    assert "2/2" in out.getvalue()
