"""A peer that lies about some of its blocks, and goes on promising them: seen, told, and left alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chaos.hostile.peer import Behaviour
from tests.support.federation import Federation, HostileGroup
from tests.support.wait import wait_for

pytestmark = pytest.mark.real

STANDING = 'moonmesh_catalog_standing_total{peer="evil"}'
KEYS = [f"some-{i}" for i in range(160)]


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """One real group whose only peer is hostile. Its breaker stays open, once it is."""
    limits = {
        "catalog_wait_ms": 500,
        "peer_breaker_open_ms": 60_000,
        "peer_breaker_open_max_ms": 60_000,
    }
    folder = tmp_path_factory.mktemp("dishonest")
    with Federation(folder, ("good", "evil"), absent=["evil"], limits=limits) as federation:
        yield federation


@pytest.mark.parametrize(
    ("behaviour", "lies"), [(Behaviour.HONEST, False), (Behaviour.PATCHY, True)]
)
def test_who_lacks_a_quarter_and_takes_nothing_back_is_left_alone(
    victim: Federation, behaviour: Behaviour, lies: bool
) -> None:
    """A quarter is less than what ends a pull: `peer_dishonest_percent` is 50."""
    store = victim.engine("good", deadline_ms=3000)
    keys = [f"{behaviour.value}-{key}" for key in KEYS]
    with HostileGroup(victim, "evil", behaviour.value, keys) as evil:
        victim.wait_for_view("good", "evil", len(evil.claims))
        wait_for(lambda: victim.peer("good", "evil")["pullable"], 20, "evil to be heard")

        def promises() -> dict[str, Any]:
            (view,) = victim.peer("good", "evil")["views"]
            return dict(view["promises"])

        if not lies:
            wait_for(lambda: store.batch_is_exist(keys) == [1] * len(keys), 20, "all of them")
            assert promises()["broken"] == 0
            return
        wait_for(
            lambda: store.batch_is_exist(keys) and promises()["broken"] >= 20, 20, "broken promises"
        )
        wait_for(lambda: victim.counter("good", STANDING) >= 16, 20, "what stands to be counted")
        wait_for(
            lambda: victim.peer("good", "evil")["breaker"] == "open", 20, "the breaker to open"
        )
        peer = victim.peer("good", "evil")
        assert peer["guards"]["outgoing"]["failures"].get("dishonest", 0) >= 5
        assert promises()["standing_share"] > 0.05
        assert store.get("patchy-some-more") == b"", "and it is not asked"
