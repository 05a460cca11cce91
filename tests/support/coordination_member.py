"""A member of a group as a process of its own, for tests: it campaigns, and writes while it leads.

python -m tests.support.coordination_member group.toml NAME [--keys=MAX] [--idle]

It prints a JSON line for each thing that happens; times are of `clock`, which all processes of a host share.
It ends with its stdin, and does what it reads there: `write`, `idle`, `resign`, `above N`, `watch`, `get`,
`stale`: a put of its last term as if that were valid for ever, and `fill`: keys until no more are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
from pathlib import Path
from typing import Any

from federation.config import load_group
from local_group.coordination import base, etcd, file_backend, machine, raft
from local_group.coordination.base import Coordination, Listed, Term
from local_group.coordination.connect import connect_coordination
from local_group.coordination.lease import Lease, clock
from local_group.process_errors import CoordinationError, Fenced

BEAT_S = 0.01
PAUSE_S = 1.0
"""After it has resigned, before it campaigns again: others come first."""


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "at": clock(), **fields}), flush=True)


class Member:
    def __init__(self, coordination: Coordination, name: str, writes: bool) -> None:
        self._coordination = coordination
        self._name = name
        self._writes = writes
        self._term: Term | None = None
        self._last: Term | None = None
        self._floor = 0
        self._resigns = False
        self._watching: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        await self._coordination.start()
        say("started")
        commands = asyncio.create_task(self._obey())
        leading = asyncio.create_task(self._lead())
        await asyncio.wait({commands, leading}, return_when=asyncio.FIRST_COMPLETED)
        for task in (leading, *self._watching):
            task.cancel()
        for outcome in await asyncio.gather(leading, *self._watching, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        if self._term is not None:
            await self._coordination.resign(self._term)
        await self._coordination.close()
        say("ended")

    async def _lead(self) -> None:
        number = 0
        while True:
            self._term = self._last = await self._coordination.campaign()
            say("leads", epoch=self._term.epoch, token=self._term.token)
            while True:
                term = self._term
                at = clock()
                if not term.valid(at):
                    break
                say("valid", epoch=term.epoch, checked=at)
                if self._writes:
                    number += 1
                    text = f"{term.epoch}:{self._name}:{number}"
                    try:
                        await self._coordination.put(f"n/{self._name}", text.encode(), term)
                        say("put", value=text, epoch=term.epoch)
                    except CoordinationError as error:
                        say("failed", value=text, why=type(error).__name__)
                if self._floor:
                    floor, self._floor = self._floor, 0
                    self._term = self._last = await self._coordination.above(term, floor)
                    say("leads", epoch=self._term.epoch, token=self._term.token)
                if self._resigns:
                    self._resigns = False
                    await self._coordination.resign(term)
                    await asyncio.sleep(PAUSE_S)
                await asyncio.sleep(0 if self._writes else BEAT_S)
            say("over", epoch=term.epoch, told=term.lost.is_set())
            await asyncio.wait_for(term.lost.wait(), 5)

    async def _obey(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().split():
            command, *arguments = line
            if command in ("write", "idle"):
                self._writes = command == "write"
            elif command == "resign":
                self._resigns = True
            elif command == "above":
                self._floor = int(arguments[0])
            elif command == "stale":
                await self._put_stale()
            elif command == "fill":
                await self._fill()
            elif command == "watch":
                self._watching.append(asyncio.create_task(self._watch(arguments[0])))
            elif command == "get":
                value = await self._coordination.get(arguments[0])
                say("got", value=None if value is None else value.decode())
            elif command == "leader":
                leader = await self._coordination.leader()
                say("leader", member=leader and leader.member, epoch=leader and leader.epoch)

    async def _put_stale(self) -> None:
        """Only coordination itself can stop this one."""
        assert self._last is not None
        forged = Term(self._last.epoch, self._last.token, Lease(math.inf, clock()))
        try:
            await self._coordination.put(f"n/{self._name}", b"stale", forged)
            say("stale", outcome="written")
        except Fenced:
            say("stale", outcome="fenced")

    async def _fill(self) -> None:
        assert self._term is not None
        for number in range(base.KEYS_MAX + 1):
            try:
                await self._coordination.put(f"f/{number}", b"", self._term)
            except CoordinationError as error:
                say("full", keys=number, why=str(error))
                break
        await self._coordination.put("f/0", b"again", self._term)
        say("filled")

    async def _watch(self, prefix: str) -> None:
        async for change in self._coordination.watch(prefix):
            if isinstance(change, Listed):
                values = {key: value.decode() for key, value in change.values.items()}
                say("listed", values=values)
            else:
                value = None if change.value is None else change.value.decode()
                say("changed", key=change.key, value=value)


def main() -> None:
    path, name, *options = Path(sys.argv[1]).absolute(), *sys.argv[2:]
    for option in options:
        if option.startswith("--keys="):  # fewer of them are sooner too many
            for module in (base, etcd, file_backend, machine, raft):
                module.KEYS_MAX = int(option.removeprefix("--keys="))  # type: ignore[attr-defined]
    coordination = connect_coordination(load_group(path), name, f"unix:/run/{name}.sock")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Member(coordination, name, "--idle" not in options).run())


if __name__ == "__main__":
    main()
