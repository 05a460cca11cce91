"""Lending blocks to an engine of the same host: both ends, over real sockets and a real memfd."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from federation.config import Limits
from federation.counters import counters
from federation.errors import MoonmeshError
from federation.gateway_link import GatewayLink
from federation.identity import block_digest
from federation.keys.namespace import Namespace
from federation.memory import pointer_to
from federation.transfer import passing
from federation.transfer.ask import Ask, Wanted
from federation.transfer.fair import PullClass
from federation.transfer.handover import LEND_METHOD, EngineService
from federation.transfer.passing import Mapping, Passing, PassingError
from federation.transfer.slots import Slots
from federation.transfer.staging import StagedBlock
from local_group.bounce import PAGE
from moonmesh.v1 import engine_pb2
from tests.support.wait import wait_for, wait_for_async

SPACE = Namespace(model="m", revision="1", engine="e", kv_dtype="bf16", block_tokens=16, layout="l")
FP = SPACE.fingerprint()
KEYS = ["a", "b", "c"]


class Gateway:
    """The engines' end of a gateway whose puller finds what `blocks` has."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "gateway.sock"
        self.given: list[str] = []
        self.left = 0
        self._serving: list[tuple[Passing, grpc.aio.Server]] = []

    async def start(self) -> None:
        self.slots = Slots(16 * PAGE)
        self.blocks: dict[str, StagedBlock | Wanted] = {}
        service = EngineService(
            group="east",
            known=[SPACE],
            namespaces=[FP],
            exported=[FP],
            ledger=None,  # type: ignore[arg-type]
            puller=self,  # type: ignore[arg-type]
            promise=lambda fingerprint, key: True,
            given=lambda block, before: self.given.append(block.key),
            read_on=lambda fingerprint, before: None,
            prefetched=lambda block, before: None,
            touch=lambda fingerprint: None,
            limits=Limits(),
            on_error=lambda what: None,
            slots=self.slots,
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((service.handlers(),))
        self.socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{self.socket}")
        await server.start()
        lending = Passing(self.slots)
        lending.start(self.socket)
        self._serving.append((lending, server))

    async def stop(self) -> None:
        for lending, server in self._serving:
            await lending.close()
            await server.stop(0)
        self._serving.clear()
        self.blocks.clear()

    def ask(self, fingerprint: bytes, keys: list[str], *_: Any, **__: Any) -> Ask:
        return Ask([self.blocks.get(key) for key in keys], PullClass.FIRST_TOKEN)

    def put(self, key: str, data: bytes) -> StagedBlock:
        """A block that has landed."""
        slot = self.slots.take(len(data))
        assert slot is not None
        slot[:] = data
        block = StagedBlock(FP, key, slot, block_digest(FP, key, data), "west", 1, 0.0, 0.0)
        self.blocks[key] = block
        return block

    async def unused(self) -> None:
        """Waits until nothing of the memory is held for anybody."""
        self.blocks.clear()
        await wait_for_async(lambda: self.slots.used_bytes == 0, 5, "all slots to be free")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    gateway = Gateway(tmp_path)
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture
async def link(gateway: Gateway) -> AsyncIterator[GatewayLink]:
    link = await asyncio.to_thread(GatewayLink, f"unix:{gateway.socket}", SPACE)
    assert await asyncio.to_thread(link.wait_until_answered, 5)
    assert link._taking.maps
    yield link
    await asyncio.to_thread(link.close)


def counted(name: str) -> int:
    return counters.snapshot().get(name, 0)


def pulled(
    link: GatewayLink,
    keys: list[str],
    seconds: float = 5.0,
    when_asked: Callable[[int], None] = lambda index: None,
) -> list[tuple[int, bytes]]:
    memory: dict[int, bytearray] = {}

    def into(index: int, size: int) -> int:
        when_asked(index)
        memory[index] = bytearray(size)
        return pointer_to(memoryview(memory[index]))[0]

    sizes = [PAGE] * len(keys)
    return [(index, bytes(memory[index])) for index, _ in link.pull(keys, sizes, into, seconds)]


async def test_blocks_are_copied_out_of_the_memory_and_given_back_by_the_calls_end(
    gateway: Gateway, link: GatewayLink
) -> None:
    for key in KEYS:
        gateway.put(key, key.encode() * 1000)
    before = counted("moonmesh_lent_blocks_total")
    came = await asyncio.to_thread(pulled, link, [*KEYS, "nobody has this"])
    assert came == [(n, key.encode() * 1000) for n, key in enumerate(KEYS)]
    assert counted("moonmesh_lent_blocks_total") == before + 3
    assert gateway.given == KEYS
    await gateway.unused()


async def test_a_block_that_is_dropped_while_an_engine_copies_stays_where_it_is(
    gateway: Gateway, link: GatewayLink
) -> None:
    for key in KEYS:
        gateway.put(key, key.encode() * 1000)
    loop = asyncio.get_running_loop()

    def drop(index: int) -> None:
        """As staging does when others want in: every slot that is free is written over."""

        async def do() -> None:
            gateway.blocks.clear()
            while (slot := gateway.slots.take(64)) is not None:
                slot[:] = bytes(64)
                gateway.blocks[str(len(gateway.blocks))] = slot  # type: ignore[assignment]

        if index == 0:
            asyncio.run_coroutine_threadsafe(do(), loop).result(5)

    came = await asyncio.to_thread(pulled, link, KEYS, 5.0, drop)
    assert came == [(n, key.encode() * 1000) for n, key in enumerate(KEYS)]


async def test_what_an_engine_finds_too_late_is_no_block(
    gateway: Gateway, link: GatewayLink
) -> None:
    gateway.put("a", b"a" * 1000)
    late = gateway.put("b", b"b" * 1000)

    def overwrite(index: int) -> None:
        if index == 1:
            late.data[:] = bytes(1000)

    before = counted("moonmesh_handover_digest_mismatch_total")
    assert await asyncio.to_thread(pulled, link, ["a", "b"], 5.0, overwrite) == [(0, b"a" * 1000)]
    assert counted("moonmesh_handover_digest_mismatch_total") == before + 1


async def test_an_engine_that_does_not_end_its_call_holds_blocks_until_its_deadline(
    gateway: Gateway,
) -> None:
    gateway.put("a", b"a" * 1000)
    async with grpc.aio.insecure_channel(f"unix:{gateway.socket}") as channel:
        request = engine_pb2.EnginePullRequest(
            fingerprint=FP, keys=["a"], max_sizes=[PAGE], memory=gateway.slots.name
        )
        call = channel.unary_stream(LEND_METHOD)(request.SerializeToString(), timeout=0.5)
        message = await call.read()
        assert len(message) > 0
        gateway.blocks.clear()
        assert gateway.slots.used_bytes >= 1000, "the engine may still look"
        await gateway.unused()


async def test_the_leading_run_is_handed_over_as_it_grows(
    gateway: Gateway, link: GatewayLink
) -> None:
    first = gateway.put("a", b"a" * 1000)
    loop = asyncio.get_running_loop()
    later: asyncio.Future[StagedBlock | None] = loop.create_future()
    gateway.blocks["b"] = Wanted("b", 0, PAGE, later)

    def let_it_land(index: int) -> None:
        if index == 0:  # only once the first one is here
            block = gateway.put("b", b"b" * 1000)
            loop.call_soon_threadsafe(later.set_result, block)

    came = await asyncio.to_thread(pulled, link, ["a", "b"], 5.0, let_it_land)
    assert came == [(0, bytes(first.data)), (1, b"b" * 1000)]


async def test_blocks_come_as_bytes_where_the_gateway_was_started_anew_and_lent_again_after(
    gateway: Gateway, link: GatewayLink
) -> None:
    old = gateway.slots.name
    await gateway.stop()
    await gateway.start()
    assert gateway.slots.name != old
    gateway.put("a", b"a" * 1000)

    def comes() -> bool:
        return pulled(link, ["a"]) == [(0, b"a" * 1000)]

    await asyncio.to_thread(wait_for, comes, 10, "the link to be taken back")
    await asyncio.to_thread(link._try_attach)
    assert link._taking.maps
    before = counted("moonmesh_lent_blocks_total")
    assert await asyncio.to_thread(comes)
    assert counted("moonmesh_lent_blocks_total") == before + 1


async def test_blocks_come_as_bytes_where_the_memory_cannot_be_had(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "SOCKET_NAME", "nothing.sock")
    link = await asyncio.to_thread(GatewayLink, f"unix:{gateway.socket}", SPACE)
    try:
        assert await asyncio.to_thread(link.wait_until_answered, 5)
        assert not link._taking.maps
        gateway.put("a", b"a" * 1000)
        assert await asyncio.to_thread(pulled, link, ["a"]) == [(0, b"a" * 1000)]
    finally:
        await asyncio.to_thread(link.close)


async def test_more_engines_than_descriptors_and_ones_that_say_nothing_do_not_end_the_passing(
    gateway: Gateway,
) -> None:
    path = str(gateway.socket.with_name(passing.SOCKET_NAME))
    silent = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    for each in silent:
        each.connect(path)
        each.close()
    mapping = await asyncio.to_thread(Mapping.fetch, gateway.socket)
    assert mapping.name == gateway.slots.name
    assert os.stat(path).st_mode & 0o777 == 0o700


def test_a_socket_that_cannot_be_had_is_said(tmp_path: Path) -> None:
    with pytest.raises(MoonmeshError, match="cannot listen there"):
        Passing(Slots(PAGE)).start(tmp_path / "no such folder" / "gateway.sock")


def test_memory_that_could_shrink_or_is_smaller_than_told_is_not_mapped() -> None:
    slots = Slots(PAGE)
    unsealed = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, PAGE)
    for fd, size in ((unsealed, PAGE), (os.dup(slots.fd), 2 * PAGE)):
        with pytest.raises(PassingError, match="not sealed, or not as large"):
            Mapping(fd, 1, size)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize("says", [b"", struct.pack("<QQ", 1, PAGE)])
def test_a_gateway_that_gives_no_memory_is_said(tmp_path: Path, says: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / passing.SOCKET_NAME))
        listening.listen()

        def answer() -> None:
            engine, _ = listening.accept()
            with engine:
                engine.send(says)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PassingError, match="gave no memory"):
            Mapping.fetch(tmp_path / "gateway.sock")
        thread.join()


def test_an_address_outside_the_memory_is_refused() -> None:
    slots = Slots(PAGE)
    mapping = Mapping(os.dup(slots.fd), slots.name, slots.size)
    assert mapping.address(0, PAGE) == mapping.address(1, PAGE - 1) - 1
    for offset, size in ((PAGE, 1), (0, PAGE + 1), (2**63, 1)):
        with pytest.raises(PassingError):
            mapping.address(offset, size)
