"""What certificates call a group: names that are in no DNS, so that an address proves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SUFFIX = "moonmesh"
_LABEL = re.compile(r"[a-z][a-z0-9-]{0,30}")


def gateway_name(group: str, federation: str) -> str:
    """The name in the certificate by which a group's gateway meets its peers."""
    return f"{group}.{federation}.{_SUFFIX}"


def engine_server_name(group: str) -> str:
    """The name of a group's gateway towards its own engines, under the group's own CA."""
    return f"gateway.{group}.engines.{_SUFFIX}"


def engine_client_name(group: str) -> str:
    """The name of a group's engines, under the group's own CA."""
    return f"engine.{group}.engines.{_SUFFIX}"


def group_of(names: Iterable[str], federation: str) -> str | None:
    """The group whose gateway a certificate with these names is for; None unless exactly one."""
    suffix = f".{federation}.{_SUFFIX}"
    groups = {n.removesuffix(suffix) for n in names if n.endswith(suffix)}
    if len(groups) != 1:
        return None
    (group,) = groups
    return group if _LABEL.fullmatch(group) else None
