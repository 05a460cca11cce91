"""The key that verifies for gossip, held to the library that makes the keys and signs."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gossip.ed25519 import PublicKey


def believed(key: PublicKey, signature: bytes, data: bytes) -> bool:
    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


@given(
    secret=st.binary(min_size=32, max_size=32),
    data=st.binary(max_size=200),
    at=st.integers(0, 511),
)
def test_what_openssl_signs_is_verified_and_not_with_one_bit_changed(
    secret: bytes, data: bytes, at: int
) -> None:
    private = Ed25519PrivateKey.from_private_bytes(secret)
    key = PublicKey(private.public_key().public_bytes_raw())
    signature = private.sign(data)
    assert believed(key, signature, data)
    changed = bytearray(signature)
    changed[at // 8] ^= 1 << at % 8
    assert not believed(key, bytes(changed), data)
    assert not believed(key, signature, data + b"\0")


def test_the_first_vector_of_rfc_8032() -> None:
    raw = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b"
    )
    assert believed(PublicKey(raw), signature, b"")


@pytest.mark.parametrize("size", [0, 63, 65, 1 << 20])
def test_a_signature_of_another_length_is_none(size: int) -> None:
    key = PublicKey(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    assert not believed(key, bytes(size), b"data")


def test_a_key_of_small_order_verifies_nothing() -> None:
    neutral = (1).to_bytes(32, "little")  # with it, this signature fits every message
    assert not believed(PublicKey(neutral), neutral + bytes(32), b"whatever")


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32"):
        PublicKey(bytes(31))
