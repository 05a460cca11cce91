"""Hellos: what can be checked of one without knowing what was said before."""

from __future__ import annotations

from gossip.config import GossipConfig
from gossip.ed25519 import SIGNATURE_BYTES
from gossip.statement import Reason, StatementError, check_size
from moonmesh.v1 import peer_pb2


def check_hello(message: peer_pb2.HelloRequest, config: GossipConfig) -> None:
    """Refuses a hello that cannot be one, whoever has signed it.

    Raises:
        StatementError: says what is wrong.
    """
    check_parts(message, config)
    statement = message.statement
    check_size(statement.body, config)
    if len(statement.signature) != SIGNATURE_BYTES:
        raise StatementError(
            Reason.BAD_SIGNATURE,
            f"a signature of {len(statement.signature)} bytes, not {SIGNATURE_BYTES}",
        )


def check_parts(message: peer_pb2.HelloRequest, config: GossipConfig) -> None:
    """Refuses a hello of which some part is longer than any that is sent.

    Raises:
        StatementError: TOO_MANY_VERSIONS, OVERSIZE.
    """
    check_vector(message, config)
    parts = (
        ("relayed statements", len(message.relayed), config.relay_per_hello),
        ("positions", len(message.positions), config.positions_per_hello),
        ("probes", len(message.probes), config.probes_per_hello),
        ("answers to probes", len(message.silent), config.probes_per_hello),
    )
    for what, count, limit in parts:
        if count > limit:
            raise StatementError(
                Reason.OVERSIZE, f"a hello with {count} {what}, and the limit is {limit}"
            )


def check_vector(message: peer_pb2.HelloRequest, config: GossipConfig) -> None:
    """Refuses a version vector that no federation has.

    Raises:
        StatementError: TOO_MANY_VERSIONS.
    """
    if len(message.versions) > config.max_vector_entries:
        raise StatementError(
            Reason.TOO_MANY_VERSIONS,
            f"{len(message.versions)} versions, and the limit is {config.max_vector_entries}",
        )
