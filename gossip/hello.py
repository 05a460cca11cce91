"""Hellos: what can be checked of one without knowing what was said before."""

from __future__ import annotations

from collections.abc import Iterable

from gossip.config import GossipConfig
from gossip.statement import Reason, Signed, Statement, StatementError, Verifier, verify
from moonmesh.v1 import peer_pb2


def read_hello(
    message: peer_pb2.HelloRequest,
    *,
    group: str,
    federation: str,
    keys: Iterable[Verifier],
    config: GossipConfig,
) -> tuple[Signed, Statement]:
    """What a hello's sender says of itself, as far as it can be checked without what it said before.

    Raises:
        StatementError: says what is wrong.
    """
    check_parts(message, config)
    signed = Signed.read(message.statement)
    return signed, verify(signed, group=group, federation=federation, keys=keys, config=config)


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
