"""Which hellos are refused: told by the gateway to its serving process, by speaker; sans-IO.

Two processes may speak for one peer, by mistake: the one that is not believed is refused, and not the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from gossip.statement import Signed, StatementError
from moonmesh.v1 import peer_pb2, serving_pb2

SPEAKERS_MAX = 4
"""Speakers of one peer that are refused by name. Of more the one that was longest not refused is forgotten:
its next hello is answered, before the gateway has seen it."""


def speaker(hello: peer_pb2.HelloRequest) -> bytes:
    """Who says it: the boot nonce of its statement, which may be a lie; b"" where there is none."""
    try:
        return Signed.read(hello.statement).said().boot_nonce
    except StatementError:
        return b""


class Verdicts:
    """The gateway's end: what the serving process has yet to be told.

    Args:
        newest: the newest statement of a peer that is believed.
    """

    def __init__(self, newest: Callable[[str], Signed | None]) -> None:
        self._newest = newest
        self._refused: dict[str, OrderedDict[bytes, serving_pb2.Verdict]] = {}
        self._untold: dict[tuple[str, bytes], serving_pb2.Verdict] = {}

    def judged(self, peer: str, hello: peer_pb2.HelloRequest, *, believed: bool) -> bool:
        """A hello was looked at; whether there is something to tell."""
        refused = self._refused.setdefault(peer, OrderedDict())
        if believed and not refused:
            return False
        who = speaker(hello)
        if believed:
            if refused.pop(who, None) is None:
                return False
            self._believe(peer, who)
            return True
        verdict = serving_pb2.Verdict(peer=peer, boot_nonce=who)
        newest = self._newest(peer)
        if newest is not None:
            newest.write(verdict.newest)
        if refused.get(who) == verdict:
            return False
        refused[who] = self._untold[(peer, who)] = verdict
        refused.move_to_end(who)
        if len(refused) > SPEAKERS_MAX:
            self._believe(peer, refused.popitem(last=False)[0])
        return True

    def take(self) -> Iterator[serving_pb2.Verdict]:
        """What is to be told, each once."""
        while self._untold:
            yield self._untold.popitem()[1]

    def restart(self) -> None:
        """Another serving process, which knows nothing yet."""
        self._untold = {
            (peer, who): verdict
            for peer, refused in self._refused.items()
            for who, verdict in refused.items()
        }

    def _believe(self, peer: str, who: bytes) -> None:
        verdict = serving_pb2.Verdict(peer=peer, believed=True, boot_nonce=who)
        self._untold[(peer, who)] = verdict


class Refused:
    """The serving process's end."""

    def __init__(self) -> None:
        self._refused: dict[str, OrderedDict[bytes, serving_pb2.Verdict]] = {}

    def take(self, verdict: serving_pb2.Verdict) -> None:
        """What the gateway says of a speaker."""
        refused = self._refused.setdefault(verdict.peer, OrderedDict())
        refused.pop(verdict.boot_nonce, None)
        if not verdict.believed:
            refused[verdict.boot_nonce] = verdict
            if len(refused) > SPEAKERS_MAX:
                refused.popitem(last=False)

    def why(self, peer: str, hello: peer_pb2.HelloRequest) -> serving_pb2.Verdict | None:
        """Why a hello is refused; None if it is not."""
        refused = self._refused.get(peer)
        return refused.get(speaker(hello)) if refused else None
