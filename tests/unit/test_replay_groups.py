from __future__ import annotations

from pathlib import Path

import pytest

from federation.bench.groups import (
    NAMESPACE,
    STORE_MIN,
    WATERMARK,
    Layout,
    adapt_groups,
    store_bytes,
    write_groups,
)
from federation.config import load_group

MIB = 1 << 20
LAYOUT = Layout(groups=3, store_bytes=32 * MIB, lease_ttl_ms=700, port_base=23100)


@pytest.mark.parametrize("mode", ["federated", "isolated"])
def test_generated_groups_are_what_the_layout_says(tmp_path: Path, mode: str) -> None:
    groups = [load_group(p) for p in write_groups(tmp_path, mode, LAYOUT)]  # type: ignore[arg-type]
    assert [g.name for g in groups] == ["g0", "g1", "g2"]
    assert [g.port_base for g in groups] == [23100, 23200, 23300]
    assert {(g.stores.count, g.stores.dram, g.master.lease_ttl_ms) for g in groups} == {
        (1, 32 * MIB, 700)
    }
    assert len({g.namespaces[NAMESPACE].fingerprint() for g in groups}) == 1
    assert {g.gateway.peering is None for g in groups} == {mode == "isolated"}


def test_one_pool_has_as_many_stores_as_there_are_groups(tmp_path: Path) -> None:
    (pool,) = [load_group(p) for p in write_groups(tmp_path, "one-pool", LAYOUT)]
    assert pool.stores.count * pool.stores.dram == LAYOUT.pool_bytes
    assert (pool.stores.count, pool.master.lease_ttl_ms) == (3, 700)


def given_groups(folder: Path, dram: tuple[str, str] = ("64 MiB", "64 MiB")) -> list[Path]:
    files = []
    for i, name in enumerate(("east", "west")):
        path = folder / name / "group.toml"
        path.parent.mkdir(parents=True)
        path.write_text(
            f'name = "{name}"\ndata_dir = "data"\nport_base = {23100 + 100 * i}\n'
            f'[stores]\ncount = 1\ndram = "{dram[i]}"\n[gateway]\npeering = "peering.toml"\n'
            '[namespaces.demo]\nmodel = "say \\"hi\\""\nrevision = "1"\nengine = "e"\n'
            'kv_dtype = "bf16"\nblock_tokens = 512\nlayout = "page_first"\n'
        )
        files.append(path)
    return files


def test_given_groups_are_used_as_they_are_when_federated(tmp_path: Path) -> None:
    files = given_groups(tmp_path)
    assert adapt_groups(files, tmp_path / "x", "federated") == files
    assert not (tmp_path / "x").exists()


def test_given_groups_isolated_differ_in_peering_alone(tmp_path: Path) -> None:
    files = given_groups(tmp_path)
    for old, new in zip(files, adapt_groups(files, tmp_path / "x", "isolated"), strict=True):
        before, after = load_group(old), load_group(new)
        assert after.gateway.peering is None
        assert before.model_dump(exclude={"gateway", "data_dir"}) == after.model_dump(
            exclude={"gateway", "data_dir"}
        )
        assert after.data_dir.is_relative_to(tmp_path / "x")


def test_given_groups_as_one_pool_have_all_their_memory(tmp_path: Path) -> None:
    files = given_groups(tmp_path, ("64 MiB", "32 MiB"))
    (pool,) = [load_group(p) for p in adapt_groups(files, tmp_path / "x", "one-pool")]
    assert (pool.stores.count, pool.stores.dram) == (2, 48 * MIB)
    assert pool.namespaces["demo"].model == 'say "hi"'


def test_stores_hold_what_was_asked_for_below_the_watermark() -> None:
    usable = 300 * MIB
    each = store_bytes(usable, 2)
    assert usable <= 2 * each * WATERMARK < usable * 1.05
    assert store_bytes(1, 2) == STORE_MIN
