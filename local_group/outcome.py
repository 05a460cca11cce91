"""What became of one key: a status, a size and Mooncake's own code with its name."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Status(enum.Enum):
    """The status of one key after a call."""

    HIT = "hit"  # read whole; for `exists`: it is there; for `remove`: it is gone now
    STORED = "stored"  # written, or it was there already (the first value stays)
    MISS = "miss"  # not there
    TIMEOUT = "timeout"  # the deadline passed, or Mooncake's own RPC timeout did
    ERROR = "error"  # anything else: see `Outcome.error_name`


# As the library itself prints them (mooncake::toString, 0.3.13.post1).
MOONCAKE_CODES: dict[int, str] = {
    0: "OK",
    -1: "INTERNAL_ERROR",
    -10: "BUFFER_OVERFLOW",
    -100: "SHARD_INDEX_OUT_OF_RANGE",
    -101: "SEGMENT_NOT_FOUND",
    -102: "SEGMENT_ALREADY_EXISTS",
    -103: "CLIENT_NOT_FOUND",
    -200: "NO_AVAILABLE_HANDLE",
    -300: "INVALID_VERSION",
    -400: "INVALID_KEY",
    -500: "WRITE_FAIL",
    -600: "INVALID_PARAMS",
    -601: "ILLEGAL_CLIENT",
    -700: "INVALID_WRITE",
    -701: "INVALID_READ",
    -702: "INVALID_REPLICA",
    -703: "REPLICA_IS_NOT_READY",
    -704: "OBJECT_NOT_FOUND",
    -705: "OBJECT_ALREADY_EXISTS",
    -706: "OBJECT_HAS_LEASE",
    -707: "LEASE_EXPIRED",
    -708: "OBJECT_HAS_REPLICATION_TASK",
    -709: "OBJECT_NO_REPLICATION_TASK",
    -710: "REPLICA_NOT_FOUND",
    -711: "REPLICA_ALREADY_EXISTS",
    -712: "REPLICA_IS_GONE",
    -714: "OBJECT_REPLICA_BUSY",
    -800: "TRANSFER_FAIL",
    -801: "CHECKSUM_MISMATCH",
    -900: "RPC_FAIL",
    -901: "RPC_TIMEOUT",
    -1000: "ETCD_OPERATION_ERROR",
    -1001: "ETCD_KEY_NOT_EXIST",
    -1002: "ETCD_TRANSACTION_FAIL",
    -1003: "ETCD_CTX_CANCELLED",
    -1004: "OPLOG_ENTRY_NOT_FOUND",
    -1005: "K8S_LEASE_OPERATION_ERROR",
    -1006: "K8S_LEASE_NOT_FOUND",
    -1007: "INCOMPLETE_OPLOG_CATCH_UP",
    -1010: "UNAVAILABLE_IN_CURRENT_STATUS",
    -1011: "UNAVAILABLE_IN_CURRENT_MODE",
    -1012: "NOT_SUPPORTED",
    -1100: "FILE_NOT_FOUND",
    -1101: "FILE_OPEN_FAIL",
    -1102: "FILE_READ_FAIL",
    -1103: "FILE_WRITE_FAIL",
    -1104: "FILE_INVALID_BUFFER",
    -1105: "FILE_LOCK_FAIL",
    -1106: "FILE_INVALID_HANDLE",
    -1200: "BUCKET_NOT_FOUND",
    -1201: "BUCKET_ALREADY_EXISTS",
    -1202: "KEYS_EXCEED_BUCKET_LIMIT",
    -1203: "KEYS_ULTRA_LIMIT",
    -1300: "UNABLE_OFFLOAD",
    -1301: "UNABLE_OFFLOADING",
    -1400: "TASK_NOT_FOUND",
    -1401: "TASK_PENDING_LIMIT_EXCEEDED",
    -1402: "JOB_NOT_FOUND",
    -1500: "SERIALIZE_UNSUPPORTED",
    -1501: "SERIALIZE_FAIL",
    -1502: "DESERIALIZE_FAIL",
    -1503: "PERSISTENT_FAIL",
    -1600: "DFS_NETWORK_TIMEOUT",
    -1601: "DFS_SERVICE_UNAVAILABLE",
    -1602: "DFS_QUOTA_EXCEEDED",
    -1603: "DFS_PERMISSION_DENIED",
    -1604: "DFS_STALE_HANDLE",
    -1605: "DFS_PARTIAL_WRITE",
    -1700: "TENANT_QUOTA_EXCEEDED",
    -1701: "TENANT_NOT_REGISTERED",
    -1702: "TENANT_NOT_EMPTY",
}

# Our own codes lie far below Mooncake's range, so that neither is taken for the other.
DEADLINE_PASSED = -9000  # the caller's deadline passed first
BREAKER_OPEN = -9001  # not tried: the local Mooncake is failing; treat as a miss
QUEUE_FULL = -9002  # not tried: as many calls wait as may wait
STUCK_LIMIT = -9003  # not tried: as many overdue calls are still inside Mooncake as may be
BOUNCE_EXCEEDED = -9004  # not tried: the block does not fit the bounce memory (of one read)
NOT_TRIED = -9005  # an earlier part of the same batch failed in transfer; the rest was not tried

OWN_CODES: dict[int, str] = {
    DEADLINE_PASSED: "DEADLINE_PASSED",
    BREAKER_OPEN: "BREAKER_OPEN",
    QUEUE_FULL: "QUEUE_FULL",
    STUCK_LIMIT: "STUCK_LIMIT",
    BOUNCE_EXCEEDED: "BOUNCE_EXCEEDED",
    NOT_TRIED: "NOT_TRIED",
}

INVALID_PARAMS = -600
_RPC_TIMEOUT = -901
# Not there, or not written to the end yet: for a reader the same.
_MISSES = frozenset({-703, -704})
# Codes that say the local Mooncake itself is unwell. A miss (-704), a full pool (-200) or a bad
# argument (-600) are answers of a healthy one.
UNWELL = frozenset({-1, -10, -101, -500, -800, -900, -901, -1000, -1003, -1010})


class Outcome(NamedTuple):
    """What became of one key.

    Attributes:
        status: see `Status`.
        size: bytes read or written; 0 when there are none.
        code: Mooncake's own code (0 or negative), or one of ours (<= -9000).
    """

    status: Status
    size: int
    code: int

    @property
    def error_name(self) -> str:
        """The code's name, e.g. "RPC_TIMEOUT"; "OK" for 0."""
        name = MOONCAKE_CODES.get(self.code) or OWN_CODES.get(self.code)
        return name if name is not None else f"UNKNOWN_{self.code}"


def failed(code: int) -> Outcome:
    """The outcome for a negative `code`."""
    if code in _MISSES:
        return Outcome(Status.MISS, 0, code)
    if code in (DEADLINE_PASSED, _RPC_TIMEOUT):
        return Outcome(Status.TIMEOUT, 0, code)
    return Outcome(Status.ERROR, 0, code)


def of_get(results: Sequence[int]) -> list[Outcome]:
    """Outcomes of `batch_get_into`: a size, or a negative code."""
    return _each(results, lambda rc: Outcome(Status.HIT, rc, 0) if rc > 0 else failed(rc or -704))


def of_put(results: Sequence[int], sizes: Sequence[int]) -> list[Outcome]:
    """Outcomes of `batch_put_from`: 0, or a negative code."""
    made = {rc: failed(rc) for rc in set(results) if rc != 0}
    stored = {size: Outcome(Status.STORED, size, 0) for size in set(sizes)}
    return [stored[size] if rc == 0 else made[rc] for rc, size in zip(results, sizes, strict=True)]


def of_exists(results: Sequence[int]) -> list[Outcome]:
    """Outcomes of `batch_is_exist`: 1, 0, or a negative code."""
    return _each(results, lambda rc: Outcome(Status.HIT, 0, 0) if rc > 0 else failed(rc or -704))


def of_remove(results: Sequence[int]) -> list[Outcome]:
    """Outcomes of `batch_remove`: 0, or a negative code."""
    return _each(results, lambda rc: Outcome(Status.HIT, 0, 0) if rc == 0 else failed(rc))


def _each(results: Sequence[int], made_of: Callable[[int], Outcome]) -> list[Outcome]:
    """An outcome for each code. There are few distinct ones, mostly one: equal outcomes are one object."""
    made = {rc: made_of(rc) for rc in distinct(results)}
    if len(made) == 1:
        return list(made.values()) * len(results)
    return [made[rc] for rc in results]


def distinct(results: Sequence[int]) -> set[int]:
    """The codes that there are; quickly where it is one, as mostly."""
    if results and results.count(results[0]) == len(results):
        return {results[0]}
    return set(results)
