"""What has to hold once all is well for a while: peers' blocks come again, and views are what owners hold."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chaos.sim.invariants import Broken
from federation.transfer.fair import PullClass

if TYPE_CHECKING:
    from chaos.sim.mesh.group import SimGroup
    from chaos.sim.mesh.world import MeshWorld

PROBE_KEYS: Final = 3
TRIES: Final = 6
TRY_SECONDS: Final = 1.0
DEADLINE: Final = 1.5
QUIET_SECONDS: Final = 4.0
"""For which nothing is written before views are compared."""


async def check_hits(world: MeshWorld) -> None:
    """Each group writes a chain that nobody has, and its neighbour is given it.

    Raises:
        Broken: it is not.
    """
    honest = [each for name, each in world.groups.items() if name not in world.truth.hostile]
    tasks: list[Coroutine[Any, Any, None]] = []
    for owner, peer in zip(honest, [*honest[1:], honest[0]], strict=True):
        if owner is not peer:
            shared = sorted(owner.sharing.exports(peer.name))
            tasks.extend(_hit(world, owner, peer, fingerprint) for fingerprint in shared[:1])
    await asyncio.gather(*tasks)


async def _hit(world: MeshWorld, owner: SimGroup, peer: SimGroup, fingerprint: bytes) -> None:
    writer, reader = world.engines[owner.name], world.engines[peer.name]
    for number in range(TRIES):
        keys = [f"probe-{owner.name}-{number}-{place}" for place in range(PROBE_KEYS)]
        await writer.node.start(world.loop, writer.write(fingerprint, keys))
        if any(writer.stored(fingerprint, key) not in owner.mooncake.pool for key in keys):
            await asyncio.sleep(TRY_SECONDS)  # there was no room for it
            continue
        # What nobody asks for is not followed: the first question may come too early to be answered.
        for _ in range(TRIES):
            await asyncio.sleep(TRY_SECONDS / TRIES)
            work = reader.pull(fingerprint, keys, DEADLINE, PullClass.FIRST_TOKEN)
            if await reader.node.start(world.loop, work) == len(keys):
                return
    detail = f"{peer.name} was not given what {owner.name} has"
    raise Broken("peers' blocks come again", detail, owner.name, peer.name)


async def check_views(world: MeshWorld) -> None:
    """Whatever an owner offers, who follows it believes that it has it.

    Raises:
        Broken: a view lacks something, or there is none.
    """
    for engine in world.engines.values():
        engine.node.stall()  # nothing is written any more
    await asyncio.sleep(QUIET_SECONDS)
    for name, group in world.groups.items():
        if name not in world.truth.hostile:
            _check_views_of(world, group)
            _check_memory(group)


def _check_views_of(world: MeshWorld, group: SimGroup) -> None:
    gateway = group.gateway
    if gateway is None:
        raise Broken("views converge", f"{group.name} has no gateway", group.name)
    for peer, fingerprint, view in gateway.peers.sessions.subscriptions.views():
        owner = world.groups[peer]
        if peer in world.truth.hostile:
            continue
        serving = owner.serving
        log = None if serving is None else serving.offers.log(fingerprint, unattested=False)
        if serving is None or log is None or not serving.node.running:
            raise Broken("views converge", f"{peer} serves nobody", peer, group.name)
        if view.position != log.position and not view.is_cut:
            detail = (
                f"{group.name} has {peer}'s catalog at {view.position}, which is at {log.position}"
            )
            raise Broken("views converge", f"{detail} ({view.trouble})", group.name, peer)
        names = np.array(
            [n for f, n, _ in serving.replica.holdings.items() if f == fingerprint], dtype=np.uint64
        )
        if len(names) and not view.is_cut and not view.holds(names).all():
            missing = int((~view.holds(names)).sum())
            detail = f"{group.name} does not know of {missing} blocks that {peer} offers"
            raise Broken("views converge", detail, group.name, peer)


def _check_memory(group: SimGroup) -> None:
    """What is in no use any more has been given back; no garbage is collected here."""
    side = None if group.gateway is None else group.gateway.side
    if side is not None and side.slots.used_bytes > side.staging.bytes + side.staging.reserved:
        detail = f"{group.name} has {side.staging.bytes} bytes in staging, and {side.slots.used_bytes} taken"
        raise Broken("memory is given back", detail, group.name)
