"""The etcd that `moonmesh up` runs for one group, where no other is named."""

from __future__ import annotations

import asyncio
import shutil

import aiohttp

from local_group.child import ChildSpec, ReadyCheck
from local_group.config import MIB, GroupConfig
from local_group.ports import PortUse
from local_group.process_errors import MissingPackage

QUOTA_BYTES = 256 * MIB
"""Of its store; an epoch, a leader and a small configuration are some MiB with all their history."""
HISTORY = "1h"
"""What it keeps of the past: a watcher that was away for longer lists again."""
_READY_TIMEOUT_S = 1.0


def etcd_child(config: GroupConfig) -> ChildSpec:
    """How it is started, and when it is ready.

    Raises:
        MissingPackage: etcd is not installed.
    """
    program = shutil.which("etcd")
    if program is None:
        raise MissingPackage(
            "etcd is not installed, and [coordination] wants a managed one",
            hint="apt-get install etcd-server, or name etcd_endpoints of one that runs",
        )
    ports = config.ports
    client = f"http://{config.host}:{ports.etcd_client}"
    peer = f"http://127.0.0.1:{ports.etcd_peer}"
    argv = (
        program,
        "--name=moonmesh",
        f"--data-dir={config.coordination_dir / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=moonmesh={peer}",
        f"--quota-backend-bytes={QUOTA_BYTES}",
        "--auto-compaction-mode=periodic",
        f"--auto-compaction-retention={HISTORY}",
        "--logger=zap",
        "--log-outputs=stderr",
    )
    uses = (
        PortUse(config.host, ports.etcd_client, "the managed etcd"),
        PortUse("127.0.0.1", ports.etcd_peer, "the managed etcd's cluster of one"),
    )
    return ChildSpec("etcd", argv, _ready(client), ports=uses)


def _ready(url: str) -> ReadyCheck:
    async def ready(_: int) -> str:
        try:
            limit = aiohttp.ClientTimeout(total=_READY_TIMEOUT_S)
            async with (
                aiohttp.ClientSession(timeout=limit) as client,
                client.get(f"{url}/health") as answer,
            ):
                return "" if answer.status == 200 else "etcd to be well"
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return "etcd to answer"

    return ready
