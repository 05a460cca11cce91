"""What the engine itself takes of a core, with real signatures, beside the limit that these set.

A world is run, and what the shell of one gateway calls is written down. A fresh process makes the same
calls again, with nothing beside them, and is timed.
"""

from __future__ import annotations

import time
from collections.abc import Container
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from chaos.sim.keys import make_keys
from chaos.sim.network import Conditions
from chaos.sim.presets import preset
from chaos.sim.processes import fresh_processes
from chaos.sim.world import FEDERATION, Message, Setup, World
from gossip.engine import GossipEngine, Outgoing, Receipt
from gossip.events import Event
from gossip.statement import DOMAIN
from moonmesh.v1 import peer_pb2

WARM_SECONDS: Final = 10.0
SECONDS: Final = 30.0
BODY: Final = bytes(120)
"""As long as a statement is."""
KINDS: Final[dict[str, Any]] = {"request": peer_pb2.HelloRequest, "reply": peer_pb2.HelloReply}

Call = tuple[str, float, str, str, bytes]
"""Method, local time, peer, kind of the message, its bytes."""


@dataclass(frozen=True)
class Cost:
    """Shares of one core that one gateway of the federation takes.

    Attributes:
        engine: all calls of its engine.
        codec: reading and writing its messages.
        signatures: the same verifications and signatures in an empty loop: what nothing can be below.
    """

    engine: float
    codec: float
    signatures: float


@dataclass(frozen=True)
class Recording:
    """What the shell of one gateway called.

    Attributes:
        options: of its engine, but for keys and the random source.
        secrets: of all keys by group.
        random: the state of its random source, at first.
    """

    group: str
    options: dict[str, Any]
    secrets: dict[str, bytes]
    random: tuple[Any, ...]
    calls: list[Call]


class _Recorder(GossipEngine):
    """An engine that writes down how it is called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.calls: list[Call] = []
        self.options = {name: options[name] for name in ("epoch", "boot_nonce", "config", "now")}
        self.random = options["rng"].getstate()
        super().__init__(*arguments, **options)

    def tick(self, now: float, wall_time_ms: int = 0) -> None:
        self.calls.append(("tick", now, "", "", b""))
        super().tick(now, wall_time_ms)

    def receive(self, peer: str, message: Message, now: float) -> Receipt:
        kind = "request" if isinstance(message, peer_pb2.HelloRequest) else "reply"
        self.calls.append(("receive", now, peer, kind, message.SerializeToString()))
        return super().receive(peer, message, now)

    def reply_to(self, hello: peer_pb2.HelloRequest) -> peer_pb2.HelloReply:
        self.calls.append(("reply_to", 0.0, "", "request", hello.SerializeToString()))
        return super().reply_to(hello)

    def outbox(self, busy: Container[str] = ()) -> list[Outgoing]:
        self.calls.append(("outbox", 0.0, "", "", b""))
        return super().outbox(busy)

    def events(self) -> list[Event]:
        self.calls.append(("events", 0.0, "", "", b""))
        return super().events()


def measure(groups: int) -> Cost:
    """Runs the world, then the calls of its first gateway on their own."""
    recording = _record(groups)
    with fresh_processes(1) as pool:  # it remembers nothing of what was run here
        return pool.submit(_replay, recording).result()


def _record(groups: int) -> Recording:
    recorders: list[_Recorder] = []

    def make(*arguments: Any, **options: Any) -> GossipEngine:
        if recorders:
            return GossipEngine(*arguments, **options)
        recorders.append(_Recorder(*arguments, **options))
        return recorders[0]

    world = World(
        Setup(
            groups=groups,
            seed=1,
            config=preset("wan"),
            conditions=Conditions(delay=0.02, jitter=0.02),
            real_signatures=True,
            engine=make,
        )
    )
    world.run(WARM_SECONDS + SECONDS)
    (recorder,) = recorders
    return Recording(
        recorder.group,
        recorder.options,
        {group.name: group.secret for group in world.groups.values()},
        recorder.random,
        recorder.calls,
    )


def _replay(recording: Recording) -> Cost:
    own = recording.group
    random = Random()
    random.setstate(recording.random)
    keys = {name: make_keys(secret, real=True) for name, secret in recording.secrets.items()}
    engine = GossipEngine(
        own,
        FEDERATION,
        keys[own][0],
        {name: [verifier] for name, (_, verifier) in keys.items() if name != own},
        rng=random,
        **recording.options,
    )
    warm = recording.options["now"] + WARM_SECONDS
    first = next(n for n, call in enumerate(recording.calls) if call[1] >= warm)
    _run(engine, recording.calls[:first])
    calls = recording.calls[first:]
    engine_ns, codec_ns, verified = _run(engine, calls)
    data, (signer, verifier) = DOMAIN + BODY, keys[own]
    signature = signer.sign(data)
    began = time.thread_time_ns()
    for _ in range(verified):
        verifier.verify(signature, data)
    for _ in range(int(SECONDS)):
        signer.sign(data)
    bare_ns = time.thread_time_ns() - began
    return Cost(*(ns / 1e9 / SECONDS for ns in (engine_ns, codec_ns, bare_ns)))


def _run(engine: GossipEngine, calls: list[Call]) -> tuple[int, int, int]:
    """Makes the calls: nanoseconds of the engine, and of the codec, and statements that came."""
    began = time.thread_time_ns()
    messages: list[Any] = [KINDS[kind].FromString(raw) if kind else None for *_, kind, raw in calls]
    codec = time.thread_time_ns() - began
    out: list[Any] = []
    began = time.thread_time_ns()
    for (method, now, peer, _, _), message in zip(calls, messages, strict=True):
        if method == "receive":
            engine.receive(peer, message, now)
        elif method == "reply_to":
            out.append(engine.reply_to(message))
        elif method == "outbox":
            out += [hello for _, hello in engine.outbox()]
        elif method == "events":
            engine.events()
        else:
            engine.tick(now)
    spent = time.thread_time_ns() - began
    began = time.thread_time_ns()
    for message in out:
        message.SerializeToString()
    codec += time.thread_time_ns() - began
    verified = sum(
        method == "receive" and bool(message.statement.body)
        for (method, *_), message in zip(calls, messages, strict=True)
    )
    return spent, codec, verified
