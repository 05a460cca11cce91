"""The network between gateways, as a proxy in user space: `python -m chaos.faults.proxy`.

Every gateway reaches a peer through a listener of its own here, so that the two directions between
two groups can be broken apart: bytes that flow from A to B, whoever dialled. No privileges needed.

stdin: `{"links": [{"source": A, "to": B, "listen": port, "target": port}, ...]}`, then a line a change:
`{"source": A, "to": B, "mode": "clear"|"cut"|"reset"|"rate"|"delay"|"jitter", "mbit": x, "ms": x}`.
stdout: `ready`, then `ok` a change.

A cut keeps the bytes, as TCP would send them again once the network is back; connections that are made
meanwhile are accepted and then hear nothing, where a real cut would not even answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any

CHUNK = 64 * 1024
QUEUE_BYTES = 4 * 1024 * 1024
"""Bytes on the way in one direction of a connection: a delay of 100 ms at 300 Mbit/s."""
BURST_S = 0.005
"""Of a rate that may come at once: what a sleep was too long is made up for, or fast links would be slow."""
RST = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: close sends RST."""


@dataclass
class Direction:
    """How bytes flow from one group to another."""

    mode: str = "clear"
    mbit: float = 0.0
    delay: float = 0.0
    """Seconds."""
    jitter: float = 0.0
    """Seconds at most that bytes wait, each piece another time; they stay in order."""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    _free_at: float = 0.0
    moved: int = 0

    def change(self, mode: str, mbit: float, ms: float) -> None:
        self.mode, self.mbit = mode, mbit
        self.delay = ms / 1000 if mode == "delay" else 0.0
        self.jitter = ms / 1000 if mode == "jitter" else 0.0
        if mode == "cut":
            self.open.clear()
        else:
            self.open.set()

    def wait(self) -> float:
        """Seconds that a piece which comes now is late."""
        return self.delay + random.uniform(0, self.jitter)

    async def pace(self, size: int) -> None:
        """Waits until the link has room for `size` bytes more."""
        if self.mode != "rate":
            return
        now = time.monotonic()
        self._free_at = max(now - BURST_S, self._free_at) + size * 8 / (self.mbit * 1e6)
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


class Pump:
    """One direction of one connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._way = way
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE_BYTES // CHUNK)

    async def run(self) -> None:
        """Moves bytes until the end of either side."""
        sender = asyncio.create_task(self._send())
        try:
            while data := await self._reader.read(CHUNK):
                await self._queue.put((time.monotonic() + self._way.wait(), data))
            await self._queue.put((0.0, b""))
            await sender
        finally:
            sender.cancel()

    async def _send(self) -> None:
        way = self._way
        while True:
            due, data = await self._queue.get()
            if not data:
                break
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            await way.pace(len(data))
            await way.open.wait()
            self._writer.write(data)
            way.moved += len(data)
            await self._writer.drain()
        with contextlib.suppress(OSError):
            self._writer.write_eof()


class Proxy:
    """All links, and how they are broken now."""

    def __init__(self) -> None:
        self._ways: dict[tuple[str, str], Direction] = {}
        self._open: dict[tuple[str, str], set[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def way(self, source: str, to: str) -> Direction:
        """How bytes flow from `source` to `to`."""
        if (source, to) not in self._ways:
            self._ways[(source, to)] = way = Direction()
            way.open.set()
        return self._ways[(source, to)]

    async def listen(self, source: str, to: str, listen: int, target: int) -> asyncio.Server:
        """Takes connections of `source` to `to`."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._connection(source, to, target, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return await asyncio.start_server(connected, "127.0.0.1", listen)

    def change(self, source: str, to: str, mode: str, mbit: float, ms: float) -> None:
        """Breaks, or heals, a direction."""
        self.way(source, to).change(mode, mbit, ms)
        if mode == "reset":
            for pair in ((source, to), (to, source)):
                for writer in list(self._open.get(pair, ())):
                    _reset(writer)

    async def _connection(
        self,
        source: str,
        to: str,
        target: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        forth, back = self.way(source, to), self.way(to, source)
        if "reset" in (forth.mode, back.mode):
            _reset(writer)
            return
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            _reset(writer)  # as the kernel would refuse it
            return
        both = self._open.setdefault((source, to), set())
        both |= {writer, onward}
        pumps = [
            asyncio.create_task(Pump(reader, onward, forth).run()),
            asyncio.create_task(Pump(there, writer, back).run()),
        ]
        try:
            # One side has ended: the other may still have something to say, for a while.
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.exception() for task in done):
                await asyncio.wait(pumps, timeout=5.0)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            both -= {writer, onward}
            for end in (writer, onward):
                end.transport.abort()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
    writer.transport.abort()


async def _serve() -> None:
    proxy = Proxy()
    lines = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    listening = [
        await proxy.listen(link["source"], link["to"], link["listen"], link["target"])
        for link in json.loads(await lines.readline())["links"]
    ]
    print("ready", flush=True)
    while line := await lines.readline():
        change: dict[str, Any] = json.loads(line)
        proxy.change(
            change["source"],
            change["to"],
            change["mode"],
            change.get("mbit", 0.0),
            change.get("ms", 0.0),
        )
        print("ok", flush=True)
    for server in listening:
        server.close()


if __name__ == "__main__":
    asyncio.run(_serve())
