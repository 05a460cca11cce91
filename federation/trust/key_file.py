"""A statement key in a configuration file: written there, or in a file that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationInfo

from federation.trust.keys import StatementKey
from local_group.config import resolve_path

FILE_BYTES_MAX = 4096
IDENTITY_PUB = "identity.pub"
"""In a group's folder of credentials: the key that its peers know it by."""


@dataclass(frozen=True)
class KeyFile:
    """A `key_file`: where it is, and the key in it (None where keys were not to be read)."""

    path: Path
    key: StatementKey | None


def parse_key(value: object) -> StatementKey:
    """A key as it is written in the file. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f'a key is text, "ed25519:BASE64", not {type(value).__name__}')
    return StatementKey.parse(value)


def read_key_file(value: object, info: ValidationInfo) -> KeyFile:
    """The key in a file, whose path is relative to the configuration's; not read where the context says
    `read_keys` is False. Raises ValueError."""
    path = resolve_path(value, info)
    return KeyFile(path, _read(path) if _to_be_read(info) else None)


def own_key(credentials: Path, info: ValidationInfo) -> StatementKey | None:
    """The key of the group that has this folder; None where it is not to be read or cannot be, which who
    loads all of the folder tells."""
    if not _to_be_read(info):
        return None
    try:
        return _read(credentials / IDENTITY_PUB)
    except ValueError:
        return None


def _to_be_read(info: ValidationInfo) -> bool:
    return bool((info.context or {}).get("read_keys", True))


def _read(path: Path) -> StatementKey:
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode("ascii", "replace")
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror} (it is the peer's identity.pub; "
            "`moonmesh peer init` makes it)"
        ) from None
    try:
        return StatementKey.parse(text)
    except ValueError as error:
        raise ValueError(f"{path} is not a public key: {error}") from None
