"""Makes CAs, certificates and keys for the groups of a federation.

Two kinds of keys on purpose: a certificate proves who is at the other end of one connection and is
renewed every year or so; the statement key proves who said something, however it came, and stays.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federation.errors import TrustError
from federation.trust import credentials as files
from federation.trust.credentials import utc_now
from federation.trust.key_file import IDENTITY_PUB
from federation.trust.keys import StatementKey
from federation.trust.names import engine_client_name, engine_server_name, gateway_name

DAYS_DEFAULT: Final = 397
"""Days a gateway's or engine's certificate is valid: a year and a month to renew it in."""
DAYS_MAX: Final = 3650
CA_DAYS: Final = 3650
"""Days a CA is valid; certificates never outlive it."""
BACKDATE: Final = datetime.timedelta(minutes=5)
"""Certificates are valid from this long ago, for hosts whose clocks run behind."""

_EKU = ExtendedKeyUsageOID
_BOTH = (_EKU.SERVER_AUTH, _EKU.CLIENT_AUTH)


@dataclass
class Made:
    """What a run has written, kept and found wrong, in order."""

    written: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class _Issuer:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class Authority:
    """Makes what is missing in a federation's folder; keeps what is there.

    Args:
        ca_folder: where CA keys stay; it is not copied to any host.
        federation: the federation's id.
        days: validity of certificates.
        force: makes everything anew: all groups must then get new credentials at once.
        renew: makes the certificates anew; CAs and statement keys stay, so that groups can be
            renewed one after the other.
        now: aware UTC time (default: the clock).

    Raises:
        TrustError: files that do not belong together, or that cannot be written.
    """

    def __init__(
        self,
        ca_folder: Path,
        federation: str,
        *,
        days: int = DAYS_DEFAULT,
        force: bool = False,
        renew: bool = False,
        now: datetime.datetime | None = None,
    ) -> None:
        self._folder = ca_folder
        self._federation = federation
        self._days = days
        self._force = force
        self._renew = renew
        self._now = now or utc_now()
        self.made = Made()
        self._ca = self._authority("ca", f"{federation} federation CA")

    def group(self, group: str, folder: Path) -> StatementKey:
        """Makes the credentials of one group in `folder`; its statement key."""
        _make_folder(folder)
        self._write(folder / files.CA, _pem(self._ca.certificate), public=True, shared=True)
        self._leaf(
            folder, (files.CERT, files.KEY), self._ca, gateway_name(group, self._federation), _BOTH
        )
        key = self._statement_key(folder)
        engines = self._authority(f"{group}-engines", f"{group} engines CA")
        self._write(folder / files.ENGINE_CA, _pem(engines.certificate), public=True, shared=True)
        self._leaf(
            folder,
            files.ENGINE_SERVER,
            engines,
            engine_server_name(group),
            _BOTH,  # a follower shows it to the gateway that leads its group
        )
        self._leaf(
            folder,
            files.ENGINE_CLIENT,
            engines,
            engine_client_name(group),
            (_EKU.CLIENT_AUTH,),
        )
        return key

    # Certificates

    def _authority(self, stem: str, name: str) -> _Issuer:
        """A CA of the folder, made where it is missing."""
        cert_path, key_path = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        if not self._wanted(cert_path, key_path, renewable=False):
            return _load_issuer(cert_path, key_path, self._now)
        _make_folder(self._folder)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        certificate = (
            self._builder(subject, subject, key.public_key(), CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(ca=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        self._write(key_path, _pem(key))
        self._write(cert_path, _pem(certificate), public=True)
        return _Issuer(certificate, key)

    def _leaf(
        self,
        folder: Path,
        names: tuple[str, str],
        issuer: _Issuer,
        dns_name: str,
        usages: Sequence[x509.ObjectIdentifier],
    ) -> None:
        cert_path, key_path = (folder / name for name in names)
        if not self._wanted(cert_path, key_path, renewable=True):
            return
        key = ec.generate_private_key(ec.SECP256R1())
        authority_id = issuer.certificate.extensions.get_extension_for_class(
            x509.SubjectKeyIdentifier
        ).value
        certificate = (
            self._builder(
                _name(dns_name),
                issuer.certificate.subject,
                key.public_key(),
                self._days,
                latest=issuer.certificate.not_valid_after_utc,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id),
                critical=False,
            )
            .sign(issuer.key, hashes.SHA256())
        )
        self._write(key_path, _pem(key))
        self._write(cert_path, _pem(certificate), public=True)

    def _builder(
        self,
        subject: x509.Name,
        issuer: x509.Name,
        public: ec.EllipticCurvePublicKey,
        days: int,
        latest: datetime.datetime | None = None,
    ) -> x509.CertificateBuilder:
        end = self._now + datetime.timedelta(days=days)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - BACKDATE)
            .not_valid_after(end if latest is None else min(end, latest))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )

    def _statement_key(self, folder: Path) -> StatementKey:
        key_path, public_path = folder / files.IDENTITY_KEY, folder / IDENTITY_PUB
        if self._wanted(public_path, key_path, renewable=False):
            private = Ed25519PrivateKey.generate()
            self._write(key_path, _pem(private))
            self._write(public_path, f"{StatementKey.of(private)}\n".encode(), public=True)
            return StatementKey.of(private)
        try:
            return StatementKey.parse(public_path.read_text("ascii"))
        except ValueError as error:
            raise TrustError(str(error), where=str(public_path)) from None

    # Files

    def _wanted(self, public: Path, private: Path, *, renewable: bool) -> bool:
        """Whether a pair of files is to be made; half a pair is never completed by guessing."""
        if self._force or (self._renew and renewable):
            return True
        there = [path for path in (public, private) if path.exists()]
        if len(there) == 1:
            gone = private if there[0] is public else public
            raise TrustError(
                f"{gone.name} is missing beside {there[0].name}",
                where=str(there[0].parent),
                hint="put the file back, or make everything anew with --force",
            )
        self.made.kept += there
        return not there

    def _write(
        self, path: Path, data: bytes, *, public: bool = False, shared: bool = False
    ) -> None:
        """Writes a file whole or not at all, never wider than its mode for a moment.

        `shared`: a copy of a CA's certificate, which must be the one that is used now.
        """
        if shared and path.exists():
            if path.read_bytes() == data:
                self.made.kept.append(path)
                return
            if not self._force:
                raise TrustError(
                    "is of another CA than the one in the ca folder",
                    where=str(path),
                    hint="use the folder that made it, or make everything anew with --force",
                )
        mode = 0o644 if public else 0o600
        part = path.with_name(f".{path.name}.part")
        try:
            part.unlink(missing_ok=True)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
            part.replace(path)
        except OSError as error:
            raise TrustError(f"cannot be written: {error.strerror}", where=str(path)) from None
        self.made.written.append(path)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise TrustError(f"cannot be made: {error.strerror}", where=str(path)) from None


def _load_issuer(cert_path: Path, key_path: Path, now: datetime.datetime) -> _Issuer:
    try:
        certificate = x509.load_pem_x509_certificate(cert_path.read_bytes())
        key = load_pem_private_key(key_path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise TrustError(
            f"is no CA that can be used: {error}", where=str(cert_path.with_suffix(""))
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not files.same_key(key, certificate):
        raise TrustError(f"is not the key of {cert_path.name}", where=str(key_path))
    if now >= certificate.not_valid_after_utc:
        raise TrustError(
            f"this CA has expired on {files.when(certificate.not_valid_after_utc)}",
            where=str(cert_path),
            hint="make everything anew with --force",
        )
    return _Issuer(certificate, key)


def _name(text: str) -> x509.Name:
    # A common name has 64 characters at most; the names that count are the alternative ones.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(
    item: x509.Certificate | ec.EllipticCurvePrivateKey | Ed25519PrivateKey,
) -> bytes:
    if isinstance(item, x509.Certificate):
        return item.public_bytes(Encoding.PEM)
    return item.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
