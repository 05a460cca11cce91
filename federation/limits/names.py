"""The words of the guards: which there are, what is asked for, and how a call can fail."""

from __future__ import annotations

import enum


class GuardName(str, enum.Enum):
    """One guard. The value is its name in metrics, in `status` and in the test switch."""

    BREAKER = "breaker"
    """Nothing is asked of a peer that fails, and nothing is done for one that breaks the protocol."""
    RETRY_AFTER = "retry_after"
    """A peer that said when to come back is left alone until then."""
    REQUESTS = "requests"
    """Calls of all kinds open at once."""
    STREAMS = "streams"
    """Streams of blocks open at once."""
    CATALOGS = "catalogs"
    """Catalog questions open at once in one namespace."""
    STAGING = "staging"
    """Memory in staging for blocks of one peer."""
    WINDOW = "window"
    """Memory in bounce buffers for serves to one peer."""
    CATALOG_BYTES = "catalog_bytes"
    """Memory for catalog answers that one peer is sending."""
    REQUEST_RATE = "request_rate"
    """Pulls and catalog questions a second."""
    HELLO_RATE = "hello_rate"
    """Hellos a second."""
    BYTE_RATE = "byte_rate"
    """Bytes of blocks a second."""
    CATALOG_RATE = "catalog_rate"
    """Bytes of catalogs a second."""
    RETRIES = "retries"
    """Blocks asked of a second peer after a first one did not send them."""
    LEASES = "leases"
    """Bytes of the pool that reads for one peer keep from eviction."""
    HOPS = "hops"
    """Group borders that a block has crossed."""
    DIGEST = "digest"
    """A block is what its writer wrote. Checked where it arrives, and again by the engine."""
    SLOW = "slow"
    """A call below the least speed counts as a failure."""
    STALL = "stall"
    """A stream on which nothing moves is ended."""
    HONESTY = "honesty"
    """A peer that does not have most of what its catalog says counts as failing."""
    GIVING_WAY = "giving_way"
    """Less is read for peers while the group's own Mooncake is slower than usual."""
    FEDERATION = "federation"
    """An engine whose gateway is slow works with its own group alone. It is the one guard of engines."""
    SWITCH = "switch"
    """Nothing is exchanged with a peer that an operator has switched off."""


WAITABLE = frozenset(
    {
        GuardName.REQUESTS,
        GuardName.STREAMS,
        GuardName.WINDOW,
        GuardName.REQUEST_RATE,
        GuardName.BYTE_RATE,
    }
)
"""Refusals that pass by themselves soon: whoever has time left may wait for his turn."""


class Kind(str, enum.Enum):
    """What is asked for."""

    HELLO = "hello"
    CATALOG = "catalog"
    PULL = "pull"


class Failure(str, enum.Enum):
    """How a call failed. `PeerError.failure` has the value."""

    ERROR = "error"
    """The peer answered with an error."""
    UNREACHABLE = "unreachable"
    """No connection."""
    LOST = "lost"
    """A connection ended under a call, and another to the same gateway stands."""
    TIMEOUT = "timeout"
    """No end within the deadline."""
    STALL = "stall"
    """It began, and then nothing moved."""
    SLOW = "slow"
    """It ended well, too slowly to be of use."""
    DIGEST = "digest"
    """Bytes that are not what their digest says."""
    PROTOCOL = "protocol"
    """A message that cannot be, or is above a limit."""
    DISHONEST = "dishonest"
    """Most of what its catalog promises is not there."""
    SHED = "shed"
    """It has no room now and says so: it protects itself, and is well."""
    OURS = "ours"
    """Ended for a reason of our own: it says nothing of the peer."""


BLAMELESS = frozenset({Failure.SHED, Failure.OURS, Failure.LOST})
"""Failures that a breaker is not told of."""
