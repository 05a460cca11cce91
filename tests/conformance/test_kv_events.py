"""KV events of the real master: those of the package have none. Once they do, this fails, and what
tests/unit/test_kv_events.py takes from Mooncake's description is to be tried with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_group.admin import AdminClient
from tests.support.groups import RunningGroup, write_group

pytestmark = pytest.mark.real


async def test_the_packaged_master_publishes_none(tmp_path: Path) -> None:
    with RunningGroup(write_group(tmp_path)) as group:
        async with AdminClient(group.config.admin_url) as admin:
            assert await admin.kv_events() is False
