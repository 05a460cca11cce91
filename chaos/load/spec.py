"""What the runner tells an engine process, and what it hears: JSON lines on stdin and stdout.

In: an `EngineSpec`; then commands `{"do": "prepare"|"settle"|"start"|"stop"|"audit"|"end", ...}`.
Out: one answer a command (`{"done": ..., ...}`), `{"failed": text}`, and `{"tick": Tick}` while a
load runs.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict


class EngineSpec(BaseModel):
    """One engine process; it lives as long as its topology."""

    model_config = ConfigDict(frozen=True)

    config: str
    """The group's group.toml."""
    group: str
    block_bytes: int
    deadline_ms: int
    """Of calls that name none."""
    own_namespace: bool = False
    """Whether the engine brings its namespace itself: no group.toml has it, and no peer shares it."""
    guest: bool
    """Also open a store in the guest namespace."""


class LoadSpec(BaseModel):
    """The load of one run."""

    model_config = ConfigDict(frozen=True)

    tag: str
    """In the keys: runs share no block."""
    seed: int
    blocks: int
    local_chains: int
    fresh_chains: int
    """Chains that are written for the peers to read, in each group."""
    local_rate: float
    peer_rate: float
    peer_owners: tuple[str, ...]
    write_rate: float
    exists_rate: float
    guest_rate: float
    guest_owners: tuple[str, ...]
    deadline_ms: int
    peer_deadline_ms: int
    after_s: float | None = None
    """Seconds of the load after which chains of peers are read as the next two say; None: never."""
    after_peer_rate: float = 10.0
    after_peer_deadline_ms: int = 500
    peer_threads: int = 2
    writes_back: bool = True
    """Whether what no peer gave is written, as an engine does that has computed it."""
    trace_rate: float = 0.0
    """Requests of a trace a second that fall to this group."""
    trace: str = ""
    """Its file; empty: the one that comes with the package."""
    trace_groups: tuple[str, ...] = ()
    """Which share its requests."""
    probe: bool = False
    """Whether this engine only reads what its group's other engine has written."""


class Sample(NamedTuple):
    """One call of an engine."""

    at: float
    """When it began: CLOCK_MONOTONIC, the same in every process of this host."""
    kind: str
    """local, peer, put, exists or guest."""
    ms: float
    late_ms: float
    """Beyond its deadline and the scheduling delay; 0 if it kept it. The slack is not yet off."""
    local: int
    peer: int
    misses: int
    """Blocks, by where they came from."""
    owner: str = ""
    """Of a chain that only a peer has: whose it is; a group, or a hostile peer's place."""


class Totals(BaseModel):
    """Sums of one engine over a run."""

    verified_bytes: int = 0
    wrong_bytes: int = 0
    wrong: list[str] = []
    """Examples: what was read how, and what was given instead."""
    poisoned_bytes: int = 0
    """Wrong, in the guest namespace, where a hostile peer is trusted."""
    late_writes: int = 0
    """Times that memory had changed between two calls on it."""
    puts: int = 0
    stored: int = 0
    """Blocks that were to be written, and that were acknowledged."""
    errors: list[str] = []
    codes: dict[str, int] = {}
    behind: int = 0
    """Calls that were left out because the one before took too long."""
    scheduling_ms_max: float = 0.0


class Audit(BaseModel):
    """What became of everything that was written."""

    checked: int = 0
    lost: int = 0
    """Acknowledged, and not in the own group."""
    unread: int = 0
    """Acknowledged, and could not be asked for in time."""
    wrong_bytes: int = 0
    wrong: list[str] = []
    """What was given in the place of blocks: the first few."""
    verified_bytes: int = 0
    examples: list[str] = []
