"""Does this machine have what a bench needs? Asked before anything is started."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import psutil

from federation.bench.engine import buffer_bytes
from federation.bench.engines import BenchError
from federation.bench.groups import PORTS_STEP
from federation.bench.replay import LOCAL_BUFFER_BYTES, Options
from federation.bench.workload import Workload
from federation.errors import UsageError
from local_group.config import FIRST_STORE_OFFSET, MOONCAKE_PORTS, Ports

KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
GIB = 1 << 30


def free_port_base(groups: int, start: int) -> int:
    """The first port base from `start` on where `groups` groups find all their ports free: outside
    the ports that Mooncake and the kernel hand out by themselves.

    Raises:
        BenchError: if there is none.
    """
    offsets = (*range(4), *range(FIRST_STORE_OFFSET, FIRST_STORE_OFFSET + groups))
    reserved = [MOONCAKE_PORTS, kernel_ports()]
    last_offset = Ports((groups - 1) * PORTS_STEP).store(groups - 1)  # one pool has all the stores
    for base in range(start, 65_536 - last_offset, PORTS_STEP):
        if any(base < r.stop and base + last_offset >= r.start for r in reserved):
            continue
        if all(_free(base + g * PORTS_STEP + o) for g in range(groups) for o in offsets):
            return base
    taken = " and ".join(f"{r.start}-{r.stop - 1}" for r in reserved if r)
    raise BenchError(
        f"no free ports for {groups} groups from {start} to 65535",
        hint=f"name another --port-base; {taken} are not used: Mooncake and the kernel hand "
        "those out by themselves",
    )


def kernel_ports() -> range:
    """The ports that the kernel gives to connections; empty where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        first, last = KERNEL_RANGE.read_text().split()
        return range(int(first), int(last) + 1)
    return range(0)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def check_memory(workload: Workload, pool_bytes: int, options: Options) -> None:
    """Refuse a replay whose stores and engines do not fit into the memory that is available.

    Raises:
        UsageError: with what it needs and what there is.
    """
    buffer = buffer_bytes(options.concurrency, workload.longest_chain, workload.block_bytes)
    # Twice: what was read is compared with what it must be, made beside it.
    engines = workload.groups * (2 * buffer + LOCAL_BUFFER_BYTES)
    need, available = pool_bytes + engines, psutil.virtual_memory().available
    if need > available:
        raise UsageError(
            f"this replay needs {need / GIB:.1f} GiB of memory ({pool_bytes / GIB:.1f} in "
            f"stores, {engines / GIB:.1f} in engines) and {available / GIB:.1f} GiB are available",
            hint="lower --requests, --block-bytes, --capacity-fraction, --groups or --concurrency",
        )
