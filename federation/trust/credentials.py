"""Loads a group's credentials, checks all of them at start, and makes gRPC credentials of them."""

from __future__ import annotations

import datetime
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import grpc
import grpc.aio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from federation.errors import TrustError
from federation.trust.key_file import IDENTITY_PUB
from federation.trust.keys import StatementKey
from federation.trust.names import engine_client_name, engine_server_name, gateway_name, group_of

CA, CERT, KEY = "ca.pem", "cert.pem", "key.pem"
IDENTITY_KEY = "identity.key"
ENGINE_CA = "engine-ca.pem"
ENGINE_SERVER = ("engine-server.pem", "engine-server.key")
ENGINE_CLIENT = ("engine-client.pem", "engine-client.key")

FILE_BYTES_MAX: Final = 1 << 20
"""Bytes of any one file of a credentials folder."""

SAN_PROPERTY: Final = "x509_subject_alternative_name"
"""Where gRPC puts the names of a peer's certificate."""


@dataclass(frozen=True)
class TlsIdentity:
    """One side of mutual TLS: who we are, and whose word we take for who others are."""

    name: str
    """The name in our certificate."""
    ca_pem: bytes
    cert_pem: bytes
    key_pem: bytes = field(repr=False)
    not_after: datetime.datetime

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that demands a certificate by the same CA of every client."""
        return grpc.ssl_server_credentials(
            [(self.key_pem, self.cert_pem)], self.ca_pem, require_client_auth=True
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a client that shows our certificate."""
        return grpc.ssl_channel_credentials(self.ca_pem, self.key_pem, self.cert_pem)

    def dial(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        """A channel; the connection is made when it is used."""
        return grpc.aio.secure_channel(address, self.channel_credentials(), options=options)

    def days_left(self, now: datetime.datetime | None = None) -> float:
        """Days until our certificate expires; negative once it has."""
        return (self.not_after - (now or utc_now())).total_seconds() / 86400


@dataclass(frozen=True)
class Credentials:
    """What a gateway is to its peers: mTLS by the federation's CA, and a statement key."""

    group: str
    federation: str
    folder: Path
    tls: TlsIdentity
    signing_key: Ed25519PrivateKey = field(repr=False)

    @property
    def statement_key(self) -> StatementKey:
        """The public half of the statement key, as peers must have it."""
        return StatementKey.of(self.signing_key)

    @property
    def not_after(self) -> datetime.datetime:
        """When the gateway's certificate expires."""
        return self.tls.not_after

    def server_credentials(self) -> grpc.ServerCredentials:
        """For the endpoint that peers connect to; a certificate is demanded of them."""
        return self.tls.server_credentials()

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For channels to peers."""
        return self.tls.channel_credentials()

    async def why_not(self, address: str, peer: str, seconds: float) -> str:
        """Why no connection to a gateway can be made, in words, found out by making one."""
        from federation.trust.diagnose import diagnose  # it needs this module

        return await diagnose(address, self, peer, seconds)

    def channel_options(self, peer: str) -> list[tuple[str, str]]:
        """Options of a channel to `peer`: its certificate must have the peer's name."""
        return [("grpc.ssl_target_name_override", gateway_name(peer, self.federation))]


@dataclass(frozen=True)
class EngineCredentials:
    """mTLS between a group's gateway and what is of the group on other hosts, its engines and its other
    gateways, by the group's own CA."""

    group: str
    tls: TlsIdentity

    def server_credentials(self) -> grpc.ServerCredentials:
        """For the gateway's endpoint for engines."""
        return self.tls.server_credentials()

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a channel to a gateway of the group."""
        return self.tls.channel_credentials()

    def channel_options(self) -> list[tuple[str, str]]:
        """Options of such a channel: the other end must be a gateway of this group."""
        return [("grpc.ssl_target_name_override", engine_server_name(self.group))]

    def is_engine(self, auth_context: Mapping[str, Sequence[bytes]]) -> bool:
        """Whether the other end is an engine of this group."""
        return engine_client_name(self.group) in _san(auth_context)

    def is_gateway(self, auth_context: Mapping[str, Sequence[bytes]]) -> bool:
        """Whether the other end is a gateway of this group. Which one the certificate does not say: all
        places have copies of it."""
        return engine_server_name(self.group) in _san(auth_context)


def load_credentials(
    folder: Path, group: str, federation: str, *, now: datetime.datetime | None = None
) -> Credentials:
    """A gateway's credentials, every one of them checked.

    Args:
        folder: `credentials` of peering.toml.
        group: whose they must be.
        federation: its id.
        now: aware UTC time for expiry (default: the clock).

    Raises:
        TrustError: a file is missing, can be read by others, does not fit the rest, is of another
            group or has expired; it lists every problem.
    """
    folder = Path(folder)
    check = _Check(folder, now or utc_now())
    tls = check.identity(CA, CERT, KEY, gateway_name(group, federation), "peers")
    signing = check.signing_key()
    check.finish()
    assert tls is not None
    assert signing is not None
    return Credentials(group, federation, folder, tls, signing)


def load_engine_credentials(
    folder: Path,
    group: str,
    side: Literal["server", "client"],
    *,
    now: datetime.datetime | None = None,
) -> EngineCredentials:
    """The gateway's ("server") or the engines' ("client") half of a group's inner mTLS.

    Raises:
        TrustError: as `load_credentials`.
    """
    check = _Check(Path(folder), now or utc_now())
    cert, key = ENGINE_SERVER if side == "server" else ENGINE_CLIENT
    name = engine_server_name(group) if side == "server" else engine_client_name(group)
    tls = check.identity(ENGINE_CA, cert, key, name, "engines")
    check.finish()
    assert tls is not None
    return EngineCredentials(group, tls)


def caller_group(auth_context: Mapping[str, Sequence[bytes]], federation: str) -> str | None:
    """The group at the other end of a connection, from `context.auth_context()`.

    None where the certificate is not one of a gateway of this federation. Whether that group is a peer
    is for peering.toml to say.
    """
    return group_of(_san(auth_context), federation)


def utc_now() -> datetime.datetime:
    """The time, aware, in UTC."""
    return datetime.datetime.now(datetime.timezone.utc)


def when(moment: datetime.datetime) -> str:
    """A moment as messages show it."""
    return moment.astimezone(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def dns_names(certificate: x509.Certificate) -> list[str]:
    """The DNS names of a certificate."""
    try:
        san = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return []
    return san.value.get_values_for_type(x509.DNSName)


def issued_by(certificate: x509.Certificate, authorities: Iterable[x509.Certificate]) -> bool:
    """Whether one of `authorities` has signed the certificate."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def _san(auth_context: Mapping[str, Sequence[bytes]]) -> list[str]:
    return [name.decode("ascii", "replace") for name in auth_context.get(SAN_PROPERTY, ())]


class _Check:
    """Looks at the files of one credentials folder and collects what is wrong."""

    def __init__(self, folder: Path, now: datetime.datetime) -> None:
        self._folder = folder
        self._now = now
        self._problems: list[str] = []
        if not os.path.isdir(folder):  # no error for what can be no path
            raise TrustError(
                "there is no such folder of credentials",
                where=str(folder),
                hint="`moonmesh peer init` makes it; copy it to this host whole",
            )

    def finish(self) -> None:
        """Raises one TrustError if anything was wrong."""
        if not self._problems:
            return
        if len(self._problems) == 1:
            raise TrustError(self._problems[0], where=str(self._folder))
        listed = "\n".join(f"  {problem}" for problem in self._problems)
        raise TrustError(f"{len(self._problems)} problems\n{listed}", where=str(self._folder))

    def identity(
        self, ca_file: str, cert_file: str, key_file: str, name: str, towards: str
    ) -> TlsIdentity | None:
        """One certificate, its key and its CA; None after a problem."""
        ca_pem, cert_pem = self._read(ca_file), self._read(cert_file)
        key_pem = self._read(key_file, private=True)
        authorities = self._certificates(ca_file, ca_pem)
        certificate = next(iter(self._certificates(cert_file, cert_pem)), None)
        key = self._private_key(key_file, key_pem)
        if certificate is not None:
            self._certificate(cert_file, certificate, name)
            if authorities and not issued_by(certificate, authorities):
                self._problems.append(
                    f"{cert_file} is not signed by {ca_file}: {towards} would refuse it; "
                    "both must come from one `moonmesh peer init`"
                )
            if key is not None and not same_key(key, certificate):
                self._problems.append(
                    f"{key_file} is not the key of {cert_file}: one of them was replaced; "
                    "copy the folder whole"
                )
        if self._problems or not (certificate and ca_pem and cert_pem and key_pem):
            return None
        return TlsIdentity(name, ca_pem, cert_pem, key_pem, certificate.not_valid_after_utc)

    def signing_key(self) -> Ed25519PrivateKey | None:
        """The statement key; None after a problem."""
        key = self._private_key(IDENTITY_KEY, self._read(IDENTITY_KEY, private=True))
        text = self._read(IDENTITY_PUB)
        if key is not None and not isinstance(key, Ed25519PrivateKey):
            self._problems.append(f"{IDENTITY_KEY} is not an Ed25519 key")
            return None
        if key is None or text is None:
            return None
        try:
            public = StatementKey.parse(text.decode("ascii", "replace"))
        except ValueError as error:
            self._problems.append(f"{IDENTITY_PUB}: {error}")
            return None
        if public != StatementKey.of(key):
            self._problems.append(
                f"{IDENTITY_PUB} is not the public half of {IDENTITY_KEY}: peers that have it "
                f"would refuse what this group says; it should be {StatementKey.of(key)}"
            )
            return None
        return key

    def _read(self, name: str, *, private: bool = False) -> bytes | None:
        path = self._folder / name
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(path.stat().st_mode)
                data = file.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            self._problems.append(f"{name} is missing: `moonmesh peer init` makes it")
            return None
        except OSError as error:
            self._problems.append(f"{name} cannot be read: {error.strerror}")
            return None
        if private and mode & 0o077:
            self._problems.append(
                f"{name} can be read by others (mode {mode:04o}): chmod 600 {path}"
            )
        return data

    def _certificates(self, name: str, pem: bytes | None) -> list[x509.Certificate]:
        if pem is None:
            return []
        try:
            return x509.load_pem_x509_certificates(pem)
        except ValueError:
            self._problems.append(f"{name} is not a PEM certificate")
            return []

    def _private_key(self, name: str, pem: bytes | None) -> object | None:
        if pem is None:
            return None
        try:
            return load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            # TypeError: it is encrypted, and a gateway starts with nobody there to ask.
            self._problems.append(f"{name} is not an unencrypted PEM private key")
            return None

    def _certificate(self, file: str, certificate: x509.Certificate, name: str) -> None:
        names = dns_names(certificate)
        if name not in names:
            self._problems.append(
                f"{file} is for {', '.join(names) or 'no name'}, and this group needs {name}"
            )
        if self._now >= certificate.not_valid_after_utc:
            self._problems.append(
                f"{file} has expired on {when(certificate.not_valid_after_utc)}: "
                "`moonmesh peer init --renew` makes a new one"
            )
        elif self._now < certificate.not_valid_before_utc:
            self._problems.append(
                f"{file} is valid from {when(certificate.not_valid_before_utc)} only, and here it "
                f"is {when(self._now)}: is the clock right?"
            )


def same_key(key: object, certificate: x509.Certificate) -> bool:
    if not isinstance(key, (ec.EllipticCurvePrivateKey, Ed25519PrivateKey)):
        return False
    spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*spki) == certificate.public_key().public_bytes(*spki)
