"""Connections between groups over a network that loses, delays and is cut: what TCP makes of it.

Nothing is lost on a connection: what the network loses comes later, and what a cut holds up comes once it is
healed, or the connection ends, for both ends, when nothing of it has passed for too long.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from chaos.sim.network import Conditions, Network

if TYPE_CHECKING:
    from chaos.sim.mesh.loop import Node, VirtualLoop

RESEND_SECONDS: Final = 0.2
"""What a loss costs, doubled for each in a row."""
RESENDS_MAX: Final = 5
LINE_BYTES_PER_S: Final = 12_500_000.0
"""What a link passes where nothing is wrong with it: blocks of a world are small, and so is its line."""
UNHEARD_SECONDS: Final = 2.0
"""A connection on which nothing passes that should ends after so long (`peer_unheard_ms`)."""
BROKEN_SECONDS: Final = 60.0
"""What is so late is taken for cut off."""

Ended = Callable[[], None]


class Connection:
    """One connection, from one process to another.

    Attributes:
        ends: what each side does when it ends; called as the process of that side.
    """

    def __init__(self, lines: Lines, client: Node, server: Node) -> None:
        self.lines = lines
        self.client = client
        self.server = server
        self.open = True
        self.ends: dict[Node, list[Ended]] = {client: [], server: []}
        self._last = {client: 0.0, server: 0.0}
        self._held: dict[Node, list[tuple[int, Callable[..., object], tuple[Any, ...]]]] = {
            client: [],
            server: [],
        }
        self._silent_since: dict[Node, float] = {}
        lines.connections[self] = None

    def other(self, node: Node) -> Node:
        """The process at the other end."""
        return self.server if node is self.client else self.client

    def send(self, by: Node, size: int, action: Callable[..., object], *arguments: Any) -> None:
        """Does `action` at the other end, after all that was sent before."""
        if not self.open or not by.running:
            return
        held = self._held[by]
        at = None if held else self.lines.arrival(by.group, self.other(by).group, size)
        if at is None:
            held.append((size, action, arguments))
            if len(held) == 1:
                loop = self.lines.loop
                since = self._silent_since[by] = loop.now
                loop.at(since + UNHEARD_SECONDS, None, self._silent, by, since)
            return
        at = self._last[by] = max(at, self._last[by])
        self.lines.loop.at(at, self.other(by), self._arrive, by, action, arguments)

    def _arrive(self, by: Node, action: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self.open:
            raw = arguments[0] if arguments and isinstance(arguments[0], bytes) else b""
            self.lines.came(by, self.other(by), raw)
            action(*arguments)

    def healed(self) -> None:
        """What was held up comes now."""
        for by, held in self._held.items():
            waiting, self._held[by] = held, []
            self._silent_since.pop(by, None)
            for size, action, arguments in waiting:
                self.send(by, size, action, *arguments)

    def _silent(self, by: Node, since: float) -> None:
        if self.open and self._silent_since.get(by) == since:
            self.end()

    def end(self) -> None:
        """Both ends learn that it is over; at once, as far as they run."""
        if not self.open:
            return
        self.open = False
        self.lines.connections.pop(self, None)
        loop = self.lines.loop
        for node, ends in self.ends.items():
            for end in ends:
                loop.at(loop.now, node, end)
            ends.clear()

    def died(self, node: Node) -> None:
        """One process is gone: the kernel of its host tells the other end, if it can be reached."""
        other = self.other(node)
        lines = self.lines
        at = lines.arrival(node.group, other.group, 40)
        lines.loop.at(lines.loop.now + UNHEARD_SECONDS if at is None else at, None, self.end)


class Lines:
    """All connections of a world.

    Args:
        network: says what is cut, slow and lossy.
        came: told of whatever arrives, and of its bytes if it is a message.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        network: Network,
        came: Callable[[Node, Node, bytes], None],
    ) -> None:
        self.loop = loop
        self.came = came
        self.network = network
        self.connections: dict[Connection, None] = {}
        self._draw = random.random
        self._busy: dict[tuple[str, str], float] = {}
        self.bytes = 0
        """Handed over so far."""

    def cut(self, sender: str, to: str) -> bool:
        """Whether nothing passes."""
        return self.network.link(sender, to).cut > 0

    def arrival(self, sender: str, to: str, size: int) -> float | None:
        """When bytes arrive; None: not before something is healed."""
        link = self.network.link(sender, to)
        if link.cut:
            return None
        conditions: Conditions = link.conditions or self.network.conditions
        rate = conditions.bytes_per_second or LINE_BYTES_PER_S
        now = self.loop.now
        busy = max(now, self._busy.get((sender, to), 0.0)) + size / rate
        if conditions.bytes_per_second:
            busy = min(busy, max(now, conditions.clogged_until))
        self._busy[sender, to] = busy
        self.bytes += size
        at = busy + conditions.delay
        if conditions.jitter:
            at += conditions.jitter * self._draw()
        resend = RESEND_SECONDS
        for _ in range(RESENDS_MAX):
            if not conditions.loss or self._draw() >= conditions.loss:
                break
            at += resend
            resend *= 2
        return at

    def changed(self) -> None:
        """The network is another one now: what was held up may pass."""
        for connection in list(self.connections):
            connection.healed()

    def died(self, node: Node) -> None:
        """A process is gone."""
        for connection in list(self.connections):
            if node in (connection.client, connection.server):
                connection.died(node)
