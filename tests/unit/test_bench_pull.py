from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from federation.bench import pull
from federation.bench.cpu import GroupProcesses, grown, total
from federation.bench.engines import BenchError
from federation.bench.pull_figures import (
    Measured,
    Outcome,
    WorkersOutcome,
    figures,
    targets,
    workers_targets,
)
from federation.bench.pull_options import PullBench
from federation.bench.pull_shaped import ShapedBench, ShapedOutcome, shaped_targets
from federation.bench.worker import Work, Worker, WorkerError

SIZE = 1_000_000


def measured(ms: float, **cpu_s: float) -> Measured:
    found = Measured()
    for _ in range(3):
        found.add(ms, cpu_s)
    return found


def an_outcome() -> Outcome:
    return Outcome(
        deferred=measured(40.0, engine=0.006, gateway=0.006),
        inside=measured(60.0, engine=0.006, gateway=0.012),
        part={
            "get": measured(10.0, get=0.003),
            "stream": measured(20.0, server=0.003, client=0.003),
            "digests": measured(10.0, digests=0.001),
            "put": measured(40.0, put=0.005),
        },
        first_ms=[4.0, 6.0, 4.0],
    )


def test_a_pull_is_compared_with_the_sum_of_its_parts() -> None:
    found = figures(an_outcome(), 1000, 1000)
    deferred, inside = found["put deferred"], found["put inside"]
    assert deferred["core_s_per_gb"] == pytest.approx(12.0)
    assert deferred["core_s_per_gb of engine"] == pytest.approx(6.0)
    assert deferred["cost_over_parts"] == pytest.approx(12 / 10)
    assert inside["cost_over_parts"] == pytest.approx(18 / 15)
    assert deferred["speed_over_parts"] == pytest.approx(
        40 / 40
    )  # 10 + 20 + 10 ms one after the other
    assert inside["speed_over_parts"] == pytest.approx(80 / 60)
    assert {t.name: t.met for t in targets(found)} == {
        "put deferred: cost over its parts": False,
        "put deferred: speed over its parts": True,
        "put inside: cost over its parts": False,
        "put inside: speed over its parts": True,
        "first block, p50": True,
    }


def test_what_was_not_measured_is_not_judged() -> None:
    assert [t.met for t in targets(figures(Outcome(), 1, 1))] == [None] * 5
    assert [t.met for t in shaped_targets({})] == [None] * 2


def test_what_a_first_token_waits_for_on_a_link_is_told_in_messages() -> None:
    outcome = ShapedOutcome(idle_ms=[50.0] * 9, beside_ms=[92.0] * 9, prefetched=20e6)
    outcome.whole_ms = [2.2e3]
    link = outcome.figures(ShapedBench(mbit=200.0), 256 << 20)
    assert link["message_ms"] == pytest.approx(41.94, abs=0.01)
    assert link["prefetch_share"] == pytest.approx(0.8)
    late, share = shaped_targets(link)
    assert late.value == pytest.approx(42 / 41.94, abs=0.01)
    assert (late.met, share.met) == (True, True)
    assert share.value == pytest.approx(0.976, abs=0.001)


def test_processor_time_is_told_by_what_the_processes_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = psutil.Process(os.getpid())
    monkeypatch.setattr(psutil, "process_iter", lambda: [me])
    monkeypatch.setattr(me, "environ", lambda: {"MOONMESH_DATA_DIR": str(tmp_path)})
    monkeypatch.setattr(me, "cmdline", lambda: ["python", "-m", "federation.serving", "5", "3"])
    found = GroupProcesses({"east": tmp_path, "west": tmp_path / "other"})
    before = found.seconds()
    sum(n * n for n in range(2_000_000))
    used = grown(before, found.seconds())
    assert set(used) == {"east serving"}
    assert used["east serving"] > 0
    assert total(used, ["west store"]) == 0


def doubles() -> Work:
    def work(what: str, about: Mapping[str, Any]) -> float:
        if what == "fail":
            raise ValueError("it does")
        if what == "end":
            os._exit(3)
        return 2.0 * float(about["n"])

    return work


def test_a_worker_answers_and_says_what_failed() -> None:
    worker = Worker("doubler", doubles)
    try:
        worker.ready()
        assert worker.ask("double", n=21) == 42.0
        assert worker.seconds() > 0
        with pytest.raises(WorkerError, match="ValueError: it does"):
            worker.ask("fail")
        with pytest.raises(WorkerError, match="its process has ended"):
            worker.ask("end")
    finally:
        worker.close()


def test_several_processes_are_compared_round_by_round() -> None:
    outcome = WorkersOutcome()
    for name, costs in (("2 + 2", [3.0, 2.2]), ("1 + 1", [2.0, 2.0]), ("1 + 0", [1.0, 2.0])):
        arm = outcome.arms.setdefault(name, Measured())
        for cost in costs:
            arm.add(1000.0, {"gateway": cost})
    found = outcome.figures(1 << 20)
    assert list(found)[:3] == ["1 + 0", "1 + 1", "2 + 2"]
    assert found["cost_over_one_of_each"] == pytest.approx((1.5 + 1.1) / 2)
    assert found["cost_of_a_process_to_pull"] == pytest.approx((2.0 + 1.0) / 2)
    (target,) = workers_targets(found)
    assert not target.met
    (target,) = workers_targets(WorkersOutcome().figures(1 << 20))
    assert target.met is None


def test_what_was_measured_until_something_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(options: PullBench, folder: Path, outcome: Outcome, say: object) -> None:
        outcome.first_ms += [3.0, 5.0]
        raise BenchError("no room", where="g1")

    monkeypatch.setattr(pull, "_session", breaks)
    report, outcome = pull.pull_report(PullBench(rounds=1), lambda _: None)
    assert str(outcome.failed) == "g1: no room"
    assert report.interrupted
    assert report.figures["singles"] == 2
