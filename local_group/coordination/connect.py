"""From `[coordination]` to the backend that it names."""

from __future__ import annotations

import sys

from local_group.config import GroupConfig
from local_group.coordination.base import Coordination
from local_group.process_errors import CoordinationError

ETCD_PYTHON = (3, 11)
"""etcd3aio needs it."""


def connect_coordination(config: GroupConfig, member: str, address: str) -> Coordination:
    """The coordination of a group, not started yet. Loads only what the backend needs.

    Args:
        member: this gateway's name among those of the group.
        address: where the others reach it while it leads.

    Raises:
        CoordinationError: the backend does not work with this Python.
    """
    settings, folder = config.coordination, config.coordination_dir
    if settings.backend == "etcd":
        return _etcd(config, member, address)
    if settings.backend == "raft":
        from local_group.coordination.raft import RaftBackend

        assert settings.raft_secret is not None
        return RaftBackend(
            member,
            address,
            settings.raft_self,
            settings.raft_members,
            folder / "raft",
            settings.raft_secret,
            settings.lease_ms / 1000,
        )
    from local_group.coordination.file_backend import FileBackend

    return FileBackend(folder, member, address)


def _etcd(config: GroupConfig, member: str, address: str) -> Coordination:
    if sys.version_info[:2] < ETCD_PYTHON:
        raise CoordinationError(
            'backend = "etcd" needs Python 3.11 or later: so does etcd3aio, its client',
            hint="run Moonmesh with a newer Python, or choose another backend in [coordination]",
        )
    from local_group.coordination.etcd import EtcdBackend

    settings = config.coordination
    endpoints = settings.etcd_endpoints
    if settings.managed_etcd:
        endpoints = (f"{config.host}:{config.ports.etcd_client}",)
    return EtcdBackend(
        member,
        address,
        endpoints,
        f"/moonmesh/{config.name}/",
        settings.lease_ms // 1000,
        ca=settings.etcd_ca,
        certificate=settings.etcd_certificate,
        key=settings.etcd_key,
        server_name=settings.etcd_server_name,
    )
