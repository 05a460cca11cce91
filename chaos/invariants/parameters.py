"""The parameters of invariants, as a scenario's `[invariants]` gives them.

Those with a default hold in every scenario. `off = "reason"` takes one out, where the fault itself
breaks it: a store that was killed has lost its blocks.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from local_group.config import parse_size

_Share = Annotated[float, Field(strict=False, ge=0, le=1)]
_Amount = Annotated[float, Field(strict=False, ge=0)]


class Parameters(BaseModel):
    """Of one invariant."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    off: Annotated[str, Field(min_length=1)] | None = None
    """Why it does not apply here; it is shown in the report."""


class Bytes(Parameters):
    """No wrong byte reaches a reader; all that it is given is derived again and compared."""

    verified_mib: _Amount = 20.0
    """Less than this checked proves nothing, and counts as broken."""


class LateWrites(Parameters):
    """Nothing touches the caller's memory after a call has returned, timed out or not."""


class Deadlines(Parameters):
    """No call takes longer than its deadline and the slack, less the scheduling delay."""

    slack_ms: _Amount = 10.0
    allowed_share: _Share = 0.0
    """Calls of a thousand (as a share) that may."""


class Errors(Parameters):
    """No exception, and no code other than a hit, a miss and stored, reaches an engine."""

    codes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Codes that the fault explains, e.g. `put -901`."""
    given_up_share: _Share = 0.01
    """Of all blocks, those for which the own Mooncake was given up: a passed deadline, an open breaker, a
    full queue. An engine takes them for misses; a busy machine has some."""


class Acknowledged(Parameters):
    """Whatever a put has acknowledged can be read from the own group at the end."""


class Bounded(Parameters):
    """What every gateway may use at most, at any time of the run."""

    over_cap: _Share = 0.10
    """Growth of resident memory beyond what the limits let it keep (staging, bounce buffers, views)."""
    descriptors: Annotated[int, Field(ge=1)] = 512
    threads: Annotated[int, Field(ge=1)] = 128


class Healthy(Parameters):
    """Afterwards every part runs, the groups hear each other, and a chain of a peer can be read."""

    within_s: _Amount = 10.0


class Leftovers(Parameters):
    """No process of the run is left that should not be."""


class Returns(Parameters):
    """After the last fault, peer hits return."""

    within_s: _Amount = 3.0
    chains: Annotated[int, Field(ge=1, le=100)] = 3
    """So many chains in a row, read whole from a peer."""
    owners: Annotated[tuple[str, ...] | None, Field(strict=False)] = None
    """Whose chains; None: of every real group. A store that was killed has lost its own."""


class Felt(Parameters):
    """The fault reached what it was meant to break: else the run shows nothing. All that is named here
    was seen while it lasted."""

    peer_hits_below: _Share | None = None
    """Share of fresh chains that were read whole."""
    peer_ms_at_least: _Amount | None = None
    """A quarter of the reads of fresh chains took so long."""
    given_up_at_least: Annotated[int, Field(ge=1)] | None = None
    """Blocks that the own Mooncake of a group had, and did not give in time."""
    restarts_at_least: Annotated[int, Field(ge=1)] | None = None
    """Parts of groups that were started anew, from before the fault to the end."""

    @model_validator(mode="after")
    def _something(self) -> Felt:
        signs = (
            self.peer_hits_below,
            self.peer_ms_at_least,
            self.given_up_at_least,
            self.restarts_at_least,
        )
        if self.off is None and all(sign is None for sign in signs):
            raise ValueError(
                "felt needs peer_hits_below, peer_ms_at_least, given_up_at_least or "
                "restarts_at_least, or more of them"
            )
        return self


class Hits(Parameters):
    """Peer hits go on in spite of the fault."""

    at_least: _Share = 0.8
    """Share of fresh blocks that were found while it lasted."""


class Waits(Parameters):
    """Reads of chains of peers do not wait for the peer that fails."""

    median_ms: _Amount
    """At most so long did half of those that began while the fault lasted take."""
    worst_ms: _Amount | None = None
    """At most so long did each of them take."""
    calls: Annotated[int, Field(ge=1)] = 10
    """Fewer show nothing."""


class Booked(Parameters):
    """What a hostile peer has counted itself: what it was given, or how often it was asked."""

    name: str
    """Of the hostile peer; or the word of a step that counts: `herd`, `squeeze`, `disk`, ..."""
    what: str
    """One of its books: `pulls`, `calls`, `served`, `bytes`, ..."""
    at_least: Annotated[int, Field(ge=0)] = 1
    """Less shows nothing."""
    at_most: Annotated[int, BeforeValidator(parse_size), Field(ge=0)] | None = None
    per_s: bool = False
    """Over the seconds that its attack went on."""


class Peak(Parameters):
    """The most that a gateway's guard of one peer was seen to hold."""

    group: str
    peer: str
    what: Annotated[str, Field(pattern=r"^(incoming|outgoing)\.[a-z_]+$")]
    """A number in `status`, e.g. `incoming.memory_bytes`."""
    at_least: Annotated[int, Field(ge=0)] = 1
    """Less shows nothing."""
    at_most: Annotated[int, BeforeValidator(parse_size), Field(ge=0)]


class Keeps(Parameters):
    """Groups that the fault is none of the business of read as many blocks a second as before it."""

    groups: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    at_least: _Share = 0.95
    """Share of the blocks a second that they were given, by their group and by peers, before the fault."""
    calls: Annotated[int, Field(ge=1)] = 100
    """Fewer, before the fault or while it lasts, show nothing."""


class LocalP99(Parameters):
    """Local hits of the last group are as fast as with an equal CPU burner in place of the fault."""

    ratio: Annotated[float, Field(strict=False, ge=1, le=10)] = 1.05
    plus_ms: _Amount = 0.2
    """The larger of the two allowances counts."""
    burner_rounds: Annotated[int, Field(ge=0, le=10)] = 0
    """The whole run again so often, with fault and with burners in its place in turn. 0: where the fault
    uses no CPU worth a burner, its reads are compared with those before it, of all runs on the topology."""


class Counter(Parameters):
    """A counter of a gateway grew during the run: the refusal took place, and was counted."""

    group: str
    name: str
    at_least: Annotated[int, Field(ge=0)] = 1
    at_most: Annotated[int, Field(ge=0)] | None = None


class Refused(Parameters):
    """The gateway names who it refused, and why, in its status."""

    group: str
    who: str
    says: str


class Contained(Parameters):
    """What a trusted peer wrote wrong is read in its namespace alone, its origin is on record, and
    `moonmesh purge` takes all of it out again."""

    group: str
    origin: str
    poisoned_bytes: Annotated[int, Field(ge=1)] = 1
    """Fewer read wrong than this show nothing."""
    purge_s: Annotated[int, Field(ge=1, le=120)] = 15
    """How long the purge may wait for blocks that are being read."""


class Leased(Parameters):
    """What one peer was served within any lease is bounded: it cannot pin the pool."""

    name: str
    """The hostile peer that counts what it gets."""
    tolerance: _Share = 0.1
    """The hostile peer's count is by arrival, in a window that slides."""
    puts_stored: _Share = 0.95
    """Share of the engines' own puts that Mooncake takes meanwhile."""


class Invariants(BaseModel):
    """All of a scenario's."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    wrong_bytes: Bytes = Bytes()
    late_writes: LateWrites = LateWrites()
    deadlines: Deadlines = Deadlines()
    errors: Errors = Errors()
    acknowledged: Acknowledged = Acknowledged()
    bounded: Bounded = Bounded()
    healthy: Healthy = Healthy()
    leftovers: Leftovers = Leftovers()
    local_p99: LocalP99 = LocalP99()
    returns: Returns | None = None
    felt: Felt | None = None
    hits: Hits | None = None
    waits: Waits | None = None
    keeps: Keeps | None = None
    books: Annotated[tuple[Booked, ...], Field(strict=False)] = ()
    peaks: Annotated[tuple[Peak, ...], Field(strict=False)] = ()
    counters: Annotated[tuple[Counter, ...], Field(strict=False)] = ()
    refused: Annotated[tuple[Refused, ...], Field(strict=False)] = ()
    contained: Contained | None = None
    leased: Leased | None = None
