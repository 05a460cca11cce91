"""Catalogs that cannot be had: what is said of that, and when they are asked for again."""

from __future__ import annotations

import contextlib

import pytest

from federation.errors import PeerError
from federation.peers import subscriptions as module
from federation.peers.subscriptions import DENIED_SECONDS, NOT_SHARED, RETRY_SECONDS
from federation.peers.wire import DeniedError
from federation.timeouts import timeout
from tests.support.links import FP, FakeLink
from tests.support.wait import wait_for_async
from tests.unit.test_subscriptions import subscriptions, until_known, view_of


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of the waits between questions, as they begin."""
    begun: list[float] = []

    def recorded(seconds: float) -> contextlib.AbstractAsyncContextManager[None]:
        begun.append(seconds)
        return timeout(seconds)

    monkeypatch.setattr(module, "timeout", recorded)
    return begun


async def test_why_a_catalog_cannot_be_had_is_kept_until_it_can(pauses: list[float]) -> None:
    owner = FakeLink(blocks=100)
    owner.error = PeerError("nobody there")
    followed = subscriptions(owner)
    followed.touch(FP)
    await wait_for_async(lambda: len(pauses) == 2, 5, "two questions in vain")
    view = view_of(followed)
    assert view is not None
    assert view.trouble == "nobody there"
    assert max(pauses) <= RETRY_SECONDS[1]
    owner.error = None
    await until_known(followed, owner)
    assert view.trouble == ""
    await followed.close()


async def test_who_does_not_share_a_namespace_is_asked_seldom_until_its_hello_names_it(
    pauses: list[float],
) -> None:
    owner = FakeLink(blocks=100)
    owner.error = DeniedError("it refused: not yours")
    followed = subscriptions(owner)
    followed.touch(FP)
    await wait_for_async(lambda: len(pauses) == 1, 5, "the refusal")
    assert pauses[0] >= 0.8 * DENIED_SECONDS
    followed.touch(FP)
    followed.note_positions("west", [])
    view = view_of(followed)
    assert view is not None
    assert view.trouble.startswith(f"{NOT_SHARED} (it refused: not yours); `moonmesh namespaces`")
    assert len(owner.questions) == 1
    owner.error = None
    followed.note_positions("west", [owner.hello()])
    await until_known(followed, owner)
    assert view.trouble == ""
    await followed.close()


async def test_nothing_is_followed_once_it_is_closed() -> None:
    owner = FakeLink(blocks=10)
    followed = subscriptions(owner)
    followed.touch(FP)
    await until_known(followed, owner)
    await followed.close()
    followed.touch(FP)  # an engine that is still connected
    assert not list(followed.views())
