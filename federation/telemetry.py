"""Traces across groups and the process's counters.

Spans go, through a bounded queue and a thread of its own, to a JSON-lines file with a size cap, and
to a collector where the standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, ...) name one.
A full queue drops spans and counts them: nobody ever waits for telemetry. `OTEL_SDK_DISABLED`,
`OTEL_TRACES_SAMPLER`, `OTEL_TRACES_EXPORTER=none` and `OTEL_RESOURCE_ATTRIBUTES` are honoured.

The tracer provider is this module's own, never the global one: FederatedStore lives inside engines
that may trace themselves. Context is shared, so their spans are the parents of ours.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from pathlib import Path
from types import TracebackType

from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NoOpTracer,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from federation.counters import Counters, Samples, counters
from federation.span_export import FileExporter, QueueProcessor, prune

__all__ = [
    "SPAN_ENGINE_EXISTS",
    "SPAN_ENGINE_GET",
    "SPAN_ENGINE_PUT",
    "SPAN_GATEWAY_LOCATE",
    "SPAN_GATEWAY_PULL",
    "SPAN_PEER_PULL",
    "SPAN_SERVE_CHECK",
    "SPAN_SERVE_PULL",
    "SPAN_SERVE_READ",
    "SPAN_STORE_ADMIT",
    "SPAN_TRANSFER_VERIFY",
    "Counters",
    "Samples",
    "SpanKind",
    "counters",
    "enabled",
    "extract",
    "flush",
    "inject",
    "setup",
    "setup_unless_done",
    "shutdown",
    "span",
    "stats",
    "tracer",
]

log = logging.getLogger(__name__)

SPAN_ENGINE_GET = "engine.get"
SPAN_ENGINE_EXISTS = "engine.exists"
SPAN_ENGINE_PUT = "engine.put"
SPAN_GATEWAY_PULL = "gateway.pull"
SPAN_GATEWAY_LOCATE = "gateway.locate"
SPAN_PEER_PULL = "peer.pull"
"""The asker's side of the wire; `serve.pull` is its child in the other group."""
SPAN_SERVE_PULL = "serve.pull"
SPAN_SERVE_CHECK = "serve.check"
SPAN_SERVE_READ = "serve.read"
SPAN_TRANSFER_VERIFY = "transfer.verify"
SPAN_STORE_ADMIT = "store.admit"

QUEUE_SPANS = 8192
"""Spans that may wait for one exporter: a burst of seconds; about 2 kB each, so 16 MB at most."""
FILE_BYTES = 16 * 1024 * 1024
"""Size of a span file at which it becomes `.1` and a new one begins: 32 MiB a process at most."""
DIRECTORY_BYTES = 256 * 1024 * 1024
"""All span files of a group; at setup the oldest of processes that are gone make room."""
TRACESTATE_BYTES = 512
"""Longest `tracestate` taken from metadata (the W3C's own minimum for propagation)."""

Metadata = Iterable[tuple[str, str | bytes]]

_propagator = TraceContextTextMapPropagator()
_no_tracer = NoOpTracer()
_no_span: AbstractContextManager[Span] = nullcontext(INVALID_SPAN)


class _State:
    """What `setup` made. Replaced as a whole, so readers need no lock."""

    __slots__ = ("asked", "processors", "provider", "tracer")

    def __init__(
        self,
        asked: tuple[str, str, Path | None] | None = None,
        provider: TracerProvider | None = None,
        processors: tuple[QueueProcessor, ...] = (),
    ) -> None:
        self.asked = asked
        self.provider = provider
        self.processors = processors
        self.tracer: Tracer | None = None
        if provider is not None:
            made = provider.get_tracer("moonmesh")
            # A disabled SDK hands out no-op tracers: take the cheap path for those.
            self.tracer = None if isinstance(made, NoOpTracer) else made


_state = _State()
_setup_lock = threading.Lock()


def setup(service: str, group: str, directory: Path | None) -> None:
    """Start tracing in this process. The same call again does nothing; another one ends the first.

    Args:
        service: `service.name`, and the head of the file's name, e.g. `gateway`.
        group: `moonmesh.group`.
        directory: where `<service>.<pid>.jsonl` goes; None for no file.

    A directory that cannot be written is logged and tracing goes on without a file: telemetry never
    stops a gateway.
    """
    global _state
    with _setup_lock:
        asked = (service, group, directory)
        if _state.asked == asked:
            return
        old, _state = _state, _State()
        _end(old, 1.0)
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            _state = _State(asked)
            return
        exporters = [e for e in (_file_exporter(service, directory), _otlp_exporter()) if e]
        if not exporters:
            _state = _State(asked)
            return
        provider = TracerProvider(
            resource=Resource.create({"service.name": service, "moonmesh.group": group}),
            shutdown_on_exit=False,
        )
        processors = tuple(QueueProcessor(e, QUEUE_SPANS) for e in exporters)
        for processor in processors:
            provider.add_span_processor(processor)
        _state = _State(asked, provider, processors)


def setup_unless_done(service: str, group: str, directory: Path | None) -> None:
    """`setup`, unless this process has been set up already: by whoever it belongs to."""
    if _state.asked is None:
        setup(service, group, directory)


def _file_exporter(service: str, directory: Path | None) -> SpanExporter | None:
    if directory is None:
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        prune(directory, DIRECTORY_BYTES)
        return FileExporter(directory / f"{service}.{os.getpid()}.jsonl", FILE_BYTES)
    except OSError as error:
        log.warning("no span file in %s: %s", directory, error)
        return None


def _otlp_exporter() -> SpanExporter | None:
    env = os.environ
    if not (
        env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    ) or (env.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none"):
        return None
    protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
    )
    if protocol != "grpc":
        log.warning("spans are not sent: OTLP over %r is not supported here, only grpc", protocol)
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError:
        log.warning("an OTLP endpoint is set, but its exporter is not installed: moonmesh[otlp]")
        return None
    return OTLPSpanExporter()


def _end(state: _State, timeout: float) -> None:
    for processor in state.processors:
        processor.close(timeout)
    # Not provider.shutdown(): it would close the processors again, without a bound.


def _forget_after_fork() -> None:
    """A forked child has no exporter thread: it traces nothing until it calls `setup` itself."""
    global _state, _setup_lock
    _state = _State()
    _setup_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def enabled() -> bool:
    """Whether spans are recorded (some may still be sampled out)."""
    return _state.tracer is not None


def tracer() -> Tracer:
    """The tracer, a no-op one where tracing is off. `span` is cheaper on a hot path."""
    return _state.tracer or _no_tracer


def span(
    name: str,
    attributes: Mapping[str, AttributeValue] | None = None,
    *,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    links: Sequence[Link] = (),
) -> AbstractContextManager[Span]:
    """A context manager: a span that is current inside, ended at its exit, failed by an exception.

    Args:
        parent: from `extract`; None for the current context.
        links: spans that wait for this one's work (several asks for one block are one pull).

    Costs less than a microsecond where tracing is off; a remote parent is then still passed on, so
    that a process that does not trace does not cut a trace that goes through it.
    """
    active = _state.tracer
    if active is None:
        return _no_span if parent is None else _Passing(parent)
    made = active.start_span(name, parent, kind, attributes, links, record_exception=False)
    return _Active(made, parent)


class _Active(AbstractContextManager[Span]):
    __slots__ = ("_parent", "_span", "_token")

    def __init__(self, made: Span, parent: Context | None) -> None:
        self._span = made
        self._parent = parent
        self._token: Token[Context] | None = None

    def __enter__(self) -> Span:
        self._token = attach(set_span_in_context(self._span, self._parent))
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._token is not None:
            detach(self._token)
        if isinstance(error, Exception):
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        elif error is not None:  # cancelled: nobody's fault, and worth seeing
            self._span.set_attribute("moonmesh.cancelled", True)
        self._span.end()


class _Passing(AbstractContextManager[Span]):
    __slots__ = ("_parent", "_token")

    def __init__(self, parent: Context) -> None:
        self._parent = parent
        self._token: Token[Context] | None = None

    def __enter__(self) -> Span:
        self._token = attach(self._parent)
        return INVALID_SPAN

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            detach(self._token)


def inject() -> tuple[tuple[str, str], ...]:
    """The current context as gRPC metadata (`traceparent`, `tracestate`); empty without a trace."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return tuple(carrier.items())


def extract(metadata: Metadata | None) -> Context:
    """The caller's context from gRPC metadata; an empty one where it is absent or malformed."""
    carrier: dict[str, str] = {}
    for key, value in metadata or ():
        name = key.lower()
        if (
            name in ("traceparent", "tracestate")
            and isinstance(value, str)
            and len(value) <= TRACESTATE_BYTES
        ):
            carrier[name] = value
    return _propagator.extract(carrier, context=Context())


def flush(timeout: float) -> bool:
    """Hand every ended span to the exporters. False when one took over `timeout` seconds."""
    done = [p.force_flush(int(timeout * 1000)) for p in _state.processors]
    return all(done)


def shutdown(timeout: float = 2.0) -> None:
    """Flush and end tracing; spans made afterwards are no-ops. Takes at most `timeout` seconds an
    exporter."""
    global _state
    with _setup_lock:
        old, _state = _state, _State()
        _end(old, timeout)


def stats() -> dict[str, int]:
    """Spans `exported`, `dropped` (queue full), `failed` (exporter or disk) and `queued` now."""
    processors = _state.processors
    return {
        "spans_exported": sum(p.exported for p in processors),
        "spans_dropped": sum(p.dropped for p in processors),
        "spans_failed": sum(p.failed for p in processors),
        "spans_queued": sum(p.queued for p in processors),
    }
