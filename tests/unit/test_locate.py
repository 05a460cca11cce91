"""Where a chain is: what is told of each group, what is estimated, and what is said not to be known."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc
import grpc.aio
import pytest
from typer.testing import CliRunner

from federation.catalog.view import CatalogView
from federation.cli.locate import _ask
from federation.cli.main import app
from federation.config import Limits
from federation.errors import UsageError
from federation.identity import key_hash
from federation.peers.subscriptions import NOT_SHARED
from federation.request_limits import RequestLimits
from federation.router import KEYS_MAX, Located, Router, RouterError
from federation.transfer.locating import NO_VIEW, NOT_TRACKED, Locator, RouterService
from federation.transfer.speed import Speeds
from local_group.holdings import OWN, Held
from moonmesh.v1 import engine_pb2
from tests.support.catalogs import view_of
from tests.support.federation import ENVELOPE, FINGERPRINT
from tests.support.group_toml import GOOD, write
from tests.support.links import FakeLink

CHAIN = [f"block-{n}" for n in range(100)]


def held(size: int) -> Held:
    return Held(size, bytes(16), OWN, 0, 0, 0.0)


class Bench:
    """A group that has the first blocks of `CHAIN`, and its peers."""

    def __init__(self, own: int = 0, tracked: bool = True) -> None:
        self.own = {key: held(1000) for key in CHAIN[:own]}
        self.peers: list[tuple[FakeLink, CatalogView | None]] = []
        self.speeds = Speeds(rate_max=1e9)
        self.block_seconds: float | None = None
        self.locator = Locator(
            group="east",
            tracked=frozenset([FINGERPRINT] if tracked else []),
            held=lambda fingerprint, key: self.own.get(key),
            followed=lambda fingerprint: self.peers,
            seconds=self.speeds.seconds,
            block_seconds=lambda fingerprint: self.block_seconds,
        )

    def peer(self, name: str, blocks: int, usable: bool = True, reason: str = "") -> CatalogView:
        view = view_of(key_hash(FINGERPRINT, key) for key in CHAIN[:blocks])
        link = FakeLink(name)
        link.alive, link.reason = usable, reason
        self.peers.append((link, view))
        return view

    def locate(self, now: float = 0.0) -> dict[str, Located]:
        found = self.locator.locate(FINGERPRINT, CHAIN, now)
        return {each.group: Located.told(each) for each in found}


def test_of_each_group_the_leading_run_is_told() -> None:
    bench = Bench(own=10)
    bench.peer("west", 70)
    bench.peer("north", 0)
    found = bench.locate(now=0.25)
    assert list(found) == ["east", "west", "north"]
    assert [each.blocks for each in found.values()] == [10, 70, 0]
    assert [each.own for each in found.values()] == [True, False, False]
    assert (found["east"].bytes, found["east"].bytes_estimated) == (10_000, False)
    assert (found["west"].age_ms, found["east"].age_ms) == (250, None)
    assert found["east"].pull_ms == 0
    assert all(each.usable for each in found.values())


def test_a_run_ends_at_its_first_gap() -> None:
    bench = Bench(own=10)
    del bench.own[CHAIN[4]]
    view = bench.peer("west", 70)
    view.refute(key_hash(FINGERPRINT, CHAIN[6]), 0.0)
    found = bench.locate()
    assert (found["east"].blocks, found["west"].blocks) == (4, 6)


def test_bytes_of_a_peer_are_estimated_from_blocks_that_came_or_else_from_our_own() -> None:
    bench = Bench(own=10)
    view = bench.peer("west", 70)
    assert (bench.locate()["west"].bytes, bench.locate()["west"].bytes_estimated) == (70_000, True)
    view.came(2000)
    view.came(4000)
    assert bench.locate()["west"].bytes == 70 * 3000


def test_what_nothing_tells_is_not_known() -> None:
    bench = Bench()
    bench.peer("west", 70)
    west = bench.locate()["west"]
    assert (west.blocks, west.bytes, west.pull_ms) == (70, None, None)


def test_the_cost_of_a_pull_goes_by_how_pulls_of_that_peer_went() -> None:
    bench = Bench(own=1)
    bench.peer("west", 70)
    bench.peer("north", 70)
    timed = bench.speeds.begin("west", 10.0)
    timed.came(1000, 10.2)
    timed.came(9000, 10.5)
    timed.done()
    found = bench.locate(now=11.0)
    assert found["west"].pull_ms == pytest.approx(200 + (70_000 - 1000) / 30_000 * 1000)
    assert found["north"].pull_ms is None


def test_blocks_whose_size_only_a_listing_could_tell_are_taken_as_the_others() -> None:
    bench = Bench(own=4)
    bench.own[CHAIN[1]] = held(0)
    east = bench.locate()["east"]
    assert (east.blocks, east.bytes, east.bytes_estimated) == (4, 4000, True)
    bench.own = {key: held(0) for key in bench.own}
    assert bench.locate()["east"].bytes is None


def test_a_group_of_which_nothing_is_known_says_why() -> None:
    bench = Bench(tracked=False)
    bench.peers.append((FakeLink("west"), None))
    bench.peers.append((FakeLink("north"), CatalogView(blocks_max=10)))
    bench.peer("south", 3, usable=False, reason="connection refused")
    found = bench.locate()
    assert [each.blocks for each in found.values()] == [None, None, None, 3]
    assert found["east"].reason == NOT_TRACKED
    assert found["west"].reason == found["north"].reason == NO_VIEW
    assert (found["south"].usable, found["south"].reason) == (False, "connection refused")


def test_why_a_catalog_cannot_be_had_is_said_with_what_is_known_of_it() -> None:
    bench = Bench()
    never, before = CatalogView(blocks_max=10), bench.peer("north", 3)
    bench.peers.append((FakeLink("west"), never))
    never.trouble, before.trouble = f"{NOT_SHARED} (why)", "no connection"
    found = bench.locate()
    assert (found["west"].blocks, found["west"].reason) == (None, f"{NOT_SHARED} (why)")
    assert (found["north"].blocks, found["north"].reason) == (3, "no connection")


def test_for_a_catalog_that_is_not_shared_nobody_waits() -> None:
    asked = []

    class Told:
        def locate(self, chain: list[str]) -> list[Located]:
            asked.append(chain)
            west = engine_pb2.Located(group="west", usable=True, reason=f"{NOT_SHARED} (why)")
            return [Located.told(west)]

    assert _ask(Told(), ["a"], 60.0)[0].blocks is None  # type: ignore[arg-type]
    assert len(asked) == 1


def test_what_computing_a_run_takes_goes_by_the_namespace() -> None:
    bench = Bench(own=10)
    bench.peer("west", 70)
    assert [each.compute_ms for each in bench.locate().values()] == [None, None]
    bench.block_seconds = 0.05
    bench.peers.append((FakeLink("north"), None))
    assert [each.compute_ms for each in bench.locate().values()] == [500, 3500, None]


# Over a socket


class Gateway:
    """The service on a socket of its own, with what it was asked."""

    def __init__(self, bench: Bench, limits: Limits) -> None:
        self.touched: list[bytes] = []
        self.service = RouterService(
            locator=bench.locator,
            namespaces=frozenset([FINGERPRINT]),
            touch=self.touched.append,
            limits=limits,
        )


@pytest.fixture
def bench() -> Bench:
    bench = Bench(own=10)
    bench.peer("west", 70)
    return bench


async def serve(gateway: Gateway, socket: Path) -> grpc.aio.Server:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((gateway.service.handlers(),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server


async def ask(router: Router, keys: list[str]) -> list[Located]:
    return await asyncio.to_thread(router.locate, keys)


@pytest.mark.parametrize("piece", [7, 10, 50, 70, 4096])
async def test_a_long_chain_is_asked_for_in_pieces(
    bench: Bench, tmp_path: Path, piece: int
) -> None:
    gateway = Gateway(bench, Limits(engine_request_keys_max=piece))
    server = await serve(gateway, tmp_path / "s")
    limits = RequestLimits(keys=piece)
    try:
        with Router(f"unix:{tmp_path / 's'}", ENVELOPE, limits=limits) as router:
            found = await ask(router, CHAIN)
    finally:
        await server.stop(None)
    assert [(each.group, each.blocks, each.bytes) for each in found] == [
        ("east", 10, 10_000),
        ("west", 70, 70_000),
    ]
    assert set(gateway.touched) == {FINGERPRINT}


async def test_what_is_refused_is_said(bench: Bench, tmp_path: Path) -> None:
    gateway = Gateway(bench, Limits(engine_request_keys_max=5))
    server = await serve(gateway, tmp_path / "s")
    target = f"unix:{tmp_path / 's'}"
    other = ENVELOPE.model_copy(update={"revision": "2"})
    try:
        with Router(target, ENVELOPE) as router:
            assert (await ask(router, CHAIN[:5]))[0].blocks == 5
            with pytest.raises(RouterError, match="6 keys; between 1 and 5 fit"):
                await ask(router, CHAIN[:6])
            with pytest.raises(RouterError, match="a key over 1024 bytes"):
                await ask(router, ["k" * 1025])
        with (
            Router(target, other) as router,
            pytest.raises(RouterError, match="no peer imports or exports this namespace"),
        ):
            await ask(router, CHAIN[:1])
        gateway.service = gateway.service.only_for(lambda context: False)
    finally:
        await server.stop(None)
    server = await serve(gateway, tmp_path / "s")
    try:
        with (
            Router(target, ENVELOPE) as router,
            pytest.raises(RouterError, match="for engines of this group"),
        ):
            await ask(router, CHAIN[:1])
    finally:
        await server.stop(None)


def test_chains_that_cannot_be_are_not_asked_for(tmp_path: Path) -> None:
    with Router(f"unix:{tmp_path / 'nobody'}", ENVELOPE) as router:
        for keys in ([], ["k"] * (KEYS_MAX + 1)):
            with pytest.raises(RouterError, match="a chain has 1 to"):
                router.locate(keys)
        with pytest.raises(RouterError, match="the gateway does not answer: unavailable"):
            router.locate(["k"])


# The command line


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    asked: list[list[str]] = []

    def told(self: Router, keys: list[str], timeout: float = 1.0) -> list[Located]:
        asked.append(list(keys))
        own = engine_pb2.Located(
            group="east", own=True, blocks=1, bytes=2048, compute_ms=300.0, usable=True
        )
        west = engine_pb2.Located(
            group="west", blocks=2, bytes=3 << 20, bytes_estimated=True, age_ms=12.4, usable=True
        )
        north = engine_pb2.Located(group="north", usable=True, reason=NO_VIEW)
        # Its catalog comes in the end.
        if len(asked) == 3:
            north = engine_pb2.Located(group="north", blocks=0, bytes=0, pull_ms=0.0, usable=True)
        return [Located.told(each) for each in (own, west, north)]

    monkeypatch.setattr(Router, "locate", told)
    return asked


def run(*arguments: str, input: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["locate", *arguments], input=input)
    if isinstance(done.exception, UsageError):
        return done.exception.exit_code, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_the_command_waits_for_catalogs_and_shows_a_line_a_group(
    tmp_path: Path, answers: list[list[str]]
) -> None:
    config = str(write(tmp_path, GOOD))
    code, text = run("-c", config, "a", "b", "c")
    lines = text.splitlines()
    assert code == 0
    assert answers == [["a", "b", "c"]] * 3
    assert "of 3 blocks" in lines[0]
    assert lines[1].split() == [
        "east",
        "(this",
        "one)",
        "1",
        "2.0",
        "KiB",
        "itself",
        "-",
        "~300.0",
        "ms",
    ]
    assert lines[2].split() == ["west", "2", "~3.0", "MiB", "12", "ms", "ago", *["unknown"] * 2]
    assert lines[3].split() == ["north", "0", "0", "B", "unknown", "~0.0", "ms", "unknown"]


def test_keys_come_from_standard_input_and_answers_as_json(
    tmp_path: Path, answers: list[list[str]]
) -> None:
    config = str(write(tmp_path, GOOD))
    arguments = ("-c", config, "--keys-file", "-", "--json", "--wait", "0")
    code, text = run(*arguments, input="a\nb\n\n")
    assert code == 0
    assert answers == [["a", "b"]]
    told = json.loads(text)
    assert told["keys"] == 2
    assert [each["blocks"] for each in told["groups"]] == [1, 2, None]
    assert told["groups"][2]["reason"] == NO_VIEW


def test_what_cannot_be_asked_for_is_a_usage_error(
    tmp_path: Path, answers: list[list[str]]
) -> None:
    config = str(write(tmp_path, GOOD))
    keys = tmp_path / "keys"
    keys.write_text("k\n" * (KEYS_MAX + 1))
    for arguments, what in (
        ([], "give the chain's keys"),
        (["a", "--keys-file", "-"], "give the chain's keys"),
        (["a", "--namespace", "other"], "no namespace 'other' here"),
        (["--keys-file", str(tmp_path / "none")], "cannot be read"),
        (["--keys-file", str(keys)], "65537 keys; a chain has 1 to 65536"),
        (["k" * 1025], "a key over 1024 bytes (number 1 of the chain)"),
        ([""], "an empty key (number 1 of the chain)"),
    ):
        code, text = run("-c", config, *arguments)
        assert (code, what in text) == (2, True), (arguments, text)
    assert answers == []
