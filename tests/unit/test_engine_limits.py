"""How many engines, connections and calls a gateway takes, and what one too many is told."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from federation import descriptors, gateway_link
from federation.config import Limits
from federation.counters import counters
from federation.endpoints import engine_server
from federation.gateway_link import GatewayLink
from federation.keys.namespace import Namespace
from federation.limits import attached as module
from federation.limits.attached import (
    CONNECTIONS_PER_ENGINE,
    FORGOTTEN_SECONDS,
    AttachedEngines,
    NoPlaceError,
)
from federation.transfer.handover import ATTACH_METHOD, EngineService
from federation.transfer.slots import Slots
from local_group.bounce import PAGE
from moonmesh.v1 import engine_pb2
from tests.support.wait import wait_for_async

SPACE = Namespace(model="m", revision="1", engine="e", kv_dtype="bf16", block_tokens=16, layout="l")
ATTACH = engine_pb2.AttachRequest(envelope_json=SPACE.canonical()).SerializeToString()
HANG = "/t.T/Hang"
CALLS = 64
"""The least that `engine_requests_open` takes."""


def test_one_engine_more_than_there_are_places_is_refused_and_those_inside_stay() -> None:
    engines = AttachedEngines(2)
    engines.attach(1, 0.0)
    engines.attach(2, 1.0)
    with pytest.raises(NoPlaceError, match="2 are attached"):
        engines.attach(3, 2.0)
    engines.attach(1, 3.0)
    assert (engines.count(3.0), engines.refused) == (2, 1)


def test_a_place_is_anothers_once_its_engine_has_been_silent_for_long() -> None:
    engines = AttachedEngines(2)
    engines.attach(1, 0.0)
    engines.attach(2, 0.0)
    engines.attach(1, 10.0)
    with pytest.raises(NoPlaceError):
        engines.attach(3, FORGOTTEN_SECONDS - 0.1)
    engines.attach(3, FORGOTTEN_SECONDS)
    with pytest.raises(NoPlaceError):
        engines.attach(2, FORGOTTEN_SECONDS)


def test_who_does_not_say_who_it_is_takes_no_place() -> None:
    engines = AttachedEngines(1)
    for _ in range(3):
        engines.attach(0, 0.0)
    engines.attach(1, 0.0)
    assert engines.count(0.0) == 1


Serve = Callable[[Limits], Awaitable[str]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Starts the engines' end of a gateway; where it is."""
    servers = []

    async def hang(raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def start(limits: Limits) -> str:
        nothing: Any = None
        service = EngineService(
            group="east",
            known=[SPACE],
            namespaces=[SPACE.fingerprint()],
            exported=[],
            ledger=nothing,
            puller=nothing,
            promise=nothing,
            given=nothing,
            read_on=nothing,
            prefetched=nothing,
            touch=lambda fingerprint: None,
            limits=limits,
            on_error=nothing,
            slots=Slots(16 * PAGE),
        )
        server = engine_server(limits, remote=False)
        server.add_generic_rpc_handlers((service.handlers(),))
        handlers = {"Hang": grpc.unary_unary_rpc_method_handler(hang)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
        target = f"unix:{tmp_path / 'gateway.sock'}"
        server.add_insecure_port(target)
        await server.start()
        servers.append(server)
        return target

    yield start
    for server in servers:
        await server.stop(0)


class Client:
    """One connection."""

    def __init__(self, target: str) -> None:
        self.channel = grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])

    async def attach(self) -> grpc.StatusCode:
        try:
            await self.channel.unary_unary(ATTACH_METHOD)(ATTACH, timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def test_one_connection_too_many_is_closed_and_has_its_turn_when_another_has_gone(
    serve: Serve,
) -> None:
    limits = Limits(engines_max=2)
    target = await serve(limits)
    most = CONNECTIONS_PER_ENGINE * limits.engines_max
    clients = [Client(target) for _ in range(most)]
    for client in clients:
        assert await client.attach() is grpc.StatusCode.OK
    late = Client(target)
    assert await late.attach() is grpc.StatusCode.UNAVAILABLE
    for client in clients:
        assert await client.attach() is grpc.StatusCode.OK, "those inside are not touched"
    await clients.pop().channel.close()
    got_in = False
    for _ in range(50):
        if got_in := await late.attach() is grpc.StatusCode.OK:
            break
        await asyncio.sleep(0.1)
    assert got_in
    for client in [late, *clients]:
        await client.channel.close()


async def test_one_call_too_many_is_refused_before_it_costs_anything(serve: Serve) -> None:
    client = Client(await serve(Limits(engine_requests_open=CALLS)))
    hang = client.channel.unary_unary(HANG)
    calls = [hang(b"") for _ in range(CALLS + 8)]
    done, waiting = await asyncio.wait(
        [asyncio.ensure_future(call.code()) for call in calls],
        timeout=10,
        return_when=asyncio.FIRST_COMPLETED,
    )
    assert {task.result() for task in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    await wait_for_async(lambda: sum(call.done() for call in calls) == 8, 10, "eight refusals")
    assert await client.attach() is grpc.StatusCode.RESOURCE_EXHAUSTED
    next(call for call in calls if not call.done()).cancel()
    for _ in range(50):
        if (code := await client.attach()) is grpc.StatusCode.OK:
            break
        await asyncio.sleep(0.05)
    assert code is grpc.StatusCode.OK
    for call in calls:
        call.cancel()
    await asyncio.gather(*waiting)
    await client.channel.close()


async def test_an_engine_without_a_place_works_alone_and_tells_later_what_it_wrote(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_link, "ATTACH_SECONDS", 0.05)
    monkeypatch.setattr(module, "FORGOTTEN_SECONDS", 1.0)
    target = await serve(Limits(engines_max=1))
    links = [await asyncio.to_thread(GatewayLink, target, SPACE) for _ in range(2)]
    inside, outside = links
    try:
        answered = [await asyncio.to_thread(x.wait_until_answered, 10) for x in links]
        if not answered[0]:  # whichever came first
            inside, outside = outside, inside
        assert sorted(answered) == [False, True]
        assert inside.usable
        assert not outside.may_ask()
        assert "MM326" in outside.state()
        assert outside.stats()["breaker"] == "closed", "its gateway is well"
        before = counters.snapshot().get("moonmesh_reported_blocks_total", 0)
        outside.report("key", 5, b"d" * 16, 0)
        assert not await asyncio.to_thread(outside.flush, 0.3), "kept for later"
        await asyncio.to_thread(inside.close)
        await wait_for_async(lambda: outside.usable, 20, "the place of the one that has gone")
        assert await asyncio.to_thread(outside.flush, 10)
        assert counters.snapshot()["moonmesh_reported_blocks_total"] == before + 1
    finally:
        for link in links:
            await asyncio.to_thread(link.close)


@pytest.mark.parametrize(
    ("soft", "hard", "becomes", "lacking"),
    [
        (1024, 1 << 20, 1024 + 2048, False),
        (1024, resource.RLIM_INFINITY, 1024 + 2048, False),
        (4096, 4096, None, False),
        (1024, 2000, 2000, True),
    ],
)
def test_a_gateway_may_open_what_its_engines_need(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, becomes: int | None, lacking: bool
) -> None:
    became: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, to: became.append(to))
    config: Any = SimpleNamespace(
        limits=Limits(engines_max=1024), gateway=SimpleNamespace(engines_tcp=False)
    )
    said = descriptors.room_for_engines(config)
    assert ("LimitNOFILE" in said) == lacking
    assert became == ([] if becomes is None else [(becomes, hard)])
