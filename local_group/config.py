"""The Mooncake part of `group.toml`: what a group is made of, and where its parts listen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from local_group.coordination.config import CoordinationConfig
from local_group.fields import (
    GIB,
    KIB,
    MIB,
    PORT_MAX,
    Host,
    Section,
    Size,
    check_address,
    check_host,
    is_loopback,
    parse_size,
    resolve_path,
)
from local_group.toml import explain, read_toml, read_top

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "GroupConfig",
    "GroupName",
    "GroupPlace",
    "Host",
    "MasterConfig",
    "Ports",
    "Size",
    "StoresConfig",
    "check_host",
    "explain",
    "load_place",
    "parse_size",
    "read_toml",
    "resolve_path",
]

DRAM_MIN = 16 * MIB
"""Bytes. Mooncake refuses a smaller segment with -600 (its allocator hands out 16 MiB slabs)."""

STORES_MAX = 64
FIRST_STORE_OFFSET = 10
"""Stores listen on `port_base + 10 + i`; +0 to +5 are the master's, the gateway's and etcd's."""

MOONCAKE_PORTS = range(12300, 17001)
"""Where Mooncake picks ports by itself, at random, for its clients, handshakes and data."""

UNIX_PATH_MAX = 107
"""Bytes of a unix socket's path on Linux (`sun_path` less its final zero)."""


def _check_name(value: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", value):
        raise ValueError(
            f"{value!r} is not a group's name: a lower-case letter, then at most 30 of a-z, 0-9, -"
        )
    return value


GroupName = Annotated[str, Field(strict=True)]


@dataclass(frozen=True)
class Ports:
    """The ports of a group, all TCP, counted from `port_base`."""

    base: int

    @property
    def master_rpc(self) -> int:
        """Mooncake's own RPC; only this group's processes may reach it."""
        return self.base

    @property
    def master_admin(self) -> int:
        """The master's admin HTTP; only this group's processes may reach it."""
        return self.base + 1

    @property
    def peers(self) -> int:
        """The gateway's mTLS endpoint for peers: the one port that other groups reach."""
        return self.base + 2

    @property
    def engines_tcp(self) -> int:
        """The gateway's mTLS endpoint for engines on other hosts of this group."""
        return self.base + 3

    @property
    def etcd_client(self) -> int:
        """The managed etcd, if there is one; only this group's gateways may reach it."""
        return self.base + 4

    @property
    def etcd_peer(self) -> int:
        """The managed etcd for others of its cluster, of which there are none."""
        return self.base + 5

    def store(self, index: int) -> int:
        """The service port of store `index` (from 0)."""
        return self.base + FIRST_STORE_OFFSET + index


class MasterConfig(Section):
    """`[master]`: the group's `mooncake_master`. Here, or in another place of the group."""

    address: str | None = None
    """`host:port` of a master that runs elsewhere: the `host` and `port_base` of the place of this group
    that starts it. None is started here then; what there is here joins that one's pool."""
    admin_port: int | None = Field(default=None, ge=1, le=PORT_MAX)
    """Port of the admin HTTP of the master at `address`; without it, the one after its RPC."""
    lease_ttl_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 10_000
    """ms for which a get or an exists keeps a block from eviction. A transfer that takes longer
    fails with -707; long leases pin a small pool. 10 s is Mooncake's own default. Of the master that is
    started here: with `address` it is set where that one is started."""

    @field_validator("address")
    @classmethod
    def _good_address(cls, value: str | None) -> str | None:
        return None if value is None else check_address(value, "the master's port_base")

    @model_validator(mode="after")
    def _here_or_elsewhere(self) -> MasterConfig:
        if self.address is None:
            if self.admin_port is not None:
                raise ValueError(
                    "admin_port is of a master elsewhere, and there is no address: add it, or remove "
                    "admin_port (a master that is started here has port_base + 1)"
                )
            return self
        if "lease_ttl_ms" in self.model_fields_set:
            raise ValueError(
                f"lease_ttl_ms cannot be set together with address: the master at {self.address} has "
                "its own from the group.toml that starts it; remove one of the two"
            )
        if self._admin(self.address) > PORT_MAX:
            raise ValueError(
                f"the port after {self.address} would be above {PORT_MAX}: set admin_port"
            )
        return self

    @property
    def host(self) -> str | None:
        """Of a master elsewhere; None if it is started here."""
        return None if self.address is None else self.address.rpartition(":")[0]

    @property
    def admin_address(self) -> str | None:
        """`host:port` of the admin HTTP of a master elsewhere; None if it is started here."""
        if self.address is None:
            return None
        return f"{self.host}:{self._admin(self.address)}"

    def _admin(self, address: str) -> int:
        return self.admin_port or int(address.rpartition(":")[2]) + 1


class StoresConfig(Section):
    """`[stores]`: the group's store services, which hold the blocks."""

    count: Annotated[int, Field(ge=0, le=STORES_MAX)] = 1
    """Stores, one process each: a store that dies loses its own blocks and no other's. 0 only beside a
    master that runs elsewhere (`master.address`)."""
    dram: Annotated[Size, Field(validate_default=True)] = 0
    """Bytes of memory that each store gives to the pool: at least 16 MiB (Mooncake refuses less), at
    most 16 TiB (more is a wrong unit). Required, unless `count` is 0: then there is none."""

    @field_validator("dram")
    @classmethod
    def _enough(cls, value: int, info: ValidationInfo) -> int:
        if value == 0:
            if info.data.get("count") == 0:
                return value
            raise ValueError(
                'is missing: add it, the memory that each store gives to the pool, such as "1 GiB"'
            )
        if info.data.get("count") == 0:
            raise ValueError(
                "is of each store, and count = 0 starts none here: remove dram, or set count to 1 or more"
            )
        if value < DRAM_MIN:
            raise ValueError(
                f"{value} bytes are too few: Mooncake refuses stores below 16 MiB (with -600); "
                'write "16 MiB" or more'
            )
        if value > 1 << 44:
            raise ValueError(f"{value} bytes are more than 16 TiB: is the unit right?")
        return value


class GroupPlace(Section):
    """What of `group.toml` is needed to find a group that runs: its name and its folder."""

    name: GroupName
    """What this group is called, by its peers and in its certificates too: a lower-case letter, then at
    most 30 of a-z, 0-9, -."""
    data_dir: Annotated[Path, BeforeValidator(resolve_path)]
    """Folder of logs, sockets, state, spans and the journal, relative to this file (absolute once
    loaded). On a local disk, and short: the path of a unix socket in it fits 107 bytes."""

    @field_validator("name")
    @classmethod
    def _good_name(cls, value: str) -> str:
        return _check_name(value)

    @field_validator("data_dir")
    @classmethod
    def _short_enough(cls, value: Path) -> Path:
        socket = value / "run" / "gateway.sock"
        length = len(str(socket).encode())
        if length > UNIX_PATH_MAX:
            raise ValueError(
                f"the path of the gateway's socket would be {length} bytes long and a unix socket "
                f"allows {UNIX_PATH_MAX} ({socket}): choose a shorter data_dir"
            )
        return value

    @property
    def run_dir(self) -> Path:
        """Sockets, the lock and the state of the running group."""
        return self.data_dir / "run"

    @property
    def log_dir(self) -> Path:
        """One log file a process."""
        return self.data_dir / "logs"

    @property
    def state_file(self) -> Path:
        """What runs now: see `local_group.state`."""
        return self.run_dir / "state"

    @property
    def lock_file(self) -> Path:
        """Locked by the one supervisor of this group while it lives."""
        return self.run_dir / "lock"

    @property
    def gateway_socket(self) -> Path:
        """The gateway's unix socket for engines on this host."""
        return self.run_dir / "gateway.sock"

    @property
    def journal_dir(self) -> Path:
        """Where the provenance of pulled blocks is journalled."""
        return self.data_dir / "journal"


class GroupConfig(GroupPlace):
    """One complete, isolated Mooncake cluster on this host, as `group.toml` describes it."""

    port_base: Annotated[int, Field(ge=1024, le=65535)]
    """Port, the first of the group's: +0 the master's RPC, +1 its admin HTTP, +2 the gateway for peers,
    +3 the gateway for engines over TCP, +4 and +5 a managed etcd, +10 and up the stores. None of them may
    lie in 12300-17000, where Mooncake opens ports of its own."""
    host: Host = "127.0.0.1"
    """Address (IPv4 or host name) at which the group's own parts reach each other. Mooncake has no
    authentication: choose one that nobody else reaches."""
    protocol: Literal["tcp", "rdma"] = "tcp"
    """Mooncake's transport within the group; `rdma` needs RDMA devices on all of its hosts."""
    master: MasterConfig = MasterConfig()
    stores: StoresConfig
    coordination: CoordinationConfig = CoordinationConfig()

    @field_validator("host")
    @classmethod
    def _good_host(cls, value: str) -> str:
        return check_host(value)

    @field_validator("master")
    @classmethod
    def _elsewhere(cls, value: MasterConfig, info: ValidationInfo) -> MasterConfig:
        base, host = info.data.get("port_base"), info.data.get("host")
        if value.address is not None and value.address == f"{host}:{base}":
            raise ValueError(
                f"address {value.address} is this place's own host and port_base, and no master is "
                "started here: remove address to start one, or name the place that does"
            )
        if value.host is not None and is_loopback(value.host) != is_loopback(str(host)):
            raise ValueError(
                f"address {value.address} and host = {host!r}: one of them is this machine alone, and the "
                "parts of a group have to reach each other both ways; give both an address in the "
                "group's own network, or both 127.0.0.1 if all places are on one machine"
            )
        return value

    @field_validator("stores")
    @classmethod
    def _stores_for_whom(cls, value: StoresConfig, info: ValidationInfo) -> StoresConfig:
        master = info.data.get("master")
        if value.count == 0 and master is not None and master.address is None:
            raise ValueError(
                "count = 0, and the master that is started here would have no memory: set count to 1 "
                "or more, or master.address to that of a master that runs elsewhere"
            )
        return value

    @field_validator("stores")
    @classmethod
    def _ports_fit(cls, value: StoresConfig, info: ValidationInfo) -> StoresConfig:
        base = info.data.get("port_base")
        if base is None:  # already reported
            return value
        last = Ports(base).store(value.count - 1)
        if last > 65535:
            raise ValueError(
                f"with port_base {base} the last of {value.count} stores would listen on {last}, "
                f"above 65535: port_base can be at most {65535 - (last - base)}"
            )
        if base < MOONCAKE_PORTS.stop and last >= MOONCAKE_PORTS.start:
            raise ValueError(
                f"the group's ports {base}-{last} overlap "
                f"{MOONCAKE_PORTS[0]}-{MOONCAKE_PORTS[-1]}, where Mooncake opens ports of its own "
                "at random: choose a port_base outside"
            )
        return value

    @property
    def coordination_dir(self) -> Path:
        """Where the durable epoch is kept, and what a managed etcd or a member of Raft stores."""
        return self.coordination.file_folder or self.data_dir / "coordination"

    @property
    def ports(self) -> Ports:
        """Where each part listens."""
        return Ports(self.port_base)

    @property
    def master_address(self) -> str:
        """`host:port` of the master's RPC, as Mooncake's clients take it."""
        return self.master.address or f"{self.host}:{self.ports.master_rpc}"

    @property
    def admin_url(self) -> str:
        """Base URL of the master's admin HTTP."""
        here = f"{self.host}:{self.ports.master_admin}"
        return f"http://{self.master.admin_address or here}"


def load_place(path: Path) -> GroupPlace:
    """Only where a group is, of a group.toml whose rest may be wrong, or no TOML.

    Raises:
        ConfigError: `name` or `data_dir` cannot be used either.
    """
    path = Path(path).absolute()
    content = read_top(path, tuple(GroupPlace.model_fields))
    try:
        return GroupPlace.model_validate(content, context={"folder": path.parent})
    except ValidationError as error:
        raise explain(error, path, GroupPlace) from error
