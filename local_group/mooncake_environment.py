"""What Mooncake's own variables say of a store: `MOONCAKE_CONFIG_PATH`, or `MOONCAKE_MASTER` and others.

They are read by Mooncake itself, so they mean here what they mean to an engine's own backend.
"""

from __future__ import annotations

import os

from local_group.errors import ConfigError
from local_group.store_config import StoreSettings


def settings_from_environment() -> StoreSettings:
    """The settings of an engine's store.

    Raises:
        ConfigError: they say nothing, or nothing that can be used, or ask for what this client does not have.
    """
    from mooncake.mooncake_config import MooncakeConfig

    path = os.environ.get("MOONCAKE_CONFIG_PATH")
    where = path if path is not None else "environment"
    try:
        found = MooncakeConfig.load_from_env()
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(
            f"Mooncake's configuration cannot be used: {error}",
            where=where,
            hint="set MOONCAKE_MASTER=HOST:PORT, or MOONCAKE_CONFIG_PATH to a JSON file",
        ) from error
    beyond = {
        "enable_ssd_offload": found.enable_ssd_offload,
        "enable_client_http_server": found.enable_client_http_server,
        "tenant_id": found.tenant_id != "default",
    }
    for what in (name for name, asked in beyond.items() if asked):
        raise ConfigError(
            f"{what} is not offered here",
            where=where,
            hint="leave it to a store of Mooncake's own beside this one",
        )
    return StoreSettings(
        master_address=found.master_server_address,
        local_hostname=found.local_hostname,
        metadata_server=found.metadata_server,
        protocol=found.protocol,
        rdma_devices=found.device_name or "",
        global_segment_size=found.global_segment_size,
        local_buffer_size=found.local_buffer_size,
    )
