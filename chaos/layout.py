"""The files of a topology: `group.toml` and `peering.toml` of each place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chaos.load.keys import ENVELOPES
from chaos.network.base import Network
from chaos.section import Topology
from federation.bench.groups import toml_lines

BASE_LIMITS: dict[str, Any] = {
    "hello_interval_ms": 200,
    "staging_bytes": "64 MiB",
    "bounce_bytes": "32 MiB",
    "block_bytes_max": "4 MiB",
    "views_bytes": "8 MiB",
    "peer_breaker_open_ms": 300,
    "listing_interval_ms": 2000,
    "peer_leased_bytes_min": "24 MiB",
    "holdings_blocks": 50_000,
    "serving_memory": "1 GiB",
}
"""Quick to notice, quick to return, and small enough that a flood meets them."""


def write(topology: Topology, network: Network, folder: Path) -> None:
    """Writes a folder a place, with addresses of `network`. Keys and certificates are not among it."""
    for name in network.places.names:
        group: dict[str, Any] = {
            "name": name,
            "data_dir": "d",
            "port_base": network.places.base(name),
            "master": {"lease_ttl_ms": topology.lease_ttl_ms},
            "stores": {"count": topology.stores, "dram": topology.dram},
            "gateway": {
                "peering": "peering.toml",
                "listen": network.listen(name),
                # Every block that comes is put: the most that faults and lies can do to a local pool.
                "admit": "always",
            },
            "serving": {"workers": topology.serving_workers},
            "pulling": {"workers": topology.pulling_workers},
            "namespaces": ENVELOPES,
            "limits": {**BASE_LIMITS, **topology.limits},
        }
        if topology.coordination != "file":
            group["coordination"] = {"backend": topology.coordination}
        place = folder / name
        place.mkdir()
        (place / "group.toml").write_text("\n".join(toml_lines(group)) + "\n")
        (place / "peering.toml").write_text(_peering(topology, network, name))


def _peering(topology: Topology, network: Network, name: str) -> str:
    lines = [
        'federation = "chaos"',
        "[self]",
        f'group = "{name}"',
        'credentials = "credentials"',
    ]
    for other in network.places.names:
        if other == name:
            continue
        names = json.dumps(sorted(_shared(topology, name, other)))
        lines += [
            "[[peers]]",
            f'name = "{other}"',
            f'address = "{network.address(name, other)}"',
            f'key_file = "../{other}/credentials/identity.pub"',
            f"export = {names}",
            f"import = {names}",
        ]
    return "\n".join(lines) + "\n"


def _shared(topology: Topology, one: str, other: str) -> set[str]:
    every = set(ENVELOPES)
    hostile = topology.hostile
    return set(hostile.get(one, every)) & set(hostile.get(other, every))
