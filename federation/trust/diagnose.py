"""Why a connection to a peer fails, in words: gRPC itself only says "Socket closed"."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import ipaddress
import os
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cryptography import x509

from federation.trust.credentials import (
    Credentials,
    TlsIdentity,
    dns_names,
    issued_by,
    utc_now,
    when,
)
from federation.trust.names import gateway_name, group_of

CERTIFICATE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a peer's certificate that are parsed."""
_NAMES: Final = ThreadPoolExecutor(2, thread_name_prefix="names")
"""Names of peers are looked up here: one that hangs must not keep the threads that the journal is written by,
which are few and shared."""
SHOWN_MAX: Final = 100
"""Characters shown of a text that the other end chose."""


async def diagnose(address: str, credentials: Credentials, peer: str, timeout: float = 5.0) -> str:
    """Connects once to a peer's gateway and says what is wrong, for the log and for `status`.

    It explains and decides nothing: the channel's own verification does that. Never raises for what
    the network or the other end does.

    Args:
        address: `host:port` of the peer's gateway.
        credentials: ours.
        peer: the group that should be there.
        timeout: seconds for all of it.
    """
    host, _, port = address.rpartition(":")
    # Half of the time for TCP, so that a host that is silent and one that only does not answer TLS
    # can be told apart.
    try:
        numeric = await asyncio.wait_for(_resolve(host, int(port)), timeout / 2)
    except (socket.gaierror, asyncio.TimeoutError):
        return f"host name {host!r} cannot be resolved"
    connect = asyncio.open_connection(
        numeric,
        int(port),
        ssl=_context(credentials.tls),
        server_hostname=gateway_name(peer, credentials.federation),
        ssl_handshake_timeout=timeout / 2,
    )
    try:
        reader, writer = await asyncio.wait_for(connect, timeout)
    except asyncio.TimeoutError:
        return f"timed out: {address} did not answer within {timeout:g} s (host down, or firewall?)"
    except ConnectionRefusedError:
        return f"connection refused: nothing listens at {address} (is the peer's gateway up?)"
    except ConnectionAbortedError:
        return f"timed out: {address} accepts connections but did not answer the TLS handshake"
    except ssl.SSLError as error:
        return _handshake_error(address, error)
    except ConnectionResetError:
        return f"{address} closed the connection within the TLS handshake"
    except OSError as error:
        return f"{address} cannot be reached: {error.strerror or error}"
    try:
        return await _judge(reader, writer, credentials, peer, timeout)
    finally:
        writer.transport.abort()


async def _resolve(host: str, port: int) -> str:
    """Its first address.

    Raises:
        socket.gaierror: it has none.
    """
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_NAMES, look_up)
    return str(found[0][4][0])


def _context(tls: TlsIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The handshake must get far enough to show us the certificate; `_judge` looks at it.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])  # a gRPC server refuses a client without it
    # `ssl` takes keys from files alone: this one is in memory, and gone when it is closed.
    fd = os.memfd_create("moonmesh-diagnose", os.MFD_CLOEXEC)
    try:
        os.write(fd, tls.cert_pem + b"\n" + tls.key_pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context


async def _judge(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    credentials: Credentials,
    peer: str,
    timeout: float,
) -> str:
    session: ssl.SSLObject = writer.get_extra_info("ssl_object")
    try:
        der = session.getpeercert(binary_form=True) or b""
    except ValueError:  # its alert was here before we looked, and has ended the session
        return _refused(credentials.tls, await _refusal(reader, timeout) or "")
    try:
        if not 0 < len(der) <= CERTIFICATE_BYTES_MAX:
            raise ValueError
        certificate = x509.load_der_x509_certificate(der)
        problems = _certificate_problems(certificate, credentials, peer)
    except ValueError:
        return "the peer's certificate cannot be read"
    if problems:
        return "; ".join(problems)
    refusal = await _refusal(reader, timeout)
    if refusal is not None:
        return _refused(credentials.tls, refusal)
    return (
        f"the TLS handshake with {peer} succeeds ({session.version()}, its certificate is valid "
        f"until {when(certificate.not_valid_after_utc)}): the failure is not one of trust"
    )


def _certificate_problems(
    certificate: x509.Certificate, credentials: Credentials, peer: str
) -> list[str]:
    now = utc_now()
    problems = []
    if now >= certificate.not_valid_after_utc:
        problems.append(
            f"the peer's certificate has expired on {when(certificate.not_valid_after_utc)}"
        )
    elif now < certificate.not_valid_before_utc:
        problems.append(
            f"the peer's certificate is valid from {when(certificate.not_valid_before_utc)} only "
            f"(here it is {when(now)}: is a clock wrong?)"
        )
    if not issued_by(certificate, x509.load_pem_x509_certificates(credentials.tls.ca_pem)):
        issuer = _shown(certificate.issuer.rfc4514_string())
        problems.append(
            f"the peer's certificate is signed by another CA ({issuer}) than our ca.pem: "
            "both groups need credentials from one `moonmesh peer init`"
        )
    names = dns_names(certificate)
    if gateway_name(peer, credentials.federation) not in names:
        group = group_of(names, credentials.federation)
        whose = f"group {group}" if group else _shown(", ".join(names) or "no name")
        problems.append(
            f"the peer's certificate is for {whose}, not for group {peer} of federation "
            f"{credentials.federation}: is the address right?"
        )
    return problems


async def _refusal(reader: asyncio.StreamReader, timeout: float) -> str | None:
    """Whether the other end refuses OUR certificate; its word for why, if it has one.

    With TLS 1.3 a client's handshake is over before the server has looked at the client's
    certificate: a refusal shows at the first read. A server that accepts us speaks first (HTTP/2
    settings).
    """
    try:
        first = await asyncio.wait_for(reader.read(1), timeout)
    except ssl.SSLError as error:
        return (error.reason or "").lower().replace("_", " ").split("alert ")[-1]
    except (OSError, asyncio.TimeoutError):
        return ""
    return None if first else ""


def _refused(tls: TlsIdentity, word: str) -> str:
    own = x509.load_pem_x509_certificate(tls.cert_pem)
    now: datetime.datetime = utc_now()
    text = f"the peer refused our certificate ({tls.name}"
    if now >= own.not_valid_after_utc:
        return f"{text}): it has expired on {when(own.not_valid_after_utc)}"
    if not issued_by(own, x509.load_pem_x509_certificates(tls.ca_pem)):
        issuer = _shown(own.issuer.rfc4514_string())
        return f"{text}): it is signed by another CA ({issuer}) than the peer's"
    said = f": it said {_shown(word)!r}" if word else ""
    return (
        f"{text}, valid until {when(own.not_valid_after_utc)}){said}: has it another ca.pem, "
        "or a wrong clock? Its own status says why"
    )


def _handshake_error(address: str, error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return f"{address} does not speak TLS (is it the gateway's port, port_base + 2?)"
    return f"the TLS handshake with {address} failed: {_shown(reason.lower().replace('_', ' '))}"


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:SHOWN_MAX])
