"""How a connection to a peer is made: mTLS, and the bounds of what may go wrong with it."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc.aio

from federation.config import Limits
from federation.peers.bulk import Bulk
from federation.transfer.frames import HEADER_BYTES
from federation.trust.credentials import TlsIdentity
from federation.trust.names import gateway_name

KEEPALIVE_MS = 10_000
"""Between two pings on a connection; the peer's server refuses more than one in 5 s."""


def control_channel(
    peer: str, address: str, federation: str, tls: TlsIdentity, limits: Limits
) -> grpc.aio.Channel:
    """For everything but blocks."""
    return _channel(peer, address, federation, tls, limits, limits.control_message_bytes_max)


def bulk_channels(
    peer: str, address: str, federation: str, tls: TlsIdentity, limits: Limits
) -> Bulk:
    """For blocks."""
    # A message may exceed its fill by a header for each block in it: see Encoder.
    longest = limits.message_bytes + HEADER_BYTES * (1 + limits.peer_request_keys_max)
    make = partial(_channel, peer, address, federation, tls, limits, longest)
    return Bulk(peer, make, limits.channels_per_peer, limits.peer_retry_after_max_ms)


def _channel(
    peer: str,
    address: str,
    federation: str,
    tls: TlsIdentity,
    limits: Limits,
    message_bytes_max: int,
) -> grpc.aio.Channel:
    options: list[tuple[str, Any]] = [
        # Its certificate must have the peer's name.
        ("grpc.ssl_target_name_override", gateway_name(peer, federation)),
        # The time between two dials grows up to the second of these; a dial has the third.
        ("grpc.initial_reconnect_backoff_ms", limits.peer_redial_ms),
        ("grpc.max_reconnect_backoff_ms", limits.peer_redial_max_ms),
        ("grpc.min_reconnect_backoff_ms", limits.peer_connect_ms),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        # Also how long TCP waits for a word that bytes have come, before it gives them up.
        ("grpc.keepalive_timeout_ms", limits.peer_unheard_ms),
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return tls.dial(address, options)
