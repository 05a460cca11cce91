"""Requests for blocks, whoever makes them, checked against the limits before anything is done with them."""

from __future__ import annotations

from collections.abc import Sequence

from federation.config import Limits
from federation.errors import PeerError
from federation.identity import FINGERPRINT_BYTES, Fingerprint
from moonmesh.v1 import peer_pb2


class RequestError(PeerError):
    """What a peer asks for is not what it may ask for. `refusal` says which rule."""

    code = "MM305"

    def __init__(self, what: str, *, refusal: str) -> None:
        super().__init__(what)
        self.refusal = refusal


def check_request(
    request: peer_pb2.PullRequest, limits: Limits
) -> tuple[Fingerprint, list[str], list[int]]:
    """The request of a peer, checked against the limits; one size per key.

    Raises:
        RequestError: what does not fit.
    """
    return check_keys(
        request.fingerprint, request.keys, request.max_sizes, limits.peer_request_keys_max, limits
    )


def check_keys(
    fingerprint: bytes,
    keys: Sequence[str],
    max_sizes: Sequence[int],
    keys_max: int,
    limits: Limits,
) -> tuple[Fingerprint, list[str], list[int]]:
    """Keys and sizes of a request of anybody, checked before anything is done with them.

    Raises:
        RequestError: what does not fit.
    """
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise RequestError(f"a fingerprint of {len(fingerprint)} bytes", refusal="malformed")
    if not 0 < len(keys) <= keys_max:
        raise RequestError(f"{len(keys)} keys; between 1 and {keys_max} fit", refusal="too_many")
    if any(not 0 < len(key.encode()) <= limits.key_bytes_max for key in keys):
        raise RequestError(f"a key over {limits.key_bytes_max} bytes", refusal="key_too_long")
    if len(max_sizes) not in (0, 1, len(keys)):
        raise RequestError(f"{len(max_sizes)} sizes for {len(keys)} keys", refusal="malformed")
    if not max_sizes:
        return Fingerprint(fingerprint), list(keys), [limits.block_bytes_max] * len(keys)
    sizes = [min(size, limits.block_bytes_max) for size in max_sizes]
    return Fingerprint(fingerprint), list(keys), sizes * len(keys) if len(sizes) == 1 else sizes
