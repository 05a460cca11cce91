"""`[coordination]` of group.toml: who of the group's gateways leads, and how that is decided."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from local_group.fields import Section, check_address, resolve_path

MANAGED = "managed"
ENDPOINTS_MAX = 9
MEMBERS_MIN, MEMBERS_MAX = 3, 7
ETCD_LEASE_MS_MIN = 2000
"""ms. etcd gives no shorter lease: one and a half of its election time, in whole seconds."""

_File = Annotated[Path, BeforeValidator(resolve_path)]


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


_Endpoints = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_or_more),
    Field(strict=False, min_length=1, max_length=ENDPOINTS_MAX),
]
_Members = Annotated[tuple[str, ...], Field(strict=False, max_length=MEMBERS_MAX)]


class CoordinationConfig(Section):
    """`[coordination]`: which of the group's gateways leads, and in which epoch. One gateway needs nothing
    but a file."""

    backend: Literal["file", "etcd", "raft"] = "file"
    """`file`: in `data_dir`, for gateways on one host. `etcd`: for any. `raft`: the gateways themselves,
    three or more, each on a host of its own."""
    file_folder: _File | None = None
    """Folder of the durable epoch for `file`, on a local disk; `coordination` in `data_dir` without it. Where
    several places of a group are on one host, all name the same one."""
    lease_ms: Annotated[int, Field(ge=500, le=60_000)] = 2000
    """ms after which a leader that was not heard of is replaced; it has stopped by itself a tenth
    earlier. With etcd whole seconds, two at least. `file` needs none: a leader there leads until its
    process ends."""
    etcd_endpoints: _Endpoints = (MANAGED,)
    """Of etcd, each `"host:port"`. `"managed"` alone: `moonmesh up` runs one for this group, with its data
    in `data_dir`, at `host` and port `port_base + 4` (and + 5 on the loopback); like Mooncake, it asks
    nobody who he is."""
    etcd_ca: _File | None = None
    """PEM file with the CA of etcd's certificates. Without it the connection is not encrypted."""
    etcd_certificate: _File | None = None
    """PEM file with this gateway's certificate for etcd, if it wants one; with `etcd_key`."""
    etcd_key: _File | None = None
    """PEM file with the key of `etcd_certificate`."""
    etcd_server_name: str = ""
    """The name in etcd's certificates, where it is not the host of the first endpoint."""
    raft_members: _Members = ()
    """All members, each `"host:port"`, the same list everywhere: on the group's own network."""
    raft_self: str = ""
    """Which of `raft_members` this gateway is; it listens there."""
    raft_secret: _File | None = None
    """File with a secret of 16 characters or more, the same for all members: it encrypts what they say to
    each other, and whoever knows it can run code in them."""

    @field_validator("etcd_endpoints")
    @classmethod
    def _good_endpoints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value == (MANAGED,):
            return value
        if MANAGED in value:
            raise ValueError('"managed" is an etcd of its own: it stands alone')
        return _distinct(value)

    @field_validator("raft_members")
    @classmethod
    def _good_members(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _distinct(value)

    @model_validator(mode="after")
    def _belongs_together(self) -> CoordinationConfig:
        for name, field in type(self).model_fields.items():
            kind = name.partition("_")[0]
            if (
                kind in ("file", "etcd", "raft")
                and kind != self.backend
                and getattr(self, name) != field.default
            ):
                raise ValueError(
                    f'{name} is for backend = "{kind}", and backend is "{self.backend}"'
                )
        if self.backend == "etcd":
            self._check_etcd()
        elif self.backend == "raft":
            self._check_raft()
        return self

    def _check_etcd(self) -> None:
        if self.lease_ms % 1000 or self.lease_ms < ETCD_LEASE_MS_MIN:
            raise ValueError(
                f"lease_ms {self.lease_ms}: etcd has leases of whole seconds, 2000 ms at least"
            )
        if (self.etcd_certificate is None) != (self.etcd_key is None):
            raise ValueError("etcd_certificate and etcd_key belong together: set both, or none")
        if self.etcd_ca is None and (self.etcd_certificate or self.etcd_server_name):
            raise ValueError("TLS to etcd needs etcd_ca: who etcd is could not be told without it")
        if self.managed_etcd and self.etcd_ca is not None:
            raise ValueError(
                "the managed etcd has no TLS: leave out etcd_ca, or name etcd_endpoints"
            )

    def _check_raft(self) -> None:
        if len(self.raft_members) < MEMBERS_MIN:
            raise ValueError(
                f"{len(self.raft_members)} raft_members: three at least, or losing one stops all"
            )
        if self.raft_self not in self.raft_members:
            raise ValueError(
                f"raft_self {self.raft_self!r} is not one of raft_members: it says which of them this "
                "gateway is"
            )
        if self.raft_secret is None:
            raise ValueError("raft_secret is missing: name a file, made with  openssl rand -hex 32")

    @property
    def managed_etcd(self) -> bool:
        """Does `moonmesh up` run the etcd?"""
        return self.backend == "etcd" and self.etcd_endpoints == (MANAGED,)

    @property
    def alone(self) -> bool:
        """Is this the only gateway that the group can have?"""
        return self.backend == "file" and self.file_folder is None


def _distinct(value: tuple[str, ...]) -> tuple[str, ...]:
    checked = tuple(
        check_address(each, "of etcd's clients, or of a member of Raft") for each in value
    )
    for each in checked:
        if checked.count(each) > 1:
            raise ValueError(f"{each} is there twice")
    return checked
