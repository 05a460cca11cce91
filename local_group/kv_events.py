"""What a master that is built with KV events publishes, read and checked; sans-IO.

Each message has three frames: an empty topic, a sequence number (u64, big-endian) that begins at 1 with the
publisher, and MessagePack `[timestamp_ms, [event, ...], dp_rank]`, where an event is a map with `event_type`
(`stored`, `removed`, `cleared`), `tenant_id`, `medium` and `object_key`, among others that are not looked at
(Mooncake's docs/source/design/kv-event/publisher-design.md). Nothing is sent twice, or kept for who comes
later, and most removals emit no event. So events are ahead of listings, and never the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

TENANT = "default"
"""Of the blocks that listings show: events of others are not looked at."""
PAYLOAD_BYTES_MAX = 1 << 20
"""Of one message: 64 events, each with a key of a kilobyte at most and as much around it, are 130 kB."""
EVENTS_MAX = 4096
"""Of one message; the publisher sends 64 at most."""
_SEQ_BYTES = 8


class Event(NamedTuple):
    """A key came or went."""

    stored: str
    """The key under which Mooncake has, or had, it."""
    added: bool


@dataclass
class News:
    """What a message says."""

    events: list[Event] = field(default_factory=list)
    rescan: str = ""
    """Why Mooncake has to be listed, if it has to."""


class _Map(msgspec.Struct):
    event_type: str
    tenant_id: str = TENANT
    object_key: str | None = None


class EventStream:
    """The messages of one master, in the order in which they come."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._payload = msgspec.msgpack.Decoder(tuple[int, list[_Map], Any])
        self.messages = 0
        self.malformed = 0
        """Messages that are none of a publisher."""
        self.gaps = 0
        """Times that something was missed, or the publisher began anew."""

    def receive(self, frames: Sequence[bytes]) -> News:
        """Takes a message; what it says."""
        self.messages += 1
        if len(frames) != 3 or len(frames[1]) != _SEQ_BYTES or len(frames[2]) > PAYLOAD_BYTES_MAX:
            return self._malformed()
        last, self._last = self._last, int.from_bytes(frames[1], "big")
        try:
            _, maps, _ = self._payload.decode(frames[2])
        except (msgspec.MsgspecError, ValueError):
            return self._malformed()
        if len(maps) > EVENTS_MAX:
            return self._malformed()
        news = News()
        if last is None:
            news.rescan = "what was before the first event is not known"
        elif self._last != last + 1:
            self.gaps += 1
            news.rescan = f"event {self._last} came after {last}"
        for each in maps:
            if each.tenant_id != TENANT:
                continue
            if each.event_type == "cleared":
                news.rescan = "all was cleared"
            elif each.object_key is None:
                news.rescan = "an event has no key: set kv_events_emit_object_key of the master"
            elif each.event_type in ("stored", "removed"):
                news.events.append(Event(each.object_key, each.event_type == "stored"))
        return news

    def _malformed(self) -> News:
        self.malformed += 1
        self._last = None
        return News(rescan="a message that is none")
