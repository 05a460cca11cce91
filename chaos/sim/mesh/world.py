"""A federation of whole gateways in one process: groups, Mooncakes and engines, a network, and no time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.sim.invariants import Broken
from chaos.sim.mesh import limits
from chaos.sim.mesh.engines import SimEngine
from chaos.sim.mesh.faults import WORLD
from chaos.sim.mesh.group import SimGroup
from chaos.sim.mesh.line import Lines
from chaos.sim.mesh.loop import Node, VirtualLoop
from chaos.sim.mesh.server import Servers
from chaos.sim.mesh.truth import Truth
from chaos.sim.mesh.workload import Workload
from chaos.sim.network import Network
from chaos.sim.story import Story
from federation.config import GatewayConfig, GroupFile
from federation.identity import Fingerprint
from federation.keys.namespace import Namespace
from federation.limits_config import Limits
from federation.peering import Sharing
from local_group.config import MasterConfig, StoresConfig

FEDERATION: Final = "sim"
KIB: Final = 1024
CHECK_SECONDS: Final = 0.5
"""Between two looks at all that has a limit."""
LEASE_MS: Final = 2_000
SHARED: Final = 0.9
"""Share of directed pairs of groups that share a namespace."""
RAISES: Final = "nothing raises"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a world is made of."""

    groups: int
    seed: int
    folder: Path
    """Where gateways have their disks; emptied by whoever made it."""


class MeshWorld:
    """Deterministic: equal setups give equal runs. Made, and run, inside of `loop.virtual`.

    Args:
        hostile: names of groups of which nothing is asked.

    Attributes:
        groups: by name, `g0`, `g1`, ...
        healed: whether faults are over.
        broken: the first invariant that broke.
    """

    federation = FEDERATION

    def __init__(self, setup: Setup, loop: VirtualLoop, hostile: frozenset[str]) -> None:
        self.setup = setup
        self.loop = loop
        self.story = Story()
        self.random = Random(f"{setup.seed}/world")
        self.lines = Lines(
            loop,
            Random(f"{setup.seed}/network"),
            Network(Random(f"{setup.seed}/links"), WORLD),
            self._came,
        )
        self.servers = Servers(loop, self.lines)
        self.processes = 0
        self.nodes: list[Node] = []
        self.healed = False
        self.broken: Broken | None = None
        names = group_names(setup.groups)
        self._index = {name: index for index, name in enumerate(names)}
        self.truth = Truth(names, hostile)
        spaces = {name: _namespace(name) for name in ("a", "b")}
        self.namespaces: list[Fingerprint] = [each.fingerprint() for each in spaces.values()]
        self.workload = Workload(Random(f"{setup.seed}/workload"), list(self.namespaces))
        config = _config(self.random, spaces)
        self.naming = config.naming
        self.groups: dict[str, SimGroup] = {}
        for name in names:
            folder = setup.folder / name
            capacity = self.random.choice((512, 1024, 2048, 4096)) * KIB
            own = config.model_copy(update={"name": name, "data_dir": folder})
            self.groups[name] = SimGroup(self, name, own, capacity, folder)
        self._share()
        self.engines = {
            name: SimEngine(group, Random(f"{setup.seed}/{name}/engine"))
            for name, group in self.groups.items()
        }
        for name in names:
            at = self.random.random() * 1.0
            loop.at(at, None, self.groups[name].start)
            loop.at(at, None, self.engines[name].start)
        loop.at(CHECK_SECONDS, None, self._check)

    def tell(self, who: str, text: str) -> None:
        """Notes something in the story."""
        self.story.tell(self.loop.now, who, text)

    def _came(self, sender: Node, to: Node, raw: bytes) -> None:
        self.story.message(self.loop.now, self._index[sender.group], self._index[to.group], raw)

    def kill(self, node: Node) -> None:
        """Ends a process."""
        node.kill()
        self.nodes.append(node)
        self.lines.died(node)

    def run(self, until: float) -> None:
        """Lets time pass, up to `until` seconds.

        Raises:
            Broken: something did not hold.
        """
        self.loop.at(until, None, self.loop.stop)
        self.loop.run_forever()
        if self.broken is not None:
            raise self.broken

    def do(self, what: Any) -> Any:
        """Runs a coroutine of the world itself to its end."""
        task = self.loop.create_task(what)
        task.add_done_callback(lambda _: self.loop.stop())
        self.loop.run_forever()
        if self.broken is not None:
            raise self.broken
        return task.result()

    def uncaught(self, context: dict[str, Any]) -> None:
        """Whatever nobody has caught breaks the world."""
        error = context.get("exception")
        if self.broken is None:
            self.broken = error if isinstance(error, Broken) else Broken(RAISES, _said(context))
            self.broken.__cause__ = error
        self.loop.stop()

    def _share(self) -> None:
        exports: dict[str, dict[str, frozenset[Fingerprint]]] = {name: {} for name in self.groups}
        for owner in self.groups:
            for peer in self.groups:
                if peer != owner:
                    exports[owner][peer] = frozenset(
                        each for each in self.namespaces if self.random.random() < SHARED
                    )
        for name, group in self.groups.items():
            peers = [other for other in self.groups.values() if other is not group]
            imports = {peer.name: exports[peer.name][name] for peer in peers}
            group.meet(peers, Sharing(exports[name], imports))

    def _check(self) -> None:
        for name, group in self.groups.items():
            if name not in self.truth.hostile:
                limits.check(group)
        self.loop.at(self.loop.now + CHECK_SECONDS, None, self._check)


def group_names(count: int) -> list[str]:
    """Names of the groups of a world."""
    width = len(str(count - 1))
    return [f"g{index:0{width}}" for index in range(count)]


def _said(context: dict[str, Any]) -> str:
    import traceback

    error = context.get("exception")
    if error is None:
        return str(context.get("message"))
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({where[-1].filename.rsplit('/', 1)[-1]}:{where[-1].lineno})" if where else ""
    return f"{context.get('message')}: {type(error).__name__}: {error}{place}"


def _namespace(name: str) -> Namespace:
    return Namespace(
        model=f"model-{name}",
        revision="r1",
        engine="sglang-hicache",
        kv_dtype="bf16",
        block_tokens=512,
        layout="page_first",
    )


def _config(random: Random, namespaces: dict[str, Namespace]) -> GroupFile:
    """Of all groups, with bounds so narrow that they are reached: narrower than an operator may set."""
    narrow: dict[str, int] = {
        "block_bytes_max": 64 * KIB,
        "staging_bytes": random.choice((128, 512, 2048)) * KIB,
        "staging_hold_ms": LEASE_MS,
        "bounce_bytes": random.choice((128, 512)) * KIB,
        "serve_window_bytes": 64 * KIB,
        "message_bytes": 64 * KIB,
        "admission_queue_blocks": random.choice((16, 256)),
        "peer_request_keys_max": random.choice((8, 64)),
        "pulls_per_peer": random.choice((2, 8)),
        "pulls_waiting_per_peer": random.choice((8, 64)),
        "serves_per_peer": random.choice((2, 8)),
        "peer_leased_bytes_min": 64 * KIB,
        "log_entries": random.choice((64, 1024)),
        "holdings_blocks": 4096,
        "views_bytes": 1024 * KIB,
        "listing_interval_ms": 5_000,
        "catalog_page_entries": 64,
        "pull_timeout_ms": 5_000,
        "background_pull_ms": 1_000,
    }
    return GroupFile.model_construct(
        name="any",
        data_dir=Path("/nonexistent"),
        port_base=7400,
        protocol="tcp",
        master=MasterConfig(lease_ttl_ms=LEASE_MS),
        stores=StoresConfig.model_construct(count=1, dram=1 << 20),
        gateway=GatewayConfig(admit=random.choice(("second-hit", "second-hit", "always", "never"))),
        namespaces=namespaces,
        limits=Limits().model_copy(update=narrow),
    )
