"""Many engine clients of one gateway: `python -m chaos.faults.herd`, a connection each to its socket.

All ask for the same chains, again and again, each as soon as its last answer has ended; of one answer in
`CHECK_EACH`, what they are given is derived again and compared.

stdin: a `Flock`, as JSON; `go` begins it, `rest` ends it. stdout: `ready`; at the end its books, as JSON, and
`ok`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections import Counter

import grpc
import grpc.aio
import numpy as np
from pydantic import BaseModel, ConfigDict

from chaos.load.keys import DEMO, ENVELOPES, chain, contents
from federation.errors import PeerError
from federation.identity import Envelope
from federation.taking import MESSAGE_BYTES_MAX
from federation.transfer.frames import Block, Decoder
from federation.transfer.handover import ATTACH_METHOD, PULL_METHOD
from moonmesh.v1 import engine_pb2

CONNECT_AT_ONCE = 50
ATTACH_S = 1.0
PAUSE_S = 0.05
"""After a call that was refused: a herd that starves itself is none."""
CHECK_EACH = 16
BOOKS = (
    *("connected", "unconnected", "asked", "answered", "refused", "late", "nonsense"),
    *("blocks", "verified_bytes", "wrong_bytes"),
)
"""What it counts: clients, calls and what became of them, blocks, bytes."""
NICE = 10
"""It stands for processes of other hosts and containers: only here does it share cores with its victims."""


class Flock(BaseModel):
    """What the herd is told."""

    model_config = ConfigDict(frozen=True)

    socket: str
    clients: int
    chains: int
    owner: str
    tag: str
    blocks: int
    block_bytes: int
    deadline_ms: int


class Herd:
    """All clients, and what became of their calls."""

    def __init__(self, flock: Flock) -> None:
        self._flock = flock
        self._channels: list[grpc.aio.Channel] = []
        self._envelope = Envelope.of(ENVELOPES[DEMO])
        self._contents = contents(DEMO, flock.block_bytes)
        self._numbers = itertools.count()
        self._room = asyncio.Semaphore(CONNECT_AT_ONCE)
        self.books: Counter[str] = Counter(dict.fromkeys(BOOKS, 0))

    async def run(self) -> None:
        """Connects and asks, until it is cancelled."""
        await asyncio.gather(*(self._client() for _ in range(self._flock.clients)))

    async def _connect(self) -> grpc.aio.Channel:
        """A connection that the gateway has answered on; each that it has not is counted as `unconnected`."""
        channel = grpc.aio.insecure_channel(
            f"unix:{self._flock.socket}",
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ],
        )
        self._channels.append(channel)
        request = engine_pb2.AttachRequest(
            envelope_json=self._envelope.model_dump_json(), engine=next(self._numbers) + 1
        )
        attach = channel.unary_unary(ATTACH_METHOD)
        while True:
            try:
                async with self._room:
                    await attach(request.SerializeToString(), timeout=ATTACH_S)
            except grpc.aio.AioRpcError:
                self.books["unconnected"] += 1
                await asyncio.sleep(PAUSE_S)
            else:
                self.books["connected"] += 1
                return channel

    async def _client(self) -> None:
        flock = self._flock
        channel = await self._connect()
        ask = channel.unary_stream(PULL_METHOD)
        for number in itertools.count(next(self._numbers)):
            keys = chain(flock.tag, flock.owner, number % flock.chains, flock.blocks)
            request = engine_pb2.EnginePullRequest(
                fingerprint=bytes(self._envelope.fingerprint()),
                keys=keys,
                max_sizes=[flock.block_bytes],
            )
            decoder = Decoder([flock.block_bytes] * len(keys), MESSAGE_BYTES_MAX)
            check = next(self._numbers) % CHECK_EACH == 0
            self.books["asked"] += 1
            try:
                async for message in ask(
                    request.SerializeToString(), timeout=flock.deadline_ms / 1000
                ):
                    self._take(decoder, message, keys, check)
                self.books["answered"] += 1
            except grpc.aio.AioRpcError as error:
                late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                self.books["late" if late else "refused"] += 1
                await asyncio.sleep(PAUSE_S)
            except PeerError:
                self.books["nonsense"] += 1

    def _take(self, decoder: Decoder, message: bytes, keys: list[str], check: bool) -> None:
        for block in decoder.feed(message):
            if not isinstance(block, Block):
                continue
            self.books["blocks"] += 1
            if check:
                row = np.frombuffer(block.data, np.uint8)[None, :]
                self.books["verified_bytes"] += row.size
                self.books["wrong_bytes"] += self._contents.wrong_bytes([keys[block.index]], row)

    async def close(self) -> None:
        """Ends all connections."""
        await asyncio.gather(*(channel.close() for channel in self._channels))


async def _serve() -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    herd = Herd(Flock.model_validate_json(await lines.readline()))
    print("ready", flush=True)
    await lines.readline()
    work = asyncio.create_task(herd.run())
    await lines.readline()
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    print(json.dumps(herd.books), flush=True)
    print("ok", flush=True)
    await herd.close()


if __name__ == "__main__":
    os.nice(NICE)
    asyncio.run(_serve())
