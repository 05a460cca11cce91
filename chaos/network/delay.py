"""Delays packets: `python -m chaos.network.delay DEVICE`, in the namespace where the TUN device is.

Packets that are routed into the device come out of it again, each so late as the direction between its
two addresses says. So a delay acts on connections that are open as on new ones, handshakes included.

stdin: a line a change, `{"source": address, "to": address, "mode": "delay"|"jitter"|"reorder", "ms": x,
"share": x}`. stdout: `ready`, then `ok` a change.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import heapq
import itertools
import json
import os
import random
import socket
import struct
import sys

TUN = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES = 65_536
PACKETS_AT_ONCE = 256
"""Read before others have their turn."""
QUEUE_BYTES = 16 * 1024 * 1024
"""On the way in one direction; what comes in beyond that is dropped: 100 ms at 1.3 Gbit/s."""


def open_tun(name: str) -> int:
    """A descriptor of a TUN device: one packet a read, one a write, without a header before it."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


class Line:
    """One direction: packets leave in the order in which they came, each after its time; but for `reorder`.

    A packet that comes once the delay is shorter does not overtake those that wait.

    Args:
        rng: how late each packet is, where that changes, and which ones are overtaken.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self.seconds = 0.0
        self.mode = "delay"
        self.share = 0.0
        self.dropped = 0
        self.overtaken = 0
        self._rng = rng or random.Random()
        self._bytes = 0
        self._number = itertools.count()
        self._last = 0.0
        self._waiting: list[tuple[float, int, bytes]] = []

    def put(self, packet: bytes, now: float) -> None:
        """Takes a packet in, or drops it if the queue is full."""
        if self._bytes + len(packet) > QUEUE_BYTES:
            self.dropped += 1
            return
        self._bytes += len(packet)
        heapq.heappush(self._waiting, (self._due(now), next(self._number), packet))

    def _due(self, now: float) -> float:
        if self.mode == "reorder":
            if self._rng.random() >= self.share:
                return now
            self.overtaken += 1
            return now + self.seconds
        late = self.seconds if self.mode == "delay" else self._rng.uniform(0, self.seconds)
        self._last = max(self._last, now + late)
        return self._last

    def take(self, now: float) -> list[bytes]:
        """The packets whose time has come."""
        due = []
        while self._waiting and self._waiting[0][0] <= now:
            _, _, packet = heapq.heappop(self._waiting)
            self._bytes -= len(packet)
            due.append(packet)
        return due

    @property
    def next(self) -> float | None:
        """When the first of those that wait is to leave."""
        return self._waiting[0][0] if self._waiting else None


class Delay:
    """Moves packets between the device and the lines."""

    def __init__(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        self._tun = descriptor
        self._loop = loop
        self._lines: dict[bytes, Line] = {}
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        loop.add_reader(descriptor, self._read)

    def change(self, source: str, to: str, mode: str, ms: float, share: float) -> None:
        """What comes from now on is so late."""
        line = self._line(socket.inet_aton(source) + socket.inet_aton(to))
        line.mode, line.seconds, line.share = mode, ms / 1000, share

    def _line(self, way: bytes) -> Line:
        return self._lines.setdefault(way, Line())

    def _read(self) -> None:
        for _ in range(PACKETS_AT_ONCE):
            try:
                packet = os.read(self._tun, PACKET_BYTES)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue  # IPv6 neighbours that look for each other
            way = packet[12:20]
            line, now = self._line(way), self._loop.time()
            first = line.next
            line.put(packet, now)
            if first is None or line.next != first:
                if way in self._timers:
                    self._timers.pop(way).cancel()
                self._send(way)

    def _send(self, way: bytes) -> None:
        self._timers.pop(way, None)
        line = self._line(way)
        for packet in line.take(self._loop.time()):
            with contextlib.suppress(OSError):  # as a wire: what does not fit is lost
                os.write(self._tun, packet)
        if line.next is not None:
            self._timers[way] = self._loop.call_at(line.next, self._send, way)


async def _serve(device: str) -> None:
    loop = asyncio.get_running_loop()
    delay = Delay(open_tun(device), loop)
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    while line := await lines.readline():
        change = json.loads(line)
        delay.change(**change)
        print("ok", flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
