"""`peering.toml`: the federation this group is in, its peers, and what is shared with each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from federation.config import GATEWAYS_MAX, PEERS_MAX
from federation.errors import ConfigError
from federation.identity import Envelope, Fingerprint
from federation.trust.key_file import KeyFile, own_key, parse_key, read_key_file
from federation.trust.keys import StatementKey
from local_group.config import explain, read_toml, resolve_path
from local_group.fields import check_address
from local_group.toml import find_line

if TYPE_CHECKING:
    from federation.config import GroupFile
    from federation.trust.credentials import Credentials  # it imports gRPC, which takes a while

NAMES_MAX = 256
"""Names in one `export` or `import`: as many as a group can have namespaces."""
ALL = "*"
"""In `export` and `import`: every namespace of group.toml."""


def check_label(value: str, what: str) -> str:
    """`value` if it can name a group or a federation (they are in DNS names), else ValueError."""
    rest = set(value) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
    if not value or rest or not value[0].isalpha() or len(value) > 31:
        raise ValueError(
            f"{value!r} is not {what}: a lower-case letter, then at most 30 of a-z, 0-9, -"
        )
    return value


def check_peer_address(value: str) -> str:
    """`value` if it can be the address of a peer's gateway, `host:port`, else ValueError."""
    return check_address(value, "the peer's port_base + 2")


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
    )


class OwnConfig(_Section):
    """`[self]`: who this group is to its peers."""

    group: str
    """This group's name; the same as `name` in group.toml, so that a file of another group is noticed."""
    credentials: Annotated[Path, BeforeValidator(resolve_path)]
    """Folder of this group's certificates and keys, relative to this file (absolute once loaded)."""

    @field_validator("group")
    @classmethod
    def _good_group(cls, value: str) -> str:
        return check_label(value, "a group's name")


_Names = Annotated[tuple[str, ...], Field(strict=False, max_length=NAMES_MAX)]
_Addresses = Annotated[tuple[str, ...], Field(strict=False)]


class PeerConfig(_Section):
    """`[[peers]]`: one other group, and what is shared with it; at most 63 of them."""

    name: str
    """What the peer calls itself: its certificate and its statements must say so too."""
    address: str | None = None
    """`host:port` of its gateway: the peer's `listen` and `port_base + 2`. This or `addresses`."""
    addresses: _Addresses = ()
    """`host:port` of each of its gateways, where it has several; at most 4. This or `address`."""
    key: Annotated[StatementKey, BeforeValidator(parse_key)] | None = None
    """The key that signs its statements, `ed25519:BASE64`: nobody else can speak for it. This or
    `key_file`."""
    key_file: Annotated[KeyFile, BeforeValidator(read_key_file)] | None = None
    """A file that holds that key (the peer's `identity.pub`), relative to this file. This or `key`."""
    next_key: Annotated[StatementKey, BeforeValidator(parse_key)] | None = None
    """A second key that is believed too: for the time while the peer changes its key."""
    exports: _Names = Field(default=(), alias="export")
    """Namespaces, by their names in group.toml, that this peer may have from us; `["*"]`: all."""
    imports: _Names = Field(default=(), alias="import")
    """Namespaces that we take from this peer, by their names in group.toml; `["*"]`: all."""

    @field_validator("name")
    @classmethod
    def _good_name(cls, value: str) -> str:
        return check_label(value, "a group's name")

    @field_validator("address")
    @classmethod
    def _good_address(cls, value: str | None) -> str | None:
        return None if value is None else check_peer_address(value)

    @field_validator("addresses")
    @classmethod
    def _good_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > GATEWAYS_MAX:
            raise ValueError(
                f"{len(value)} addresses are more than {GATEWAYS_MAX}: a group has at most so many gateways"
            )
        found = tuple(map(check_peer_address, value))
        lower = [address.lower() for address in found]
        if twice := sorted({address for address in lower if lower.count(address) > 1}):
            raise ValueError(f'"{twice[0]}" is listed twice: each gateway has its own')
        return found

    @field_validator("exports", "imports")
    @classmethod
    def _good_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({n for n in value if value.count(n) > 1})
        if twice:
            raise ValueError(f'"{twice[0]}" is listed twice')
        if ALL in value and len(value) > 1:
            raise ValueError(f'"{ALL}" already means every namespace: remove the other names')
        return value

    @model_validator(mode="after")
    def _one_way_to_it(self) -> PeerConfig:
        if self.address is None and not self.addresses:
            raise ValueError(
                f'peer "{self.name}" has no address: add address = "host:port" (its gateway\'s '
                "listen and port_base + 2), or addresses = [...] of all its gateways"
            )
        if self.address is not None and self.addresses:
            raise ValueError(f'peer "{self.name}" has both address and addresses: remove one')
        return self

    @model_validator(mode="after")
    def _one_key(self) -> PeerConfig:
        if self.key is None and self.key_file is None:
            raise ValueError(
                f'peer "{self.name}" has no key: add key = "ed25519:..." or key_file (the line, '
                "or the file, identity.pub of that group)"
            )
        if self.key is not None and self.key_file is not None:
            raise ValueError(f'peer "{self.name}" has both key and key_file: remove one')
        return self

    @property
    def gateways(self) -> tuple[str, ...]:
        """`host:port` of each gateway of it, in the file's order: 1 to `GATEWAYS_MAX`."""
        return self.addresses if self.address is None else (self.address,)

    @property
    def keys(self) -> tuple[StatementKey, ...]:
        """The keys whose statements are believed; empty only where keys were not to be read."""
        first = self.key_file.key if self.key_file is not None else self.key
        return tuple(key for key in (first, self.next_key) if key is not None)


class GroupLike(Protocol):
    """What peering needs of `federation.config.GroupFile`."""

    @property
    def name(self) -> str: ...
    @property
    def namespaces(self) -> Mapping[str, Envelope]: ...
    @property
    def peer_addresses(self) -> frozenset[str]: ...


class Peering(_Section):
    """All of `peering.toml`."""

    federation: str
    """The federation's id, in every statement and in the names of certificates: a lower-case letter,
    then at most 30 of a-z, 0-9, -."""
    own: OwnConfig = Field(alias="self")
    peers: Annotated[tuple[PeerConfig, ...], Field(strict=False)] = ()

    _path: Path = PrivateAttr(default=Path("peering.toml"))

    @field_validator("federation")
    @classmethod
    def _good_federation(cls, value: str) -> str:
        return check_label(value, "a federation's id")

    @field_validator("peers")
    @classmethod
    def _distinct(
        cls, value: tuple[PeerConfig, ...], info: ValidationInfo
    ) -> tuple[PeerConfig, ...]:
        if len(value) > PEERS_MAX:
            raise ValueError(f"{len(value)} peers are more than {PEERS_MAX}")
        own = info.data.get("own")
        problems = []
        if own is not None:
            if any(peer.name == own.group for peer in value):
                problems.append(f'a peer is named "{own.group}", which is this group itself')
            ours = own_key(own.credentials, info)
            problems += [
                f"peer \"{peer.name}\" has the key {ours}, which is this group's own: write that peer's"
                for peer in value
                if ours in peer.keys
            ]
        problems += _twice("name", ((peer.name, peer.name) for peer in value))
        problems += _twice(
            "address", ((a.lower(), peer.name) for peer in value for a in peer.gateways)
        )
        problems += _twice(
            "key", ((str(key), peer.name) for peer in value for key in set(peer.keys))
        )
        if problems:
            raise ValueError("; ".join(problems))
        return value

    @property
    def path(self) -> Path:
        """The file this was read from."""
        return self._path

    def peer(self, name: str) -> PeerConfig | None:
        """The peer of that name, or None."""
        return next((peer for peer in self.peers if peer.name == name), None)

    def check_against(self, group: GroupLike) -> Sharing:
        """Checks this file against the group's own, and says what is shared with whom.

        Raises:
            ConfigError: it is another group's file, has this very gateway's address for a peer's, or names a
                namespace that group.toml has not.
        """
        problems: list[tuple[tuple[str | int, ...], str]] = []
        if self.own.group != group.name:
            problems.append(
                (
                    ("self", "group"),
                    f'is "{self.own.group}", but group.toml says name = "{group.name}"',
                )
            )
        for index, peer in enumerate(self.peers):
            field = "addresses" if peer.addresses else "address"
            problems += [
                (
                    ("peers", index, field),
                    f"{address} is this group's own gateway (listen and port_base + 2 of group.toml), and "
                    f'not one of "{peer.name}": write that peer\'s',
                )
                for address in peer.gateways
                if address.lower() in group.peer_addresses
            ]
            for field, names in (("export", peer.exports), ("import", peer.imports)):
                problems += [
                    (("peers", index, field), _unknown(name, group.namespaces))
                    for name in names
                    if name != ALL and name not in group.namespaces
                ]
        if problems:
            raise self._error(problems)
        everything = {name: envelope.fingerprint() for name, envelope in group.namespaces.items()}
        return Sharing(
            {peer.name: _select(peer.exports, everything) for peer in self.peers},
            {peer.name: _select(peer.imports, everything) for peer in self.peers},
        )

    def _error(self, problems: list[tuple[tuple[str | int, ...], str]]) -> ConfigError:
        try:
            lines = self._path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            lines = []
        told = []
        for location, what in problems:
            line = find_line(lines, location)
            field = ".".join(str(part) for part in location)
            told.append(f"{self._path}{f':{line}' if line else ''}: {field}: {what}")
        if len(told) == 1:
            return ConfigError(told[0])
        listed = "\n".join(f"  {text}" for text in told)
        return ConfigError(f"{self._path}: {len(told)} problems\n{listed}")


@dataclass(frozen=True)
class Sharing:
    """Which namespaces are shared with which peer, by fingerprint."""

    exported: Mapping[str, frozenset[Fingerprint]]
    imported: Mapping[str, frozenset[Fingerprint]]

    @property
    def all_exported(self) -> frozenset[Fingerprint]:
        """What any peer may have."""
        return frozenset[Fingerprint]().union(*self.exported.values())

    @property
    def all_imported(self) -> frozenset[Fingerprint]:
        """What is taken from any peer."""
        return frozenset[Fingerprint]().union(*self.imported.values())

    def exports(self, peer: str) -> frozenset[Fingerprint]:
        """What this peer may have from us; nothing for a group that is no peer."""
        return self.exported.get(peer, frozenset())

    def imports(self, peer: str) -> frozenset[Fingerprint]:
        """What we take from this peer; nothing for a group that is no peer."""
        return self.imported.get(peer, frozenset())


def load_peering(path: Path, *, read_keys: bool = True, folder: Path | None = None) -> Peering:
    """`peering.toml`, validated whole.

    Args:
        path: the file.
        read_keys: False leaves each `key_file` unread: they may not exist yet.
        folder: that it is going to be in, if not its own: what it names is there.

    Raises:
        ConfigError: the file cannot be used; it lists every problem with its line.
    """
    path = Path(path).absolute()
    content: dict[str, Any] = read_toml(path)
    context = {"folder": folder or path.parent, "read_keys": read_keys}
    try:
        peering = Peering.model_validate(content, context=context)
    except ValidationError as error:
        raise explain(error, path, Peering) from error
    peering._path = path
    return peering


@dataclass(frozen=True)
class Membership:
    """A group's place in its federation: all of it loaded, and checked against each other."""

    peering: Peering
    sharing: Sharing
    credentials: Credentials


def load_membership(group: GroupFile) -> Membership | None:
    """What `gateway.peering` of a group names, with its credentials; None for a group alone.

    Raises:
        ConfigError: peering.toml cannot be used, or does not fit group.toml.
        TrustError: a key or certificate cannot be used.
    """
    from federation.trust.credentials import load_credentials

    if group.gateway.peering is None:
        return None
    peering = load_peering(group.gateway.peering)
    sharing = peering.check_against(group)
    credentials = load_credentials(peering.own.credentials, group.name, peering.federation)
    return Membership(peering, sharing, credentials)


def _twice(what: Literal["name", "address", "key"], pairs: Iterable[tuple[str, str]]) -> list[str]:
    owners: dict[str, list[str]] = {}
    for value, owner in pairs:
        owners.setdefault(value, []).append(owner)
    return [
        f'two peers have the {what} "{value}"'
        + ("" if what == "name" else f" ({', '.join(names)}): each group has its own")
        for value, names in owners.items()
        if len(names) > 1
    ]


def _unknown(name: str, known: Mapping[str, Envelope]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"it has: {', '.join(sorted(known)) or 'none'}"
    return f'"{name}" is not one of [namespaces] in group.toml ({hint})'


def _select(names: tuple[str, ...], known: Mapping[str, Fingerprint]) -> frozenset[Fingerprint]:
    return frozenset(known.values() if ALL in names else (known[name] for name in names))
