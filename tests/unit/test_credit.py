"""What a peer lets us send of an answer, over real mTLS, with Mooncake in memory."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from federation.errors import PeerError
from federation.peers.wire import PULL_METHOD
from federation.transfer.allowance import Allowance
from federation.transfer.frames import HEADER_BYTES
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import FP, MIB, East, fixed_window, link_to, linked, serving

KIB = 1024
KEYS = [f"k{i}" for i in range(4)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


def request(credit: int) -> peer_pb2.PullRequest:
    return peer_pb2.PullRequest(fingerprint=FP, keys=KEYS, pull_class="PREFETCH", credit=credit)


async def test_no_more_is_sent_than_was_allowed_and_the_rest_when_all_is(made: Made) -> None:
    east = East(made)
    east.hold(*KEYS)
    allowance = Allowance()
    sizes: list[int] = []
    async with linked(east, made) as link:
        answer = link.pull(request(256 * KIB), 10, allowance)
        async with contextlib.aclosing(answer) as messages:
            sizes.append(len(await anext(messages)))
            more = asyncio.ensure_future(anext(messages))
            await asyncio.wait({more}, timeout=0.1)
            assert not more.done(), "the credit is used up"
            allowance.give(512 * KIB)
            sizes.append(len(await more))
            sizes.append(len(await anext(messages)))
            more = asyncio.ensure_future(anext(messages))
            await asyncio.wait({more}, timeout=0.1)
            assert not more.done()
            assert max(sizes) <= 256 * KIB + HEADER_BYTES, "in messages of no more than that"
            allowance.give_all()
            sizes.append(len(await more))
            async for message in messages:
                sizes.append(len(message))
    assert sum(sizes) == 4 * MIB + 5 * HEADER_BYTES
    assert east.status()["failures"] == {}


async def test_a_request_without_credit_is_answered_whole(made: Made) -> None:
    east = East(made)
    east.hold(*KEYS)
    async with linked(east, made) as link:
        messages = [message async for message in link.pull(request(0), 10)]
    assert sum(map(len, messages)) == 4 * MIB + 5 * HEADER_BYTES


async def test_who_allows_nothing_more_gives_the_memory_back_and_is_blamed(made: Made) -> None:
    east = East(made, peer_stall_ms=300)
    east.hold(*KEYS)
    async with linked(east, made) as link:
        with pytest.raises(PeerError):
            async for _ in link.pull(request(256 * KIB), 10, Allowance()):
                pass
        await wait_for_async(lambda: east.status()["open"] == {}, 5, "the call to be gone")
    assert east.status()["failures"]["stall"] == 1
    assert east.status()["memory_bytes"] == 0


async def test_who_does_without_the_rest_is_not_blamed(made: Made) -> None:
    east = East(made, peer_breaker_failures=1)
    east.hold(*KEYS)
    async with serving(east, made) as address, fixed_window(address, made) as channel:
        raw = request(64 * KIB).SerializeToString()
        said = [message async for message in channel.unary_stream(PULL_METHOD)(raw, timeout=10)]
        assert [len(message) for message in said] == [64 * KIB + HEADER_BYTES]
        await wait_for_async(lambda: east.status()["open"] == {}, 5, "the call to be gone")
    assert "stall" not in east.status()["failures"]
    assert east.status()["memory_bytes"] == 0


async def test_who_leaves_while_it_may_be_sent_no_more_is_not_blamed(made: Made) -> None:
    east = East(made, peer_breaker_failures=1)
    east.hold(*KEYS)
    async with linked(east, made) as link:
        async with contextlib.aclosing(link.pull(request(64 * KIB), 10, Allowance())) as messages:
            await anext(messages)
        await wait_for_async(lambda: east.status()["open"] == {}, 5, "the call to be gone")
    assert "stall" not in east.status()["failures"]
    assert east.status()["breaker"] == "closed"


async def test_what_is_no_word_of_more_ends_the_answer(made: Made) -> None:
    east = East(made)
    east.hold(*KEYS)
    async with (
        serving(east, made) as address,
        link_to(address, made, "west"),
        fixed_window(address, made) as channel,
    ):
        call = channel.stream_stream(PULL_METHOD)(timeout=10)
        await call.write(request(64 * KIB).SerializeToString())
        await call.write(b"\xff" * 100)
        with pytest.raises(Exception, match="above the limit"):
            async for _ in call:
                pass
        await wait_for_async(lambda: east.status()["open"] == {}, 5, "the call to be gone")
    assert east.status()["failures"]["protocol"] == 1
