"""What a serving process is told before everything else, as a message and as what it stands for.

It reads neither group.toml nor peering.toml nor a key: it is started anew at any time, and must then be
what its gateway is, whatever has become of the files.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from federation.config import GroupFile
from federation.identity import Fingerprint
from federation.peers.callers import Caller, Callers
from federation.trust.credentials import TlsIdentity
from gossip.ed25519 import PublicKey
from moonmesh.v1 import serving_pb2

if TYPE_CHECKING:
    from federation.peering import Membership


@dataclass(frozen=True)
class Setup:
    """A group, as it faces its peers."""

    group: GroupFile
    callers: Callers
    tls: TlsIdentity
    worker: int = 0
    """Which of `serving.workers` it is."""

    @classmethod
    def of(cls, group: GroupFile, member: Membership) -> Setup:
        """Of what the gateway has loaded."""
        return cls(group, Callers.of(member), member.credentials.tls)


def write_setup(setup: Setup) -> serving_pb2.Setup:
    """The message."""
    tls = setup.tls
    return serving_pb2.Setup(
        # Only what was set: some settings may not be set together, whatever their values.
        group_json=setup.group.model_dump_json(exclude_unset=True),
        federation=setup.callers.federation,
        worker=setup.worker,
        tls=serving_pb2.ServerTls(
            name=tls.name,
            ca_pem=tls.ca_pem,
            cert_pem=tls.cert_pem,
            key_pem=tls.key_pem,
            not_after=tls.not_after.timestamp(),
        ),
        callers=(
            serving_pb2.Caller(
                name=caller.name,
                keys=(key.raw for key in caller.keys),
                exported=sorted(caller.exported),
                imported=sorted(caller.imported),
            )
            for caller in setup.callers.values()
        ),
    )


def read_setup(message: serving_pb2.Setup) -> Setup:
    """What `write_setup` was given.

    Raises:
        ValueError: it is no such message.
    """
    tls = message.tls
    group = GroupFile.model_validate(json.loads(message.group_json))
    if message.worker >= group.serving.workers:
        raise ValueError(f"worker {message.worker} of {group.serving.workers}")
    return Setup(
        group,
        Callers(
            message.federation,
            [
                Caller(
                    caller.name,
                    [PublicKey(raw) for raw in caller.keys],
                    frozenset(map(Fingerprint, caller.exported)),
                    frozenset(map(Fingerprint, caller.imported)),
                )
                for caller in message.callers
            ],
        ),
        TlsIdentity(
            tls.name,
            tls.ca_pem,
            tls.cert_pem,
            tls.key_pem,
            datetime.datetime.fromtimestamp(tls.not_after, datetime.timezone.utc),
        ),
        message.worker,
    )
