"""Many light peers of one gateway, in one process.

    python -m chaos.crowd.peers FOLDER TARGET NAME...

Each has its own folder with `peering.toml` and credentials, its own port, its own connection to the target,
and a gossip engine that knows the target alone: so the target has all the hellos and answers of a full
mesh, and these here cost little. What it does not have of them is whole vectors: it sends its own.
Says `ready` when all listen, and ends at SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from chaos.errors import ChaosError
from federation.config import Limits
from federation.peering import Peering, load_peering
from federation.peers.arrivals import Context, server_bounds
from federation.peers.asking import Told
from federation.peers.gossip_config import gossip_config
from federation.peers.greeter import Greeter
from federation.peers.wire import HELLO_METHOD
from federation.trust.credentials import Credentials, load_credentials
from gossip.engine import GossipEngine, Message
from moonmesh.v1 import peer_pb2

NEVER: Final = 1e9
"""Seconds."""
TICK_SECONDS_MIN: Final = 0.01


class LightPeer:
    """One of them: hellos, and answers to hellos.

    Args:
        peering: its own.
        target: the peer that is greeted.

    Raises:
        ChaosError: there is no such peer.
    """

    def __init__(self, peering: Peering, target: str) -> None:
        own = peering.own
        self._credentials: Credentials = load_credentials(
            own.credentials, own.group, peering.federation
        )
        peer = peering.peer(target)
        if peer is None:
            raise ChaosError(f"no peer {target}", where=str(peering.path))
        self._target = peer
        self._engine = GossipEngine(
            own.group,
            peering.federation,
            self._credentials.signing_key,
            {target: [key.public for key in peer.keys]},
            epoch=1,
            boot_nonce=os.urandom(16),
            config=replace(gossip_config(Limits()), push_pull_interval=NEVER),
            rng=random.Random(own.group),
            now=time.monotonic(),
        )
        self.met = asyncio.Event()
        """It and the target hear each other, or did at one time."""

    async def serve(self, address: str) -> grpc.aio.Server:
        """Answers hellos at an address of its own, with the options of a gateway's server."""
        _, bounds = server_bounds(Limits(), 1)
        server = grpc.aio.server(options=bounds)
        handler = grpc.stream_stream_rpc_method_handler(self._hellos)
        name = HELLO_METHOD.rsplit("/", 1)[1]
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("moonmesh.v1.Peer", {name: handler}),)
        )
        server.add_secure_port(address, self._credentials.server_credentials())
        await server.start()
        return server

    async def speak(self) -> None:
        """Greets the target as gossip has it, until it is cancelled."""
        options = [
            *self._credentials.channel_options(self._target.name),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        async with grpc.aio.secure_channel(
            self._target.gateways[0], self._credentials.channel_credentials(), options=options
        ) as channel:
            greeter = Greeter(
                channel.stream_stream(HELLO_METHOD),
                lambda: channel.get_state() is grpc.ChannelConnectivity.READY,
                Limits().hello_interval_ms / 1000,
                answered=lambda raw: self._take(peer_pb2.HelloReply.FromString(raw)),
                failed=lambda error: None,
            )
            try:
                await self._greet(greeter)
            finally:
                await greeter.close()

    async def _greet(self, greeter: Greeter) -> None:
        while True:
            now = time.monotonic()
            self._engine.tick(now, int(time.time() * 1000))
            for _, hello in self._engine.outbox():
                greeter.say(hello.SerializeToString(), now)
            self._engine.events()
            left = self._engine.next_tick_at() - time.monotonic()
            await asyncio.sleep(max(TICK_SECONDS_MIN, left))

    async def _hellos(self, requests: AsyncIterator[bytes], context: Context) -> None:
        told = Told()
        async for raw in requests:
            request = peer_pb2.HelloRequest.FromString(raw)
            self._take(request)
            reply = self._engine.reply_to(request)
            if told.is_due(request, reply, ()):
                await context.write(reply.SerializeToString())

    def _take(self, message: Message) -> None:
        now = time.monotonic()
        self._engine.receive(self._target.name, message, now)
        if not self.met.is_set() and self._engine.pullable(self._target.name, now):
            self.met.set()


async def _run(folder: Path, target: str, names: list[str]) -> None:
    addresses = {
        p.name: p.gateways[0] for p in load_peering(folder / target / "peering.toml").peers
    }
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    servers, tasks = [], []
    try:
        for name in names:
            peer = LightPeer(load_peering(folder / name / "peering.toml"), target)
            servers.append(await peer.serve(addresses[name]))
            tasks.append(asyncio.create_task(peer.speak()))
        print("ready", flush=True)
        await stop.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.stop(0) for server in servers))


def main() -> None:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m chaos.crowd.peers")
    parser.add_argument("folder", type=Path)
    parser.add_argument("target")
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    asyncio.run(_run(arguments.folder, arguments.target, arguments.names))


if __name__ == "__main__":
    main()
