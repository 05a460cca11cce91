"""Everything in a gateway's `status` that may pile up, with the limit that holds it: for `bounded`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from federation.catalog.room import BYTES_PER_BLOCK
from federation.counters import COUNTER_NAMES
from federation.limits_config import Limits
from federation.peers.feed import CHANGED_MAX
from federation.peers.relay import GONE_MAX, HELLOS_WAITING, SAID_MAX
from federation.status import PROBLEMS_MAX
from federation.telemetry import QUEUE_SPANS
from federation.trust.handshakes import ENTRIES_MAX
from local_group.store_config import StoreLimits

Status: TypeAlias = Mapping[str, Any]
STORE_QUEUES = 3
"""A store client has one for reads, one for writes, and one for other questions."""
EXPORTERS_MAX = 2
"""Where spans may go: files, and a collector."""


class Bound(NamedTuple):
    """One row of the table.

    Attributes:
        values: of it in a `status`; none where that does not tell.
        limit: of each of them.
        always: any `status` of a gateway with peers tells it; so nobody judges what is not there.
        watched: looked at from time to time by who ends what exceeds it, and so exceeded for a moment.
    """

    name: str
    values: Callable[[Status], Iterable[Any]]
    limit: Callable[[Limits], float]
    always: bool = True
    watched: bool = False


def _at(*path: str) -> Callable[[Status], Iterator[Any]]:
    """What is at a place in a `status`."""

    def look(status: Status) -> Iterator[Any]:
        value: Any = status
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        yield value

    return look


def _serving(*path: str) -> Callable[[Status], Iterator[Any]]:
    """What each serving process says at a place."""
    look = _at(*path)

    def each(status: Status) -> Iterator[Any]:
        for one in (status.get("serving"), *status.get("serving_others", ())):
            yield from look(one or {})

    return each


def _listed(*path: str) -> Callable[[Status], Iterator[Any]]:
    """How much is listed at a place."""
    return lambda status: (len(v) for v in _at(*path)(status) if isinstance(v, (list, Mapping)))


def _guards(direction: str, *path: str) -> Callable[[Status], Iterator[Any]]:
    """What the guards of each peer say."""
    look = _at("guards", direction, *path)
    return lambda status: (v for peer in status.get("peers", ()) for v in look(peer))


def _open(direction: str) -> Callable[[Status], Iterator[Any]]:
    calls = _guards(direction, "open")
    return lambda status: (sum(v.values()) for v in calls(status) if isinstance(v, Mapping))


def _windows(status: Status) -> Iterator[float]:
    """Of a peer, in a serving process: `status` has the sum over all of them, which each has its own of."""
    processes = 1 + len(status.get("serving_others", ()))
    held = _guards("incoming", "memory_bytes")(status)
    return (value / processes for value in held if isinstance(value, (int, float)))


def _views(status: Status) -> Iterator[Any]:
    if (peers := status.get("peers")) is not None:
        yield sum(v["blocks"] for peer in peers for v in peer["views"])


def _staged(status: Status) -> Iterator[Any]:
    held = status.get("staging")
    if held is not None:
        yield held["bytes"] + held["reserved"]


BOUNDS = (
    # The gateway
    Bound("staging bytes", _staged, lambda x: x.staging_bytes),
    Bound("bounce bytes", _at("store", "bounce_used_bytes"), lambda x: x.bounce_bytes),
    Bound("store calls", _at("store", "queued"), lambda x: STORE_QUEUES * StoreLimits().queue_max),
    Bound("blocks to admit", _at("queues", "admission_blocks"), lambda x: x.admission_queue_blocks),
    Bound("journal bytes", _at("queues", "journal_bytes"), lambda x: x.journal_bytes_max),
    Bound("foreign blocks", _at("queues", "foreign_blocks"), lambda x: x.foreign_blocks),
    Bound("blocks to feed", _at("queues", "feed_blocks"), lambda x: CHANGED_MAX),
    Bound("pulls of a peer", _at("queues", "pulls"), lambda x: x.pulls_waiting_per_peer),
    Bound("engines", _at("queues", "engines"), lambda x: x.engines_max),
    Bound("blocks held", _at("holdings", "blocks"), lambda x: x.holdings_blocks),
    Bound("blocks in views", _views, lambda x: x.views_bytes // BYTES_PER_BLOCK),
    Bound("spans", _at("telemetry", "spans_queued"), lambda x: EXPORTERS_MAX * QUEUE_SPANS),
    Bound("counters", _listed("counters"), lambda x: COUNTER_NAMES),
    Bound("refusals", _listed("refused"), lambda x: ENTRIES_MAX),
    Bound("problems", _listed("problems"), lambda x: PROBLEMS_MAX),
    Bound("calls open, out", _open("outgoing"), lambda x: x.peer_requests_open),
    Bound(
        "pulls open, out",
        _guards("outgoing", "open", "pull"),
        lambda x: x.pulls_per_peer,
        always=False,
    ),
    Bound("staging of a peer", _guards("outgoing", "memory_bytes"), lambda x: x.staging_bytes),
    Bound("catalog bytes", _guards("outgoing", "catalog_bytes"), lambda x: x.peer_catalog_bytes),
    # Its serving processes, each of them: they have told nothing yet when a gateway begins
    Bound(
        "serving memory",
        _serving("rss_bytes"),
        lambda x: x.serving_memory,
        always=False,
        watched=True,
    ),
    Bound("serving blocks", _serving("blocks"), lambda x: x.holdings_blocks, always=False),
    Bound(
        "serving bounce bytes",
        _serving("store", "bounce_used_bytes"),
        lambda x: x.bounce_bytes,
        always=False,
    ),
    Bound(
        "serving store calls",
        _serving("store", "queued"),
        lambda x: STORE_QUEUES * StoreLimits().queue_max,
        always=False,
    ),
    Bound(
        "serving spans",
        _serving("telemetry", "spans_queued"),
        lambda x: EXPORTERS_MAX * QUEUE_SPANS,
        always=False,
    ),
    Bound(
        "withdrawals to tell",
        _serving("queues", "gone_blocks"),
        lambda x: GONE_MAX,
        always=False,
    ),
    Bound("messages to tell", _serving("queues", "said"), lambda x: SAID_MAX, always=False),
    Bound(
        "hellos to pass on",
        _serving("queues", "hellos"),
        lambda x: HELLOS_WAITING,
        always=False,
    ),
    Bound("calls open, in", _open("incoming"), lambda x: x.peer_requests_open, always=False),
    Bound(
        "pulls open, in",
        _guards("incoming", "open", "pull"),
        lambda x: x.serves_per_peer,
        always=False,
    ),
    Bound(
        "windows of a peer",
        _windows,
        lambda x: x.bounce_bytes,
        always=False,
    ),
)
"""The one table; a name, its value, its limit."""


def held(status: Status) -> Iterator[tuple[str, float]]:
    """Name and value of each row that a `status` tells; of several values the largest."""
    for row in BOUNDS:
        values = [v for v in row.values(status) if isinstance(v, (int, float))]
        if values:
            yield row.name, max(values)


def broken(most: Mapping[str, float], limits: Limits, over: float) -> list[str]:
    """What was exceeded, and what ought to have been told and was not.

    Args:
        most: the largest value of each row that was seen in any `status`; empty: there was none.
        over: by how much (a share) what is only watched may exceed its limit.
    """
    found = []
    for row in BOUNDS if most else ():
        limit = row.limit(limits) * (1 + over if row.watched else 1)
        if row.name not in most:
            found += [f"{row.name} not told"] if row.always else []
        elif most[row.name] > limit:
            found.append(f"{row.name} {most[row.name]:.0f} > {limit:.0f}")
    return found
