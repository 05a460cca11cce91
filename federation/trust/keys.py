"""Statement keys as text: `ed25519:BASE64`, as peering.toml and `identity.pub` hold them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gossip.ed25519 import KEY_BYTES, PublicKey

PREFIX: Final = "ed25519:"


class StatementKey:
    """The public half of a group's statement key. Equal keys compare and hash equal."""

    __slots__ = ("public", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise ValueError(f"an Ed25519 public key has {KEY_BYTES} bytes, not {len(raw)}")
        self.raw = raw
        self.public = PublicKey(raw)

    @classmethod
    def of(cls, private: Ed25519PrivateKey) -> StatementKey:
        """The public half of a private key."""
        return cls(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    @classmethod
    def parse(cls, text: str) -> StatementKey:
        """From `ed25519:BASE64`.

        Raises:
            ValueError: says what is wrong with the text.
        """
        text = text.strip()
        if "PRIVATE KEY" in text:
            raise ValueError(
                "this is a PRIVATE key: it stays with its group; peers take identity.pub"
            )
        if not text.startswith(PREFIX):
            raise ValueError(
                f'a key is written "{PREFIX}BASE64", as in the peer\'s identity.pub, '
                f"not {text[:24]!r}"
            )
        try:
            raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            raise ValueError(
                f"what follows {PREFIX} is not base64: copy the whole line of identity.pub"
            ) from None
        return cls(raw)

    def __str__(self) -> str:
        return PREFIX + base64.b64encode(self.raw).decode()

    def __repr__(self) -> str:
        return f"StatementKey({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StatementKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def fingerprint(self) -> str:
        """`SHA256:...` of the key, short enough to be read out on the telephone."""
        digest = hashlib.sha256(self.raw).digest()[:12].hex()
        return "SHA256:" + ":".join(digest[i : i + 4] for i in range(0, len(digest), 4))
