"""What commands about a prefix chain have in common: its keys, and the namespace they are of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from federation.config import GroupFile
    from federation.keys.namespace import Namespace

KEYS_BYTES_MAX: Final = 64 << 20
"""Bytes of a file with keys."""

KeysArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY...", help="The chain's keys, in order.")
]
KeysFileOption = Annotated[
    Path | None,
    typer.Option(help="A file with the keys, one a line, instead; - for standard input."),
]
NamespaceOption = Annotated[
    str, typer.Option(help="Its name in group.toml; needed where there are several.")
]


def named_namespace(group: GroupFile, name: str, path: Path) -> Namespace:
    """A namespace of the group; the only one, where none is named.

    Args:
        path: of group.toml, for the error.

    Raises:
        UsageError: there is none of that name, or several and no name.
    """
    from federation.errors import UsageError

    if not name and len(group.namespaces) == 1:
        return next(iter(group.namespaces.values()))
    if name in group.namespaces:
        return group.namespaces[name]
    what = f"no namespace {name!r} here" if name else "which namespace are the keys of?"
    names = ", ".join(group.namespaces) or "none"
    raise UsageError(what, where=str(path), hint=f"--namespace; those of [namespaces] are: {names}")


def read_chain(keys: Sequence[str] | None, path: Path | None, key_bytes_max: int) -> list[str]:
    """The keys, of the command line or of a file.

    Args:
        key_bytes_max: of the group's limits.

    Raises:
        UsageError: there are none, too many, or both are given; one is empty, or too long to be asked for.
    """
    from federation.errors import UsageError
    from federation.router import KEYS_MAX

    if bool(keys) == (path is not None):
        raise UsageError(
            "give the chain's keys, or a file that has them", hint="KEY... or --keys-file"
        )
    chain, where = list(keys or ()), ""
    if path is not None:
        where = "standard input" if str(path) == "-" else str(path)
        chain = [line for line in _text(path, where).splitlines() if line]
    if not 0 < len(chain) <= KEYS_MAX:
        raise UsageError(f"{len(chain)} keys; a chain has 1 to {KEYS_MAX}", where=where)
    for place, key in enumerate(chain, 1):
        if not key:
            raise UsageError(f"an empty key (number {place} of the chain)", where=where)
        if len(key.encode(errors="surrogateescape")) > key_bytes_max:
            raise UsageError(
                f"a key over {key_bytes_max} bytes (number {place} of the chain)",
                where=where,
                hint="key_bytes_max in [limits]; it is neither served nor pulled",
            )
    return chain


def _text(path: Path, where: str) -> str:
    from federation.errors import UsageError

    try:
        if str(path) == "-":
            raw = sys.stdin.buffer.read(KEYS_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(KEYS_BYTES_MAX + 1)
        if len(raw) > KEYS_BYTES_MAX:
            raise UsageError(f"more than {KEYS_BYTES_MAX} bytes of keys", where=where)
        return raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the keys cannot be read: {error}", where=where) from None
