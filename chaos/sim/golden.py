"""Scenarios as text: a script of what happens, and what the engines say to it.

A line that begins with `>` is a command, `#` a comment; every other line is what came of the command
above it, and is written anew by `play`. So a file is right when playing it changes nothing. A script
whose first command is `mesh` is of whole gateways: see `chaos.sim.mesh.golden`.

    > world groups=3 preset=wan
    > run 3
    > cut g0 g1
    > states
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from chaos.sim.hostile import HABITS, Guise
from chaos.sim.network import Conditions
from chaos.sim.presets import preset
from chaos.sim.process import Process
from chaos.sim.show import describe
from chaos.sim.world import Setup, World
from federation.errors import UsageError
from gossip.statement import Health

if TYPE_CHECKING:
    from chaos.sim.mesh.golden import MeshPlayer

ROUNDS_MAX: Final = 1000
GROUPS_MAX: Final = 16


class ScriptError(UsageError):
    """A scenario that cannot be played."""

    code = "MM503"


def play(text: str, name: str = "script") -> str:
    """The scenario with all that comes of its commands.

    Raises:
        ScriptError: with the line, if a command cannot be understood.
    """
    lines = text.splitlines()
    first = next((line[1:].split() for line in lines if line.startswith(">")), [])
    with closing(_player(first[:1])) as player:
        return _played(lines, player, name)


def _player(first: list[str]) -> _Player | MeshPlayer:
    if first != ["mesh"]:
        return _Player()
    from chaos.sim.mesh.golden import MeshPlayer  # only here: it loads whole gateways

    return MeshPlayer()


def _played(lines: list[str], player: _Player | MeshPlayer, name: str) -> str:
    out: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            out.append(line)
        elif line.startswith(">"):
            out.append(line)
            try:
                out += player.do(line[1:].split())
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ScriptError(
                    f"this command cannot be played: {line[1:].strip()} ({error})",
                    where=f"{name}:{number}",
                    hint=f"commands: {', '.join(sorted(player.commands))}",
                ) from error
    return "\n".join(out) + "\n"


def difference(path: Path) -> str:
    """How the file differs from what comes of it now; empty: not at all."""
    try:
        before = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ScriptError("not a text in UTF-8", where=str(path)) from error
    after = play(before, str(path))
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), str(path), "now"
    )
    return "".join(lines)


class _Player:
    def __init__(self) -> None:
        self._world: World | None = None
        self._told: list[str] = []
        self._zombies: dict[str, Process] = {}
        self.commands: dict[str, Callable[..., list[str] | None]] = {
            "world": self._make,
            "run": self._run,
            "start": self._start,
            "stop": self._stop,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "stall": self._stall,
            "cut": self._cut,
            "heal": self._heal,
            "hostile": self._hostile,
            "honest": self._honest,
            "health": self._health,
            "release": self._release,
            "states": self._states,
        }

    def do(self, words: list[str]) -> list[str]:
        command, *arguments = words
        return self.commands[command](*arguments) or []

    def close(self) -> None:
        """There is nothing to end."""

    @property
    def world(self) -> World:
        if self._world is None:
            raise ValueError("a script begins with `world`")
        return self._world

    def _process(self, name: str) -> Process:
        process = self.world.groups[name].process
        if process is None:
            raise ValueError(f"{name} does not run")
        return process

    def _make(self, *options: str) -> None:
        chosen = {"groups": "3", "seed": "1", "preset": "wan"}
        for option in options:
            key, _, value = option.partition("=")
            if key not in chosen:
                raise ValueError(f"no option {key!r}")
            chosen[key] = value
        groups = int(chosen["groups"])
        if not 2 <= groups <= GROUPS_MAX:
            raise ValueError(f"groups must be in 2..{GROUPS_MAX}")
        self._world = World(
            Setup(
                groups=groups,
                seed=int(chosen["seed"]),
                config=preset(chosen["preset"]),
                conditions=Conditions(delay=0.01),
            )
        )

    def _run(self, rounds: str) -> list[str]:
        number = float(rounds)
        if not 0 < number <= ROUNDS_MAX:
            raise ValueError(f"rounds must be above 0 and at most {ROUNDS_MAX}")
        self.world.run(number)
        lines = self.world.story.fetch()
        return [f"  {line}" for line in lines]

    def _start(self, name: str, epoch: str = "") -> None:
        self.world.start(name, int(epoch) if epoch else None)

    def _stop(self, name: str) -> None:
        self.world.stop(self._process(name))

    def _freeze(self, name: str) -> None:
        """Takes the gateway out, to be thawed later beside another one."""
        process = self._zombies[name] = self._process(name)
        process.stalled = True

    def _thaw(self, name: str) -> None:
        self.world.wake(self._zombies.pop(name))

    def _stall(self, name: str, seconds: str) -> None:
        self.world.stall(self._process(name), float(seconds))

    def _cut(self, sender: str, to: str) -> None:
        self.world.network.cut(self._links(sender, to))

    def _heal(self, sender: str, to: str) -> None:
        self.world.network.heal(self._links(sender, to))

    def _links(self, sender: str, to: str) -> list[tuple[str, str]]:
        """From one to another; `*` stands for all others."""
        names = list(self.world.groups)
        senders = names if sender == "*" else [sender]
        receivers = names if to == "*" else [to]
        for name in (*senders, *receivers):
            self.world.groups[name]
        return [(x, y) for x in senders for y in receivers if x != y]

    def _hostile(self, name: str, *habits: str) -> None:
        chosen = tuple(habit.replace("-", " ") for habit in habits)
        for habit in chosen:
            HABITS[habit]
        process = self._process(name)
        names = list(self.world.groups)
        process.guise = Guise(chosen, Random(1), process, self.world.groups[name].signer, names)

    def _honest(self, name: str) -> None:
        self._process(name).guise = None

    def _health(self, name: str, health: str) -> None:
        process = self._process(name)
        process.engine.set_health(Health[health.upper()])
        self.world.nudge(process)

    def _release(self, name: str, peer: str) -> None:
        self._process(name).engine.release(peer)

    def _states(self) -> list[str]:
        """What each gateway believes of each other."""
        lines = []
        for group in self.world.groups.values():
            process = group.process
            if process is None:
                lines.append(f"  {group.name} is off")
                continue
            view = process.engine.view(process.local(self.world.now))
            lines.append(f"  {group.name} {view.version}")
            lines += [f"    {describe(peer)}" for peer in view.peers]
        return lines
