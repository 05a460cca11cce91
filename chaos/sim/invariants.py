"""What has to hold in every world, at every step."""

from __future__ import annotations

from typing import Final

from chaos.sim.convergence import Convergence
from chaos.sim.process import Process
from chaos.sim.show import describe
from chaos.sim.world import Message, World
from gossip.events import PeerDown, PeerSuspect
from gossip.membership import NO_VERSION, Link, PeerState
from gossip.statement import DOMAIN
from gossip.version import Version
from gossip.view import PeerView
from moonmesh.v1 import peer_pb2

REGRESS: Final = "(epoch, seq) never regresses in any view"
TRUTH: Final = "nobody but a group itself changes its entry"
QUEUES: Final = "every queue is within its limit"
WITNESS: Final = "nobody is DOWN on one observer's loss alone"
RAISES: Final = "nothing raises"
SETTLED: Final = "once all is well every correct view converges"

LAG_ROUNDS: Final = 3
"""Rounds that a correct view may be behind once all is well: what is under way, and what was lost."""


class Broken(Exception):  # noqa: N818
    """An invariant does not hold.

    Attributes:
        invariant: in words.
        about: groups that are concerned.
    """

    def __init__(self, invariant: str, detail: str, *about: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.about = about


class Invariants:
    """An `Observer` that checks what each step has changed.

    Args:
        convergence: told of each newer entry.

    Attributes:
        suspects: all SUSPECT events: when, at whom, of whom.
        downs: all DOWN events.
    """

    def __init__(self, convergence: Convergence | None = None) -> None:
        self._attached: World | None = None
        self.convergence = convergence
        self.suspects: list[tuple[float, str, str]] = []
        self.downs: list[tuple[float, str, str]] = []
        self._peers: dict[str, list[str]] = {}
        self._views: dict[Process, dict[str, Version]] = {}
        self._made: dict[str, dict[bytes, Version]] = {}
        self._witnesses: dict[tuple[Process, str], set[str]] = {}

    def attach(self, world: World) -> None:
        """The world whose observer this is; before it runs."""
        self._attached = world
        self._peers = {name: [n for n in world.groups if n != name] for name in world.groups}

    @property
    def _world(self) -> World:
        if self._attached is None:
            raise RuntimeError("attach a world first")
        return self._attached

    # The world calls

    def signed(self, group: str, data: bytes) -> None:
        body = data[len(DOMAIN) :]
        said = peer_pb2.Statement.FromString(body)
        self._made.setdefault(group, {})[body] = Version(said.epoch, said.seq)

    def stepped(self, process: Process, sender: str, message: Message | None) -> None:
        view = self._views.get(process)
        if view is None:
            view = self._views[process] = {}
        engine = process.engine
        if message is None:
            if view.get(process.group) != engine.version:  # once a round: a tick hears nothing
                self._check_all(process, view)
                self._check_queues(process)
            return
        if engine.version_of(sender) is not view.get(sender):
            self._check_entry(process, view, sender)
        if not isinstance(message, peer_pb2.HelloRequest):
            return
        if message.relayed or message.versions or message.probes:
            self._check_all(process, view)
            self._check_queues(process)
        silent = message.silent
        if silent:
            for item in silent:
                self._witnesses.setdefault((process, item.group), set()).add(sender)

    def event(self, process: Process, event: object) -> None:
        if isinstance(event, PeerDown):
            self._check_down(process, event.peer)
        elif isinstance(event, PeerSuspect):
            self.suspects.append((self._world.now, process.group, event.peer))

    # Checks

    def check_settled(self, *, over: bool) -> None:
        """Once all is well for a while: every correct group sees every other as it is.

        Args:
            over: so long that who is off has been noticed, too.

        Raises:
            Broken: if one does not.
        """
        world = self._world
        for group in world.groups.values():
            if group.hostile or group.process is None:
                continue
            process = group.process
            for peer in process.engine.view(process.local(world.now)).peers:
                self._check_settled(process, peer, over)

    def _check_settled(self, process: Process, peer: PeerView, over: bool) -> None:
        other = self._world.groups[peer.name]
        if other.hostile:  # it was switched off
            if over and peer.state is PeerState.ALIVE:
                said = f"{process} has {peer.name} alive, which is off"
                raise Broken(SETTLED, said, process.group, peer.name)
            return
        if other.process is None:
            return
        truth = other.process.engine.version
        heard = peer.state is PeerState.ALIVE and peer.link in (Link.BOTH, None)
        current = (
            peer.version is not None
            and peer.version.epoch == truth.epoch
            and truth.seq - peer.version.seq <= LAG_ROUNDS
        )
        if not (heard and current) or peer.quarantine is not None:
            said = f"{process} has {describe(peer)}, and {peer.name} is at {truth}"
            raise Broken(SETTLED, said, process.group, peer.name)

    def _check_all(self, process: Process, view: dict[str, Version]) -> None:
        view[process.group] = process.engine.version  # its own is there to compare all at once
        if not process.engine.is_at(view):
            for name in self._peers[process.group]:
                self._check_entry(process, view, name)

    def _check_entry(self, process: Process, view: dict[str, Version], name: str) -> None:
        new = process.engine.version_of(name)
        old = view.get(name, NO_VERSION)
        if new == old:
            return
        if new < old:
            said = f"{process} had {name} at {old}, now at {new}"
            raise Broken(REGRESS, said, process.group, name)
        view[name] = new
        self._check_truth(process, name, new)
        if self._witnesses:
            self._witnesses.pop((process, name), None)
        if self.convergence is not None and self.convergence.followed:
            self.convergence.advanced(process, name, new, self._world.now)

    def _check_truth(self, process: Process, name: str, version: Version) -> None:
        """An entry is what that group said itself: it is the only one with its key."""
        if self._world.groups[name].hostile:
            return
        signed = process.engine.signed_of(name)
        said = None if signed is None else self._made.get(name, {}).get(signed.body)
        if said != version:
            raise Broken(
                TRUTH,
                f"{process} has {name} at {version}, which it never said",
                process.group,
                name,
            )

    def _check_queues(self, process: Process) -> None:
        for name, size, limit in process.engine.queues():
            if size > limit:
                raise Broken(QUEUES, f"{process}: {name} has {size} of {limit}", process.group)

    def _check_down(self, process: Process, peer: str) -> None:
        world = self._world
        self.downs.append((world.now, process.group, peer))
        alone = len(world.groups) == 2  # nobody else could be asked
        if not alone and not self._witnesses.get((process, peer)):
            raise Broken(
                WITNESS, f"{process} has {peer} down, and nobody else said so", process.group, peer
            )
