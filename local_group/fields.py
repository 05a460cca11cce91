"""Kinds of values that several sections of the configuration files have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

PORT_MAX = 65535

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_UNITS = {
    "": 1, "B": 1, "KIB": KIB, "MIB": MIB, "GIB": GIB, "KB": 1000, "MB": 1000**2, "GB": 1000**3,
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_size(value: object) -> int:
    """Bytes of `268435456`, `"256 MiB"` or `"1.5 GB"`.

    Raises:
        ValueError: not such a size, or not a whole number of bytes.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(
            f'{value!r} is not a size: write bytes, or text such as "256 MiB" '
            "(KiB, MiB, GiB, KB, MB, GB)"
        )
    size = float(match[1]) * unit
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(match[1]) * unit if "." not in match[1] else int(size)


def resolve_path(value: object, info: ValidationInfo) -> Path:
    """A path of a config file: relative ones are taken from that file's folder.

    The folder is the validation context's `folder`; without one it is the working directory.

    Raises:
        ValueError: not text, or empty.
    """
    if isinstance(value, Path):
        path = value
    elif isinstance(value, str) and value and "\0" not in value:
        path = Path(value).expanduser()
    else:
        raise ValueError(f"{value!r} is not a path")
    folder = (info.context or {}).get("folder") or Path.cwd()
    return Path(folder, path).resolve()


def check_host(value: str) -> str:
    """`value` if it can be an IPv4 address or a host name, else ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", value):
        raise ValueError(
            f"{value!r} is not an IPv4 address or host name (no port, no scheme, no spaces)"
        )
    octets = value.split(".")
    if all(part.isdigit() for part in octets) and (
        len(octets) != 4 or any(int(part) > 255 for part in octets)
    ):
        raise ValueError(f"{value!r} is not an IPv4 address")
    return value


def is_loopback(host: str) -> bool:
    """Whether a host, as it is written, is the machine itself and nobody else reaches it."""
    return host == "localhost" or host.startswith("127.")


def check_address(value: str, port_of: str) -> str:
    """`value` if it is `host:port`, else ValueError.

    Args:
        port_of: which port it is, for the message: e.g. "the peer's port_base + 2".
    """
    host, colon, port = value.rpartition(":")
    if not colon:
        raise ValueError(f'{value!r} has no port: write "host:port" ({port_of})')
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= PORT_MAX):
        raise ValueError(f"{value!r}: {port!r} is not a port in 1..{PORT_MAX}")
    return f"{check_host(host)}:{int(port)}"


Size = Annotated[int, BeforeValidator(parse_size)]
Host = Annotated[str, Field(strict=True)]


class Section(BaseModel):
    """A table of a configuration file: no unknown keys, no other types, never changed."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )
