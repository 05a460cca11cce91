"""A FederatedStore where the environment says which Mooncake, as for Mooncake's own backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federation.client import FederatedStore
from federation.codes import OK
from federation.errors import MoonmeshError
from federation.identity import Envelope
from local_group.mooncake_environment import settings_from_environment


def store_from_environment(
    *, namespace: Envelope | Mapping[str, Any], **options: Any
) -> FederatedStore:
    """A store that is set up, with what `MOONCAKE_CONFIG_PATH`, or `MOONCAKE_MASTER` and the other variables
    of `mooncake.mooncake_config`, say of the local Mooncake.

    Args:
        namespace: see `FederatedStore.setup`.
        options: the others of its keyword arguments: `gateway`, `deadline_ms`, ...

    Raises:
        ConfigError: what they say, or an option, cannot be used.
        MoonmeshError: the local Mooncake cannot be reached.
    """
    settings = settings_from_environment()
    store = FederatedStore()
    code = store.setup(
        settings.local_hostname,
        settings.metadata_server,
        settings.global_segment_size,
        settings.local_buffer_size,
        settings.protocol,
        settings.rdma_devices,
        settings.master_address,
        namespace=namespace,
        **options,
    )
    if code != OK:
        raise MoonmeshError("the local Mooncake cannot be reached", where=settings.master_address)
    return store
