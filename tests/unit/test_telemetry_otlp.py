"""Spans arrive at a collector: a small gRPC server on OpenTelemetry's own service definition."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

from federation import telemetry


class Collector(service.TraceServiceServicer):
    def __init__(self) -> None:
        self.requests: list[messages.ExportTraceServiceRequest] = []

    def Export(  # noqa: N802
        self, request: messages.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> messages.ExportTraceServiceResponse:
        self.requests.append(request)
        return messages.ExportTraceServiceResponse()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    service.add_TraceServiceServicer_to_server(found, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    yield found
    telemetry.shutdown()
    server.stop(None).wait(5)


def test_spans_reach_the_collector_and_the_file(collector: Collector, tmp_path: Path) -> None:
    telemetry.setup("gateway", "west", tmp_path)
    with telemetry.span("serve.pull", {"moonmesh.keys": 7}, kind=telemetry.SpanKind.SERVER):
        pass
    assert telemetry.flush(10)
    (request,) = collector.requests
    (resource_spans,) = request.resource_spans
    resource = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
    assert (resource["service.name"], resource["moonmesh.group"]) == ("gateway", "west")
    (found,) = resource_spans.scope_spans[0].spans
    assert found.name == "serve.pull"
    assert found.attributes[0].value.int_value == 7
    (file,) = tmp_path.glob("*.jsonl")
    assert found.trace_id.hex() in file.read_text()
    assert telemetry.stats()["spans_exported"] == 2


def test_none_as_exporter_sends_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    telemetry.setup("gateway", "west", None)
    with telemetry.span("serve.pull"):
        pass
    assert telemetry.flush(5)
    assert collector.requests == []


def test_a_protocol_that_is_not_spoken_is_said_and_tracing_goes_on(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    telemetry.setup("gateway", "west", None)
    assert "http/protobuf" in caplog.text
    assert not telemetry.enabled()


def test_a_collector_that_is_away_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    telemetry.setup("gateway", "west", tmp_path)
    with telemetry.span("serve.pull"):
        pass
    assert not telemetry.flush(0.2)
    telemetry.shutdown(0.2)
    (file,) = tmp_path.glob("*.jsonl")
    assert "serve.pull" in file.read_text()
