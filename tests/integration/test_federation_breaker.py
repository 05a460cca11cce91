"""A gateway that hangs in the midst of calls: who waits for it is let go, and nobody else waits."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.federation import Federation, read, write
from tests.support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.alone]
READERS = 8
PATIENCE = 5.0
"""Seconds that a reader would wait for peers."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("frozen")) as federation:
        yield federation


def test_a_frozen_gateway_costs_each_reader_one_short_wait_and_then_nothing(
    pair: Federation, record_property: object
) -> None:
    east = pair.store("east", federation_ms=int(1000 * PATIENCE))
    here = [f"here-{i}" for i in range(4)]
    write(east, here)
    waits: list[list[tuple[float, float]]] = [[] for _ in range(READERS)]
    ends = threading.Event()

    def work(n: int) -> None:
        count = 0
        while not ends.is_set():
            count += 1
            began = time.monotonic()
            tiers = read(east, [*here, f"nobody-{n}-{count}"])
            waits[n].append((began, time.monotonic() - began))
            assert tiers == ["local"] * len(here) + ["miss"], tiers

    readers = [threading.Thread(target=work, args=[n], daemon=True) for n in range(READERS)]
    for reader in readers:
        reader.start()
    wait_for(lambda: all(len(each) > 20 for each in waits), 20, "the readers")
    frozen = time.monotonic()
    pair.groups["east"].kill("gateway", signal.SIGSTOP)
    try:
        wait_for(lambda: east.stats()["federation"]["opened"], 5, "the breaker to open")
        opened = time.monotonic()
        wait_for(lambda: all(each[-1][0] > opened + 1.5 for each in waits), 20, "more reads")
        assert east.stats()["federation"]["breaker"] != "closed"
    finally:
        pair.groups["east"].kill("gateway", signal.SIGCONT)
        ends.set()
    for reader in readers:
        reader.join(10)
    during = [(at, took) for each in waits for at, took in each if at + took > frozen]
    long = [took for _, took in during if took > 0.1]
    later = [took for at, took in during if at > opened + 0.1]
    record_property(  # type: ignore[operator]
        "figure",
        f"a frozen gateway: {len(long)} of {len(during)} reads waited over 0.1 s, the longest "
        f"{1000 * max(took for _, took in during):.0f} ms; found out after {1000 * (opened - frozen):.0f} ms",
    )
    assert len(long) <= 2 * READERS, "one each, and a few that the machine held up"
    assert max(took for _, took in during) < 1.5, "not its deadline"
    assert sorted(later)[int(0.95 * len(later))] < 0.1, "then nobody waits"
    wait_for(lambda: east.stats()["federation"]["passes"], 5, "it to be taken back")
    keys = ["west-a", "west-b"]
    write(pair.engine("west"), keys)
    wait_for(lambda: read(east, keys) == ["peer", "peer"], 10, "blocks of peers")
