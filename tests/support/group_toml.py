"""A right group.toml to be spoilt, and the message that one gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from federation.config import load_group
from local_group.errors import ConfigError

GOOD = """\
name = "east"
data_dir = "data"
port_base = 7400

[master]
lease_ttl_ms = 10000

[stores]
count = 2
dram = "256 MiB"

[gateway]
listen = "127.0.0.1"

[namespaces.demo]
model = "demo-7b"
revision = "r1"
engine = "sglang-hicache"
kv_dtype = "bf16"
block_tokens = 512
layout = "page_first"

[limits]
staging_bytes = "256 MiB"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "group.toml"
    path.write_text(text)
    return path


def message_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_group(path)
    assert caught.value.code == "MM101"
    assert caught.value.exit_code == 2
    return str(caught.value)
