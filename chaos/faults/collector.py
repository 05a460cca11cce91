"""A collector of spans, which can be slow or dead: `python -m chaos.faults.collector HOST:PORT`.

stdin: a line a change, `{"mode": "clear"|"slow"|"dead"}`. stdout: `ready`, then `ok` a change; before each
`ok` what it has counted so far: `{"held": calls that were left without an answer, "dialled": connections that
were closed at once, "taken": calls that were answered}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

import grpc
import grpc.aio

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
HELD_S = 60.0
"""How long a slow collector keeps a call, unless it is healed before."""


class Collector:
    """One that takes every span and keeps none."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._server: grpc.aio.Server | None = None
        self._dead: asyncio.Server | None = None
        self._fast = asyncio.Event()
        self._fast.set()
        self.books: Counter[str] = Counter(held=0, dialled=0, taken=0)

    async def listen(self) -> None:
        """From now on it takes calls."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Export": handler}),)
        )
        self._server.add_insecure_port(self._address)
        await self._server.start()

    async def _export(self, request: bytes, context: Any) -> bytes:
        if not self._fast.is_set():
            self.books["held"] += 1
            await asyncio.wait_for(self._fast.wait(), HELD_S)
        self.books["taken"] += 1
        return b""

    async def change(self, mode: str) -> None:
        """Becomes slow, dead, or well again."""
        if mode == "slow":
            self._fast.clear()
        elif mode == "dead" and self._server is not None:
            await self._server.stop(0)
            self._server = None
            host, _, port = self._address.rpartition(":")
            self._dead = await asyncio.start_server(self._hang_up, host, int(port))
        elif mode == "clear":
            self._fast.set()
            if self._dead is not None:
                self._dead.close()
                await self._dead.wait_closed()
                self._dead = None
                await self.listen()

    async def _hang_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.books["dialled"] += 1
        writer.transport.abort()


async def _serve(address: str) -> None:
    collector = Collector(address)
    await collector.listen()
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    while line := await lines.readline():
        await collector.change(json.loads(line)["mode"])
        print(json.dumps(collector.books), flush=True)
        print("ok", flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
