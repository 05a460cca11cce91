from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from federation import telemetry
from federation.config import PEERS_MAX
from federation.counters import COUNTER_NAMES
from federation.limits.names import GuardName
from federation.span_export import FileExporter, QueueProcessor, prune
from federation.telemetry import Counters, Samples, extract, inject, span


@pytest.fixture(autouse=True)
def _telemetry_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_SAMPLER", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    yield
    telemetry.shutdown()


def written(folder: Path) -> list[dict[str, Any]]:
    assert telemetry.flush(5)
    return [json.loads(line) for f in folder.glob("*.jsonl") for line in f.open()]


def test_spans_carry_resource_attributes_and_times(tmp_path: Path) -> None:
    telemetry.setup("gateway", "east", tmp_path)
    with span(telemetry.SPAN_PEER_PULL, {"moonmesh.keys": 3}):
        pass
    (record,) = written(tmp_path)
    assert record["name"] == "peer.pull"
    assert (record["service"], record["group"]) == ("gateway", "east")
    assert record["attributes"] == {"moonmesh.keys": 3}
    assert 0 < record["start_ns"] <= record["end_ns"]
    assert record["parent"] == ""


def test_context_crosses_grpc_metadata_as_one_trace(tmp_path: Path) -> None:
    telemetry.setup("gateway", "east", tmp_path)
    with span("peer.pull"):
        metadata = inject()
    with span("serve.pull", parent=extract([("x-other", b"1"), *metadata])):
        pass
    client, server = sorted(written(tmp_path), key=lambda r: r["start_ns"])
    assert server["trace"] == client["trace"]
    assert server["parent"] == client["span"]
    assert [name for name, _ in metadata] == ["traceparent"]


def test_an_exception_fails_the_span_and_goes_on(tmp_path: Path) -> None:
    telemetry.setup("gateway", "east", tmp_path)
    with pytest.raises(ValueError, match="wrong"), span("serve.read"):
        raise ValueError("wrong digest")
    (record,) = written(tmp_path)
    assert (record["status"], record["error"]) == ("error", "ValueError: wrong digest")
    assert record["events"][0]["name"] == "exception"


async def test_a_cancelled_span_is_marked_and_no_failure(tmp_path: Path) -> None:
    telemetry.setup("gateway", "east", tmp_path)

    async def pull() -> None:
        with span("peer.pull"):
            await asyncio.Event().wait()

    task = asyncio.create_task(pull())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (record,) = written(tmp_path)
    assert record["attributes"] == {"moonmesh.cancelled": True}
    assert "status" not in record


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        [("traceparent", "rubbish")],
        [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")],
        [("traceparent", "00-" + "0" * 32 + "-b7ad6b7169203331-01")],
        [("traceparent", "0" * 100_000)],
    ],
)
def test_what_is_no_context_starts_a_new_trace(tmp_path: Path, metadata: Any) -> None:
    telemetry.setup("gateway", "east", tmp_path)
    with span("serve.pull", parent=extract(metadata)):
        pass
    (record,) = written(tmp_path)
    assert record["parent"] == ""


def test_a_process_that_does_not_trace_passes_the_context_on() -> None:
    assert not telemetry.enabled()
    header = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with span("gateway.pull", parent=extract([header])):
        assert inject() == (header,)
    assert inject() == ()


def test_the_engines_own_tracing_is_the_parent_and_stays_untouched(tmp_path: Path) -> None:
    before = otel.get_tracer_provider()
    telemetry.setup("engine", "east", tmp_path)
    engine = TracerProvider().get_tracer("an engine")
    with engine.start_as_current_span("prefill") as outer, span("engine.get"):
        pass
    (record,) = written(tmp_path)
    assert record["trace"] == f"{outer.get_span_context().trace_id:032x}"
    assert otel.get_tracer_provider() is before


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_SAMPLER", "always_off")]
)
def test_the_standard_variables_turn_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    telemetry.setup("gateway", "east", tmp_path)
    with span("engine.get"):
        pass
    assert written(tmp_path) == []


def test_setup_twice_is_one_setup_and_another_one_replaces_it(tmp_path: Path) -> None:
    telemetry.setup("gateway", "east", tmp_path / "a")
    first = telemetry.tracer()
    telemetry.setup("gateway", "east", tmp_path / "a")
    assert telemetry.tracer() is first
    with span("engine.get"):
        pass
    telemetry.setup("gateway", "east", tmp_path / "b")
    with span("engine.put"):
        pass
    assert [r["name"] for r in written(tmp_path / "b")] == ["engine.put"]
    assert [r["name"] for r in written(tmp_path / "a")] == ["engine.get"]


def test_a_folder_that_cannot_be_written_does_not_stop_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    telemetry.setup("gateway", "east", tmp_path / "file" / "traces")
    with span("engine.get"):
        pass
    assert telemetry.flush(1)


def test_off_it_costs_next_to_nothing() -> None:
    assert not telemetry.enabled()

    def once() -> float:
        begin = time.perf_counter()
        for _ in range(2000):
            with span("engine.get"):
                pass
        return (time.perf_counter() - begin) / 2000

    # The best of many: what it costs, not what else the machine does. On, it takes some 50 µs.
    assert min(once() for _ in range(20)) < 5e-6


class Gate(SpanExporter):
    """Holds every batch until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.got = 0
        self.result = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        assert self.open.wait(10)
        self.got += len(spans)
        return self.result

    def shutdown(self) -> None:
        self.open.set()


def processor_with(exporter: SpanExporter, limit: int) -> tuple[QueueProcessor, otel.Tracer]:
    processor = QueueProcessor(exporter, limit, interval=0.01)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return processor, provider.get_tracer("test")


def test_a_full_queue_drops_and_counts_and_never_waits() -> None:
    gate = Gate()
    processor, tracer = processor_with(gate, limit=10)
    tracer.start_span("first").end()
    assert gate.entered.wait(5)  # the exporter has it and holds; the queue is empty now
    for _ in range(25):
        tracer.start_span("s").end()
    assert (processor.queued, processor.dropped) == (10, 15)
    assert not processor.force_flush(20)
    gate.open.set()
    assert processor.force_flush(5000)
    assert (processor.exported, processor.failed, processor.queued) == (11, 0, 0)
    processor.close(5)
    tracer.start_span("late").end()
    assert processor.dropped == 16


def test_spans_that_an_exporter_fails_are_counted_as_failed() -> None:
    gate = Gate()
    gate.result = SpanExportResult.FAILURE
    gate.open.set()
    processor, tracer = processor_with(gate, limit=10)
    tracer.start_span("s").end()
    assert processor.force_flush(5000)
    assert (processor.exported, processor.failed) == (0, 1)
    processor.close(5)


def test_an_exporter_that_raises_does_not_end_the_thread() -> None:
    class Broken(Gate):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise RuntimeError("broken")

    processor, tracer = processor_with(Broken(), limit=10)
    for expected in (1, 2):
        tracer.start_span("s").end()
        assert processor.force_flush(5000)
        assert processor.failed == expected
    processor.close(5)


def a_span(name: str = "s") -> ReadableSpan:
    made = TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span(name, Context())
    made.end()
    assert isinstance(made, ReadableSpan)
    return made


def test_the_file_has_a_cap_and_one_predecessor(tmp_path: Path) -> None:
    path = tmp_path / "gateway.1.jsonl"
    exporter = FileExporter(path, limit=2000)
    for _ in range(50):
        assert exporter.export([a_span()]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gateway.1.jsonl", "gateway.1.jsonl.1"]
    for file in tmp_path.iterdir():
        assert 0 < file.stat().st_size <= 2000
        assert file.stat().st_mode & 0o077 == 0
        for line in file.open():
            assert json.loads(line)["name"] == "s"


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gateway.1.jsonl"
    exporter = FileExporter(path, limit=1 << 20)
    exporter.export([a_span("before")])
    real, calls = __import__("os").write, []

    def half(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return int(real(fd, data[: len(data) // 2]))

    monkeypatch.setattr("federation.span_export.os.write", half)
    assert exporter.export([a_span("lost")]) is SpanExportResult.FAILURE
    monkeypatch.undo()
    assert exporter.export([a_span("after")]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    assert [json.loads(line)["name"] for line in path.open()] == ["before", "after"]


def test_prune_deletes_the_oldest_files_of_ended_processes(tmp_path: Path) -> None:
    import os

    alive = tmp_path / f"gateway.{os.getpid()}.jsonl"
    ended = [tmp_path / f"engine.{2**22 + i}.jsonl" for i in (1, 2, 3)]  # above the kernel's pids
    for age, file in enumerate([alive, *ended]):
        file.write_bytes(b"x" * 100)
        os.utime(file, (1000 + age, 1000 + age))
    prune(tmp_path, 250)
    assert sorted(tmp_path.iterdir()) == sorted([alive, ended[2]])


def test_counters_add_from_many_threads() -> None:
    found = Counters()

    def add() -> None:
        for _ in range(1000):
            found.add("moonmesh_peer_bytes_total", 3)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.snapshot() == {"moonmesh_peer_bytes_total": 12000}


def test_there_are_names_for_all_refusals_and_as_many_others() -> None:
    refusals = PEERS_MAX * len(GuardName) * 2
    assert refusals + 1024 <= COUNTER_NAMES


def test_counter_names_are_bounded_and_checked() -> None:
    found = Counters(names=2)
    for name in ("moonmesh_a", "moonmesh_b", "moonmesh_c", "moonmesh_d", "moonmesh_a"):
        found.add(name)
    assert found.snapshot() == {"moonmesh_a": 2, "moonmesh_b": 1, Counters.REFUSED: 2}
    for bad in ("other_total", "moonmesh_A", "moonmesh_x\n"):
        with pytest.raises(ValueError, match="not a counter's name"):
            Counters().add(bad)
    with pytest.raises(ValueError, match="only grows"):
        found.add("moonmesh_a", -1)


def test_samples_keep_the_newest_and_know_the_mean_of_all() -> None:
    found = Samples(limit=100)
    assert (found.quantile(0.5), found.mean()) == (None, None)
    for value in range(1000):
        found.add(value)
    assert (found.quantile(0), found.quantile(0.5), found.quantile(1)) == (900, 950, 999)
    assert (found.count, found.mean()) == (1000, 499.5)
