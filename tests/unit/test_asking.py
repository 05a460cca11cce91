"""Streams of hellos without IO: who asks when, what is late, and what is answered."""

from __future__ import annotations

import pytest

from federation.peers.asking import (
    ANEW_INTERVALS,
    ASK_INTERVALS,
    ASKED,
    LATE_INTERVALS,
    Asking,
    Told,
)
from moonmesh.v1 import peer_pb2


def test_the_first_hello_asks_and_then_one_in_a_while() -> None:
    asking = Asking(1.0)
    assert not asking.well
    asks = []
    for second in range(3 * ASK_INTERVALS):
        asks.append(asking.says(float(second)))
        if asks[-1]:
            assert asking.answered(second + 0.1)
    assert asking.well
    assert [n for n, ask in enumerate(asks) if ask] == [0, ASK_INTERVALS, 2 * ASK_INTERVALS]


def test_while_there_is_no_answer_each_hello_asks() -> None:
    asking = Asking(1.0)
    assert all(asking.says(float(second)) for second in range(9))
    assert asking.answered(9.0)
    assert not asking.says(9.1)


def test_an_answer_is_late_and_in_the_end_there_is_no_hope_for_it() -> None:
    asking = Asking(0.2)
    assert not asking.late(100.0), "nothing was asked"
    asking.says(100.0)
    asking.says(100.2)  # which starts no time anew
    assert [asking.late(100 + 0.2 * n) for n in range(1, LATE_INTERVALS + 1)] == [False, True]
    assert not asking.hopeless(100 + 0.2 * (ANEW_INTERVALS - 1))
    assert asking.hopeless(100 + 0.2 * ANEW_INTERVALS)
    asking.answered(102.0)
    assert not asking.late(110.0)


def test_more_answers_than_hellos_are_found_out() -> None:
    asking = Asking(1.0)
    for second in range(3):
        asking.says(float(second))
    assert [asking.answered(3.0) for _ in range(4)] == [True, True, True, False]


def test_what_is_put_behind_a_hello_asks_for_an_answer() -> None:
    hello = peer_pb2.HelloRequest(have_epoch=3)
    hello.probes.add(group="west")
    asked = peer_pb2.HelloRequest.FromString(hello.SerializeToString() + ASKED)
    assert asked.answer
    asked.ClearField("answer")
    assert asked == hello


@pytest.mark.parametrize(
    ("hello", "reply", "positions", "due"),
    [
        (peer_pb2.HelloRequest(), peer_pb2.HelloReply(), [1], False),
        (peer_pb2.HelloRequest(answer=True), peer_pb2.HelloReply(), [1], True),
        (peer_pb2.HelloRequest(), peer_pb2.HelloReply(silent=True), [1], True),
        (peer_pb2.HelloRequest(), peer_pb2.HelloReply(), [2], True),
        (
            peer_pb2.HelloRequest(),
            peer_pb2.HelloReply(statement=peer_pb2.SignedStatement(body=b"news")),
            [1],
            True,
        ),
    ],
)
def test_the_first_is_answered_and_then_what_asks_and_what_is_news(
    hello: peer_pb2.HelloRequest, reply: peer_pb2.HelloReply, positions: list[int], due: bool
) -> None:
    told = Told()
    assert told.is_due(peer_pb2.HelloRequest(), peer_pb2.HelloReply(), [1])
    assert told.is_due(hello, reply, positions) == due
    again = peer_pb2.HelloReply(silent=reply.silent)
    assert not told.is_due(peer_pb2.HelloRequest(), again, positions), "said once"
