"""A peer with valid certificates that lies about its blocks.

    python -m chaos.hostile.peer -c evil/peering.toml --listen 127.0.0.1:7502 --behaviour wrong-digest
        --fingerprint HEX --claim KEY --claim KEY

It greets like an honest gateway, claims to hold the given keys, and answers pulls as `--behaviour` says.
With `--load FILE` it claims the blocks of a load instead, and knows their bytes; with `--attack` it does
something by itself to the peer that `--target` names. At the end it prints its books as JSON.

With `--lives` alone it is one such peer after another, and spares each but the first the start of a
program: for every line `{"arguments": [...]}` on stdin it says `ready`, makes honest statements, has an
honest catalog, and attacks nobody, until the line `go`; at the line `rest` it prints its books, and `ok`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from pydantic import BaseModel, ConfigDict

from chaos.hostile.answers import Content, answer, honest_block, load_content
from chaos.hostile.attacks import Attacker
from chaos.hostile.greetings import Greetings
from chaos.hostile.names import Answer, Attack
from chaos.hostile.statements import Speaker
from chaos.load.keys import ENVELOPES, chain, contents, owner
from federation.catalog.answers import PAGE_ENTRIES
from federation.catalog.log import HoldingsLog
from federation.catalog.prints import BITS_MAX
from federation.catalog.wire import FORM, pages, position_to_wire
from federation.config import Limits
from federation.identity import Envelope, Fingerprint, key_hash
from federation.peering import Peering, load_peering
from federation.peers.wire import CATALOG_METHOD, HELLO_METHOD, PULL_METHOD, RETRY_AFTER
from federation.timeouts import timeout
from federation.trust.credentials import Credentials, load_credentials
from moonmesh.v1 import peer_pb2

__all__ = ["Behaviour", "HostilePeer", "LoadClaims", "honest_block"]

Behaviour = Answer
GIANT_PAGE_BYTES = 480 * 1024
"""Prints in one page of a catalog without end: as many as fit a control message, two bytes each."""
NICE = 10
"""It stands for another machine: here it must not take the cores that only a test makes it share."""
NARROW = (("grpc.http2.bdp_probe", 0),)
"""What is not read shall wait at the target, and not in a window that gRPC has made larger."""
BUSY_MS = 2000
"""After which a busy peer says that it may be asked again."""
CATALOGS = ("claims", "giant", "stall")
GO = b"go"


class LoadClaims(BaseModel):
    """Blocks of a load, as a hostile peer claims them: see `chaos.load`."""

    model_config = ConfigDict(frozen=True)

    tag: str
    owners: tuple[str, ...]
    chains: int
    blocks: int
    block_bytes: int
    namespaces: tuple[str, ...]

    def keys(self) -> list[str]:
        """All of them."""
        return [
            key
            for owner in self.owners
            for number in range(self.chains)
            for key in chain(self.tag, owner, number, self.blocks)
        ]

    def contents(self) -> dict[Fingerprint, Content]:
        """The right bytes, by namespace."""
        return {
            Envelope.of(ENVELOPES[name]).fingerprint(): load_content(
                contents(name, self.block_bytes)
            )
            for name in self.namespaces
        }


class HostilePeer:
    """The liar's server. Prints `pulled N` after each pull, for who watches it.

    Args:
        known: per namespace the bytes of its blocks.
        claims: keys that it says it holds, in each of them.
        catalog: `claims`; `giant`: pages without end; `stall`: never an answer.
    """

    def __init__(
        self,
        speaker: Speaker,
        behaviour: Answer,
        known: Mapping[Fingerprint, Content],
        claims: Sequence[str],
        catalog: str = "claims",
    ) -> None:
        self._speaker = speaker
        self._behaviour = behaviour
        self._known = known
        self.awake = asyncio.Event()
        """From here on statements, catalogs and attacks are hostile."""
        self._catalog_how = catalog
        self._logs: dict[bytes, HoldingsLog] = {}
        for fingerprint in known:
            log = HoldingsLog(os.urandom(16), Limits().log_entries)
            for key in claims:
                log.add(key_hash(fingerprint, key))
            self._logs[fingerprint] = log
        self.pulls = 0
        self.catalogs = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `server.add_generic_rpc_handlers`."""
        methods = {
            HELLO_METHOD: grpc.stream_stream_rpc_method_handler(self._hellos),
            CATALOG_METHOD: grpc.unary_stream_rpc_method_handler(self._catalog),
            PULL_METHOD: grpc.unary_stream_rpc_method_handler(self._pull),
        }
        return grpc.method_handlers_generic_handler(
            "moonmesh.v1.Peer", {path.rsplit("/", 1)[1]: h for path, h in methods.items()}
        )

    async def _hellos(
        self, hellos: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Answers each: an honest gateway would not, but may be asked to."""
        async for raw in hellos:
            self._speaker.heard(raw)
            reply = self._speaker.reply()
            for fingerprint, log in self._logs.items():
                reply.positions.add(
                    fingerprint=fingerprint,
                    position=position_to_wire(log.position),
                    blocks=len(log),
                )
            yield reply.SerializeToString()

    async def _catalog(self, raw: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        request = peer_pb2.CatalogRequest.FromString(raw)
        self.catalogs += 1
        log = self._logs.get(request.fingerprint)
        if log is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not here")
        assert log is not None
        if self._catalog_how != "claims" and not self.awake.is_set() and request.HasField("after"):
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(request.wait_ms / 1000):
                    await self.awake.wait()
        if self._catalog_how == "stall" and self.awake.is_set():
            await asyncio.Event().wait()
        base = 0
        while self._catalog_how == "giant" and self.awake.is_set():
            yield peer_pb2.CatalogPage(
                position=position_to_wire(log.position),
                snapshot=True,
                form=FORM,
                bits=BITS_MAX,
                blocks=1 << BITS_MAX,
                added=peer_pb2.Prints(base=base, width=2, gaps=bytes(GIANT_PAGE_BYTES)),
            ).SerializeToString()
            base += GIANT_PAGE_BYTES // 2
        if request.after == position_to_wire(log.position):
            await asyncio.sleep(request.wait_ms / 1000)  # nothing is ever new here
        for page in pages(log.whole(), PAGE_ENTRIES):
            yield page.SerializeToString()

    async def _pull(self, raw: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        request = peer_pb2.PullRequest.FromString(raw)
        self.pulls += 1
        print(f"pulled {self.pulls}", flush=True)
        fingerprint = Fingerprint(request.fingerprint)
        content = self._known.get(fingerprint, honest_block)
        if self._behaviour is Answer.BUSY:
            told = ((RETRY_AFTER, str(BUSY_MS)),)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room", told)
        keys, room = list(request.keys), list(request.max_sizes)
        async for message in answer(self._behaviour, fingerprint, keys, content, room):
            yield message


async def _lives() -> None:
    """One hostile peer after another, until stdin ends."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while line := await lines.readline():
        arguments = _parser().parse_args(json.loads(line)["arguments"])
        async with _alive(arguments) as wake:
            if (await lines.readline()).strip() == GO:
                wake()
                await lines.readline()
        print("ok", flush=True)


async def _one_life(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _alive(arguments) as wake:
        wake()
        await stop.wait()


@contextlib.asynccontextmanager
async def _alive(arguments: argparse.Namespace) -> AsyncIterator[Callable[[], None]]:
    """A peer in its place, asleep until the yielded function is called; its books are printed at the end."""
    peering = load_peering(arguments.config)
    credentials = load_credentials(peering.own.credentials, peering.own.group, peering.federation)
    if arguments.load:
        load = LoadClaims.model_validate_json(arguments.load.read_text())
        known, claims = load.contents(), load.keys()
    else:
        fingerprint = Fingerprint(bytes.fromhex(arguments.fingerprint))
        known, claims = {fingerprint: honest_block}, arguments.claim
    speaker = Speaker(peering, credentials, arguments.epoch)
    behaviour = Answer(arguments.behaviour)
    peer = HostilePeer(speaker, behaviour, known, claims, arguments.catalog)
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((peer.handlers(),))
    server.add_secure_port(arguments.listen, credentials.server_credentials())
    await server.start()
    print("ready", flush=True)
    attacks: list[tuple[Attacker, asyncio.Task[None]]] = []

    def wake() -> None:
        speaker.how = arguments.statements
        peer.awake.set()
        if arguments.attack != Attack.NONE.value:
            fingerprint = next(iter(known))
            held = [key for key in claims if owner(key) == arguments.target] or claims
            attacker = _attacker(peering, credentials, speaker, fingerprint, held, arguments)
            attack = asyncio.create_task(attacker.run(Attack(arguments.attack)))
            attacks.append((attacker, attack))

    try:
        yield wake
    finally:
        books: dict[str, Any] = {}
        for attacker, attack in attacks:
            attack.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await attack
            books = {k: v for k, v in vars(attacker.books).items() if not k.startswith("_")}
        await server.stop(0)
        print(json.dumps({"pulls": peer.pulls, "catalogs": peer.catalogs, **books}), flush=True)


def _attacker(
    peering: Peering,
    credentials: Credentials,
    speaker: Speaker,
    fingerprint: Fingerprint,
    keys: Sequence[str],
    arguments: argparse.Namespace,
) -> Attacker:
    (target,) = (peer for peer in peering.peers if peer.name == arguments.target)
    address = target.gateways[0]
    options = [
        *credentials.channel_options(target.name),
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        *NARROW,
    ]

    def channel() -> grpc.aio.Channel:
        return grpc.aio.secure_channel(address, credentials.channel_credentials(), options=options)

    host, _, port = address.rpartition(":")
    return Attacker(
        channel,
        Greetings(speaker.hello, speaker.old).of,
        (host, int(port)),
        fingerprint,
        keys,
        window_s=arguments.lease_ms / 1000,
        pin_s=arguments.pin_seconds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos.hostile.peer")
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--behaviour", choices=[a.value for a in Answer], required=True)
    parser.add_argument("--fingerprint", default="00" * 16)
    parser.add_argument("--epoch", type=int, default=1, help="higher than at the last start")
    parser.add_argument("--claim", action="append", default=[])
    parser.add_argument("--load", type=Path, help="a LoadClaims as JSON")
    parser.add_argument(
        "--statements", choices=["honest", "replay", "equivocate"], default="honest"
    )
    parser.add_argument("--catalog", choices=CATALOGS, default="claims")
    parser.add_argument("--attack", choices=[a.value for a in Attack], default=Attack.NONE.value)
    parser.add_argument("--target", default="")
    parser.add_argument("--lease-ms", type=int, default=10_000, help="window of the books")
    parser.add_argument("--pin-seconds", type=float, default=5.0)
    return parser


def main() -> None:
    """Runs the hostile peer until it is told to stop."""
    os.nice(NICE)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if sys.argv[1:] == ["--lives"]:
        asyncio.run(_lives())
    else:
        asyncio.run(_one_life(_parser().parse_args()))


if __name__ == "__main__":
    main()
