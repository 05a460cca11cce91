"""What a store client is told: where Mooncake is, how tight its own timeouts are, our limits."""

from __future__ import annotations

from dataclasses import dataclass

from local_group.bounce import PAGE
from local_group.breaker import BreakerLimits

MIB = 1 << 20
STORE_BREAKER = BreakerLimits(open_s=0.25, open_max_s=5.0, calm_times=0.0)
"""While it is open there are no local hits: short at first, longer only with probes that fail."""


@dataclass(frozen=True)
class StoreSettings:
    """How to reach Mooncake, and Mooncake's own timeouts.

    The timeouts bound the zero-copy path, which nothing else may end, and say how long an overdue
    bounce call holds its worker and its memory. Mooncake reads them from process-wide environment
    variables: a variable that is already set wins (an operator's word), and the first client of a
    process decides for all. Measured effects: docs/decisions/001-deadlines-around-mooncake.md.

    Attributes:
        master_address: "host:port" of the master.
        local_hostname: the name other Mooncake processes know this host by.
        metadata_server: "P2PHANDSHAKE" needs no metadata service.
        protocol: "tcp" or "rdma".
        rdma_devices: comma-separated device names; "" = all.
        global_segment_size: bytes this process adds to the pool; 0 = a client only.
        local_buffer_size: bytes for Mooncake's own copies (get and put without a buffer).
        tenant_id: Mooncake's tenant.
        connect_timeout_s: until the master's port answers, before Mooncake is asked to connect.
        setup_tries: of Mooncake's `setup`. Each holds the interpreter's lock, for 4.4 s if the
            master has just gone, so more than one is the caller's to try. (Default: 20.)
        rpc_timeout_ms: of one RPC to the master. A healthy master answers in under 5 ms, also while
            it lists 100,000 keys; half a second is a master that has stopped. (Default: 30 s.)
        status_timeout_s: until a store node answers a transfer request. Whole seconds; 1 is the
            least. (Default: 30 s.)
        progress_timeout_s: until the next bytes of a running transfer. Whole seconds; 1 is the
            least. (Default: 30 s or more; a stall in the body took 60 s.)
        lanes_per_peer: connections to one store node. 8 are as fast as Mooncake's 4 or faster.
        queued_per_peer: transfers that may be on the lanes or in line for one. A stopped node times
            out its lanes one row after the other, one second each, so a long line is a long stall:
            with Mooncake's 1024 a batch of 128 keys took 60 s to fail. As many as lanes costs no
            speed.
        admission_timeout_ms: how long the rest of a batch waits to get in line; also the longest
            time a healthy but slow node may need for one batch: see `StoreLimits.direct_bytes`.
        pending_per_peer: how many transfers may wait so. With Mooncake's 1024 the keys of a batch
            beyond about 2,000 fail at once on a healthy node, and with tight timeouts the next
            batch hung for 60 s. This is the most Mooncake takes.
    """

    master_address: str
    local_hostname: str = "127.0.0.1"
    metadata_server: str = "P2PHANDSHAKE"
    protocol: str = "tcp"
    rdma_devices: str = ""
    global_segment_size: int = 0
    local_buffer_size: int = 16 * MIB
    tenant_id: str = "default"
    connect_timeout_s: float = 1.0
    setup_tries: int = 1
    rpc_timeout_ms: int = 500
    status_timeout_s: int = 1
    progress_timeout_s: int = 1
    lanes_per_peer: int = 8
    queued_per_peer: int = 8
    admission_timeout_ms: int = 1000
    pending_per_peer: int = 65535

    def environment(self) -> dict[str, str]:
        """The environment variables that Mooncake reads."""
        return {
            "MC_STORE_CLIENT_SETUP_RETRIES": str(self.setup_tries),
            "MC_RPC_TIMEOUT_MS": str(self.rpc_timeout_ms),
            "MC_TCP_STATUS_TIMEOUT_SEC": str(self.status_timeout_s),
            "MC_TCP_PROGRESS_TIMEOUT_SEC": str(self.progress_timeout_s),
            "MC_TCP_LANES_PER_PEER": str(self.lanes_per_peer),
            "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": str(self.queued_per_peer),
            "MC_TCP_ADMISSION_TIMEOUT_MS": str(self.admission_timeout_ms),
            "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": str(self.pending_per_peer),
            # Its log goes to the engine's stderr.
            "MC_LOG_LEVEL": "ERROR",
        }


@dataclass(frozen=True)
class StoreLimits:
    """The client's own limits.

    Attributes:
        bounce_bytes: bounce memory, one region. Holds what is in flight on the bounce path and what
            is quarantined.
        window_bytes: at most this much of a batch is in one bounce call; longer batches go window
            by window under one deadline. The largest block of the bounce path.
        window_keys: as `window_bytes`, in keys; also of one call of `remove` and `sizes`.
        exists_keys: of one call of `exists`: a healthy master takes a microsecond a key.
        direct_bytes: at most this much of a batch is in one zero-copy call (a larger block goes
            alone): Mooncake must be able to move it within `admission_timeout_ms`, so 64 MiB in 1 s
            asks for 64 MiB/s.
        direct_keys: as `direct_bytes`, in keys.
        first_contact_s: deadline of a direct call before any bytes have moved (or since the breaker
            opened). It takes the bounce path: Mooncake's first handshake with a frozen node takes
            62 s, which no setting shortens.
        workers_get: threads for reads. Few threads with large batches are fastest on Mooncake.
        workers_put: threads for writes.
        workers_meta: threads for exists and remove.
        queue_max: calls that may wait for a worker, per kind; the next one is QUEUE_FULL.
        stuck_calls_max: overdue calls that may still be inside Mooncake; with so many, nothing new
            is tried and the answer is STUCK_LIMIT at once. Fewer than there are workers: with all
            of them stuck, waiting in a queue is in vain.
        waiters_max: calls that may wait for bounce memory; the next one is QUEUE_FULL.
        slow_call_s: a call that took longer than this plus its bytes over `slow_bytes_per_s` counts
            against the breaker even if it went well.
        slow_bytes_per_s: see `slow_call_s`.
        proof_s: a timeout counts against the breaker only if the call was inside Mooncake for this
            long, less the time in which this process itself stood still: one that was given a
            millisecond proves nothing.
        incident_s: calls that were under way together and are found late within this time of each
            other are one failure, however many threads waited; later ones are another, so that a
            Mooncake that hangs is left out soon whatever the deadlines are.
        stall_s: a call that was inside Mooncake for this long has seen it stall: half the time after
            which Mooncake's own calls give up (`MC_RPC_TIMEOUT_MS`).
        unsettled_s: for how long after a stall puts are confirmed; see `StoreClient.unsettled`. Above
            the 30 s after which a master gives away the place of a put that never ends.
        close_s: how long `close` waits for Mooncake's own close.
        breaker: for data calls, and another one with the same limits for exists and remove.
    """

    bounce_bytes: int = 128 * MIB
    window_bytes: int = 32 * MIB
    window_keys: int = 1024
    exists_keys: int = 16_384
    direct_bytes: int = 64 * MIB
    direct_keys: int = 1024
    first_contact_s: float = 2.0
    workers_get: int = 2
    workers_put: int = 2
    workers_meta: int = 2
    queue_max: int = 64
    stuck_calls_max: int = 5
    waiters_max: int = 64
    slow_call_s: float = 1.0
    slow_bytes_per_s: float = 64.0 * MIB
    proof_s: float = 0.02
    incident_s: float = 0.25
    stall_s: float = 0.25
    unsettled_s: float = 35.0
    close_s: float = 3.0
    breaker: BreakerLimits = STORE_BREAKER

    def __post_init__(self) -> None:
        if self.bounce_bytes % PAGE or not 0 < self.window_bytes <= self.bounce_bytes:
            raise ValueError(f"0 < window_bytes <= bounce_bytes, a multiple of {PAGE}")
        counts = (
            self.window_keys,
            self.exists_keys,
            self.direct_bytes,
            self.direct_keys,
            self.workers_get,
            self.workers_put,
            self.workers_meta,
            self.queue_max,
            self.stuck_calls_max,
            self.waiters_max,
        )
        if min(counts) < 1:
            raise ValueError("every limit is at least 1")
