"""FederatedStore: Mooncake's store, with the blocks of other groups behind it.

A drop-in for `MooncakeDistributedStore` in an engine: the same calls, the same codes. What the local
group has is read from Mooncake directly, without a hop; what it lacks is asked of the gateway, which
answers by the deadline with what it could get. Without a gateway this is plain Mooncake.

With a deadline, local calls run on bounce memory and end in time whatever Mooncake does. Without one they
run on the caller's memory and end by Mooncake's own timeouts: see `local_group.store`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from federation import telemetry
from federation.ahead import Ahead
from federation.batch import Batch, batches
from federation.codes import OK, RPC_TIMEOUT, codes_of, read_code
from federation.counters import counters
from federation.errors import ConfigError, NotOfferedError, UsageError
from federation.gateway_link import GatewayLink, trace_folder
from federation.identity import Envelope
from federation.keys.namespace import Namespace
from federation.keys.naming import Naming
from federation.local_reads import local_exists, local_get
from federation.memory import pointer_to
from federation.peer_reads import fill_from_peers, landed_from_peers, pull_one
from federation.telemetry import (
    SPAN_ENGINE_EXISTS,
    SPAN_ENGINE_GET,
    SPAN_ENGINE_PUT,
    SpanKind,
    span,
)
from federation.timeouts import Deadline
from federation.trust.credentials import load_engine_credentials
from federation.writes import Writes
from local_group.store import StoreClient, StoreError
from local_group.store_config import StoreSettings

log = logging.getLogger(__name__)

FEDERATION_MS = 1000
"""How long a read without a deadline of its own waits for peers, in ms."""
EXISTS_WAIT_MS = 50
"""How long a read-side exists waits for blocks to land, in ms."""
PATIENCE_SECONDS = 30.0
"""Deadline of a local call that was given none and needs bounce memory: put, get."""
ATTACH_WAIT_SECONDS = 2.0
"""How long `setup` waits for the gateway before it goes on without."""
MARGIN_SECONDS = 0.05
"""What an exists question may take beyond its wait."""


class FederatedStore:
    """One engine's store. Thread-safe after `setup`; after `close` every call raises StoreClosed."""

    def __init__(self) -> None:
        self._store: StoreClient | None = None
        self._link: GatewayLink | None = None
        self._stored: Callable[[Sequence[str]], list[str]]
        self._pid = 0
        self._deadline_ms: int | None = None
        self._federation_ms = FEDERATION_MS
        self._exists_wait_ms = EXISTS_WAIT_MS
        self._seen = threading.local()
        self._ahead = Ahead(lambda keys, wait: self.batch_is_exist(keys, wait_ms=int(1000 * wait)))

    def setup(
        self,
        local_hostname: str,
        metadata_server: str = "P2PHANDSHAKE",
        global_segment_size: int = 0,
        local_buffer_size: int = 16 * 1024 * 1024,
        protocol: str = "tcp",
        rdma_devices: str = "",
        master_server_addr: str = "127.0.0.1:50051",
        *,
        namespace: Envelope | Mapping[str, Any],
        gateway: str | None = None,
        credentials: str | Path | None = None,
        group: str | None = None,
        deadline_ms: int | None = None,
        federation_ms: int = FEDERATION_MS,
        exists_wait_ms: int = EXISTS_WAIT_MS,
    ) -> int:
        """Connects to the local Mooncake and, if there is one, to the gateway.

        Args:
            local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol,
                rdma_devices, master_server_addr: as in `MooncakeDistributedStore.setup`.
            namespace: what the bytes of this engine's blocks depend on, and `keys`, as in group.toml.
            gateway: `unix:/path/to/data_dir/run/gateway.sock`, or `host:port` for a gateway on another
                host (then `credentials`, the folder with the engine's certificate, and `group`, the
                name of this group, are needed); None for plain Mooncake.
            deadline_ms: every call ends by then, hard, at the price of one more copy; None: local
                blocks go straight to the caller's memory, and peers are waited for `federation_ms`.
            exists_wait_ms: how long a read-side exists waits for blocks to land.

        Returns:
            0, or a negative code where the local Mooncake could not be reached (it is logged).

        Raises:
            ConfigError: the namespace, the gateway or the credentials cannot be used.
        """
        if self._store is not None:
            raise UsageError("set up already", where="FederatedStore", hint="make another one")
        space = Namespace.of(namespace)
        self._stored = Naming([space]).of(space.fingerprint())
        for name, value in (("deadline_ms", deadline_ms), ("federation_ms", federation_ms)):
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value}", where="setup")
        if exists_wait_ms < 0:
            raise ConfigError(f"exists_wait_ms is below 0: {exists_wait_ms}", where="setup")
        host, _, port = master_server_addr.rpartition(":")
        if "://" not in master_server_addr and not (host and port.isdigit()):
            raise ConfigError(f"{master_server_addr!r} is not HOST:PORT", where="setup: master")
        self._deadline_ms = deadline_ms
        self._federation_ms = federation_ms
        self._exists_wait_ms = exists_wait_ms
        self._pid = os.getpid()
        settings = StoreSettings(
            master_address=master_server_addr,
            local_hostname=local_hostname,
            metadata_server=metadata_server,
            protocol=protocol,
            rdma_devices=rdma_devices,
            global_segment_size=global_segment_size,
            local_buffer_size=local_buffer_size,
        )
        inner = None
        if gateway is not None and not gateway.startswith("unix:"):
            if credentials is None or group is None:
                raise ConfigError(
                    "a gateway on another host needs credentials and group, or use unix:/path",
                    where="setup",
                )
            inner = load_engine_credentials(Path(credentials), group, "client")
        try:
            self._store = StoreClient.connect(settings)
        except StoreError as error:
            log.error("the local Mooncake cannot be used: %s", error)
            return -1
        if gateway is not None:
            traces = trace_folder(gateway)
            self._link = GatewayLink(
                gateway,
                space,
                inner,
                attached=lambda name: telemetry.setup_unless_done("engine", name, traces),
            )
            if not self._link.wait_until_answered(ATTACH_WAIT_SECONDS):
                log.warning("no federation through %s for now: %s", gateway, self._link.state())
        self._puts = Writes(self._store, self._link, space.fingerprint(), self._stored)
        return OK

    # Writes

    def put(
        self,
        key: str,
        value: bytes | bytearray | memoryview,
        config: Any = None,
        *,
        deadline_ms: int | None = None,
    ) -> int:
        """Stores one block. 0 or a negative code; a key that exists keeps its first value."""
        view = memoryview(value).cast("B")
        pointer, owner = pointer_to(view)
        until = Deadline(self._seconds(deadline_ms) or PATIENCE_SECONDS)
        with span(SPAN_ENGINE_PUT, {"moonmesh.keys": 1}):
            (code,) = self._writes().put([key], [pointer], [len(view)], until, config, 0)
        del owner  # kept until here: the put reads from it
        return code

    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: Any = None,
        *,
        deadline_ms: int | None = None,
        chain_position: int = 0,
    ) -> list[int]:
        """Stores blocks of a prefix chain from the caller's memory; a code per key.

        Args:
            chain_position: place of the first key in its prefix chain, where a tail is written.
        """
        until = self._until(deadline_ms)
        with span(SPAN_ENGINE_PUT, {"moonmesh.keys": len(keys)}):
            return self._writes().put(keys, buffer_ptrs, sizes, until, config, chain_position)

    # Reads

    def get(self, key: str, *, deadline_ms: int | None = None) -> bytes:
        """One block; b'' where neither this group nor a peer has it (as Mooncake: on errors too)."""
        store = self._ready()
        until = Deadline(self._seconds(deadline_ms) or PATIENCE_SECONDS)
        (name,) = Batch([key], [1], [1]).names(self._stored)
        with span(SPAN_ENGINE_GET, {"moonmesh.keys": 1}, kind=SpanKind.CLIENT) as here:
            if (value := local_get(store, name, until)) is not None:
                self._seen.tiers = ["local"]
                return value
            link = self._usable_link()
            wait = min(until.left(), self._federation_ms / 1000)
            if link is not None and name and link.limits.takes(key) and wait > 0:
                for data in pull_one(link, key, wait):
                    self._seen.tiers = ["peer"]
                    here.set_attribute("moonmesh.peer_hits", 1)
                    return data
        self._seen.tiers = ["miss"]
        return b""

    def batch_get_into(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        *,
        deadline_ms: int | None = None,
    ) -> list[int]:
        """Reads a prefix chain into the caller's memory.

        Args:
            keys: in chain order. Local blocks are read wherever they are in the chain; of peers, what
                continues it up to the first block that nobody has.
            buffer_ptrs, sizes: where each block goes and how many bytes fit there.
            deadline_ms: see `setup`; what has arrived by then is in place, the rest is missing.

        Returns:
            Per key the block's size in bytes, or a negative code (-704: nobody has it).
        """
        store = self._ready()
        until = self._until(deadline_ms)
        with span(SPAN_ENGINE_GET, {"moonmesh.keys": len(keys)}, kind=SpanKind.CLIENT) as here:
            results: list[int] = []
            for batch in batches(keys, buffer_ptrs, sizes, until):
                names = batch.names(self._stored)
                if until is None:
                    outcomes = store.get_into_direct(names, batch.pointers, batch.sizes)
                else:
                    outcomes = store.get_into(names, batch.pointers, batch.sizes, until.left())
                results += codes_of(outcomes, read_code)
            results += [RPC_TIMEOUT] * (len(keys) - len(results))
            if results and min(results) > 0:
                tiers = ["local"] * len(results)
            else:
                tiers = ["local" if result > 0 else "miss" for result in results]
            wait = self._federation_ms / 1000 if until is None else until.left()
            if wait > 0:
                for place, size in fill_from_peers(
                    self._usable_link(), keys, buffer_ptrs, sizes, results, wait
                ):
                    results[place], tiers[place] = size, "peer"
            local, peer = tiers.count("local"), tiers.count("peer")
            here.set_attribute("moonmesh.local_hits", local)
            here.set_attribute("moonmesh.peer_hits", peer)
            counters.add("moonmesh_engine_local_hits_total", local)
            counters.add("moonmesh_engine_peer_hits_total", peer)
        self._seen.tiers = tiers
        return results

    def is_exist(
        self,
        key: str,
        *,
        wait_ms: int | None = None,
        for_write: bool = False,
        deadline_ms: int | None = None,
    ) -> int:
        """1 if the block is here, else 0, or a negative code. See `batch_is_exist`."""
        return self.batch_is_exist(
            [key], wait_ms=wait_ms, for_write=for_write, deadline_ms=deadline_ms
        )[0]

    def batch_is_exist(
        self,
        keys: Sequence[str],
        *,
        wait_ms: int | None = None,
        for_write: bool = False,
        deadline_ms: int | None = None,
    ) -> list[int]:
        """Per key 1 if the block is here: in the local Mooncake, or landed in the gateway's staging.

        A read-side question starts the pull of what peers have and answers what has landed within its
        wait; the pull goes on, so that a later read finds more. A catalog's word is never taken for an
        existence: an engine skips writing what exists.

        Args:
            keys: in chain order.
            wait_ms: how long to wait for blocks to land.
            for_write: asked in order to skip a write: the local Mooncake alone is asked.
        """
        store = self._ready()
        until = self._until(deadline_ms)
        with span(SPAN_ENGINE_EXISTS, {"moonmesh.keys": len(keys)}, kind=SpanKind.CLIENT):
            results = local_exists(store, self._stored, keys, until)
            link = None if for_write else self._usable_link()
            wait = (self._exists_wait_ms if wait_ms is None else wait_ms) / 1000
            timeout = wait + MARGIN_SECONDS
            if until is not None:
                timeout = min(timeout, until.left())
                wait = min(wait, max(0.0, timeout - MARGIN_SECONDS))
            for place in landed_from_peers(link, keys, results, wait, timeout):
                results[place] = 1
        return results

    def look_ahead(self, keys: Sequence[str], *, wait_ms: int) -> Future[list[int]]:
        """`batch_is_exist` in the background: starts pulling what peers have of a chain.

        Returns:
            A handle, done when all has landed, or after `wait_ms`: `result(timeout)` waits, `done()` looks,
            `add_done_callback` tells. Its result is what `batch_is_exist` answers.
        """
        return self._ahead.start(keys, wait_ms / 1000)

    # The rest

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Tells Mooncake of memory for zero-copy calls."""
        return self._ready().register_buffer(buffer_ptr, size)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Takes `register_buffer` back."""
        return self._ready().unregister_buffer(buffer_ptr)

    def last_tiers(self) -> list[str]:
        """Per key of this thread's last read where it came from: local, peer or miss."""
        return list(getattr(self._seen, "tiers", ()))

    def flush_reports(self, timeout: float = 5.0) -> bool:
        """Waits until the gateway knows all that was written; False after `timeout` seconds."""
        return self._link is None or self._link.flush(timeout)

    def stats(self) -> dict[str, Any]:
        """The local client's figures, the gateway's state, and the federation's breaker."""
        return {
            "gateway": self._link.state() if self._link else "none",
            "federation": self._link.stats() if self._link else None,
            "store": asdict(self._ready().stats()),
        }

    def close(self) -> int:
        """Ends the connections; nothing can reach Mooncake through this object afterwards."""
        self._ahead.close()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        if self._store is not None:
            self._store.close()
            self._puts.close()
        return OK

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotOfferedError(
            f"{name} is not offered",
            where="FederatedStore",
            hint="use batch_put_from and batch_get_into, or a MooncakeDistributedStore beside this one",
        )

    def _ready(self) -> StoreClient:
        if self._store is None:
            raise UsageError("call setup first", where="FederatedStore")
        if os.getpid() != self._pid:
            raise UsageError(
                "this process was forked after setup, and has neither its threads nor connections",
                where="FederatedStore",
                hint="make a store of its own in each process, after the fork",
            )
        return self._store

    def _usable_link(self) -> GatewayLink | None:
        return link if (link := self._link) is not None and link.may_ask() else None

    def _seconds(self, deadline_ms: int | None) -> float | None:
        chosen = self._deadline_ms if deadline_ms is None else deadline_ms
        if chosen is not None and chosen <= 0:
            raise UsageError(f"deadline_ms must be above 0, not {chosen}", where="FederatedStore")
        return None if chosen is None else chosen / 1000

    def _writes(self) -> Writes:
        self._ready()
        return self._puts

    def _until(self, deadline_ms: int | None) -> Deadline | None:
        seconds = self._seconds(deadline_ms)
        return None if seconds is None else Deadline(seconds)
