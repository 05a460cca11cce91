"""Real federations for tests: groups with gateways, peered, each a set of processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from typer.testing import CliRunner

from federation.cli import main
from federation.cli.health import ask_status
from federation.client import FederatedStore
from federation.identity import Envelope, block_digest
from tests.support.clock import Punctuality
from tests.support.groups import (
    RunningGroup,
    environment,
    free_port_base,
    write_group,
)
from tests.support.hosts import FarStore, Hosts
from tests.support.wait import wait_for

NAMESPACE: dict[str, Any] = {
    "model": "test-7b",
    "revision": "1",
    "engine": "test",
    "kv_dtype": "bf16",
    "block_tokens": 512,
    "layout": "page_first",
}
ENVELOPE = Envelope(**NAMESPACE)
FINGERPRINT = ENVELOPE.fingerprint()
BLOCK = 8192

Engine = FederatedStore | FarStore


class Federation:
    """Groups that are peers of each other, running between `with` and its end.

    Args:
        folder: where everything is written; short, for the sockets' sake.
        names: the groups; all are each other's peers unless `without` says otherwise.
        without: pairs that do not know each other.
        absent: groups that get an address and keys, and are not started.
        limits: `[limits]` of every group.
        alive: whether to wait until all hear each other.
        gateway: added to `[gateway]` of every group.
        master: `[master]` of every group.
        coordination: `[coordination]` of every group.
        own: tables of single groups, in the place of those of every group.
        shared: namespaces that all share with all, as `peer init` takes them.
        places: further places of groups: name, as if it were a group's, to that of the group. They start
            after the groups, whose master, and managed etcd, they share.
        hosts: where each group and place is; on this host without it.
        together: the places start with the groups, of which none would be led without them.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str] = ("east", "west"),
        *,
        without: Sequence[tuple[str, str]] = (),
        absent: Sequence[str] = (),
        limits: Mapping[str, Any] | None = None,
        dram: str = "64 MiB",
        alive: bool = True,
        gateway: Mapping[str, Any] | None = None,
        master: Mapping[str, Any] | None = None,
        coordination: Mapping[str, Any] | None = None,
        own: Mapping[str, Mapping[str, Any]] | None = None,
        shared: str = "demo",
        places: Mapping[str, str] | None = None,
        together: bool = False,
        hosts: Hosts | None = None,
    ) -> None:
        self.folder = folder
        self.places = dict(places or {})
        self.hosts = hosts
        self.ports = {name: free_port_base() for name in (*names, *self.places)}
        self._absent = set(absent)
        self._alive = alive
        self._together = together
        self._stack = ExitStack()
        self._stores: list[Engine] = []
        self._engines: dict[str, Engine] = {}
        self.groups: dict[str, RunningGroup] = {}
        options = [f"--group={name}={self._addresses(name)}" for name in names]
        init = ["peer", "init", str(folder), "--federation", "test", *options]
        made = CliRunner().invoke(main.app, [*init, "--namespaces", shared])
        assert made.exit_code == 0, made.output
        for one, other in without:
            self._part(one, other)
            self._part(other, one)
        for name in names:
            tables: dict[str, Any] = {
                **self._at(name),
                "gateway": {
                    "enabled": True,
                    "peering": "peering.toml",
                    "listen": self.host(name),
                    **(gateway or {}),
                },
                "namespaces": {"demo": NAMESPACE},
                "limits": {"hello_interval_ms": 200, **(limits or {})},
                "stores": {"count": 1, "dram": dram},
                "master": dict(master or {}),
                "coordination": dict(coordination or {}),
            }
            tables.update((own or {}).get(name, {}))
            write_group(folder / name, name, self.ports[name], **tables)
            for place in (place for place, group in self.places.items() if group == name):
                shared = {
                    **self._at(place),
                    "gateway": {
                        **tables["gateway"],
                        "peering": f"../{name}/peering.toml",
                        "listen": self.host(place),
                    },
                    "master": {"address": f"{self.host(name)}:{self.ports[name]}"},
                    "coordination": {
                        "backend": "etcd",
                        "etcd_endpoints": [f"{self.host(name)}:{self.ports[name] + 4}"],
                    },
                }
                more = (own or {}).get(place, {})
                write_group(folder / place, name, self.ports[place], **{**tables, **shared, **more})

    def __enter__(self) -> Federation:
        try:
            self.groups = {
                name: RunningGroup(self.folder / name / "group.toml", inside=self.inside(name))
                for name in self.ports
                if name not in self._absent
            }
            self._stack.callback(self._each, RunningGroup.down)
            later = () if self._together else tuple(self.places)
            for names in ([name for name in self.groups if name not in later], later):
                chosen = {name: self.groups[name] for name in names if name in self.groups}
                if chosen:
                    self._each(RunningGroup.up, chosen)
            if self._alive:
                self.wait_until_alive()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for store in self._stores:
            store.close()
        self._stack.close()

    def _each(
        self, do: Callable[[RunningGroup], None], groups: Mapping[str, RunningGroup] | None = None
    ) -> None:
        """All groups at once: one waits most of the time. All are done before an error is raised."""
        chosen = self.groups if groups is None else groups
        with ThreadPoolExecutor(len(chosen)) as threads:
            done = [threads.submit(do, group) for group in chosen.values()]
        for one in done:
            one.result()

    def store(self, name: str, **options: Any) -> Any:
        """An engine's store in this process, or on its host; closed at the end."""
        config = self.groups[name].config
        hosts = self.hosts
        store = FederatedStore() if hosts is None else hosts.store(name)
        options.setdefault("namespace", ENVELOPE)
        code = store.setup(
            config.host,
            master_server_addr=config.master_address,
            gateway=f"unix:{config.gateway_socket}",
            **options,
        )
        assert code == 0
        self._stores.append(store)
        return store

    def engine(self, name: str, **options: Any) -> Any:
        """The same store for the same arguments, for tests that leave it as it was: closing one takes
        Mooncake up to a second, in which nothing else runs here."""
        key = f"{name} {sorted(options.items())}"
        if key not in self._engines:
            self._engines[key] = self.store(name, **options)
        return self._engines[key]

    def status(self, name: str) -> dict[str, Any]:
        """What the gateway of a group says; {} while it does not answer."""
        answer = ask_status(self.groups[name].config.gateway_socket)
        return answer if isinstance(answer, dict) else {}

    def peer(self, name: str, other: str) -> dict[str, Any]:
        """What the gateway of `name` believes of `other`; {} while it does not answer."""
        peers = self.status(name).get("peers", [])
        return next((dict(peer) for peer in peers if peer["name"] == other), {})

    def serving(self, name: str) -> dict[str, Any]:
        """What the gateway of a group says of what serves peers; {} while there is none."""
        return dict(self.status(name).get("serving") or {})

    def serves_anew(self, name: str, pid: int) -> bool:
        """Whether another process than that one serves."""
        now = self.serving(name)
        return now.get("state") == "serving" and now.get("pid") not in (None, pid)

    def counter(self, name: str, counter: str) -> int:
        """One counter of a group's gateway."""
        return int(self.status(name).get("counters", {}).get(counter, 0))

    def wait_until_alive(self) -> None:
        """Every running group hears every running peer of its own."""
        for name in self.groups:

            def heard(name: str = name) -> bool:
                peers = self.status(name).get("peers")
                return peers is not None and all(
                    peer["state"] == "alive" for peer in peers if peer["name"] in self.groups
                )

            wait_for(heard, 20, f"{name} to hear its peers: {self.status(name).get('peers')}")

    def wait_for_view(self, name: str, peer: str, blocks: int) -> None:
        """`name` believes that `peer` holds `blocks` blocks."""

        def seen() -> bool:
            peers = self.status(name).get("peers", [])
            views = [v for p in peers if p["name"] == peer for v in p["views"]]
            return sum(view["blocks"] for view in views) == blocks

        wait_for(seen, 20, f"{name} to see {blocks} blocks of {peer}: {self._dump(name)}")

    def _addresses(self, group: str) -> str:
        """Of all its gateways, as `peer init` takes them."""
        names = [group, *(place for place, of in self.places.items() if of == group)]
        return ",".join(f"{self.host(name)}:{self.ports[name] + 2}" for name in names)

    def host(self, name: str) -> str:
        """The address of a group, or place, for all others."""
        return "127.0.0.1" if self.hosts is None else self.hosts.address(name)

    def inside(self, name: str) -> list[str]:
        """What to put before a command so that it runs where that group is."""
        return [] if self.hosts is None else self.hosts.inside(name)

    def _at(self, name: str) -> dict[str, str]:
        return {} if self.hosts is None else {"host": self.host(name)}

    def _dump(self, name: str) -> str:
        return json.dumps(self.status(name).get("peers"))

    def _part(self, name: str, other: str) -> None:
        path = self.folder / name / "peering.toml"
        head, *peers = path.read_text().split("[[peers]]")
        kept = [text for text in peers if f'name = "{other}"' not in text]
        assert len(kept) == len(peers) - 1
        path.write_text("[[peers]]".join([head, *kept]))


class Buffer:
    """Memory of an engine: `blocks` places of `size` bytes."""

    def __init__(self, blocks: int, size: int = BLOCK) -> None:
        self.size = size
        self.array: npt.NDArray[np.uint8] = np.zeros((blocks, size), np.uint8)

    @property
    def pointers(self) -> list[int]:
        base = int(self.array.ctypes.data)
        return [base + i * self.size for i in range(len(self.array))]

    @property
    def sizes(self) -> list[int]:
        return [self.size] * len(self.array)

    def fill(self, keys: Sequence[str], salt: str = "") -> Buffer:
        """The bytes that belong to each key."""
        for row, key in zip(self.array, keys, strict=True):
            row[:] = content(key, self.size, salt)
        return self

    def right(self, index: int, key: str, salt: str = "") -> bool:
        """Whether a place holds the bytes that belong to `key`."""
        return bool(np.array_equal(self.array[index], content(key, self.size, salt)))


def content(key: str, size: int = BLOCK, salt: str = "") -> npt.NDArray[np.uint8]:
    """The bytes that belong to a key."""
    seed = int.from_bytes(block_digest(FINGERPRINT, key, salt.encode())[:8], "little")
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def write(store: Engine, keys: Sequence[str], salt: str = "") -> None:
    """Puts the blocks of a chain, and waits until the gateway knows."""
    if isinstance(store, FarStore):
        store.call("write", keys, salt)
        return
    buffer = Buffer(len(keys)).fill(keys, salt)
    assert store.batch_put_from(list(keys), buffer.pointers, buffer.sizes) == [0] * len(keys)
    assert store.flush_reports(), "the gateway did not take the reports"


def read(
    store: Engine,
    keys: Sequence[str],
    salt: str = "",
    timed: Punctuality | None = None,
    **options: Any,
) -> list[str]:
    """Reads a chain; where each block came from. Every byte that came is compared."""
    if isinstance(store, FarStore):
        return list(store.call("read", keys, salt, **options))
    buffer = Buffer(len(keys))
    arguments = (list(keys), buffer.pointers, buffer.sizes)
    if timed is None:
        results = store.batch_get_into(*arguments, **options)
    else:
        results = timed.call(store.batch_get_into, *arguments, **options)
    for index, (key, result) in enumerate(zip(keys, results, strict=True)):
        assert result < 0 or buffer.right(index, key, salt), f"wrong bytes for {key}"
    tiers = store.last_tiers()
    assert [result > 0 for result in results] == [tier != "miss" for tier in tiers]
    return tiers


def read_unhurried(store: FederatedStore, keys: Sequence[str]) -> list[str]:
    """`read`, once the engine asks its gateway: a busy machine makes a slow one look as if it hung."""
    wait_for(lambda: store.stats()["federation"]["passes"], 10, "the gateway to be asked again")
    return read(store, keys)


class HostileGroup:
    """`chaos.hostile.peer` as a process, in the place of an absent group.

    It claims as many more blocks as no other before it did, so that its catalog is told from theirs.
    """

    _starts = 0

    def __init__(
        self, federation: Federation, name: str, behaviour: str, claims: Sequence[str]
    ) -> None:
        HostileGroup._starts += 1
        fillers = [f"filler-{i}" for i in range(HostileGroup._starts)]
        self.claims = [*claims, *fillers]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "chaos.hostile.peer",
                "-c",
                str(federation.folder / name / "peering.toml"),
                f"--listen=127.0.0.1:{federation.ports[name] + 2}",
                f"--behaviour={behaviour}",
                f"--fingerprint={FINGERPRINT.hex()}",
                f"--epoch={HostileGroup._starts}",
                *(f"--claim={key}" for key in self.claims),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def __enter__(self) -> HostileGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
