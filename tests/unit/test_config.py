"""Every message that a wrong group.toml gets, and what a right one means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from federation.catalog.answers import Answers
from federation.catalog.log import HoldingsLog
from federation.config import GroupFile, Limits, load_group
from federation.limits_config import (
    CONTROL_BYTES_LEAST,
    PAGE_ENTRIES_MAX,
    SERVING_BYTES_PER_BLOCK,
    SERVING_OWN_BYTES,
)
from federation.peers.gossip_config import HELLO_BYTES_MAX
from local_group.config import load_place, read_toml
from local_group.errors import ConfigError
from local_group.toml import find_line
from tests.support.group_toml import GOOD, message_of, write


def test_a_good_file(tmp_path: Path) -> None:
    group = load_group(write(tmp_path, GOOD))
    assert group.name == "east"
    assert group.data_dir == tmp_path / "data"
    assert group.stores.dram == 256 << 20
    assert (group.ports.master_rpc, group.ports.master_admin) == (7400, 7401)
    assert (group.ports.peers, group.ports.engines_tcp) == (7402, 7403)
    assert [group.ports.store(i) for i in range(2)] == [7410, 7411]
    assert group.master_address == "127.0.0.1:7400"
    assert group.admin_url == "http://127.0.0.1:7401"
    assert group.gateway.enabled
    assert group.gateway.peering is None
    assert group.namespaces["demo"].block_tokens == 512
    assert group.limits == Limits()


def test_paths_are_taken_from_the_file_s_folder(tmp_path: Path) -> None:
    text = GOOD.replace('listen = "127.0.0.1"', 'peering = "../p/peering.toml"')
    group = load_group(write(tmp_path, text))
    assert group.gateway.peering == tmp_path.parent / "p" / "peering.toml"
    for path in (group.gateway_socket, group.state_file, group.journal_dir, group.log_dir):
        assert path.is_relative_to(tmp_path / "data")


# (text to replace, replacement, line, field, what must be said)
PROBLEMS = [
    ('name = "east"', 'name = "East"', 1, "name", "'East' is not a group's name"),
    ('name = "east"', 'name = "e' + "a" * 31 + '"', 1, "name", "at most 30"),
    ('name = "east"', "name = 3", 1, "name", 'must be text in "quotes", not 3'),
    ('name = "east"\n', "", None, "name", "is missing: add it"),
    ('data_dir = "data"', "data_dir = 3", 2, "data_dir", "3 is not a path"),
    ('data_dir = "data"', 'data_dir = ""', 2, "data_dir", "'' is not a path"),
    ('data_dir = "data"', f'data_dir = "{"d" * 100}"', 2, "data_dir", "a unix socket allows 107"),
    (
        "port_base = 7400",
        'port_base = "7400"',
        3,
        "port_base",
        "must be a whole number, not '7400'",
    ),
    ("port_base = 7400", "port_base = 80", 3, "port_base", "must be at least 1024, not 80"),
    ("port_base = 7400", "port_base = 70000", 3, "port_base", "must be at most 65535, not 70000"),
    ("port_base = 7400", "port_base = 65525", 8, "stores", "port_base can be at most 65524"),
    ("port_base = 7400", "port_base = 12295", 8, "stores", "overlap 12300-17000"),
    ("port_base = 7400", "port_base = 17000", 8, "stores", "choose a port_base outside"),
    ("lease_ttl_ms = 10000", "lease_ttl_ms = 1", 6, "master.lease_ttl_ms", "must be at least 100"),
    ("[stores]", "host = 'a:1'\n[stores]", 8, "master.host", "is not a known key"),
    ("count = 2", "count = -1", 9, "stores.count", "must be at least 0, not -1"),
    (
        'count = 2\ndram = "256 MiB"',
        "count = 0",
        8,
        "stores",
        "count = 0, and the master that is started",
    ),
    (
        "count = 2",
        "count = 0",
        10,
        "stores.dram",
        "is of each store, and count = 0 starts none here",
    ),
    (
        "lease_ttl_ms = 10000",
        'lease_ttl_ms = 5000\naddress = "h:7400"',
        5,
        "master",
        "lease_ttl_ms cannot be set together with address: the master at h:7400 has its own",
    ),
    ("lease_ttl_ms = 10000", "admin_port = 7401", 5, "master", "and there is no address: add it"),
    ("lease_ttl_ms = 10000", 'address = "h"', 6, "master.address", "has no port: write"),
    ("lease_ttl_ms = 10000", 'address = "h:0"', 6, "master.address", "not a port in 1..65535"),
    ("lease_ttl_ms = 10000", 'address = "h:65535"', 5, "master", "set admin_port"),
    (
        "lease_ttl_ms = 10000",
        'address = "127.0.0.1:7400"',
        5,
        "master",
        "is this place's own host and port_base, and no master is started here",
    ),
    ("count = 2", "count = 65", 9, "stores.count", "must be at most 64, not 65"),
    ("count = 2", "count = 2.5", 9, "stores.count", "must be a whole number, not 2.5"),
    ('"256 MiB"\n\n[g', '"15 MiB"\n\n[g', 10, "stores.dram", "refuses stores below 16 MiB"),
    ('"256 MiB"\n\n[g', '"32 TiB"\n\n[g', 10, "stores.dram", "'32 TiB' is not a size"),
    ('"256 MiB"\n\n[g', '"99999 GiB"\n\n[g', 10, "stores.dram", "more than 16 TiB"),
    ('"256 MiB"\n\n[g', '"1.00000001 KiB"\n\n[g', 10, "stores.dram", "not a whole number of bytes"),
    ('"256 MiB"\n\n[g', "true\n\n[g", 10, "stores.dram", "True is not a size"),
    ('dram = "256 MiB"', "", 8, "stores.dram", "is missing: add it"),
    ('listen = "127.0.0.1"', 'listen = "a:1"', 13, "gateway.listen", "no port, no scheme"),
    ('listen = "127.0.0.1"', 'listen = "1.2.3"', 13, "gateway.listen", "is not an IPv4 address"),
    ('listen = "127.0.0.1"', "enabled = 1", 13, "gateway.enabled", "must be true or false, not 1"),
    ('listen = "127.0.0.1"', "peering = 1", 13, "gateway.peering", "1 is not a path"),
    ('listen = "127.0.0.1"', "engines_tcp = true", 12, "gateway", "needs peering = "),
    ("[gateway]", "[gatevay]", 12, "gatevay", 'is not a known key (did you mean "gateway"?)'),
    ("count = 2", "cuont = 2", 9, "stores.cuont", 'did you mean "count"?'),
    ("count = 2", "zzz = 2", 9, "stores.zzz", "known here: count, dram"),
    ("kv_dtype", "kv_dtpye", 19, "namespaces.demo.kv_dtpye", 'did you mean "kv_dtype"?'),
    ('model = "demo-7b"', 'model = ""', 16, "namespaces.demo.model", "must not be empty"),
    (
        'model = "demo-7b"',
        'model = "demo\\u001b7b"',
        16,
        "namespaces.demo.model",
        "has a character that cannot be printed ('\\x1b'): leave it out",
    ),
    (
        'model = "demo-7b"',
        'salt = "a\\u200bb"\nmodel = "demo-7b"',
        16,
        "namespaces.demo.salt",
        "has a character that cannot be printed ('\\u200b')",
    ),
    ("block_tokens = 512", "block_tokens = 0", 20, "namespaces.demo.block_tokens", "at least 1"),
    ('staging_bytes = "256 MiB"', "staging = 3", 24, "limits.staging", "is not a known key"),
    ('"256 MiB"\n', '"64 MiB"\n', 24, "limits.staging_bytes", "fewer than two blocks"),
    (
        'staging_bytes = "256 MiB"',
        'bounce_bytes = "32 MiB"',
        24,
        "limits.bounce_bytes",
        "one block",
    ),
    (
        'staging_bytes = "256 MiB"',
        "catalog_page_entries = 100001",
        24,
        "limits.catalog_page_entries",
        "must be at most 100000",
    ),
    (
        'staging_bytes = "256 MiB"',
        "staging_hold_ms = 9999",
        23,
        "limits",
        "shorter than master.lease_ttl_ms 10000",
    ),
    # One of two bounds given, and what it leaves of the other is not the other's default.
    (
        'staging_bytes = "256 MiB"',
        'control_message_bytes_max = "511 KiB"',
        24,
        "limits.control_message_bytes_max",
        "must be at least 524288",
    ),
    (
        'staging_bytes = "256 MiB"',
        "holdings_blocks = 100000000",
        23,
        "limits.serving_memory",
        "and holdings_blocks (100000000): at least ",
    ),
    (
        'staging_bytes = "256 MiB"',
        'bounce_bytes = "8 GiB"',
        23,
        "limits.serving_memory",
        "for bounce_bytes (8589934592)",
    ),
    (
        'staging_bytes = "256 MiB"',
        'serving_memory = "256 MiB"',
        24,
        "limits.serving_memory",
        "for bounce_bytes (134217728) and holdings_blocks (4000000)",
    ),
    (
        'staging_bytes = "256 MiB"',
        'block_bytes_max = "200 MiB"\nstaging_bytes = "512 MiB"',
        23,
        "limits.bounce_bytes",
        "134217728 bytes cannot hold one block of block_bytes_max (209715200)",
    ),
    (
        'staging_bytes = "256 MiB"',
        'block_bytes_max = "129 MiB"\nbounce_bytes = "129 MiB"',
        23,
        "limits.staging_bytes",
        "268435456 bytes hold fewer than two blocks of block_bytes_max (135266304)",
    ),
    (
        "lease_ttl_ms = 10000\n",
        "lease_ttl_ms = 10001\n",
        23,
        "limits",
        "staging_hold_ms 10000 is shorter than master.lease_ttl_ms 10001: raise it",
    ),
    ('staging_bytes = "256 MiB"', "hop_limit = 2", 24, "limits.hop_limit", "must be at most 1"),
    ("[stores]\ncount = 2\n", "stores = 2\n[x]\n", 8, "master.stores", "is not a known key"),
    ("[limits]", "[[limits]]", 23, "limits", "must be a table, not list"),
    (
        "[gateway]",
        'protocol = "udp"\n[gateway]',
        12,
        "stores.protocol",
        "is not a known key",
    ),
    ("port_base = 7400", 'port_base = 7400\nprotocol = "udp"', 4, "protocol", "'tcp' or 'rdma'"),
    ("port_base = 7400", 'port_base = 7400\nhost = "h h"', 4, "host", "is not an IPv4 address or"),
    ("port_base = 7400", 'port_base = 7400\nhost = "1.2.3.256"', 4, "host", "not an IPv4 address"),
]


@pytest.mark.parametrize(("old", "new", "line", "field", "said"), PROBLEMS)
def test_a_problem_is_told_with_its_place(
    tmp_path: Path, old: str, new: str, line: int | None, field: str, said: str
) -> None:
    assert old in GOOD
    # The last occurrence: "256 MiB" is there twice, and the tests of [limits] mean the second.
    head, _, tail = GOOD.rpartition(old)
    path = write(tmp_path, head + new + tail)
    message = message_of(path)
    where = f"{path}:{line}" if line else str(path)
    assert f"{where}: {field}: " in message
    assert said in message


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("7400", "80").replace("count = 2", "count = 65").replace("bf16", "")
    message = message_of(write(tmp_path, text))
    assert "3 problems" in message
    for field in ("port_base", "stores.count", "namespaces.demo.kv_dtype"):
        assert f": {field}: " in message


def test_two_names_for_one_envelope(tmp_path: Path) -> None:
    start = GOOD.index("[namespaces.demo]")
    again = GOOD[start : GOOD.index("[limits]")].replace("demo]", "copy]")
    message = message_of(write(tmp_path, GOOD + again))
    assert 'namespaces: "demo" and "copy" have the same envelope' in message


@pytest.mark.parametrize("name", ['"*"', '"' + "n" * 65 + '"', '""'])
def test_bad_names_of_namespaces(tmp_path: Path, name: str) -> None:
    message = message_of(write(tmp_path, GOOD.replace("namespaces.demo", f"namespaces.{name}")))
    assert "cannot name a namespace" in message


def test_too_many_namespaces(tmp_path: Path) -> None:
    start, end = GOOD.index("[namespaces.demo]"), GOOD.index("[limits]")
    section = GOOD[start:end]
    many = "".join(
        section.replace("demo]", f"n{i}]").replace('"r1"', f'"r{i}"') for i in range(257)
    )
    message = message_of(write(tmp_path, GOOD[:start] + many + GOOD[end:]))
    assert "257 namespaces are more than 256" in message


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("name = east\n", ":1:8: ", "is not TOML: invalid value"),
        ('name = "east"\nport_base 7400\n', ":2:11: ", "expected '=' after a key"),
        ('name = "a"\nname = "b"\n', ":2:", "cannot overwrite a value"),
        ('name = "a', ":1: ", "unterminated string"),
    ],
)
def test_not_toml(tmp_path: Path, text: str, place: str, said: str) -> None:
    path = write(tmp_path, text)
    message = message_of(path)
    assert message.startswith(f"{path}{place}")
    assert said in message
    assert 'write key = value; put text in "quotes"' in message


def test_no_such_file(tmp_path: Path) -> None:
    message = message_of(tmp_path / "none.toml")
    assert "there is no such file" in message
    assert "-c" in message


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in message_of(tmp_path)


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    path.write_bytes(b'name = "east"\nx = "\xff"\n')
    assert f"{path}:2: is not UTF-8 text" in message_of(path)


def test_too_large(tmp_path: Path) -> None:
    path = write(tmp_path, "#" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        read_toml(path)


def test_every_limit_says_its_unit_and_reason() -> None:
    """Each limit is followed by a docstring; pydantic can read it where the source is there."""
    import inspect

    lines = inspect.getsource(Limits).splitlines()
    for name, field in Limits.model_fields.items():
        index = next(i for i, line in enumerate(lines) if line.startswith(f"    {name}:"))
        assert lines[index + 1].startswith('    """'), name
        assert field.metadata, f"{name} has no range"


def test_lines_in_arrays_of_tables() -> None:
    lines = (
        '[self]\na = 1\n[[peers]]\nname = "x"\n[[peers]]\nname = "y"\n"odd key" = 1\n'.splitlines()
    )
    assert find_line(lines, ("peers", 1, "name")) == 6
    assert find_line(lines, ("peers", 0, "name")) == 4
    assert find_line(lines, ("peers", 1, "missing")) == 5
    assert find_line(lines, ("peers", 1, "odd key")) == 7
    assert find_line(lines, ("nothing",)) == 0


def test_a_config_is_frozen(tmp_path: Path) -> None:
    group = load_group(write(tmp_path, GOOD))
    with pytest.raises(ValueError, match="frozen"):
        group.name = "west"  # type: ignore[misc]
    assert isinstance(group, GroupFile)


@pytest.mark.parametrize(
    "rest", ["nonsense = 1", "[[[", 'port_base = "x', "[stores]\ndata_dir = 1"]
)
def test_where_a_group_is_can_be_read_from_a_bad_file(tmp_path: Path, rest: str) -> None:
    file = tmp_path / "group.toml"
    file.write_text(f'# ours\nname = "east" # it\ndata_dir = "d"\n{rest}\n')
    place = load_place(file)
    assert (place.name, place.data_dir) == ("east", tmp_path / "d")
    assert place.lock_file == tmp_path / "d" / "run" / "lock"


@pytest.mark.parametrize("text", ['name = "east"', 'name = "east"\ndata_dir = 1', "[x]\nname = 1"])
def test_a_group_without_a_place(tmp_path: Path, text: str) -> None:
    file = tmp_path / "group.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="data_dir"):
        load_place(file)


def test_a_lease_is_compared_with_limits_that_are_not_in_the_file(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("[limits]")].replace("lease_ttl_ms = 10000", "lease_ttl_ms = 10001")
    with pytest.raises(ConfigError, match="staging_hold_ms 10000 is shorter"):
        load_group(write(tmp_path, text))


def test_what_one_group_may_be_set_to_send_every_other_takes() -> None:
    assert HELLO_BYTES_MAX <= CONTROL_BYTES_LEAST
    owner = Limits(catalog_page_entries=PAGE_ENTRIES_MAX)
    log = HoldingsLog(bytes(16), 1 << 18)
    hashes = np.random.default_rng(1).integers(0, 1 << 64, 4 * PAGE_ENTRIES_MAX, dtype=np.uint64)
    log.extend(hashes[PAGE_ENTRIES_MAX:])
    at = log.position
    log.extend(hashes[:PAGE_ENTRIES_MAX])
    for after in (None, at):  # a snapshot, and changes, which take the most
        sizes = [len(page) for page in Answers(log, owner.catalog_page_entries).since(after)]
        assert max(sizes) <= CONTROL_BYTES_LEAST
        assert max(sizes) > PAGE_ENTRIES_MAX


def test_a_serving_process_must_be_allowed_what_it_holds() -> None:
    small = {"bounce_bytes": 16 << 20, "block_bytes_max": 1 << 20, "holdings_blocks": 1_000_000}
    least = SERVING_OWN_BYTES + (16 << 20) + 1_000_000 * SERVING_BYTES_PER_BLOCK
    assert Limits(**small, serving_memory=least).serving_memory == least
    with pytest.raises(ValidationError, match=f"at least {least}"):
        Limits(**small, serving_memory=least - 1)
