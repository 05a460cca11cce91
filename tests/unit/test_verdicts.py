"""Which speakers for a peer are refused: told by one process to the other, and by name."""

from __future__ import annotations

from federation.peers.verdicts import SPEAKERS_MAX, Refused, Verdicts, speaker
from gossip.statement import Signed
from moonmesh.v1 import peer_pb2, serving_pb2
from tests.support.gossip import says, signed


class Both:
    """The two ends, with nothing in between but what the one has to tell."""

    def __init__(self) -> None:
        self.newest: Signed | None = None
        self.gateway = Verdicts(lambda peer: self.newest)
        self.serving = Refused()

    def judge(self, hello: peer_pb2.HelloRequest, *, believed: bool) -> int:
        """How many verdicts are told."""
        news = self.gateway.judged("west", hello, believed=believed)
        told = list(self.gateway.take())
        assert news is bool(told)
        for verdict in told:
            self.serving.take(verdict)
        return len(told)

    def refuses(self, hello: peer_pb2.HelloRequest) -> bool:
        return self.serving.why("west", hello) is not None


def test_of_two_speakers_the_one_that_is_not_believed_is_refused() -> None:
    both = Both()
    leader, twin = says(nonce=1), says(nonce=2)
    assert both.judge(leader, believed=True) == 0
    assert both.judge(twin, believed=False) == 1
    assert both.judge(leader, believed=True) == 0
    assert (both.refuses(leader), both.refuses(twin)) == (False, True)
    assert both.judge(twin, believed=False) == 0, "nothing new"
    assert both.judge(twin, believed=True) == 1
    assert not both.refuses(twin)


def test_one_that_is_refused_is_told_of_what_is_newest() -> None:
    both = Both()
    for seq in (5, 6):
        both.newest = Signed.read(signed("west", epoch=3, seq=seq))
        assert both.judge(says(nonce=2), believed=False) == 1
        why = both.serving.why("west", says(nonce=2))
        assert why is not None
        assert why.newest == signed("west", epoch=3, seq=seq)


def test_another_serving_process_is_told_all() -> None:
    both = Both()
    both.judge(says(nonce=2), believed=False)
    both.judge(says(nonce=3), believed=False)
    both.judge(says(nonce=3), believed=True)
    both.serving = Refused()
    both.gateway.restart()
    for verdict in both.gateway.take():
        both.serving.take(verdict)
    assert (both.refuses(says(nonce=2)), both.refuses(says(nonce=3))) == (True, False)


def test_so_many_speakers_are_refused_by_name_and_no_more() -> None:
    both = Both()
    names = range(1, SPEAKERS_MAX + 2)
    for nonce in names:
        both.judge(says(nonce=nonce), believed=False)
    assert [both.refuses(says(nonce=nonce)) for nonce in names] == [False] + [True] * SPEAKERS_MAX
    alone = Refused()
    for nonce in names:
        alone.take(serving_pb2.Verdict(peer="west", boot_nonce=speaker(says(nonce=nonce))))
    refused = [alone.why("west", says(nonce=nonce)) is not None for nonce in names]
    assert refused == [False] + [True] * SPEAKERS_MAX


def test_a_hello_without_a_statement_has_a_speaker_too() -> None:
    both = Both()
    nothing = peer_pb2.HelloRequest()
    assert speaker(nothing) == b""
    assert both.judge(nothing, believed=False) == 1
    assert both.refuses(nothing)
