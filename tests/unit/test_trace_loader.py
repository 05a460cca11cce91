from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from federation.bench.trace import LINE_BYTES, TraceError, packaged_trace, read_trace

GOOD: dict[str, Any] = {
    "timestamp": 3052,
    "input_length": 7234,
    "output_length": 794,
    "hash_ids": [0, 28, 29],
}


def a_trace(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_request_as_it_is_written(tmp_path: Path) -> None:
    (found,) = read_trace(a_trace(tmp_path, json.dumps(GOOD | {"more": "ignored"}), "", "  "))
    assert found == (3052.0, 7234, 794, (0, 28, 29))


def test_only_as_many_lines_as_wanted_are_looked_at(tmp_path: Path) -> None:
    path = a_trace(tmp_path, json.dumps(GOOD), json.dumps(GOOD), "broken")
    assert len(list(read_trace(path, 2))) == 2
    with pytest.raises(TraceError):
        list(read_trace(path, 3))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        *(
            (json.dumps({k: v for k, v in GOOD.items() if k != name}), f"{name} is missing")
            for name in GOOD
        ),
        (json.dumps(GOOD | {"timestamp": "now"}), "timestamp: not a number"),
        (json.dumps(GOOD | {"timestamp": True}), "timestamp: not a number"),
        (json.dumps(GOOD | {"timestamp": -1}), "timestamp: not a time"),
        ('{"timestamp": NaN, "hash_ids": [1]}', "timestamp: not a time"),
        (json.dumps(GOOD | {"input_length": 1.5}), "input_length: not a whole number"),
        (json.dumps(GOOD | {"output_length": -2}), "output_length: not a whole number"),
        (json.dumps(GOOD | {"hash_ids": []}), "hash_ids: not a list with at least one id"),
        (json.dumps(GOOD | {"hash_ids": "0"}), "hash_ids: not a list with at least one id"),
        (json.dumps(GOOD | {"hash_ids": [1, True]}), "hash_ids: not all whole numbers"),
        (json.dumps(GOOD | {"hash_ids": [1, -1]}), "hash_ids: not all whole numbers"),
        (json.dumps(GOOD | {"hash_ids": [1, 2, 1]}), "an id occurs twice"),
        (json.dumps(GOOD | {"hash_ids": list(range(65_537))}), "more than 65536 ids"),
        (" " * LINE_BYTES + json.dumps(GOOD), "longer than"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: str, what: str) -> None:
    path = a_trace(tmp_path, json.dumps(GOOD), "", line, json.dumps(GOOD))
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    assert caught.value.where == f"{path}:3"
    assert what in caught.value.what
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"\x1f\x8b\x08\x00", "not UTF-8 text: byte 0x8B at place 2"),
        (b'{"timestamp": "\xff"}', "not UTF-8 text: byte 0xFF at place 16"),
        (b'{"timestamp": "\x00"}', "not UTF-8 text: byte 0x00 at place 16"),
        ("{}".encode("utf-16"), "not UTF-8 text: byte 0xFF at place 1"),
        ("{}".encode("utf-16-le"), "not UTF-8 text: byte 0x00 at place 2"),
        (b"\xef\xbb\xbf{}", "it begins with a byte-order mark"),
    ],
)
def test_what_is_no_text_is_told_as_such(tmp_path: Path, line: bytes, what: str) -> None:
    path = tmp_path / "trace.jsonl"
    good = json.dumps(GOOD).encode()
    path.write_bytes(b"\n".join([good, line, good]))
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    assert caught.value.where == f"{path}:2"
    assert what in caught.value.what
    assert caught.value.hint


def test_a_byte_order_mark_at_the_beginning_of_the_file_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert len(list(read_trace(path))) == 1


def test_a_file_without_a_request_or_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request"):
        list(read_trace(a_trace(tmp_path, "")))
    with pytest.raises(TraceError, match="No such file") as caught:
        list(read_trace(tmp_path / "absent"))
    assert caught.value.exit_code == 2


def test_the_packaged_cut_is_whole_small_and_has_its_licence() -> None:
    path = packaged_trace()
    assert path.stat().st_size <= 200_000
    assert len(list(read_trace(path))) == 700
    note = path.with_name("LICENSE.conversation_head").read_text()
    assert "kvcache-ai/Mooncake" in note
    assert "Apache License" in note
