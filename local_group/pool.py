"""The pool of a master, as one place of the group sees it: the master elsewhere, the stores of here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Collection, Iterable

from local_group.admin import AdminClient, Segment
from local_group.child import Progress
from local_group.config import GroupConfig
from local_group.ports import listeners
from local_group.process_errors import AdminError, NotReady

CONNECT_TIMEOUT_S = 1.0
_POLL_S = 0.2


async def await_master(
    config: GroupConfig, timeout: float, progress: Callable[[Progress], None]
) -> None:
    """Waits until the master that runs elsewhere serves.

    Raises:
        NotReady: it does not within `timeout` seconds: what of it, where, and what to do.
    """
    began = time.monotonic()
    said = ""
    async with AdminClient(config.admin_url, timeout=CONNECT_TIMEOUT_S) as admin:
        while awaited := await _awaited(config, admin):
            if awaited != said:
                said = awaited
                progress(Progress("master", "waiting", f"at {config.master_address}, for {said}"))
            if time.monotonic() - began >= timeout:
                raise NotReady(
                    f"the master, which runs elsewhere, was not ready within {timeout:g} s: "
                    f"still waiting for {awaited}",
                    where=config.master_address,
                    hint="start the place of the group that runs it (`moonmesh up` there) and check "
                    "master.address and admin_port here, its host there (127.0.0.1 is for one machine), "
                    "and the firewall between",
                )
            await asyncio.sleep(_POLL_S)
    detail = f"at {config.master_address}, elsewhere"
    progress(Progress("master", "ready", detail, time.monotonic() - began))


async def _awaited(config: GroupConfig, admin: AdminClient) -> str:
    """What the master elsewhere lacks to be used; "" if nothing."""
    try:
        health = await admin.health()
    except AdminError as error:
        return f"its admin HTTP to answer ({error})"
    if not health.service_ready:
        return f"it to serve ({health.ha_state})"
    host, _, port = config.master_address.rpartition(":")
    return "" if await accepts(host, int(port)) else "its RPC to accept connections"


async def accepts(host: str, port: int) -> bool:
    """Whether a TCP connection can be made there."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_TIMEOUT_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


async def own_segments(config: GroupConfig, segments: Iterable[Segment], pid: int) -> list[Segment]:
    """Those of a master's segments that are in use and served by this process of this place.

    Stores of other places are in the same pool, and may have the same port on another host.
    """
    ports = await asyncio.to_thread(listeners, pid)
    hosts = await asyncio.to_thread(_names, config.host)
    return [each for each in segments if each.ok and _is_served(each, hosts, ports)]


def _is_served(segment: Segment, hosts: Collection[str], ports: Collection[int]) -> bool:
    host, _, port = segment.endpoint.rpartition(":")
    return host in hosts and port.isdigit() and int(port) in ports


def _names(host: str) -> Collection[str]:
    """A host as it may be written in an endpoint."""
    found = {host}
    with contextlib.suppress(OSError):
        found.add(socket.gethostbyname(host))
    return found
