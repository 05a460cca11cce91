"""The real groups of a replay: written into a temporary folder, started, asked, and taken down."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from federation.bench.engines import BenchError
from federation.bench.piped import last_lines
from federation.config import Admit, load_group
from local_group.child import own_group
from local_group.toml import read_toml

Mode = Literal["federated", "isolated", "one-pool", "always", "never"]
"""The last two are federated, each with that admission policy."""
MODES: tuple[Mode, ...] = ("federated", "isolated", "one-pool")

NAMESPACE = "replay"
FEDERATION = "bench"
ENVELOPE = {
    "model": "replay",
    "revision": "1",
    "engine": "moonmesh-bench",
    "kv_dtype": "uint8",
    "block_tokens": 512,
    "layout": "opaque",
}
WATERMARK = 0.90
"""Fill at which Mooncake starts to evict: a pool holds this much of its memory."""
STORE_MIN = 16 * 1024 * 1024
"""Mooncake refuses smaller stores."""
STORE_STEP = 4 * 1024 * 1024
"""Stores are rounded up to this, so that their sizes do not hang on an allocator's slabs."""
PORTS_STEP = 100
UP_S = 90
DOWN_S = 60
STATUS_S = 3.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Layout:
    """What all modes of a replay have in common."""

    groups: int
    store_bytes: int
    """Of each store; a group has one, the one pool has one a group."""
    lease_ttl_ms: int
    port_base: int
    admit: Admit = "second-hit"
    serving_workers: int = 1
    pulling_workers: int = 0

    @property
    def pool_bytes(self) -> int:
        """Memory of all stores together."""
        return self.groups * self.store_bytes


def store_bytes(usable: float, groups: int) -> int:
    """Bytes of each store, so that all together hold `usable` bytes below the watermark."""
    each = usable / WATERMARK / groups
    return max(STORE_MIN, -(-int(each) // STORE_STEP) * STORE_STEP)


def is_federated(mode: Mode) -> bool:
    """Whether its groups are each other's peers."""
    return mode not in ("isolated", "one-pool")


def group_names(count: int) -> list[str]:
    return [f"g{i}" for i in range(count)]


def write_groups(
    folder: Path, mode: Mode, layout: Layout, limits: Mapping[str, Any] = MappingProxyType({})
) -> list[Path]:
    """Write the `group.toml` files of a mode below `folder`; returns their paths, in group order.

    Federated groups name a `peering.toml` that `moonmesh peer init` makes beside them.

    Args:
        limits: the table of that name, the same in all.
    """
    names = ["pool"] if mode == "one-pool" else group_names(layout.groups)
    paths = []
    for i, name in enumerate(names):
        table: dict[str, Any] = {
            "name": name,
            "data_dir": "data",
            "port_base": layout.port_base + i * PORTS_STEP,
            "master": {"lease_ttl_ms": layout.lease_ttl_ms},
            "stores": {
                "count": layout.groups if mode == "one-pool" else 1,
                "dram": layout.store_bytes,
            },
            "namespaces": {NAMESPACE: ENVELOPE},
            "limits": dict(limits),
        }
        if is_federated(mode):
            admit = layout.admit if mode == "federated" else mode
            table["gateway"] = {"peering": "peering.toml", "admit": admit}
            table["serving"] = {"workers": layout.serving_workers}
            table["pulling"] = {"workers": layout.pulling_workers}
        paths.append(_write(folder / name, table))
    return paths


def adapt_groups(files: Sequence[Path], folder: Path, mode: Mode) -> list[Path]:
    """The groups of given `group.toml` files, as a mode needs them: the files themselves for
    `federated`, else copies below `folder` without peering; the one pool has all their stores."""
    if mode == "federated":
        return list(files)
    tables = [read_toml(file) for file in files]
    for table in tables:
        table.get("gateway", {}).pop("peering", None)
        table["data_dir"] = "data"
    if mode == "isolated":
        return [_write(folder / str(table["name"]), table) for table in tables]
    configs = [load_group(file) for file in files]
    count = sum(c.stores.count for c in configs)
    total = sum(c.stores.count * c.stores.dram for c in configs)
    pool = tables[0] | {"name": "pool", "stores": {"count": count, "dram": total // count}}
    return [_write(folder / "pool", pool)]


def _write(folder: Path, table: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "group.toml"
    path.write_text("\n".join(toml_lines(table)) + "\n")
    return path


def toml_lines(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """A table as TOML: what group.toml consists of (text, numbers, booleans, lists, tables)."""
    for key, value in table.items():
        if not isinstance(value, Mapping):
            # JSON's text, numbers, booleans and lists are TOML's.
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield ""
            yield f"[{'.'.join((*path, key))}]"
            yield from toml_lines(value, (*path, key))


async def moonmesh(
    *args: str,
    log: Path,
    timeout: float,
    stop: asyncio.Event | None = None,
    inside: Sequence[str] = (),
) -> int:
    """Run `moonmesh ARGS` in a process group of its own, output to `log`; returns its exit code.

    It is stopped (SIGTERM, then SIGKILL) after `timeout` seconds, or when `stop` is set; the code
    is negative then. `inside` is put before the command: what runs it somewhere else.
    """
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            *inside,
            sys.executable,
            "-m",
            "federation.cli",
            *args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            **own_group(),
        )
    finally:
        os.close(out)
    ended = asyncio.create_task(process.wait())
    stopped = asyncio.create_task(stop.wait()) if stop is not None else None
    waits = {ended} | ({stopped} if stopped is not None else set())
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if not ended.done():
                process.send_signal(sign)
                await asyncio.wait({ended}, timeout=10)
        return await ended
    finally:
        if stopped is not None:
            stopped.cancel()


class GroupSet:
    """Started groups. `up`, then `down` whatever happened; `down` is safe to call twice.

    Args:
        configs: `group.toml` files.
        logs: folder for the commands' output; it exists.
        say: told one line a step.
        stop: set when the run is to end early: `up` then gives up.
        inside: per group, what to put before its commands, so that it runs somewhere else.
    """

    def __init__(
        self,
        configs: Sequence[Path],
        logs: Path,
        say: Say,
        stop: asyncio.Event,
        inside: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.configs = list(configs)
        self.groups = [load_group(path) for path in configs]
        self._logs = logs
        self._say = say
        self._stop = stop
        self._inside = inside or {}

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.up-down.log"

    async def up(self) -> None:
        """Start all groups at once and wait until they are ready.

        Raises:
            BenchError: if one does not start; with its last words.
        """
        names = ", ".join(g.name for g in self.groups)
        self._say(f"starting {names}")
        codes = await self._each(
            lambda path, log, inside: moonmesh(
                "up",
                "-c",
                str(path),
                "--detach",
                log=log,
                timeout=UP_S,
                stop=self._stop,
                inside=inside,
            )
        )
        if self._stop.is_set():
            return
        for group, code in zip(self.groups, codes, strict=True):
            if code != 0:
                log = self._log(group.name)
                raise BenchError(
                    f"group {group.name} did not start (exit code {code}):\n{last_lines(log)}",
                    where=str(log),
                )

    async def down(self) -> list[str]:
        """Stop all groups; returns the names of those that could not be stopped."""
        codes = await self._each(
            lambda path, log, inside: moonmesh(
                "down", "-c", str(path), log=log, timeout=DOWN_S, inside=inside
            )
        )
        return [g.name for g, code in zip(self.groups, codes, strict=True) if code != 0]

    async def _each(self, run: Callable[[Path, Path, Sequence[str]], Awaitable[int]]) -> list[int]:
        pairs = zip(self.configs, self.groups, strict=True)
        return await asyncio.gather(
            *(run(path, self._log(g.name), self._inside.get(g.name, ())) for path, g in pairs)
        )

    async def status(self) -> list[dict[str, Any]]:
        """What each gateway says of itself; an empty dict for one that does not answer."""
        return await asyncio.gather(*(self._status(g.gateway_socket) for g in self.groups))

    async def _status(self, path: Path) -> dict[str, Any]:
        import grpc.aio

        from moonmesh.v1 import engine_pb2

        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            ask = channel.unary_unary(
                "/moonmesh.v1.Admin/Status",
                request_serializer=engine_pb2.StatusRequest.SerializeToString,
                response_deserializer=engine_pb2.StatusReply.FromString,
            )
            try:
                reply = await ask(engine_pb2.StatusRequest(), timeout=STATUS_S)
                found = json.loads(reply.status_json)
            except (grpc.aio.AioRpcError, ValueError):
                return {}
        return found if isinstance(found, dict) else {}


async def init_peers(
    folder: Path,
    configs: Sequence[Path],
    log: Path,
    reached_at: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Make keys, certificates and `peering.toml` files for freshly written federated groups.

    Args:
        reached_at: group → where its peers are to connect to, if that is not where it listens.

    Raises:
        BenchError: if that fails.
    """
    groups = [load_group(path) for path in configs]
    addresses = [
        f"--group={g.name}={reached_at.get(g.name, f'{g.gateway.listen}:{g.ports.peers}')}"
        for g in groups
    ]
    await _peer_init(
        folder, log, f"--federation={FEDERATION}", f"--namespaces={NAMESPACE}", *addresses
    )


async def init_given_peers(folder: Path, log: Path) -> None:
    """Make the keys and certificates that the `*/peering.toml` files below `folder` name.

    Raises:
        BenchError: if that fails.
    """
    await _peer_init(folder, log)


async def _peer_init(folder: Path, log: Path, *options: str) -> None:
    code = await moonmesh("peer", "init", str(folder), *options, log=log, timeout=60)
    if code != 0:
        raise BenchError(f"moonmesh peer init failed ({code}):\n{last_lines(log)}", where=str(log))
