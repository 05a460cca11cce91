"""What several processes count together: each writes its own number, and reads those of the others.

So a limit of a peer is one limit, whichever of a group's serving processes it asks, and no message goes
between them. Two that look in the same moment can both find the last place free: what is exceeded by that
is one call or one read for each process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from federation.limits.budget import LeaseRecord


class Count(Protocol):
    """A number of this process, and what the same number of the others adds up to."""

    def set(self, n: int) -> None:
        """Of this process, from now on."""

    def add(self, n: int) -> None:
        """So much more, in this process."""

    def elsewhere(self) -> int:
        """The sum of the others'."""


@dataclass(frozen=True)
class Book:
    """What the processes count of one peer; see `Guard.join`.

    Attributes:
        leases: reads under lease of this process, and of those that had its place before it.
        beside: those of the others.
        streams, requests: open now.
        request_rate, hello_rate, byte_rate, catalog_rate: let through since the first of them began.
    """

    leases: LeaseRecord
    beside: Sequence[LeaseRecord]
    streams: Count
    requests: Count
    request_rate: Count
    hello_rate: Count
    byte_rate: Count
    catalog_rate: Count
