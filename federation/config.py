"""`group.toml` as a whole: the Mooncake part, the gateway's, namespaces and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from federation.identity import Fingerprint
from federation.keys.namespace import Namespace, overlaps
from federation.keys.naming import Naming
from federation.limits_config import Limits
from local_group.config import (
    GroupConfig,
    Host,
    check_host,
    explain,
    read_toml,
    resolve_path,
)
from local_group.fields import check_address, is_loopback

__all__ = ["GatewayConfig", "GroupFile", "Limits", "load_group"]

PEERS_MAX = 63
"""Peers of one group: the hellos of a full mesh grow with the square of the groups."""
GATEWAYS_MAX = 4
"""Gateways of one group: each is greeted by every gateway of every peer, each hello interval."""
WORKERS_MAX = 16
"""Serving, and pulling, processes of one gateway: each has memory of its own, a serving one a client of
Mooncake too."""
NAMESPACES_MAX = 256
"""Namespaces of one group: each costs a log, a subscription per peer and a row in `status`."""


Admit = Literal["second-hit", "always", "never"]
"""When a block of a peer is put into the local pool."""


class GatewayConfig(BaseModel):
    """`[gateway]`: the process beside the group that speaks for it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    enabled: bool = True
    """False: only Mooncake is started; engines find no gateway and work with the group alone."""
    listen: Host = "127.0.0.1"
    """Address (IPv4 or host name) for peers, at port `port_base + 2`, mTLS only. The default keeps other
    hosts out."""
    engines_tcp: bool = False
    """Also serve engines, and gateways, of other hosts of the group, at `host` and port `port_base + 3`, with
    mTLS by the group's own CA. It needs `peering`, whose credentials folder has the certificate. Where the
    group has places on several hosts, all of them need it."""
    admit: Admit = "second-hit"
    """When a block that came from a peer is put into this group's own pool: `second-hit`: when an engine is
    given it for the second time before an eighth to a quarter of the pool was written anew, or for the first
    if the peer is much slower than others, or hardly faster than computing; `always`: once it is here;
    `never`: each read of it crosses the border."""
    peering: Annotated[Path, BeforeValidator(resolve_path)] | None = None
    """The group's `peering.toml`, relative to this file; without it the group runs alone."""
    kv_events: str = ""
    """`host:port` at which the master publishes KV events (its `--kv_events_bind_endpoint`), if it is built
    with them: what engines put without `FederatedStore`, and what is evicted, is known at once then, not with
    the next key listing. The master that `moonmesh up` starts has none. Needs the extra `events`."""

    @field_validator("kv_events")
    @classmethod
    def _good_events(cls, value: str) -> str:
        return check_address(value, "of the master's --kv_events_bind_endpoint") if value else ""

    @field_validator("listen")
    @classmethod
    def _good_listen(cls, value: str) -> str:
        return check_host(value)

    @model_validator(mode="after")
    def _engines_have_a_certificate(self) -> GatewayConfig:
        if self.engines_tcp and self.peering is None:
            raise ValueError(
                "engines_tcp = true needs peering = ...: the certificate for it is in the "
                "credentials that peering.toml names"
            )
        return self


class ServingConfig(BaseModel):
    """`[serving]`: what peers ask."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)] = 1
    """Processes that serve peers, all at the one port: see the capacity table in docs/operations.md. What a
    peer may have (docs/limits.md) it has of all of them together; each has `serving_memory`,
    `serving_descriptors` and `bounce_bytes` of its own."""


class PullingConfig(BaseModel):
    """`[pulling]`: what comes from peers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    workers: Annotated[int, Field(ge=0, le=WORKERS_MAX)] = 0
    """Processes that take blocks of peers from their connections into staging and check them; 0: the gateway
    does that itself. All else the gateway does in any case. See the capacity table in docs/operations.md.
    Each has connections of its own (`channels_per_peer`)."""


class GroupFile(GroupConfig):
    """All of `group.toml`."""

    gateway: GatewayConfig = GatewayConfig()
    serving: ServingConfig = ServingConfig()
    pulling: PullingConfig = PullingConfig()
    namespaces: dict[str, Namespace] = Field(default_factory=dict)
    """Name, used in `peering.toml`, to envelope; at most 256. Names are local: peers know fingerprints."""
    limits: Limits = Field(default=Limits(), validate_default=True)

    @field_validator("namespaces")
    @classmethod
    def _distinct(cls, value: dict[str, Namespace]) -> dict[str, Namespace]:
        if len(value) > NAMESPACES_MAX:
            raise ValueError(f"{len(value)} namespaces are more than {NAMESPACES_MAX}")
        seen: dict[Fingerprint, str] = {}
        for name, envelope in value.items():
            if not name or len(name) > 64 or name == "*":
                raise ValueError(f'{name!r} cannot name a namespace: 1 to 64 characters, not "*"')
            other = seen.setdefault(envelope.fingerprint(), name)
            if other != name:
                raise ValueError(
                    f'"{other}" and "{name}" have the same envelope, so they are one namespace: '
                    "remove one, or set the field in which they differ"
                )
        if why := overlaps(value):
            raise ValueError(why)
        return value

    @field_validator("limits")
    @classmethod
    def _hold_a_lease(cls, value: Limits, info: ValidationInfo) -> Limits:
        master = info.data.get("master")
        if master is not None and value.staging_hold_ms < master.lease_ttl_ms:
            raise ValueError(
                f"staging_hold_ms {value.staging_hold_ms} is shorter than master.lease_ttl_ms "
                f"{master.lease_ttl_ms}: raise it, for what an engine was told exists must stay for a lease"
            )
        return value

    @model_validator(mode="after")
    def _one_coordination(self) -> GroupFile:
        settings = self.coordination
        if self.master.host is None or not self.gateway.enabled:
            return self
        if settings.backend == "file" and settings.file_folder is None:
            raise ValueError(
                "master.address makes this a further place of its group, and its gateway would lead "
                'beside that of the first place: set coordination.backend to what all share ("etcd" '
                'or "raft"; on one host "file" with the same file_folder), or gateway.enabled = false'
            )
        far = not is_loopback(self.master.host)
        if far and self.gateway.peering is not None and not self.gateway.engines_tcp:
            raise ValueError(
                "master.address is of another host, and the gateways of the group's places reach each "
                "other by engines_tcp: set engines_tcp = true in [gateway], at every place"
            )
        if settings.managed_etcd:
            raise ValueError(
                "master.address makes this a further place of its group, and a managed etcd would be "
                "its own: name that of the first place in coordination.etcd_endpoints (its host and "
                "port_base + 4)"
            )
        return self

    @property
    def naming(self) -> Naming:
        """Under which keys its Mooncake holds blocks; made anew each time."""
        return Naming(self.namespaces.values(), self.limits.key_bytes_max)

    @property
    def unattested(self) -> frozenset[Fingerprint]:
        """Namespaces of which unattested blocks may cross."""
        return frozenset(e.fingerprint() for e in self.namespaces.values() if e.unattested)

    def block_seconds(self, fingerprint: bytes) -> float | None:
        """What computing a block of a namespace takes an engine; None where its table does not say."""
        return next(
            (e.block_seconds for e in self.namespaces.values() if e.fingerprint() == fingerprint),
            None,
        )

    @property
    def peer_addresses(self) -> frozenset[str]:
        """`host:port` of this gateway for peers, in lower case; of one that listens everywhere, as far as
        the file shows it."""
        hosts = {self.gateway.listen} | ({self.host} if self.gateway.listen == "0.0.0.0" else set())
        return frozenset(f"{host.lower()}:{self.ports.peers}" for host in hosts)

    @property
    def trace_dir(self) -> Path:
        """Where this group's spans are written."""
        return self.data_dir / "traces"


def load_group(path: Path) -> GroupFile:
    """`group.toml`, validated whole.

    Raises:
        ConfigError: the file cannot be used; it lists every problem with its line.
    """
    path = Path(path).absolute()
    content: dict[str, Any] = read_toml(path)
    try:
        return GroupFile.model_validate(content, context={"folder": path.parent})
    except ValidationError as error:
        raise explain(error, path, GroupFile) from error
