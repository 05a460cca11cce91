"""What only etcd has: TLS both ways, a history that is compacted, a disk that is lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_group.coordination.base import Changed, Listed
from local_group.coordination.etcd import EtcdBackend
from local_group.coordination.etcd_watch import Position
from local_group.process_errors import CoordinationGone
from tests.support.coordination import Etcd
from tests.support.groups import write_group
from tests.support.tls import Ca

pytestmark = pytest.mark.real


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    server = Etcd(write_group(tmp_path, coordination={"backend": "etcd"}))
    server.start()
    try:
        yield server
    finally:
        server.kill()


def backend(endpoint: str, **files: Any) -> EtcdBackend:
    return EtcdBackend("a", "unix:a", (endpoint,), "/test/", 2, **files)


async def test_a_watch_behind_a_compaction_ends_so_that_it_lists_again(etcd: Etcd) -> None:
    one = backend(etcd.address)
    await one.start()
    term = await asyncio.wait_for(one.campaign(), 15)
    for i in range(5):
        await one.put("k", str(i).encode(), term)
    found = await one._client.kv.get("/test/config/k")
    first = found.kvs[0].create_revision
    told = one._follow(b"/test/config/k", Position(first))
    assert await asyncio.wait_for(anext(told), 5) == Changed("k", b"0")
    await told.aclose()
    await one._client.kv.compact(found.header.revision)

    async def all_of_it() -> list[Changed]:
        return [each async for each in one._follow(b"/test/config/k", Position(first))]

    assert await asyncio.wait_for(all_of_it(), 5) == []
    stream = one.watch("k")
    assert await asyncio.wait_for(anext(stream), 5) == Listed({"k": b"4"})
    await one.resign(term)
    await one.close()


async def test_an_etcd_that_lost_its_disk(etcd: Etcd) -> None:
    """The term ends, a watch lists again, and peers' memory lifts the epoch."""
    one = backend(etcd.address)
    await one.start()
    term = await asyncio.wait_for(one.campaign(floor=6), 15)
    await one.put("k", b"1", term)
    stream = one.watch("k")
    assert await anext(stream) == Listed({"k": b"1"})
    etcd.kill()
    shutil.rmtree(etcd.folder)
    etcd.start()
    await asyncio.wait_for(term.lost.wait(), 10)
    assert await asyncio.wait_for(anext(stream), 10) == Listed({})
    again = await asyncio.wait_for(one.campaign(), 15)
    assert again.epoch == 1
    above = await one.above(again, term.epoch)
    assert above.epoch == term.epoch + 1
    assert not again.valid()
    await one.put("k", b"2", above)
    leader = await one.leader()
    assert leader is not None
    assert (leader.member, leader.address, leader.epoch) == ("a", "unix:a", above.epoch)
    await one.resign(above)
    assert await one.leader() is None
    await one.close()


async def test_tls_both_ways(tmp_path: Path) -> None:
    ca = Ca(tmp_path)
    ours, our_key = ca.issue("gateway.test")
    path = write_group(tmp_path, coordination={"backend": "etcd"})
    server = Etcd(path, (*ca.issue("etcd.test"), ca.file))
    server.start()
    try:
        one = backend(
            server.address, ca=ca.file, certificate=ours, key=our_key, server_name="etcd.test"
        )
        await one.start()
        term = await asyncio.wait_for(one.campaign(), 15)
        await one.put("k", b"1", term)
        stranger = backend(server.address, ca=ca.file)
        await stranger.start()
        with pytest.raises(CoordinationGone, match="did not answer"):
            await stranger.get("k")
        await stranger.close()
        await one.resign(term)
        await one.close()
    finally:
        server.kill()
