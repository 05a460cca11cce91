"""Reads span files of groups back into traces."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from federation.errors import UsageError
from federation.span_export import SPAN_FILE_GLOB

SPANS_MAX = 500_000
"""Spans read at once, newest files first: about 400 MB."""
LINE_BYTES = 1024 * 1024
"""Longest line taken for a span."""
_HEX = re.compile(r"[0-9a-f]+")


class SpanRecord(NamedTuple):
    """A span as `federation.span_export` wrote it. Times in ns since 1970."""

    trace: str
    span: str
    parent: str
    name: str
    kind: str
    service: str
    group: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


@dataclass
class Node:
    """A span and what it called, by start."""

    span: SpanRecord
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Trace:
    """All spans of one trace that were found."""

    trace: str
    spans: tuple[SpanRecord, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups it went through, in order of their first span."""
        ordered = sorted(self.spans, key=lambda s: s.start_ns)
        return tuple(dict.fromkeys(s.group for s in ordered))

    @property
    def start_ns(self) -> int:
        return min(s.start_ns for s in self.spans)

    @property
    def duration_ms(self) -> float:
        return (max(s.end_ns for s in self.spans) - self.start_ns) / 1e6

    def roots(self) -> list[Node]:
        """Its trees. A span whose parent was not found is a root too."""
        nodes = {s.span: Node(s) for s in sorted(self.spans, key=lambda s: s.start_ns)}
        roots = []
        for node in nodes.values():
            parent = nodes.get(node.span.parent)
            if parent is None or parent is node:
                roots.append(node)
            else:
                parent.children.append(node)
        # Spans that are each other's parents hang below no root: a file may hold anything.
        reached = {id(n) for root in roots for n in walk(root)}
        return roots + [Node(n.span) for n in nodes.values() if id(n) not in reached]


def walk(node: Node) -> Iterator[Node]:
    """A node and everything below it."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(found.children)


@dataclass
class SpanSet:
    """What was read.

    Attributes:
        malformed: file → lines that are no spans.
        skipped: files that were not read because of the limit.
    """

    traces: dict[str, Trace]
    malformed: Counter[str]
    skipped: int = 0

    def find(self, prefix: str) -> Trace:
        """The trace whose id begins so.

        Raises:
            UsageError: if there is none, or more than one.
        """
        matches = [t for t in self.traces if t.startswith(prefix.lower())]
        if len(matches) == 1:
            return self.traces[matches[0]]
        if not matches:
            raise UsageError(
                f"there is no trace {prefix}", hint="without an id: the newest is shown"
            )
        raise UsageError(f"{len(matches)} traces begin with {prefix}", hint="give more digits")

    def ranked(self, longest: bool = False) -> list[Trace]:
        """Traces through several groups first; among those the newest, or the longest, first."""
        return sorted(
            self.traces.values(),
            key=lambda t: (len(t.groups) > 1, t.duration_ms if longest else t.start_ns),
            reverse=True,
        )


def span_folder(folder: Path) -> Path:
    """Where a group's span files are: `folder` is its folder, its data directory, or has them.

    Raises:
        UsageError: if there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError("there is no such folder", where=str(folder))
    for candidate in (folder / "data" / "traces", folder / "traces"):
        if candidate.is_dir():
            return candidate
    return folder


def load_spans(folders: Iterable[Path], limit: int = SPANS_MAX) -> SpanSet:
    """Read all span files of some groups (see `span_folder`).

    Raises:
        UsageError: if a folder is missing.
    """
    files: list[Path] = []
    for folder in folders:
        place = span_folder(folder)
        files += [*place.glob(SPAN_FILE_GLOB), *place.glob(SPAN_FILE_GLOB + ".1")]
    files.sort(key=lambda p: p.stat().st_mtime, reverse=True)
    malformed: Counter[str] = Counter()
    by_trace: defaultdict[str, list[SpanRecord]] = defaultdict(list)
    count = skipped = 0
    for file in files:
        if count >= limit:
            skipped += 1
            continue
        with open(file, "rb") as lines:
            while (line := lines.readline(LINE_BYTES)) and count < limit:
                span = parse_span(line)
                if span is None:
                    malformed[str(file)] += 1
                else:
                    by_trace[span.trace].append(span)
                    count += 1
    traces = {t: Trace(t, tuple(spans)) for t, spans in by_trace.items()}
    return SpanSet(traces, malformed, skipped)


def parse_span(line: bytes) -> SpanRecord | None:
    """A line of a span file; None if it is no span."""
    try:
        found = json.loads(line)
        failed = found.get("status") == "error"
        record = SpanRecord(
            trace=_text(found, "trace"),
            span=_text(found, "span"),
            parent=_text(found, "parent"),
            name=_text(found, "name"),
            kind=_text(found, "kind"),
            service=_text(found, "service"),
            group=_text(found, "group"),
            start_ns=_time(found["start_ns"]),
            end_ns=_time(found["end_ns"]),
            attributes=dict(found["attributes"]),
            error=str(found.get("error", "failed")) if failed else "",
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    good = _HEX.fullmatch(record.trace) and _HEX.fullmatch(record.span)
    return record if good and record.end_ns >= record.start_ns else None


def _text(found: dict[str, Any], name: str) -> str:
    value = found[name]
    if not isinstance(value, str) or len(value) > 256:
        raise ValueError(name)
    return value


def _time(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a time")
    return value


def durations_ms(traces: Iterable[Trace], name: str) -> Sequence[float]:
    """How long all spans of a name took, in ms."""
    return [s.duration_ms for t in traces for s in t.spans if s.name == name]
