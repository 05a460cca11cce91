"""What may be mixed: envelopes, fingerprints, stored keys and digests."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from federation.identity import (
    Envelope,
    Fingerprint,
    block_digest,
    key_hash,
    stored_key,
)

FIELDS: dict[str, Any] = {
    "model": "demo-7b",
    "revision": "abc",
    "engine": "sglang-hicache",
    "kv_dtype": "bf16",
    "quantisation": "",
    "tp": 2,
    "pp": 1,
    "cp": 1,
    "block_tokens": 64,
    "layout": "page_first",
    "hash_scheme": "sha256",
    "hash_seed": "",
    "salt": "",
}
ENVELOPE = Envelope(**FIELDS)
# The names under which blocks are stored: if this changes, every group's blocks are orphaned.
GOLDEN = "0f9d5109ab53c59a15c8384a8dfa501a"


def test_the_fingerprint_is_that_of_the_format() -> None:
    assert set(FIELDS) == set(Envelope.model_fields)
    assert str(ENVELOPE.fingerprint()) == GOLDEN
    assert repr(ENVELOPE.fingerprint()) == f"Fingerprint({GOLDEN})"


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_every_field_makes_another_namespace(name: str) -> None:
    value = FIELDS[name]
    other = value + 1 if isinstance(value, int) else value + "x"
    assert Envelope(**{**FIELDS, name: other}).fingerprint() != ENVELOPE.fingerprint()


def test_what_is_left_out_is_the_default() -> None:
    short = {key: value for key, value in FIELDS.items() if value not in ("", 1, "sha256")}
    assert Envelope(**short).fingerprint() == ENVELOPE.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"model": ""},
        {"model": "a\nb"},
        {"model": "x" * 257},
        {"tp": 0},
        {"tp": "2"},
        {"block_tokens": 0},
        {"colour": "blue"},
    ],
)
def test_an_envelope_that_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Envelope(**{**FIELDS, **change})


def test_a_stored_key_begins_with_the_namespace() -> None:
    assert stored_key(ENVELOPE.fingerprint(), "a/b") == f"{ENVELOPE.fingerprint().hex()}/a/b"


def test_a_fingerprint_has_16_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes, not 15"):
        Fingerprint(bytes(15))


def test_a_digest_depends_on_namespace_key_and_bytes() -> None:
    one, two = bytes(16), bytes(15) + b"\1"
    digests = {
        block_digest(one, "key", b"data"),
        block_digest(two, "key", b"data"),
        block_digest(one, "kez", b"data"),
        block_digest(one, "key", b"date"),
        block_digest(one, "keyd", b"ata"),
    }
    assert len(digests) == 5
    assert {len(digest) for digest in digests} == {16}
    assert block_digest(one, "key", memoryview(b"data")) == block_digest(one, "key", b"data")


def test_a_key_hash_has_64_bits_and_a_namespace() -> None:
    one, two = bytes(16), bytes(15) + b"\1"
    assert 0 <= key_hash(one, "key") < 1 << 64
    assert key_hash(one, "key") != key_hash(two, "key")
    assert key_hash(one, "key") == key_hash(one, "key")
