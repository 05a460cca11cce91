"""A federation in one process: groups, their gateways' engines, the network, and no time.

The shell around an engine is the one of production in small: it calls `tick` when that is due, sends
what `outbox` gives, hands hellos to `receive` and answers them by `reply_to`. Every message is encoded
and parsed by the real codec; a request and its reply can be lost each for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from chaos.sim.clock import Clock
from chaos.sim.keys import NotedKey, make_keys
from chaos.sim.network import Conditions, Network
from chaos.sim.process import Process
from chaos.sim.show import event_text
from chaos.sim.story import Story
from gossip.config import GossipConfig
from gossip.engine import GossipEngine
from gossip.events import OwnVersionAhead
from gossip.statement import Signer, Verifier
from moonmesh.v1 import peer_pb2

FEDERATION: Final = "sim"
Message = peer_pb2.HelloRequest | peer_pb2.HelloReply
TICK_GRAIN: Final = 0.001
"""Seconds between two ticks of a process at least, whatever its engine asks for."""


class Observer(Protocol):
    """Is told of each step, after it."""

    def signed(self, group: str, data: bytes) -> None:
        """The key of a group was used."""

    def stepped(self, process: Process, sender: str, message: Message | None) -> None:
        """A process has received (or, with None, has ticked)."""

    def event(self, process: Process, event: object) -> None:
        """What an engine says has happened."""


@dataclass(slots=True, eq=False)
class Group:
    """What of a group outlives its gateway.

    Attributes:
        epoch: the highest epoch ever started; what is on its disk.
        process: the gateway that listens.
        hostile: nothing is asked of it.
    """

    name: str
    index: int
    secret: bytes
    signer: Signer
    verifier: Verifier
    epoch: int = 0
    process: Process | None = None
    hostile: bool = False


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a world is made of."""

    groups: int
    seed: int
    config: GossipConfig
    conditions: Conditions = field(default_factory=Conditions)
    real_signatures: bool = False
    tick_late: float = 0.0
    """Seconds that a tick comes late at most: an event loop is never alone."""
    engine: Callable[..., GossipEngine] = GossipEngine
    """Makes the engines; tests have one that is broken."""


class World:
    """Runs. Deterministic: equal setups give equal runs.

    Args:
        setup: see there.
        observer: told of each step.

    Attributes:
        groups: by name, `g0`, `g1`, ...
    """

    def __init__(self, setup: Setup, observer: Observer | None = None) -> None:
        self.setup = setup
        self.config = setup.config
        self.observer = observer
        self.clock = Clock()
        self.story = Story()
        self.random = Random(f"{setup.seed}/world")
        self.network = Network(Random(f"{setup.seed}/network"), setup.conditions)
        self.processes = 0
        width = len(str(setup.groups - 1))
        self.groups: dict[str, Group] = {}
        for index in range(setup.groups):
            name = f"g{index:0{width}}"
            secret = self.random.randbytes(32)
            signer, verifier = make_keys(secret, setup.real_signatures)
            if observer is not None:
                signer = NotedKey(signer, _bind(observer.signed, name))
            self.groups[name] = Group(name, index, secret, signer, verifier)
        interval = self.config.hello_interval
        for name in self.groups:
            self.clock.at(self.random.random() * interval, self.start, name)

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.clock.now

    def run(self, rounds: float) -> None:
        """Lets so many hello intervals pass."""
        self.clock.run(self.clock.now + rounds * self.config.hello_interval)

    def tell(self, who: str, text: str) -> None:
        """Notes something in the story."""
        self.story.tell(self.clock.now, who, text)

    def acquaint(self) -> None:
        """Every gateway that runs hears the newest word of every other, at once."""
        running = [g.process for g in self.groups.values() if g.process is not None]
        for speaker in running:
            greeting = speaker.engine.greeting().message
            hello = peer_pb2.HelloRequest()
            if greeting is not None:
                hello.statement.CopyFrom(greeting.statement)
            for process in running:
                if process is not speaker:
                    process.engine.receive(speaker.group, hello, process.local(self.clock.now))

    # Gateways

    def start(self, name: str, epoch: int | None = None) -> Process:
        """Starts a gateway, which listens from now on; one that runs already goes on to speak.

        Args:
            epoch: None: the next one, as it should be.
        """
        group = self.groups[name]
        chosen = group.epoch + 1 if epoch is None else epoch
        group.epoch = max(group.epoch, chosen)
        self.processes += 1
        local = self.random.random() * 1e6
        engine = self.setup.engine(
            name,
            FEDERATION,
            group.signer,
            {peer.name: [peer.verifier] for peer in self.groups.values() if peer is not group},
            epoch=chosen,
            boot_nonce=self.random.randbytes(16),
            config=self.config,
            rng=Random(f"{self.setup.seed}/{name}/{self.processes}"),
            now=local,
        )
        process = Process(
            name,
            self.processes,
            engine,
            self.clock.now,
            local,
        )
        self.tell(name, f"{process} starts in epoch {chosen}")
        group.process = process
        self._after(process)
        return process

    def stop(self, process: Process) -> None:
        """Ends a gateway, without a word."""
        if process.running:
            process.running = False
            process.backlog.clear()
            self.tell(process.group, f"{process} ends")
        group = self.groups[process.group]
        if group.process is process:
            group.process = None

    def stall(self, process: Process, seconds: float) -> None:
        """Its loop stands still; what arrives waits."""
        if process.running and not process.stalled:
            process.stalled = True
            self.tell(process.group, f"{process} stalls for {seconds:.2f} s")
            self.clock.at(self.clock.now + seconds, self.wake, process)

    def nudge(self, process: Process) -> None:
        """Its engine was told something from outside: looks when it wants to tick now."""
        if process.running and not process.stalled:
            self._after(process)

    def wake(self, process: Process) -> None:
        """Ends a stall: what is due and what has waited comes at once."""
        if not process.running or not process.stalled:
            return
        process.stalled = False
        waiting = list(process.backlog)
        process.backlog.clear()
        tick_first = self.random.random() < 0.5  # timers and sockets are ready at once
        if tick_first:
            self._tick(process, process.tick_at)
        for action, arguments in waiting:
            action(*arguments)
        if not tick_first:
            self._tick(process, process.tick_at)

    # Steps

    def _tick(self, process: Process, at: float) -> None:
        if not process.running or process.tick_at != at or process.stalled:
            return
        process.due = process.tick_at = float("inf")
        now = self.clock.now
        process.engine.tick(process.local(now), process.wall_ms(now))
        if self.observer is not None:
            self.observer.stepped(process, "", None)
        self._after(process)

    def _after(self, process: Process, local: float | None = None) -> None:
        """What a step has brought: events, hellos, another time for the next tick."""
        engine, now = process.engine, self.clock.now
        for event in engine.events():
            self.tell(process.group, event_text(event))
            if self.observer is not None:
                self.observer.event(process, event)
            if isinstance(event, OwnVersionAhead) and event.proven:
                self._lead_above(process, event.version.epoch)
        due = engine.next_tick_at()
        if due <= (
            process.local(now) if local is None else local
        ):  # otherwise there is nothing to send, either
            for peer, hello in engine.outbox():
                self._send(process, peer, hello)
            due = engine.next_tick_at()
        if due < process.due:
            process.due = due
            at = max(process.world(due), now + TICK_GRAIN)
            if self.setup.tick_late:
                at += self.setup.tick_late * self.random.random()
            process.tick_at = at
            self.clock.at(at, self._tick, process, at)

    def _lead_above(self, process: Process, epoch: int) -> None:
        """The shell of a gateway whose disk was lost: a new term, above what peers remember."""
        group = self.groups[process.group]
        if process.guise is not None or epoch < process.engine.version.epoch:
            return
        chosen = max(group.epoch, epoch) + 1
        group.epoch = chosen
        self.tell(group.name, f"{process} takes epoch {chosen}")
        process.engine.lead(chosen, self.random.randbytes(16), process.local(self.clock.now))

    def _send(self, process: Process, peer: str, hello: peer_pb2.HelloRequest) -> None:
        raws = (
            (hello.SerializeToString(),)
            if process.guise is None
            else process.guise.hellos(peer, hello)
        )
        clock = self.clock
        for raw in raws:
            for at in self.network.send(process.group, peer, len(raw), clock.now):
                clock.at(at, self._arrive, process, peer, raw)

    def _arrive(self, sender: Process, to: str, raw: bytes) -> None:
        group = self.groups[to]
        target = group.process
        if target is None or not target.running:
            return
        if target.stalled:
            target.backlog.append((self._arrive, (sender, to, raw)))
            return
        now = self.clock.now
        name = sender.group
        self.story.message(now, self.groups[name].index, group.index, raw)
        message = peer_pb2.HelloRequest.FromString(raw)
        engine, local = target.engine, target.local(now)
        engine.receive(name, message, local)
        answer = engine.reply_to(message)
        if target.guise is not None:
            target.guise.heard(message)
            target.guise.change_reply(name, answer)
        if self.observer is not None:
            self.observer.stepped(target, name, message)
        raw = answer.SerializeToString()
        if not raw:  # nothing new: an answer all the same, and nobody has to act on it
            self.network.traffic.messages += 1
        else:
            for at in self.network.send(to, name, len(raw), now):
                self.clock.at(at, self._answered, to, sender, raw)
        self._after(target, local)

    def _answered(self, by: str, target: Process, raw: bytes) -> None:
        if not target.running:
            return
        if target.stalled:
            target.backlog.append((self._answered, (by, target, raw)))
            return
        now = self.clock.now
        self.story.message(now, self.groups[by].index, self.groups[target.group].index, raw)
        message, local = peer_pb2.HelloReply.FromString(raw), target.local(now)
        target.engine.receive(by, message, local)
        if self.observer is not None:
            self.observer.stepped(target, by, message)
        self._after(target, local)


def _bind(call: Callable[[str, bytes], None], group: str) -> Callable[[bytes], None]:
    return lambda data: call(group, data)
