"""Reads Mooncake traces: JSON lines with timestamp, lengths and the prompt's block ids."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from federation.errors import MoonmeshError

LINE_BYTES = 4 * 1024 * 1024
"""Longest line read: a prompt of 2M tokens has some 40 kB; what is longer is no trace."""
UTF8_BOM = b"\xef\xbb\xbf"
"""Some editors put it at the beginning of a file, where it is harmless."""
CHAIN_BLOCKS = 65_536
"""Most blocks of one prompt."""


class TraceError(MoonmeshError):
    """A trace file cannot be used; `where` has the file and the line's number."""

    code = "MM401"


class NoTraceError(TraceError):
    """There is none where the command line says."""

    exit_code = 2


class TraceRequest(NamedTuple):
    """One request of a trace."""

    timestamp_ms: float
    """Arrival, ms since the trace began."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """The prompt's prefix chain: ids of its blocks (512 tokens each), in order."""


def read_trace(path: Path, limit: int | None = None) -> Iterator[TraceRequest]:
    """The first `limit` requests of a JSONL trace, one at a time (all, where it is None).

    Blank lines are skipped; members it does not know are ignored.

    Raises:
        NoTraceError: if the file cannot be read.
        TraceError: if a line is malformed, or there is no request at all.
    """
    count = 0
    try:
        with open(path, "rb") as lines:
            number = 0
            while limit is None or count < limit:
                line = lines.readline(LINE_BYTES + 1)
                if not line:
                    break
                number += 1
                if line.isspace():
                    continue
                where = f"{path}:{number}"
                if len(line) > LINE_BYTES:
                    raise TraceError(f"the line is longer than {LINE_BYTES} bytes", where=where)
                yield parse_line(line.removeprefix(UTF8_BOM) if number == 1 else line, where)
                count += 1
    except OSError as error:
        raise NoTraceError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if count == 0:
        raise TraceError("there is no request in it", where=str(path))


def parse_line(line: bytes, where: str) -> TraceRequest:
    """One line.

    Raises:
        TraceError: that says what is wrong with it; it names `where`.
    """
    try:
        # Not json.loads(line), which guesses among encodings where there are zero bytes.
        found = json.loads(_text(line, where))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not JSON: {error}", where=where) from error
    if not isinstance(found, dict):
        raise TraceError("not a JSON object", where=where)
    timestamp = _member(found, "timestamp", where)
    if isinstance(timestamp, bool) or not isinstance(timestamp, (int, float)):
        raise TraceError("timestamp: not a number", where=where)
    if not math.isfinite(timestamp) or timestamp < 0:
        raise TraceError("timestamp: not a time in ms from 0", where=where)
    blocks = _member(found, "hash_ids", where)
    if not isinstance(blocks, list) or not blocks:
        raise TraceError("hash_ids: not a list with at least one id", where=where)
    if len(blocks) > CHAIN_BLOCKS:
        raise TraceError(f"hash_ids: more than {CHAIN_BLOCKS} ids", where=where)
    if any(type(i) is not int or i < 0 for i in blocks):
        raise TraceError("hash_ids: not all whole numbers from 0", where=where)
    if len(set(blocks)) != len(blocks):
        raise TraceError("hash_ids: an id occurs twice in one chain", where=where)
    return TraceRequest(
        float(timestamp),
        _length(found, "input_length", where),
        _length(found, "output_length", where),
        tuple(blocks),
    )


def _text(line: bytes, where: str) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, place = line[error.start], error.start + 1
    else:
        place = text.find("\0") + 1
        byte = 0
        if not place:
            if text.startswith("\ufeff"):
                raise TraceError(
                    "it begins with a byte-order mark (EF BB BF)",
                    where=where,
                    hint="remove it: it is allowed at the beginning of the file alone",
                )
            return text
    raise TraceError(
        f"not UTF-8 text: byte 0x{byte:02X} at place {place}",
        where=where,
        hint="a trace is JSON lines in UTF-8: uncompressed, and not in UTF-16",
    )


def _member(found: dict[str, Any], name: str, where: str) -> Any:
    try:
        return found[name]
    except KeyError:
        raise TraceError(f"{name} is missing", where=where) from None


def _length(found: dict[str, Any], name: str, where: str) -> int:
    value = _member(found, name, where)
    if type(value) is not int or value < 0:
        raise TraceError(f"{name}: not a whole number from 0", where=where)
    return int(value)


def packaged_trace() -> Path:
    """The cut of Mooncake's conversation trace that comes with this package."""
    return Path(str(resources.files("federation.bench") / "data" / "conversation_head.jsonl"))
