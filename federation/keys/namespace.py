"""`[namespaces.NAME]`: an envelope, and what this group alone decides about its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from federation.errors import ConfigError
from federation.identity import Envelope
from federation.keys.pattern import Pattern
from federation.keys.schemes import patterns_of

KEYS_MAX = 16
"""Items of `keys` of one namespace."""
PATTERNS_MAX = 256
"""Patterns of all namespaces of a group: each listed key is held against them."""

_Keys = Annotated[tuple[str, ...], Field(strict=False, max_length=KEYS_MAX)]


class Namespace(Envelope):
    """All that the bytes of a block depend on beside its key, and what this group alone decides about them:
    `keys`, `unattested` and `prefill_tokens_per_second`. Every other field is part of the fingerprint: a
    difference in any of them is another namespace."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    keys: _Keys = ()
    """Keys of engines that write to Mooncake directly, and whose blocks are of this namespace:
    `sglang-hicache`, `sglang-hicache-mla`, `vllm-mooncake`, `lmcache`, `lmcache-mla` (each also as
    `NAME:TAG`), or patterns such as `"{model}/{hex:64}"` (see [plain writers](plain-writers.md)); at most 16.
    Blocks with such keys are stored under just them, by `FederatedStore` too."""
    unattested: bool = False
    """Whether blocks may come from peers, and go to them, of which no writer's digest is known: those that a
    key listing alone has shown. Both sides have to allow it."""

    prefill_tokens_per_second: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Tokens that an engine of this group computes in a second while it has nothing else to do. What a slow
    peer has is pulled then only as far as that is faster than computing it (`block_tokens` a block). Where a
    page takes several keys of a chain, such as `_k` and `_v`, so many times as much. 0: nobody knows, and all
    is pulled that can be had."""

    _patterns: tuple[Pattern, ...] = PrivateAttr(default=())

    @field_validator("keys")
    @classmethod
    def _once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({item for item in value if value.count(item) > 1}):
            raise ValueError(f'"{twice[0]}" is listed twice')
        return value

    @model_validator(mode="after")
    def _made(self) -> Namespace:
        made: list[Pattern] = []
        for item in self.keys:
            try:
                made += (Pattern(text, self) for text in patterns_of(item, self))
            except ValueError as error:
                raise ValueError(f'keys: "{item}": {error}') from error
        self._patterns = tuple(made)
        return self

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Of `keys`, the ready-made ones taken apart."""
        return self._patterns

    @property
    def block_seconds(self) -> float | None:
        """What computing a block takes an engine of this group; None where that is not known."""
        rate = self.prefill_tokens_per_second
        return self.block_tokens / rate if rate else None

    @classmethod
    def of(cls, namespace: Envelope | Mapping[str, Any]) -> Namespace:
        """A namespace, or one made of an envelope or a table as in group.toml.

        Raises:
            ConfigError: a field is missing, unknown or wrong; it says which.
        """
        if isinstance(namespace, Namespace):
            return namespace
        if isinstance(namespace, Envelope):
            return cls(**namespace.fields())
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
            told = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{field}: {told}" if field else told, where="namespace") from error


def overlaps(namespaces: Mapping[str, Namespace]) -> str:
    """Why two of these cannot be in one group: a key that is of both; "" if no key can be."""
    placed: list[tuple[str, Pattern]] = []
    for name, namespace in namespaces.items():
        for pattern in namespace.patterns:
            for other, before in placed:
                if other != name and (key := before.common(pattern)) is not None:
                    return (
                        f'a key such as {key!r} would be of both "{other}" ({before.text}) and "{name}" '
                        f"({pattern.text}): one key, one namespace; let the engines write what tells them "
                        "apart (a tag, a prefix)"
                    )
        placed += ((name, pattern) for pattern in namespace.patterns)
        if len(placed) > PATTERNS_MAX:
            return f"{len(placed)} key patterns are more than {PATTERNS_MAX}"
    return ""
