"""The local Mooncake, as a process of the gateway reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from federation.config import GroupFile
from federation.errors import MoonmeshError
from federation.timeouts import timeout
from local_group.bounce import PAGE
from local_group.store import StoreClient
from local_group.store_config import StoreLimits, StoreSettings

log = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 0.5
"""Between two attempts to reach the local Mooncake at start; nobody is served until then."""
ADMIN_SECONDS = 2.0
"""Deadline of one question to the master's admin endpoint."""


async def connect_store(config: GroupFile, stop: asyncio.Event) -> StoreClient | None:
    """A client of the local Mooncake, as soon as that answers; None if told to stop before."""
    limits = config.limits
    settings = StoreSettings(
        local_hostname=config.host,
        master_address=config.master_address,
        protocol=config.protocol,
    )
    block = limits.block_bytes_max + PAGE
    store_limits = StoreLimits(
        bounce_bytes=limits.bounce_bytes,
        window_bytes=min(limits.bounce_bytes, max(limits.serve_window_bytes, block)),
    )
    while not stop.is_set():
        try:
            return await asyncio.to_thread(StoreClient.connect, settings, store_limits)
        except MoonmeshError as error:
            log.warning("the local Mooncake does not answer yet: %s", error)
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(STORE_RETRY_SECONDS):
                await stop.wait()
    return None
