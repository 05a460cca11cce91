"""Where a gateway listens: for peers over mTLS, for engines on a unix socket and, if asked, over mTLS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from federation.admin_service import AdminService
from federation.config import GroupFile, Limits
from federation.errors import MoonmeshError
from federation.limits.attached import CONNECTIONS_PER_ENGINE
from federation.peers.arrivals import PING_MS, handshake_bounds, server_bounds
from federation.peers.service import OVERSIZE_READ_FACTOR, PeerService
from federation.private import for_this_user
from federation.transfer.passing import Passing
from federation.trust.credentials import (
    EngineCredentials,
    TlsIdentity,
    load_engine_credentials,
)

if TYPE_CHECKING:
    from federation.following.leader import GroupService
    from federation.peering import Membership
    from federation.transfer.handover import EngineService
    from federation.transfer.locating import RouterService
    from federation.transfer.slots import Slots
    from local_group.store import StoreClient

STOP_SECONDS = 2.0
"""Grace for calls under way when the gateway is told to stop."""


def _options(*, shared: bool = False) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_send_message_length", -1),
        # Two gateways on one port would each get half of the calls: a second one has to fail. The serving
        # processes of one gateway do share it: that nobody else has it was looked at before they started.
        ("grpc.so_reuseport", int(shared)),
    ]


class Endpoints:
    """The servers of one process. What they serve is given to them."""

    def __init__(self) -> None:
        self._servers: list[grpc.aio.Server] = []
        self._health = health.aio.HealthServicer()
        self._passing: Passing | None = None

    async def serve_peers(self, config: GroupFile, service: PeerService, tls: TlsIdentity) -> None:
        """Listens for peers.

        Raises:
            MoonmeshError: the address cannot be had.
        """
        limits = config.limits
        calls_max, bounds = server_bounds(limits, service.peers)
        server = grpc.aio.server(
            options=[
                *_options(shared=config.serving.workers > 1),
                *bounds,
                (
                    "grpc.max_receive_message_length",
                    OVERSIZE_READ_FACTOR * limits.control_message_bytes_max,
                ),
            ],
            maximum_concurrent_rpcs=calls_max,
        )
        server.add_generic_rpc_handlers((service.handlers(),))
        address = f"{config.gateway.listen}:{config.ports.peers}"
        await self._start(server, address, tls.server_credentials())

    async def serve_engines(
        self,
        config: GroupFile,
        service: EngineService,
        router: RouterService,
        group: GroupService,
        admin: AdminService,
        slots: Slots,
    ) -> None:
        """Listens for engines and the command line on this host; for followers too, where they have no other
        way: a socket does not tell a gateway from an engine.

        Raises:
            MoonmeshError: the socket cannot be had.
        """
        server = self._engine_server(config, service, router)
        server.add_generic_rpc_handlers((admin.handlers(),))
        if not config.gateway.engines_tcp:
            server.add_generic_rpc_handlers((group.handlers(),))
        # Until `ready`: a new servicer says SERVING.
        await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        socket = config.gateway_socket
        socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        # The socket is this user's alone: who may open it may read every block of the group.
        with for_this_user():
            await self._start(server, f"unix:{socket}", None)
        self._passing = Passing(slots)
        self._passing.start(socket)

    async def serve_remote_engines(
        self,
        config: GroupFile,
        service: EngineService,
        router: RouterService,
        group: GroupService,
        credentials: EngineCredentials,
    ) -> None:
        """Listens for engines and followers on other hosts of the group.

        Raises:
            MoonmeshError: the address cannot be had.
        """

        def gateway(context: Any) -> bool:
            return credentials.is_gateway(context.auth_context())

        def inside(context: Any) -> bool:
            return credentials.is_engine(context.auth_context()) or gateway(context)

        address = f"{config.host}:{config.ports.engines_tcp}"
        server = self._engine_server(
            config, service.only_for(inside), router.only_for(inside), remote=True
        )
        server.add_generic_rpc_handlers((group.only_for(gateway).handlers(),))
        await self._start(server, address, credentials.server_credentials())

    async def ready(self) -> None:
        """Says SERVING to health checks."""
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    async def not_ready(self) -> None:
        """Says NOT_SERVING from now on."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, store: StoreClient | None = None) -> None:
        """Closes all servers; calls under way have a grace of `STOP_SECONDS`. Then their store."""
        if self._passing is not None:
            await self._passing.close()
        await asyncio.gather(*(server.stop(STOP_SECONDS) for server in self._servers))
        if store is not None:
            await asyncio.to_thread(store.close)

    def _engine_server(
        self,
        config: GroupFile,
        service: EngineService,
        router: RouterService,
        *,
        remote: bool = False,
    ) -> grpc.aio.Server:
        server = engine_server(config.limits, remote=remote)
        server.add_generic_rpc_handlers((service.handlers(), router.handlers()))
        return server

    async def _start(
        self, server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None
    ) -> None:
        try:
            if credentials is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, credentials)
        except RuntimeError:
            bound = 0
        if bound == 0:
            raise MoonmeshError(
                "cannot listen there", where=address, hint="is the port in use, the address ours?"
            )
        await server.start()
        self._servers.append(server)


def engine_server(limits: Limits, *, remote: bool) -> grpc.aio.Server:
    """A server for engines, with nothing to serve yet.

    What connects beyond the limit is closed before anything of it is read. A connection that nobody uses, or
    at whose other end no host is any more, must not keep its place: engines attach every few seconds.

    Args:
        remote: they are on other hosts; here the kernel tells at once when one has ended.
    """
    pings = [
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.keepalive_timeout_ms", limits.peer_handshake_ms),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
    options = [
        *_options(),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS_PER_ENGINE * limits.engines_max),
        ("grpc.max_connection_idle_ms", limits.peer_idle_ms),
        ("grpc.max_receive_message_length", limits.control_message_bytes_max),
        *handshake_bounds(limits),
        *(pings if remote else []),
    ]
    return grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.engine_requests_open)


def inner_credentials(config: GroupFile, member: Membership | None) -> EngineCredentials | None:
    """For what comes, or goes, to other hosts of the group; None where nothing does.

    Raises:
        TrustError: they cannot be used.
    """
    if not config.gateway.engines_tcp or member is None:
        return None
    return load_engine_credentials(member.peering.own.credentials, config.name, "server")
