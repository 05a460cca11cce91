"""The one place where limits become guards: one `PeerGuards` a peer, put together from the config."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from federation.config import GroupFile, Limits
from federation.counters import counters
from federation.limits.bucket import TokenBucket
from federation.limits.budget import LeaseBudget, RetryBudget
from federation.limits.bulkhead import Bulkhead, Shares
from federation.limits.guard import Guard, Parts
from federation.limits.names import GuardName
from federation.limits.pulse import Pulse
from federation.limits.switches import guards_off
from federation.limits.verdict import Verdicts
from local_group.breaker import BreakerLimits, Rng

log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
"""Mooncake's default lease."""

REFUSALS = "moonmesh_guard_refusals_total"
INCOMING = "in"
OUTGOING = "out"


class PeerGuards:
    """Both directions of one peer.

    Args:
        config: the numbers.
        name: of the peer.
        rng: for the breakers' jitter.
        staging: memory that pulled blocks land in, shared by all peers.
        windows: memory that serves copy into, shared by all peers.
        lease_ttl: seconds of a lease of the local Mooncake.
        off: guards that a test has switched off.

    Attributes:
        outgoing: what we ask of the peer, and take from it.
        incoming: what the peer asks of us.
    """

    def __init__(
        self,
        config: Limits,
        name: str,
        rng: Rng,
        *,
        staging: Shares | None = None,
        windows: Shares | None = None,
        lease_ttl: float = LEASE_SECONDS,
        off: frozenset[GuardName] = frozenset(),
    ) -> None:
        self.name = name
        staging = staging or _staging(config, [name], off)
        windows = windows or _windows(config, [name], off)
        self.outgoing = Guard(
            name,
            _parts(config, rng, config.pulls_per_peer, staging, off, retries=_retries(config)),
            off=off,
            on_refusal=_counted(OUTGOING),
        )
        self.incoming = Guard(
            name,
            _parts(
                config, rng, config.serves_per_peer, windows, off, leases=_leases(config, lease_ttl)
            ),
            off=off,
            on_refusal=_counted(INCOMING),
        )


class Guards(Mapping[str, PeerGuards]):
    """The guards of all peers of a group, with the memory that they share.

    Args:
        names: the peers; nobody else is let in.
    """

    def __init__(
        self,
        config: Limits,
        names: Iterable[str],
        rng: Rng,
        *,
        lease_ttl: float = LEASE_SECONDS,
        off: frozenset[GuardName] = frozenset(),
    ) -> None:
        known = list(names)
        self.staging = _staging(config, known, off)
        self.windows = _windows(config, known, off)
        self.off = off
        self._peers = {
            name: PeerGuards(
                config,
                name,
                rng,
                staging=self.staging,
                windows=self.windows,
                lease_ttl=lease_ttl,
                off=off,
            )
            for name in known
        }

    def __getitem__(self, name: str) -> PeerGuards:
        return self._peers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def resize_pool(self, pool: int) -> None:
        """The local pool has `pool` bytes now."""
        for peer in self._peers.values():
            peer.incoming.resize_pool(pool)


def make_guards(
    config: GroupFile,
    names: Iterable[str],
    rng: Rng,
    environment: Mapping[str, str],
) -> Guards:
    """The guards of a process that speaks for this group with the peers `names`.

    The gateway holds to the outgoing ones, its serving process to the incoming ones.

    Raises:
        ConfigError: the environment switches guards off in a way that is not allowed.
    """
    off = guards_off(environment)
    if off:
        log.warning("guards are switched off for a test: %s", ", ".join(sorted(off)))
    ttl = config.master.lease_ttl_ms / 1000
    return Guards(config.limits, names, rng, lease_ttl=ttl, off=off)


def _staging(config: Limits, names: Iterable[str], off: frozenset[GuardName]) -> Shares:
    return _shares(config, config.staging_bytes, names, GuardName.STAGING not in off)


def _windows(config: Limits, names: Iterable[str], off: frozenset[GuardName]) -> Shares:
    return _shares(config, config.bounce_bytes, names, GuardName.WINDOW not in off)


def _shares(config: Limits, total: int, names: Iterable[str], enforced: bool) -> Shares:
    return Shares(
        total,
        names,
        config.peer_shared_percent,
        largest=config.block_bytes_max,
        enforced=enforced,
    )


def _parts(
    config: Limits,
    rng: Rng,
    streams: int,
    memory: Shares,
    off: frozenset[GuardName],
    *,
    retries: RetryBudget | None = None,
    leases: LeaseBudget | None = None,
) -> Parts:
    burst = config.peer_burst_ms / 1000
    return Parts(
        verdicts=_verdicts(config, rng, off),
        requests=Bulkhead(config.peer_requests_open),
        streams=Bulkhead(streams),
        catalogs=Bulkhead(config.peer_catalogs_per_namespace),
        catalog_bytes=Bulkhead(config.peer_catalog_bytes),
        request_rate=_rate(config.peer_requests_per_s, burst),
        hello_rate=_rate(config.peer_hellos_per_s, burst),
        byte_rate=_rate(config.peer_bytes_per_s, burst),
        catalog_rate=_rate(config.peer_catalog_bytes_per_s, burst),
        memory=memory,
        hop_limit=config.hop_limit,
        retry_after_max=config.peer_retry_after_max_ms / 1000,
        retries=retries,
        leases=leases,
    )


def _verdicts(config: Limits, rng: Rng, off: frozenset[GuardName]) -> Verdicts:
    open_s = config.peer_breaker_open_ms / 1000
    return Verdicts(
        BreakerLimits(
            failures=config.peer_breaker_failures,
            window=max(config.peer_breaker_window, config.peer_breaker_failures),
            open_s=open_s,
            open_max_s=max(config.peer_breaker_open_max_ms / 1000, open_s),
            within_s=config.peer_breaker_within_ms / 1000,
        ),
        rng,
        Pulse(config.peer_silence_ms / 1000, config.peer_stall_ms / 1000),
        slow_s=config.peer_slow_ms / 1000,
        slow_rate=config.peer_slow_bytes_per_s,
        dishonest=config.peer_dishonest_percent / 100,
        honesty_pulls=config.peer_honesty_pulls,
        honesty_blocks_min=config.peer_honesty_blocks_min,
        doubt_s=config.peer_doubt_ms / 1000,
        doubt_every_s=config.peer_doubt_every_ms / 1000,
        off=off,
    )


def _rate(per_second: int, burst_s: float) -> TokenBucket:
    return TokenBucket(per_second, per_second * burst_s)


def _retries(config: Limits) -> RetryBudget:
    return RetryBudget(config.peer_retry_percent, config.peer_retries_few)


def _leases(config: Limits, ttl: float) -> LeaseBudget:
    return LeaseBudget(config.peer_leased_percent, config.peer_leased_bytes_min, ttl)


def _counted(direction: str) -> Callable[[str, GuardName], None]:
    def count(peer: str, guard: GuardName) -> None:
        counters.add(f'{REFUSALS}{{peer="{peer}",guard="{guard.value}",direction="{direction}"}}')

    return count
