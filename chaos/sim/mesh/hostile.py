"""Hostile groups of a world: they have a key and a certificate of their own, and say what they like.

What peers are told by one goes through its `Mask`. What it cannot do is make the digest that another's
writer made, or speak as another group. Bytes that it has itself written, with a digest of its own, are not
among its habits: against that there is no defence but to be rid of what came from it (see SECURITY.md).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from chaos.sim.mesh.rpc import SimChannel
from chaos.sim.mesh.server import Handle
from federation.peers.wire import CATALOG_METHOD, HELLO_METHOD, PULL_METHOD
from federation.transfer.frames import HEADER_BYTES
from local_group.holdings import Change
from moonmesh.v1 import peer_pb2

if TYPE_CHECKING:
    from chaos.sim.mesh.group import SimGroup

STALL_SECONDS: Final = 20.0
DRIP_SECONDS: Final = 0.3
FLOOD_CALLS: Final = 30
"""Calls that it opens at a time, and leaves alone."""
FLOOD_EVERY: Final = 0.5
HUGE: Final = 1_300_000
"""Bytes of a message that is far too large."""
SHARE: Final = 0.5
"""Of messages that a habit changes."""
_HEADER = struct.Struct("<BBHII16s")


class Mask:
    """What a hostile group makes of what its serving process says.

    Args:
        habits: names in `HABITS`.
        random: of this mask alone.
    """

    def __init__(self, group: SimGroup, habits: tuple[str, ...], random: Random) -> None:
        self.group = group
        self.habits = habits
        self.random = random
        self.on = False

    def wrap(self, method: str, handle: Handle) -> Handle:
        """The handler that peers meet."""

        async def masked(requests: Any, context: Any) -> None:
            if not self.on:
                await handle(requests, context)
                return
            await handle(requests, _Context(self, method, context))

        return masked

    def begin(self) -> None:
        """It is hostile from now on."""
        self.on = True
        gateway = self.group.gateway
        if "floods" in self.habits and gateway is not None:
            gateway.node.start(self.group.world.loop, self._flood())

    def end(self) -> None:
        """It is honest again, for all that anybody sees."""
        self.on = False

    def often(self) -> bool:
        return self.random.random() < SHARE

    def promise_all(self) -> None:
        """Its catalogs name all blocks that anybody has."""
        serving = self.group.serving
        if serving is None or not serving.node.running:
            return
        for deeds in self.group.world.truth.deeds.values():
            for fingerprint, name in sorted(deeds.computed):
                serving.node.run(serving.offers.take, Change(fingerprint, name, True))

    async def _flood(self) -> None:
        """Calls to everybody, more than anybody answers, of which nothing is read."""
        world, random = self.group.world, self.random
        channels = {
            name: SimChannel(world.servers, other.address, (), self.group.name)
            for name, other in world.groups.items()
            if other is not self.group
        }
        calls: list[Any] = []
        while self.on:
            channel = channels[random.choice(sorted(channels))]
            for _ in range(FLOOD_CALLS):
                method = random.choice((HELLO_METHOD, CATALOG_METHOD, PULL_METHOD))
                calls.append(channel.stream_stream(method)(_requests(random, method, world), 30.0))
            for call in calls[: -8 * FLOOD_CALLS]:
                call.cancel()
            del calls[: -8 * FLOOD_CALLS]
            await asyncio.sleep(FLOOD_EVERY)


async def _requests(random: Random, method: str, world: Any) -> AsyncIterator[bytes]:
    if random.random() < 0.3:
        yield random.randbytes(random.choice((0, 10, 1000)))
    if random.random() < 0.3:
        await asyncio.sleep(5.0)
    fingerprint = random.choice(world.namespaces)
    if method == CATALOG_METHOD:
        yield peer_pb2.CatalogRequest(fingerprint=fingerprint, wait_ms=60_000).SerializeToString()
    elif method == PULL_METHOD:
        keys = [f"b{random.randrange(500)}" for _ in range(random.choice((1, 64)))]
        yield peer_pb2.PullRequest(
            fingerprint=fingerprint, keys=keys, max_sizes=[1 << 16] * len(keys)
        ).SerializeToString()
    else:
        yield random.randbytes(200)


class _Context:
    """A call as its handler sees it, with what it says changed on its way out."""

    def __init__(self, mask: Mask, method: str, context: Any) -> None:
        self._mask = mask
        self._method = method
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, raw: bytes) -> None:
        mask = self._mask
        if self._method == HELLO_METHOD:
            await self._context.write(raw)
            return
        for habit in mask.habits:
            changed = HABITS[habit]
            if changed is not None and mask.often():
                messages = await changed(mask, self._method, raw, self._context)
                for message in messages:
                    await self._context.write(message)
                return
        await self._context.write(raw)


Habit = Callable[[Mask, str, bytes, Any], Any]


def _flip(mask: Mask, raw: bytes) -> bytes:
    """Another byte somewhere: of a pull mostly of a block."""
    at = mask.random.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ (1 + mask.random.randrange(255))]) + raw[at + 1 :]


async def _wrong_bytes(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    if method == PULL_METHOD and len(raw) > HEADER_BYTES + 1:
        at = HEADER_BYTES + mask.random.randrange(len(raw) - HEADER_BYTES)
        return [raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]]
    return [_flip(mask, raw)] if raw else [raw]


async def _wrong_headers(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    if method != PULL_METHOD or len(raw) < HEADER_BYTES:
        return [raw[: len(raw) // 2]]
    random = mask.random
    version, kind, hops, index, size, digest = _HEADER.unpack_from(raw)
    how = random.randrange(6)
    if how == 0:
        size = random.choice((0, 1, size + 1, 1 << 31, 0xFFFFFFFF))
    elif how == 1:
        index = random.choice((index + 1, 0, 4_000_000_000))
    elif how == 2:
        digest = random.randbytes(16)
    elif how == 3:
        kind = random.randrange(256)
    elif how == 4:
        hops = random.choice((1, 7, 0xFFFF))
    else:
        version = 9
    return [_HEADER.pack(version, kind, hops, index, size, digest) + raw[HEADER_BYTES:]]


async def _garbage(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    return [mask.random.randbytes(mask.random.choice((1, 28, 500)))]


async def _twice(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    return [raw, raw]


async def _too_large(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    return [bytes(HUGE)]


async def _stalls(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    await asyncio.sleep(STALL_SECONDS)
    return [raw]


async def _drips(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    if method == PULL_METHOD:
        for start in range(0, min(len(raw), 640), 64):
            await context.write(raw[start : start + 64])
            await asyncio.sleep(DRIP_SECONDS)
        return [raw[640:]]
    await asyncio.sleep(DRIP_SECONDS)
    return [raw]


async def _refuses(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    code = mask.random.choice(
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.INTERNAL,
        )
    )
    wait = str(mask.random.choice((1, 10_000, 999_999_999)))
    await context.abort(code, "no", (("retry-after-ms", wait),))
    return []


async def _cuts(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    await context.write(raw[: len(raw) // 2])
    await context.abort(grpc.StatusCode.UNAVAILABLE, "")
    return []


async def _promises(mask: Mask, method: str, raw: bytes, context: Any) -> list[bytes]:
    mask.promise_all()
    return [raw]


HABITS: Final[dict[str, Habit | None]] = {
    "sends wrong bytes": _wrong_bytes,
    "sends wrong headers": _wrong_headers,
    "sends garbage": _garbage,
    "says things twice": _twice,
    "sends too much": _too_large,
    "stalls": _stalls,
    "drips": _drips,
    "refuses": _refuses,
    "cuts off": _cuts,
    "promises all": _promises,
    "floods": None,
}
