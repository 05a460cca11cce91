"""The parts that a pull is made of, each by itself: what they cost together is what a pull should cost."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import numpy as np

from federation.bench.engine_process import open_federated
from federation.bench.worker import Work, WorkerError
from federation.bench.workload import BlockBytes
from federation.identity import block_digest
from federation.trust.credentials import load_credentials
from local_group.native import Native
from local_group.store_config import StoreSettings

METHOD: Final = "/moonmesh.bench/Stream"
MESSAGE_BYTES: Final = 1 << 20
PULL_S: Final = 30.0
"""Deadline of one pull: it is measured, not cut."""


def engine(settings: Mapping[str, Any], namespace: bytes, blocks: int, size: int) -> Work:
    """An engine with a FederatedStore: writes blocks, and reads them into its own memory. `spent` is the
    seconds of a processor of its last read alone: not of making and checking the bytes."""
    store: Any = open_federated(settings)
    made = BlockBytes(namespace, size)
    memory = np.zeros((blocks, size), np.uint8)
    base = memory.ctypes.data
    pointers = [base + place * size for place in range(blocks)]
    if store.register_buffer(base, memory.nbytes) != 0:
        raise WorkerError("Mooncake did not register the memory")

    spent = [0.0]

    def work(what: str, about: Mapping[str, Any]) -> float:
        if what == "spent":
            return spent[-1]
        count = about["count"]
        keys = [f"{about['name']}/{place}" for place in range(count)]
        rows = memory[:count]
        begin = time.perf_counter()
        if what == "write":
            made.fill(keys, rows)
            codes = store.batch_put_from(keys, pointers[:count], [size] * count)
            if any(codes) or not store.flush_reports(PULL_S):
                raise WorkerError(f"{sum(map(bool, codes))} of {count} blocks were not stored")
            return 1e3 * (time.perf_counter() - begin)
        rows[:] = 0
        begin, used = time.perf_counter(), time.process_time()
        found = store.batch_get_into(
            keys, pointers[:count], [size] * count, deadline_ms=int(1e3 * PULL_S)
        )
        took = 1e3 * (time.perf_counter() - begin)
        spent.append(time.process_time() - used)
        if set(found) != {size} or set(store.last_tiers()) != {about["tier"]}:
            came = sum(code == size for code in found)
            raise WorkerError(f"{came} of {count} blocks came, from {set(store.last_tiers())}")
        if made.wrong_bytes(keys, rows):
            raise WorkerError("wrong bytes")
        return took

    return work


def mooncake(master: str, host: str, prefix: str, blocks: int, size: int, window: int) -> Work:
    """Gets and puts of plain Mooncake, in windows as a gateway makes them."""
    store = Native(StoreSettings(master_address=master, local_hostname=host))
    each = max(1, window // size)
    memory = np.ones((blocks, size), np.uint8)
    store.register(memory.ctypes.data, memory.nbytes)

    def work(what: str, about: Mapping[str, Any]) -> float:
        base = memory.ctypes.data
        keys = [f"{prefix}{about['name']}/{place}" for place in range(blocks)]
        begin = time.perf_counter()
        for start in range(0, blocks, each):
            part = keys[start : start + each]
            pointers = [base + (start + n) * size for n in range(len(part))]
            sizes = [size] * len(part)
            codes = (
                store.get(part, pointers, sizes)
                if what == "get"
                else store.put(part, pointers, sizes, None)
            )
            wanted = size if what == "get" else 0
            if set(codes) != {wanted}:
                raise WorkerError(f"{what}: codes {set(codes)}")
        return 1e3 * (time.perf_counter() - begin)

    return work


def digests(namespace: bytes, blocks: int, size: int) -> Work:
    """The digests of all blocks, once."""
    memory = np.ones((blocks, size), np.uint8)

    def work(what: str, about: Mapping[str, Any]) -> float:
        begin = time.perf_counter()
        for place in range(blocks):
            block_digest(namespace, f"{place}", memoryview(memory[place]))
        return 1e3 * (time.perf_counter() - begin)

    return work


def stream_server(folder: Path, group: str, federation: str, address: str, count: int) -> Work:
    """Sends `count` messages of `MESSAGE_BYTES` over mTLS to whoever asks, as bytes."""
    own = load_credentials(folder, group, federation)
    payload = bytes(MESSAGE_BYTES)

    async def send(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield payload

    async def serve(started: threading.Event) -> None:
        server = grpc.aio.server()
        handler = grpc.unary_stream_rpc_method_handler(send)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("moonmesh.bench", {"Stream": handler}),)
        )
        server.add_secure_port(address, own.server_credentials())
        await server.start()
        started.set()
        await server.wait_for_termination()

    started = threading.Event()
    threading.Thread(target=lambda: asyncio.run(serve(started)), daemon=True).start()
    if not started.wait(10):
        raise WorkerError(f"nothing can be served at {address}")
    return lambda what, about: 0.0


def stream_client(folder: Path, group: str, federation: str, peer: str, address: str) -> Work:
    """Takes all that the server sends, and lets it go."""
    own = load_credentials(folder, group, federation)
    loop = asyncio.new_event_loop()

    async def take() -> float:
        async with grpc.aio.secure_channel(
            address, own.channel_credentials(), options=own.channel_options(peer)
        ) as channel:
            call = channel.unary_stream(METHOD)
            await channel.channel_ready()
            begin = time.perf_counter()
            async for _ in call(b""):
                pass
            return 1e3 * (time.perf_counter() - begin)

    return lambda what, about: loop.run_until_complete(take())


def free_address() -> str:
    """An address on the loopback that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"
