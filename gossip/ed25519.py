"""A group's public key: what gossip spends most of its time on, so by the faster of two libraries."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

KEY_BYTES = 32
SIGNATURE_BYTES = 64


class PublicKey:
    """An Ed25519 public key (RFC 8032) that verifies with libsodium, in half of OpenSSL's time.

    Keys and signatures are the same bytes in both. libsodium refuses some that nobody makes by signing: keys
    of small order, for which one signature fits many messages.

    Args:
        raw: its 32 bytes.

    Raises:
        ValueError: there are not as many.
    """

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._key = VerifyKey(raw)

    def verify(self, signature: bytes, data: bytes) -> None:
        """Raises `cryptography.exceptions.InvalidSignature` unless the signature is the key's."""
        if len(signature) != SIGNATURE_BYTES:
            raise InvalidSignature
        try:
            self._key.verify(data, signature)
        except BadSignatureError:
            raise InvalidSignature from None
