"""Keys of the groups of a world: real ones, or such as cost a microsecond."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.ed25519 import PublicKey
from gossip.statement import Signer, Verifier


class CheapKey:
    """Both halves in one: a keyed hash. In a world nobody has the key of another group."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._secret).digest()

    def public_key(self) -> CheapKey:
        return self

    def verify(self, signature: bytes, data: bytes) -> None:
        if hashlib.blake2b(data, key=self._secret).digest() != signature:
            raise InvalidSignature


class NotedKey:
    """Signs as `inner` does, and tells what it has signed: so the truth is known."""

    def __init__(self, inner: Signer, signed: Callable[[bytes], None]) -> None:
        self._inner = inner
        self._on_signed = signed

    def sign(self, data: bytes) -> bytes:
        self._on_signed(data)
        return self._inner.sign(data)

    def public_key(self) -> Verifier:
        return self._inner.public_key()


def make_keys(secret: bytes, real: bool) -> tuple[Signer, Verifier]:
    """The halves of a key.

    Args:
        secret: 32 bytes.
        real: Ed25519, as in production.
    """
    if not real:
        cheap = CheapKey(secret)
        return cheap, cheap
    key = Ed25519PrivateKey.from_private_bytes(secret)
    return key, PublicKey(key.public_key().public_bytes_raw())
