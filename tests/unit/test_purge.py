"""Purging by origin: what came from one group goes, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from federation import purge as module
from federation.cli.main import app
from federation.identity import Fingerprint, stored_key
from federation.purge import Purge, Purged
from federation.removal import BATCH_BLOCKS, Removal
from federation.transfer.staging import StagedBlock, Staging
from local_group.holdings import Holdings
from local_group.names import name_of
from local_group.outcome import Outcome, Status
from local_group.process_errors import AdminError
from moonmesh.v1 import engine_pb2
from tests.support.groups import write_group

FP = b"f" * 16
OBJECT_HAS_LEASE = -706


class Mooncake:
    """Removes what it has; what is leased only by force, or when it was asked for often enough."""

    def __init__(self, keys: Sequence[str], leased: dict[str, int] | None = None) -> None:
        self.keys = {stored_key(Fingerprint(FP), key) for key in keys}
        self.leased = {stored_key(Fingerprint(FP), k): n for k, n in (leased or {}).items()}
        self.calls: list[int] = []
        self.silent = False

    async def listed(self, blocks: Collection[tuple[bytes, int]]) -> dict[tuple[bytes, int], str]:
        if self.silent:
            raise AdminError("no answer")
        named = {(FP, name_of(FP, key.partition("/")[2])): key for key in self.keys}
        return {block: key for block, key in named.items() if block in blocks}

    def remove(self, keys: Sequence[str], timeout: float, force: bool = False) -> list[Outcome]:
        self.calls.append(len(keys))
        return [self._one(key, force) for key in keys]

    def _one(self, key: str, force: bool) -> Outcome:
        if key not in self.keys:
            return Outcome(Status.MISS, 0, 0)
        if not force and self.leased.get(key, 0) > 0:
            self.leased[key] -= 1
            return Outcome(Status.ERROR, 0, OBJECT_HAS_LEASE)
        self.keys.discard(key)
        return Outcome(Status.HIT, 0, 0)


def holdings(**blocks: tuple[str, int]) -> Holdings:
    """Of blocks by name: their origin and its epoch; ("", 0) is our own."""
    made = Holdings(blocks_max=10_000, hop_limit=2, on_change=lambda change: None)
    for key, (origin, epoch) in blocks.items():
        if origin:
            made.admit(FP, key, 10, b"d" * 16, origin, epoch, 1, 0.0)
        else:
            made.report(FP, key, 10, b"d" * 16, 0.0)
    return made


def run(
    store: Mooncake,
    held: Holdings,
    staging: Staging | None = None,
    *,
    epoch: int | None = None,
    force: bool = False,
    seconds: float = 5.0,
) -> Purged:
    staging = staging or Staging(bytes_max=100, hold=5)
    removal = Removal(store, held, store.listed)
    purge = Purge(removal=removal, holdings=held, staging=staging)
    return asyncio.run(purge.run("evil", epoch=epoch, force=force, seconds=seconds))


def names(held: Holdings) -> set[int]:
    return {name for _, name, _ in held.items()}


def test_what_came_from_the_origin_goes_and_nothing_else() -> None:
    held = holdings(a=("evil", 1), b=("east", 1), c=("", 0), d=("evil", 2))
    store = Mooncake("abcd")
    assert run(store, held) == Purged(removed=2, left=0, origins=("east",))
    assert {key[-1] for key in store.keys} == {"b", "c"}
    assert names(held) == {name_of(FP, "b"), name_of(FP, "c")}


def test_an_epoch_of_it_alone() -> None:
    held = holdings(a=("evil", 1), d=("evil", 2))
    assert run(Mooncake("ad"), held, epoch=2) == Purged(1, 0, ("evil",))
    assert names(held) == {name_of(FP, "a")}


def test_a_block_that_is_gone_already_is_forgotten_and_not_counted() -> None:
    held = holdings(a=("evil", 1))
    assert run(Mooncake(""), held) == Purged(0, 0, ())


def test_without_a_listing_nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    held, store = holdings(a=("evil", 1)), Mooncake("a")
    store.silent = True
    assert run(store, held, seconds=0.05) == Purged(0, 1, ("evil",))


def test_what_is_being_read_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    held = holdings(a=("evil", 1), b=("evil", 1))
    assert run(Mooncake("ab", leased={"a": 3}), held) == Purged(2, 0, ())


def test_what_is_read_for_longer_than_the_time_is_left_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    held = holdings(a=("evil", 1), b=("evil", 1))
    store = Mooncake("ab", leased={"a": 1_000_000})
    assert run(store, held, seconds=0.05) == Purged(1, 1, ("evil",))
    assert names(held) == {name_of(FP, "a")}


def test_force_does_not_wait_for_readers() -> None:
    held = holdings(a=("evil", 1))
    store = Mooncake("a", leased={"a": 1_000_000})
    assert run(store, held, force=True, seconds=0.05) == Purged(1, 0, ())


def test_staging_is_purged_too() -> None:
    staging = Staging(bytes_max=100, hold=1000)
    for key, origin, epoch in (("a", "evil", 1), ("b", "east", 1), ("c", "evil", 2)):
        assert staging.reserve(10, 0.0, origin)
        staging.land(
            StagedBlock(FP, key, memoryview(bytearray(10)), b"d" * 16, origin, epoch, 0.0, 0.0), 10
        )
    run(Mooncake(""), holdings(), staging, epoch=2)
    assert [staging.get(FP, key) is not None for key in "abc"] == [True, True, False]
    run(Mooncake(""), holdings(), staging)
    assert [staging.get(FP, key) is not None for key in "abc"] == [False, True, False]
    assert staging.bytes == 10


def test_many_blocks_are_removed_in_batches() -> None:
    names = [f"k{i}" for i in range(BATCH_BLOCKS + 1)]
    store = Mooncake(names)
    assert run(store, holdings(**dict.fromkeys(names, ("evil", 1)))).removed == len(names)
    assert store.calls == [BATCH_BLOCKS, 1]


def run_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int, left: int, *origins: str
) -> Result:
    reply = engine_pb2.PurgeReply(removed=removed, left=left, origins=origins)
    monkeypatch.setattr("federation.cli.health.ask_purge", lambda *_, **__: reply)
    config = write_group(tmp_path, port_base=24000)
    return CliRunner().invoke(app, ["purge", "--origin", "evil", "-c", str(config)])


@pytest.mark.parametrize(
    ("removed", "left", "origins", "code", "says"),
    [
        (0, 0, ("east", "north"), 1, "origins known here: east, north"),
        (0, 0, (), 1, "origins known here: none"),
        (0, 0, ("evil",), 0, "removed 0 blocks"),
        (2, 0, (), 0, "removed 2 blocks"),
        (0, 3, ("evil",), 1, "3 are still there"),
    ],
)
def test_the_exit_code_tells_whether_there_was_anything_to_purge(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    removed: int,
    left: int,
    origins: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    done = run_purge(tmp_path, monkeypatch, removed, left, *origins)
    assert done.exit_code == code
    assert says in " ".join(done.output.split())
