"""What the attacks do to a gateway's peer side, over real mTLS: each guard meets what it is for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import numpy as np
import pytest

from chaos.hostile.attacks import GREETINGS, Attacker
from chaos.hostile.names import Attack, Greeting
from chaos.hostile.peer import NARROW
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import FP, East, serving

KEYS = [f"k{i}" for i in range(64)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


@contextlib.asynccontextmanager
async def attacked(
    made: Made, attack: Attack, **limits: Any
) -> AsyncIterator[tuple[East, Attacker]]:
    """West attacks east, which holds 64 blocks of 1 MiB, until the end of the `with`."""
    east = East(made, **limits)
    east.hold(*KEYS)
    async with serving(east, made) as address:
        credentials = made.of("west")
        options = [*credentials.channel_options("east"), *NARROW]

        def channel() -> grpc.aio.Channel:
            return grpc.aio.secure_channel(
                address, credentials.channel_credentials(), options=options
            )

        attacker = Attacker(channel, lambda _: b"", ("127.0.0.1", 1), FP, KEYS, window_s=1.0)
        task = asyncio.create_task(attacker.run(attack))
        try:
            yield east, attacker
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_held_pulls_fill_the_streams_the_windows_and_then_the_requests(made: Made) -> None:
    async with attacked(
        made,
        Attack.HOLD,
        serves_per_peer=7,
        peer_requests_open=8,
        serve_window_bytes=1 << 20,
        bounce_bytes=16 << 20,
        block_bytes_max=1 << 20,
        peer_shared_percent=0,
    ) as (east, attacker):
        part = east.guards.windows.part
        await wait_for_async(
            lambda: east.status()["open"] == {"pull": 7, "catalog": 1}, 5, "calls of both kinds"
        )
        await wait_for_async(lambda: east.status()["memory_bytes"] > 0, 5, "windows to be held")
        await wait_for_async(
            lambda: {"streams", "requests"} <= set(east.status()["refusals"]), 5, "both refusals"
        )
        assert east.status()["memory_bytes"] <= part
        assert attacker.books.bytes == 0, "nothing is read"


async def test_polls_are_held_as_long_as_there_is_nothing_new(made: Made) -> None:
    async with attacked(made, Attack.POLLS, catalog_wait_ms=5000) as (east, attacker):
        await wait_for_async(lambda: attacker.books.held_polls_max > 0, 5, "questions to be held")
        assert attacker.books.held_polls_max == 2
        assert east.status()["refusals"]["catalogs"] > 0


@pytest.mark.parametrize("attack", GREETINGS)
async def test_hellos_of_all_kinds_are_booked_where_they_were_read(
    made: Made, attack: Attack
) -> None:
    began = time.monotonic()
    async with attacked(made, attack, peer_hellos_per_s=10) as (east, attacker):

        def read() -> list[int]:
            return [getattr(attacker.books, kind.value) for kind in Greeting]

        wanted = [kind in GREETINGS[attack] for kind in Greeting]
        await wait_for_async(
            lambda: [n > 0 for n in read()] == wanted, 5, "one of each kind to be read"
        )
        await wait_for_async(
            lambda: "hello_rate" in east.status()["refusals"], 5, "the rate to be met"
        )
        assert sum(read()) <= 10 * (time.monotonic() - began + 1)


async def test_look_ups_are_many_and_small(made: Made) -> None:
    began = time.monotonic()
    async with attacked(made, Attack.LOOKUPS, peer_requests_per_s=50) as (east, attacker):
        await wait_for_async(
            lambda: "request_rate" in east.status()["refusals"], 5, "the rate to be met"
        )
        assert 0 < attacker.books.served <= 50 * (time.monotonic() - began + 1)


async def test_draining_goes_on_until_it_is_refused(made: Made) -> None:
    limits = {
        "peer_leased_percent": 1,
        "peer_leased_bytes_min": 4 << 20,
        "serve_window_bytes": 1 << 20,
    }
    async with attacked(made, Attack.DRAIN, **limits) as (east, attacker):
        east.guards["west"].incoming.resize_pool(64 << 20)
        await wait_for_async(lambda: "leases" in east.status()["refusals"], 5, "leases to be met")
        await wait_for_async(lambda: attacker.books.bytes > 0, 5, "what came before")
    assert attacker.books.seconds > 0


async def test_snapshots_are_whole_catalogs(made: Made) -> None:
    async with attacked(made, Attack.SNAPSHOTS, peer_catalog_bytes_per_s=1 << 20) as (
        east,
        attacker,
    ):
        log = east.offers.log(FP)
        assert log is not None
        log.extend(np.arange(20_000, dtype=np.uint64) << np.uint64(49))
        await wait_for_async(
            lambda: "catalog_rate" in east.status()["refusals"], 5, "the rate to be met"
        )
        assert attacker.books.bytes > 100_000
