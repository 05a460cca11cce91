"""What a gateway refuses of hellos, over real mTLS."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from federation.limits.errors import ShedError
from federation.peers.gossip_config import HELLO_BYTES_MAX
from federation.peers.wire import HELLO_METHOD
from moonmesh.v1 import peer_pb2
from tests.support.credentials import Made
from tests.support.wait import wait_for_async
from tests.support.wire import (
    Answers,
    East,
    linked,
    plain_hello,
    pulled,
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("federation"))


async def test_a_hello_that_is_too_long_is_not_parsed(made: Made) -> None:
    east = East(made)
    async with linked(east, made) as link:
        for size, code in ((0, "INVALID_ARGUMENT"), (1, "RESOURCE_EXHAUSTED")):
            raw = b"\xff" * (HELLO_BYTES_MAX + size)
            call = link.gateways[0].control.stream_stream(HELLO_METHOD)(timeout=5)
            await call.write(plain_hello(made))
            assert await call.read() is not grpc.aio.EOF, "the first of the stream is well"
            await call.write(raw)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code().name == code


async def test_hellos_above_the_rate_end_their_stream_and_are_not_said_for_a_while(
    made: Made,
) -> None:
    east = East(made, peer_hellos_per_s=5)
    hello = peer_pb2.HelloRequest.FromString(plain_hello(made))
    async with linked(east, made) as link:
        answers = Answers(link)
        for _ in range(5):
            await answers.to(hello)
        link.greet(hello)
        await wait_for_async(lambda: answers.silences == 1, 5, "the refusal")
        assert east.status()["refusals"] == {"hello_rate": 1}
        assert east.status()["open"] == {}, "the stream has ended"
        with pytest.raises(ShedError, match=r"left alone for now \(retry_after"):
            link.greet(hello)
        await pulled(link, "absent")
