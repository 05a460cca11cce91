"""What a caller gives is cut to steps, and what cannot be used is refused instead of crashing."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest

from federation.batch import STEP_BYTES, STEP_KEYS, Batch, batches
from federation.codes import exist_code, failure_code, put_code, read_code
from federation.config import Limits
from federation.identity import Fingerprint, block_digest
from federation.request_limits import RequestLimits
from federation.timeouts import Deadline
from local_group import outcome as ours
from local_group.outcome import Outcome, Status

FP = Fingerprint(b"f" * 16)


def test_without_a_deadline_all_is_one_step() -> None:
    keys = ["k"] * (3 * STEP_KEYS)
    (batch,) = batches(keys, [1] * len(keys), [1 << 30] * len(keys), None)
    assert len(batch.keys) == len(keys)


def test_with_a_deadline_no_step_is_larger_than_it_may_be() -> None:
    keys = ["k"] * (STEP_KEYS + 1)
    steps = list(batches(keys, [1] * len(keys), [1] * len(keys), Deadline(60)))
    assert [len(b.keys) for b in steps] == [STEP_KEYS, 1]
    sizes = [STEP_BYTES // 2, STEP_BYTES // 2, 1, 2 * STEP_BYTES, 1]
    steps = list(batches(["k"] * 5, [1] * 5, sizes, Deadline(60)))
    assert [b.sizes for b in steps] == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:]]


def test_nothing_is_begun_once_the_deadline_has_passed() -> None:
    assert list(batches(["k"], [1], [1], Deadline(0))) == []


def test_lists_of_different_lengths_are_refused_block_by_block() -> None:
    (batch,) = batches(["a", "b"], [1], [5, 5], None)
    assert (batch.pointers, batch.sizes) == ([0, 0], [0, 0])


@pytest.mark.parametrize("value", [None, -8, "x", 1 << 70, 1.5e300, object()])
def test_what_is_no_address_or_size_is_none(value: object) -> None:
    (batch,) = batches(["a"], [value], [value], None)  # type: ignore[list-item]
    assert (batch.pointers, batch.sizes) == ([0], [0])
    assert batch.digests(FP) == [None]


def test_numpy_numbers_are_numbers() -> None:
    data = ctypes.create_string_buffer(b"block", 5)
    pointers = np.array([ctypes.addressof(data)], np.uint64)
    (batch,) = batches(["a"], pointers, np.array([5]), None)  # type: ignore[arg-type]
    assert batch.digests(FP) == [block_digest(FP, "a", b"block")]


def _stored(keys: Sequence[str]) -> list[str]:
    return [f"p/{key}" for key in keys]


@pytest.mark.parametrize("key", ["", None, 5, b"bytes", "\ud800"])
def test_what_is_no_key_has_no_name(key: object) -> None:
    batch = Batch([key], [1], [1])  # type: ignore[list-item]
    assert batch.names(_stored) == [""]
    assert batch.digests(FP) == [None]


def test_keys_of_any_text_are_keys() -> None:
    keys = ["a", "Füße", "日本", "a\0b", "a,b", "a\nb"]
    assert Batch(keys, [1] * 6, [1] * 6).names(_stored) == [f"p/{key}" for key in keys]


@pytest.mark.parametrize(
    ("outcome", "read", "put", "exist"),
    [
        (Outcome(Status.HIT, 7, 0), 7, None, 1),
        (Outcome(Status.STORED, 7, 0), None, 0, None),
        (Outcome(Status.MISS, 0, -704), -704, -704, 0),
        (Outcome(Status.MISS, 0, -703), -704, -704, 0),
        (Outcome(Status.ERROR, 0, -800), -800, -800, -800),
        (Outcome(Status.TIMEOUT, 0, -901), -901, -901, -901),
        (Outcome(Status.TIMEOUT, 0, ours.DEADLINE_PASSED), -901, -901, -901),
        (Outcome(Status.ERROR, 0, ours.BREAKER_OPEN), -704, -900, 0),
        (Outcome(Status.ERROR, 0, ours.QUEUE_FULL), -900, -900, -900),
        (Outcome(Status.ERROR, 0, ours.STUCK_LIMIT), -900, -900, -900),
        (Outcome(Status.ERROR, 0, ours.NOT_TRIED), -900, -900, -900),
        (Outcome(Status.ERROR, 0, ours.BOUNCE_EXCEEDED), -600, -600, -600),
    ],
)
def test_callers_see_mooncakes_codes_alone(
    outcome: Outcome, read: int | None, put: int | None, exist: int | None
) -> None:
    for function, wanted in ((read_code, read), (put_code, put), (exist_code, exist)):
        if wanted is not None:
            assert function(outcome) == wanted
    assert failure_code(outcome) > -9000


def test_requests_are_cut_by_keys_and_by_bytes() -> None:
    limits = RequestLimits(keys=3, message_bytes=1000)
    assert list(limits.pieces(["k"] * 7)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(limits.pieces(["k" * 300] * 4)) == [slice(0, 2), slice(2, 4)]
    assert list(limits.pieces(["k", "k" * 2000, "k"])) == [slice(0, 1)]
    assert list(limits.pieces([])) == []


def test_a_full_request_of_the_longest_keys_fits_a_message() -> None:
    from moonmesh.v1 import engine_pb2

    limits, told = Limits(), RequestLimits()
    for length in (1, 100, 280, limits.key_bytes_max):
        keys = ["k" * length] * limits.engine_request_keys_max
        count = told.fitting(keys)
        pull = engine_pb2.EnginePullRequest(
            fingerprint=FP, keys=keys[:count], max_sizes=[1 << 26] * count
        )
        written = engine_pb2.Written(key=keys[0], size=1 << 26, digest=FP, chain_position=1 << 20)
        report = engine_pb2.ReportRequest(fingerprint=FP, written=[written] * count)
        assert pull.ByteSize() <= limits.control_message_bytes_max
        assert report.ByteSize() <= limits.control_message_bytes_max
