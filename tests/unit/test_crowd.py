"""Light peers, which stand for a large federation: two of them hear each other over mTLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.crowd.peers import LightPeer
from chaos.errors import ChaosError
from federation.peering import Peering, load_peering
from federation.timeouts import timeout
from tests.support.credentials import Made
from tests.support.groups import free_port_base

HEARD_S = 20.0


def peering_of(made: Made, own: str, peer: str, port: int) -> Peering:
    path = made.root / f"{own}.toml"
    path.write_text(
        f'federation = "demo"\n[self]\ngroup = "{own}"\ncredentials = "{own}"\n'
        f'[[peers]]\nname = "{peer}"\naddress = "127.0.0.1:{port}"\nkey = "{made.keys[peer]}"\n'
    )
    return load_peering(path)


async def test_light_peers_hear_each_other(tmp_path: Path) -> None:
    made, port = Made(tmp_path), free_port_base()
    east = LightPeer(peering_of(made, "east", "west", port + 1), "west")
    west = LightPeer(peering_of(made, "west", "east", port), "east")
    servers = [await east.serve(f"127.0.0.1:{port}"), await west.serve(f"127.0.0.1:{port + 1}")]
    tasks = [asyncio.create_task(peer.speak()) for peer in (east, west)]
    try:
        async with timeout(HEARD_S):
            await asyncio.gather(east.met.wait(), west.met.wait())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.stop(0) for server in servers))


def test_a_target_that_is_no_peer_is_named(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with pytest.raises(ChaosError, match="no peer north"):
        LightPeer(peering_of(made, "east", "west", 1), "north")
