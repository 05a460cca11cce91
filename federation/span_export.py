"""Where spans go: a bounded queue with one thread, and a JSON-lines file with a size cap."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from opentelemetry.context import Context, attach, detach, set_value
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger(__name__)

BATCH_SPANS = 512
"""Spans handed to an exporter at once; a full batch is sent at once."""
INTERVAL_S = 0.5
"""Longest a span waits in an idle process: `trace show` sees a request within a second."""
SPAN_FILE_GLOB = "*.jsonl"


class QueueProcessor(SpanProcessor):
    """Hands ended spans to an exporter from a thread of its own. Full queue: the span is dropped.

    The SDK's own batch processor drops without saying how many; here drops are counted.
    """

    def __init__(self, exporter: SpanExporter, limit: int, interval: float = INTERVAL_S) -> None:
        self._exporter = exporter
        self._limit = limit
        self._interval = interval
        self._queue: deque[ReadableSpan] = deque()
        self._condition = threading.Condition()
        self._flush_to = 0  # `_taken` that a waiting flush needs; wakes the thread early
        self._taken = 0  # spans ever put into the queue
        self._done = 0  # of those, spans that the exporter has answered for
        self._closed = False
        self.dropped = 0
        """Spans that found the queue full, or came after `close`."""
        self.exported = 0
        self.failed = 0
        """Spans that the exporter took and could not deliver."""
        self._thread = threading.Thread(target=self._run, name="moonmesh-spans", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        return len(self._queue)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None: ...

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        with self._condition:
            if self._closed or len(self._queue) >= self._limit:
                self.dropped += 1
                return
            self._queue.append(span)
            self._taken += 1
            if len(self._queue) == BATCH_SPANS:
                self._condition.notify_all()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait until all spans ended before this call are delivered (or have failed)."""
        with self._condition:
            target = self._taken
            self._flush_to = max(self._flush_to, target)
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._done >= target, timeout_millis / 1000)

    def shutdown(self) -> None:
        self.close(2.0)

    def close(self, timeout: float) -> None:
        """Deliver what is queued, then end; after `timeout` seconds the rest is left behind."""
        end = time.monotonic() + timeout
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("%d spans were left behind: their exporter is slow", self.queued)
        # Ends the retries of a collector that is away; bounded, and it may not outlive us either.
        ending = threading.Thread(target=self._exporter.shutdown, daemon=True)
        ending.start()
        ending.join(max(0.1, end - time.monotonic()))

    def _run(self) -> None:
        # Exporters that use gRPC must not trace their own calls.
        token = attach(set_value("suppress_instrumentation", True))
        try:
            while self._round():
                pass
        finally:
            detach(token)

    def _round(self) -> bool:
        with self._condition:
            self._condition.wait_for(
                lambda: (
                    self._closed
                    or len(self._queue) >= BATCH_SPANS
                    or (self._flush_to > self._done and bool(self._queue))
                ),
                self._interval,
            )
            batch = [self._queue.popleft() for _ in range(min(BATCH_SPANS, len(self._queue)))]
            if not batch:
                return not self._closed
        ok = False
        try:
            ok = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:
            # An exporter's fault must not end the thread: the next batch may do better.
            log.warning("a batch of %d spans was lost: %r", len(batch), error)
        with self._condition:
            self._done += len(batch)
            if ok:
                self.exported += len(batch)
            else:
                self.failed += len(batch)
            self._condition.notify_all()
        return True


class FileExporter(SpanExporter):
    """One JSON object a line; at `limit` bytes the file becomes `<name>.1` and a new one begins.

    Raises:
        OSError: if the file cannot be opened.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self._limit = limit
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.path, flags, 0o600)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        data = "".join(json.dumps(span_record(s), default=str) + "\n" for s in spans).encode()
        try:
            if self._fd < 0:
                self._fd = self._open()
                self._size = os.fstat(self._fd).st_size
            if self._size and self._size + len(data) > self._limit:
                self._rotate()
            self._write(data)
        except OSError as error:
            log.warning("spans were not written to %s: %s", self.path, error)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _rotate(self) -> None:
        os.close(self._fd)
        self._fd = -1
        os.replace(self.path, self.path.with_name(self.path.name + ".1"))
        self._fd = self._open()
        self._size = 0

    def _write(self, data: bytes) -> None:
        start = self._size
        while data:
            try:
                done = os.write(self._fd, data)
            except OSError:
                # Half a line (a full disk) would also spoil the next one.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, start)
                    self._size = start
                raise
            self._size += done
            data = data[done:]

    def shutdown(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


def span_record(span: ReadableSpan) -> dict[str, Any]:
    """A span as the file has it: ids in hex, times in ns since 1970."""
    context, parent, resource = span.context, span.parent, span.resource.attributes
    record: dict[str, Any] = {
        "trace": f"{context.trace_id:032x}" if context else "",
        "span": f"{context.span_id:016x}" if context else "",
        "parent": f"{parent.span_id:016x}" if parent else "",
        "name": span.name,
        "kind": span.kind.name.lower(),
        "service": resource.get("service.name", ""),
        "group": resource.get("moonmesh.group", ""),
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "attributes": dict(span.attributes or {}),
    }
    if not span.status.is_unset:
        record["status"] = span.status.status_code.name.lower()
    if span.status.description:
        record["error"] = span.status.description
    if span.links:
        record["links"] = [
            f"{li.context.trace_id:032x}/{li.context.span_id:016x}" for li in span.links
        ]
    if span.events:
        record["events"] = [
            {"name": e.name, "ns": e.timestamp, "attributes": dict(e.attributes or {})}
            for e in span.events
        ]
    return record


def prune(directory: Path, limit: int) -> None:
    """Delete the oldest span files of ended processes until the rest is below `limit` bytes."""
    files: list[tuple[float, int, Path]] = []
    for pattern in (SPAN_FILE_GLOB, SPAN_FILE_GLOB + ".1"):
        for path in directory.glob(pattern):
            with contextlib.suppress(OSError):  # another process prunes too
                found = path.stat()
                files.append((found.st_mtime, found.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            return
        pid = path.name.split(".jsonl")[0].rpartition(".")[2]
        if pid.isdigit() and psutil.pid_exists(int(pid)):
            continue
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
