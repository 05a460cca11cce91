"""What may be mixed: the namespace envelope, its fingerprint, stored keys and digests.

Engine keys omit what the bytes depend on (tensor-parallel size, dtype, layout, weight revision), so
equal keys do not mean equal bytes. The envelope says all of it; two groups share blocks only where
their envelopes are equal in every field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

import xxhash
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from federation.errors import ConfigError
from local_group.names import name_of

FINGERPRINT_BYTES = 16
DIGEST_BYTES = 16
_FINGERPRINT_DOMAIN = b"moonmesh/namespace/v1\0"


def _printable(value: str) -> str:
    # Peers are told the envelope, and refuse one that would do things to a terminal.
    for char in value:
        if not char.isprintable():
            raise ValueError(
                f"has a character that cannot be printed ({char!a}): leave it out, in every group"
            )
    return value


_Text = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_printable)]
_Optional = Annotated[str, StringConstraints(max_length=256), AfterValidator(_printable)]
_Parallel = Annotated[int, Field(ge=1, le=65536)]


class Envelope(BaseModel):
    """All that the bytes of a block depend on beside its key.

    Every field is part of the fingerprint: a difference in any of them is another namespace.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    model: _Text
    """Model name, as the operator writes it."""
    revision: _Text
    """Revision of the weights (a commit, a checksum, a date): never left to chance."""
    engine: _Text
    """Engine and key scheme, e.g. `sglang-hicache` or `vllm-mooncake`."""
    kv_dtype: _Text
    """Element type of the KV cache, e.g. `bf16`, `fp8_e4m3`."""
    quantisation: _Optional = ""
    """Scheme of a quantised cache; empty for none."""
    tp: _Parallel = 1
    """Ranks of tensor parallelism."""
    pp: _Parallel = 1
    """Ranks of pipeline parallelism."""
    cp: _Parallel = 1
    """Ranks of context parallelism."""
    block_tokens: Annotated[int, Field(ge=1, le=1 << 20)]
    """Tokens in a block (the engine's page)."""
    layout: _Text
    """Memory layout of a block, e.g. `page_first`, `layer_first`."""
    hash_scheme: _Text = "sha256"
    """How the engine hashes a prefix chain."""
    hash_seed: _Optional = ""
    """Seed of that hash; empty for none."""
    salt: _Optional = ""
    """Tenant or cache salt; empty for none."""

    @classmethod
    def of(cls, namespace: Envelope | Mapping[str, Any]) -> Envelope:
        """An envelope, or one made of a mapping of its fields.

        Raises:
            ConfigError: a field is missing, unknown or wrong; it says which.
        """
        if isinstance(namespace, Envelope):
            return namespace
        if not isinstance(namespace, Mapping):
            raise ConfigError(
                f"{namespace!r} is no envelope: give its fields, as in [namespaces] of group.toml",
                where="namespace",
            )
        try:
            return cls.model_validate(dict(namespace))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            what = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{field}: {what}", where="namespace") from error

    def fields(self) -> dict[str, Any]:
        """What is in the fingerprint: the fields of an envelope, and nothing that a subclass adds."""
        return {name: getattr(self, name) for name in Envelope.model_fields}

    def canonical(self) -> str:
        """The envelope as JSON with sorted keys: what the fingerprint is taken of."""
        return json.dumps(self.fields(), sort_keys=True, separators=(",", ":"))

    def fingerprint(self) -> Fingerprint:
        """The namespace's 16-byte name, the same in every group."""
        raw = hashlib.sha256(_FINGERPRINT_DOMAIN + self.canonical().encode()).digest()
        return Fingerprint(raw[:FINGERPRINT_BYTES])


class Fingerprint(bytes):
    """A namespace's name on the wire and in stored keys: 16 bytes.

    Raises:
        ValueError: if the bytes are not 16.
    """

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Fingerprint:
        if len(raw) != FINGERPRINT_BYTES:
            raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(raw)}")
        return super().__new__(cls, raw)

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"Fingerprint({self.hex()})"


def stored_key(fingerprint: Fingerprint, key: str) -> str:
    """The key under which Mooncake holds a block: two builds never meet under one."""
    return f"{fingerprint.hex()}/{key}"


def read_stored_key(stored: str) -> tuple[Fingerprint, str] | None:
    """Namespace and key of what is stored under this key; None where `stored_key` has not made it."""
    head, slash, key = stored.partition("/")
    if not (slash and key and len(head) == 2 * FINGERPRINT_BYTES):
        return None
    try:
        fingerprint = Fingerprint(bytes.fromhex(head))
    except ValueError:
        return None
    return (fingerprint, key) if fingerprint.hex() == head else None


def block_digest(fingerprint: bytes, key: str, data: bytes | bytearray | memoryview) -> bytes:
    """xxh3-128 of namespace, key and bytes (16 bytes), made by the writer and checked by everyone.

    It finds damage and mix-ups; it proves nothing about an honest writer (it is not keyed).
    """
    name = key.encode()
    # The key's length, or a key could pass as the head of the bytes.
    state = xxhash.xxh3_128(b"".join((fingerprint, len(name).to_bytes(4, "little"), name)))
    state.update(data)
    return state.digest()


def key_hash(fingerprint: bytes, key: str) -> int:
    """xxh3-64 of a key within its namespace: how catalogs name a block."""
    return name_of(fingerprint, key)
