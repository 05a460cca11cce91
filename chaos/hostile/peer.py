"""A peer with valid certificates that lies about its blocks.

    python -m chaos.hostile.peer -c evil/peering.toml --listen 127.0.0.1:7502 --behaviour wrong-digest
        --fingerprint HEX --claim KEY --claim KEY

It greets like an honest gateway, claims to hold the given keys, and answers pulls as `--behaviour` says.
"""

from __future__ import annotations

import argparse
import asyncio
import enum
import os
import signal
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import grpc
import grpc.aio

from federation.catalog.log import HoldingsLog
from federation.catalog.wire import pages, position_to_wire
from federation.config import Limits
from federation.identity import Fingerprint, block_digest, key_hash
from federation.peering import Peering, load_peering
from federation.peers.link import CATALOG_METHOD, HELLO_METHOD, PULL_METHOD
from federation.transfer.frames import Encoder
from federation.trust.credentials import Credentials, load_credentials
from gossip.config import GossipConfig
from gossip.engine import GossipEngine
from moonmesh.v1 import peer_pb2

BLOCK_BYTES = 4096


class Behaviour(str, enum.Enum):
    """How a pull is answered."""

    HONEST = "honest"
    """The claimed blocks, with their digests: shows that the rest of this program is sound."""
    WRONG_DIGEST = "wrong-digest"
    """Other bytes than the digest is of."""
    WRONG_SIZE = "wrong-size"
    """A header that announces more than was asked for."""
    WRONG_NAMESPACE = "wrong-namespace"
    """Blocks with the digest that they have in another namespace."""
    OVERSIZED_MESSAGE = "oversized-message"
    """One message far above the limit."""
    GARBAGE = "garbage"
    """Bytes that are no frames."""
    CUT = "cut"
    """Ends in the middle of a block."""
    NOTHING = "nothing"
    """Holds none of what it claims."""
    STALL = "stall"
    """Accepts, and never answers."""


def honest_block(key: str) -> bytes:
    """The bytes that an honest group would hold under `key`: readers compare with these."""
    return (key.encode() * BLOCK_BYTES)[:BLOCK_BYTES]


def _honest(fingerprint: Fingerprint, keys: list[str]) -> list[bytes]:
    return _answer(keys, lambda key, data: block_digest(fingerprint, key, data))


def _wrong_digest(fingerprint: Fingerprint, keys: list[str]) -> list[bytes]:
    return _answer(keys, lambda key, data: block_digest(fingerprint, key, data + b"!"))


def _wrong_namespace(fingerprint: Fingerprint, keys: list[str]) -> list[bytes]:
    other = Fingerprint(bytes(byte ^ 0xFF for byte in fingerprint))
    return _answer(keys, lambda key, data: block_digest(other, key, data))


def _wrong_size(fingerprint: Fingerprint, keys: list[str]) -> list[bytes]:
    return [struct.pack("<BBHII16s", 1, 1, 0, 0, 1 << 30, bytes(16)) + bytes(1000)]


def _oversized(fingerprint: Fingerprint, keys: list[str]) -> list[bytes]:
    return [bytes(16 * 1024 * 1024)]


def _garbage(fingerprint: Fingerprint, keys: list[str]) -> list[bytes]:
    return [os.urandom(1000)]


def _cut(fingerprint: Fingerprint, keys: list[str]) -> list[bytes]:
    return [_honest(fingerprint, keys)[0][: BLOCK_BYTES // 2]]


def _nothing(fingerprint: Fingerprint, keys: list[str]) -> list[bytes]:
    encoder = Encoder(1 << 20)
    return [m for index in range(len(keys)) for m in encoder.missing(index)] + [encoder.end()]


ANSWERS: Mapping[Behaviour, Callable[[Fingerprint, list[str]], list[bytes]]] = {
    Behaviour.HONEST: _honest,
    Behaviour.WRONG_DIGEST: _wrong_digest,
    Behaviour.WRONG_SIZE: _wrong_size,
    Behaviour.WRONG_NAMESPACE: _wrong_namespace,
    Behaviour.OVERSIZED_MESSAGE: _oversized,
    Behaviour.GARBAGE: _garbage,
    Behaviour.CUT: _cut,
    Behaviour.NOTHING: _nothing,
}


def _answer(keys: list[str], digest: Callable[[str, bytes], bytes]) -> list[bytes]:
    encoder = Encoder(1 << 20)
    messages: list[bytes] = []
    for index, key in enumerate(keys):
        data = honest_block(key)
        messages += encoder.block(index, digest(key, data), memoryview(data))
    return [*messages, encoder.end()]


class HostilePeer:
    """The liar's server. Prints `pulled N` after each pull, for who watches it."""

    def __init__(
        self,
        peering: Peering,
        credentials: Credentials,
        behaviour: Behaviour,
        fingerprint: Fingerprint,
        claims: list[str],
        epoch: int,
    ) -> None:
        self._behaviour = behaviour
        self._fingerprint = fingerprint
        self._log = HoldingsLog(os.urandom(16), Limits().log_entries)
        for key in claims:
            self._log.add(key_hash(fingerprint, key))
        self._gossip = GossipEngine(
            peering.own.group,
            peering.federation,
            credentials.signing_key,
            {peer.name: [key.public for key in peer.keys] for peer in peering.peers},
            epoch=epoch,
            boot_nonce=os.urandom(16),
            config=GossipConfig.wan(),
            now=time.monotonic(),
        )
        self._pulls = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `server.add_generic_rpc_handlers`."""
        methods = {
            HELLO_METHOD: grpc.unary_unary_rpc_method_handler(self._hello),
            CATALOG_METHOD: grpc.unary_stream_rpc_method_handler(self._catalog),
            PULL_METHOD: grpc.unary_stream_rpc_method_handler(self._pull),
        }
        return grpc.method_handlers_generic_handler(
            "moonmesh.v1.Peer", {path.rsplit("/", 1)[1]: h for path, h in methods.items()}
        )

    async def _hello(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self._gossip.tick(time.monotonic(), int(time.time() * 1000))
        reply = self._gossip.reply()
        reply.positions.add(
            fingerprint=self._fingerprint,
            position=position_to_wire(self._log.position),
            blocks=len(self._log),
        )
        return bytes(reply.SerializeToString())

    async def _catalog(self, raw: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        request = peer_pb2.CatalogRequest.FromString(raw)
        if request.after.log_id == self._log.position.log_id:
            await asyncio.sleep(request.wait_ms / 1000)
        for page in pages(self._log.since(None), 65536):
            yield page.SerializeToString()

    async def _pull(self, raw: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        request = peer_pb2.PullRequest.FromString(raw)
        self._pulls += 1
        print(f"pulled {self._pulls}", flush=True)
        if self._behaviour is Behaviour.STALL:
            await asyncio.Event().wait()
        for message in ANSWERS[self._behaviour](self._fingerprint, list(request.keys)):
            yield message


async def _serve(arguments: argparse.Namespace) -> None:
    peering = load_peering(arguments.config)
    credentials = load_credentials(peering.own.credentials, peering.own.group, peering.federation)
    peer = HostilePeer(
        peering,
        credentials,
        Behaviour(arguments.behaviour),
        Fingerprint(bytes.fromhex(arguments.fingerprint)),
        arguments.claim,
        arguments.epoch,
    )
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((peer.handlers(),))
    server.add_secure_port(arguments.listen, credentials.server_credentials())
    await server.start()
    print("ready", flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    await server.stop(0)


def main() -> None:
    """Runs the hostile peer until it is told to stop."""
    parser = argparse.ArgumentParser(prog="python -m chaos.hostile.peer")
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--behaviour", choices=[b.value for b in Behaviour], required=True)
    parser.add_argument("--fingerprint", required=True)
    parser.add_argument("--epoch", type=int, default=1, help="higher than at the last start")
    parser.add_argument("--claim", action="append", default=[])
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
