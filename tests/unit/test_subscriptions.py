"""Views of peers: who is asked for what and when, and that it ends when nobody here is interested."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest

from federation.catalog.interest import Interest
from federation.catalog.prints import BITS_MAX
from federation.catalog.room import BYTES_PER_BLOCK
from federation.catalog.view import CatalogView
from federation.catalog.wire import FORM, position_to_wire
from federation.config import Limits
from federation.counters import counters
from federation.identity import Fingerprint
from federation.limits.names import Failure
from federation.peering import Sharing
from federation.peers.subscriptions import Subscriptions
from moonmesh.v1 import peer_pb2
from tests.support.links import FP, PAGE, FakeLink
from tests.support.wait import wait_for_async

MIB = 1 << 20


class Giant(FakeLink):
    """Claims more blocks than there can be, and never stops telling them."""

    async def tell(
        self, request: peer_pb2.CatalogRequest
    ) -> AsyncGenerator[peer_pb2.CatalogPage, None]:
        base, gap = 0, 1 << 14
        while True:
            self.pages += 1
            words = np.full(PAGE, gap - 1, dtype="<u2")
            words[0] = 0
            added = peer_pb2.Prints(base=base, width=2, gaps=words.tobytes())
            yield peer_pb2.CatalogPage(
                position=position_to_wire(self.log.position._replace(n=len(self.questions))),
                snapshot=True,
                form=FORM,
                bits=BITS_MAX,
                blocks=10**11,
                added=added,
            )
            base += PAGE * gap
            await asyncio.sleep(0)


def subscriptions(*owners: FakeLink, **limits: Any) -> Subscriptions:
    links = {owner.name: owner for owner in owners}
    imports = {owner.name: frozenset({FP}) for owner in owners}
    return Subscriptions(links, Sharing({}, imports), Limits(**limits))  # type: ignore[arg-type]


def view_of(followed: Subscriptions, name: str = "west") -> CatalogView | None:
    return next((view for peer, _, view in followed.views() if peer == name), None)


async def until_known(followed: Subscriptions, owner: FakeLink) -> CatalogView:
    def known() -> bool:
        """And it is asked what comes after."""
        view, position = view_of(followed, owner.name), owner.log.position
        asks = owner.open == 1 and owner.questions[-1].after == position_to_wire(position)
        return view is not None and view.position == position and asks

    await wait_for_async(known, 5, f"all of {owner.name}")
    view = view_of(followed, owner.name)
    assert view is not None
    return view


def test_a_namespace_is_in_use_for_a_while_after_it_was_asked_for() -> None:
    interest = Interest(10.0)
    assert not interest.lasts(FP, 0.0)
    interest.touch(FP, 0.0)
    assert interest.lasts(FP, 9.9)
    interest.touch(FP, 5.0)
    assert interest.lasts(FP, 14.9)
    assert not interest.lasts(FP, 15.0)
    assert not interest.lasts(FP, 14.0), "it is forgotten"


async def test_nobody_is_asked_before_somebody_here_is_interested() -> None:
    owner = FakeLink(blocks=10)
    followed = subscriptions(owner)
    followed.note_positions("west", [owner.hello()])
    await asyncio.sleep(0)
    assert followed.holders(FP) == []
    assert followed.known(FP) == [(owner, None)]
    assert followed.known(Fingerprint(b"o" * 16)) == []
    assert owner.questions == []


async def test_one_question_at_a_time_however_many_are_interested() -> None:
    owner = FakeLink(blocks=5000)
    followed = subscriptions(owner)
    for _ in range(50):
        followed.touch(FP)
        followed.note_positions("west", [owner.hello()])
        await asyncio.sleep(0)
    view = await until_known(followed, owner)
    assert len(view) == owner.prints(view)
    hashes = owner.add(30)
    await until_known(followed, owner)
    assert view.holds(np.sort(np.array(hashes, dtype=np.uint64))).all()
    assert owner.open_most == 1
    assert [request.HasField("after") for request in owner.questions] == [False, True, True]
    await followed.close()


async def test_what_nobody_uses_is_dropped_with_its_memory_and_begun_anew_later() -> None:
    owner = FakeLink(blocks=100)
    followed = subscriptions(owner)
    now = [0.0]
    followed._interest = Interest(60.0)
    clock = followed._interest.lasts
    followed._interest.lasts = lambda fp, _: clock(fp, now[0])  # type: ignore[method-assign]
    followed._interest._last[FP] = 0.0
    followed.touch(FP)
    followed._interest._last[FP] = 0.0
    await until_known(followed, owner)
    owner.add(1)
    await until_known(followed, owner)
    now[0] = 61.0
    owner.add(1)  # the question that was open is the last one
    await wait_for_async(lambda: view_of(followed) is None, 5, "the view to be dropped")
    asked = len(owner.questions)
    assert followed.holders(FP) == []
    assert owner.open == 0
    now[0] = 0.0
    followed.touch(FP)
    view = await until_known(followed, owner)
    assert len(view) == owner.prints(view)
    assert not owner.questions[asked].HasField("after")
    await followed.close()


async def test_after_a_loss_it_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("federation.peers.subscriptions.RETRY_SECONDS", (60.0, 60.0))
    owner = FakeLink(blocks=100)
    followed = subscriptions(owner)
    followed.touch(FP)
    await until_known(followed, owner)
    at = owner.log.position
    owner.breaks_at = 0
    owner.add(10)
    await wait_for_async(lambda: owner.open == 0 and len(owner.questions) == 2, 5, "the loss")
    owner.breaks_at = -1
    # It would wait for a minute. A hello that shows something newer ends that at once.
    followed.note_positions("west", [owner.hello()])
    view = await until_known(followed, owner)
    assert owner.questions[2].after == position_to_wire(at)
    assert len(view) == owner.prints(view)
    assert not owner.failures
    await followed.close()


async def test_who_is_too_far_behind_gets_all_anew() -> None:
    owner = FakeLink(blocks=100)
    followed = subscriptions(owner)
    followed.touch(FP)
    await until_known(followed, owner)
    owner.add(5000)
    view = await until_known(followed, owner)
    assert len(view) == owner.prints(view)
    owner.add(1)
    await until_known(followed, owner)
    await followed.close()


async def test_a_hello_that_shows_nothing_newer_confirms_a_view() -> None:
    owner = FakeLink(blocks=100)
    followed = subscriptions(owner)
    followed.touch(FP)
    view = await until_known(followed, owner)
    view.confirmed_at = time.monotonic() - 8
    followed.note_positions("west", [owner.hello()])
    age = view.age(time.monotonic())
    assert age is not None
    assert age < 1
    view.confirmed_at = time.monotonic() - 8
    newer = owner.hello()
    newer.position.n += 1
    followed.note_positions("west", [newer, peer_pb2.NamespacePosition(fingerprint=FP)])
    age = view.age(time.monotonic())
    assert age is not None
    assert age > 7, "the view is behind"
    await followed.close()


async def test_who_claims_all_there_is_gets_its_share_and_others_keep_theirs() -> None:
    modest = [FakeLink(name, blocks=20_000, seed=n) for n, name in enumerate("abc", 1)]
    large, giant = FakeLink("large", blocks=150_000, seed=8), Giant("giant", seed=9)
    followed = subscriptions(*modest, large, giant, views_bytes=2 * MIB)
    everything = 2 * MIB // BYTES_PER_BLOCK
    large_first = subscriptions(large, views_bytes=2 * MIB)
    large_first.touch(FP)
    view = await until_known(large_first, large)
    assert len(view) == large.prints(view), "alone it has room"
    await large_first.close()

    followed.touch(FP)
    for owner in modest:
        view = await until_known(followed, owner)
        assert (len(view), view.is_cut) == (owner.prints(view), False)
    await wait_for_async(lambda: len(giant.questions) > 1, 5, "the giant's share to be full")
    cut = await until_known(followed, large)
    evil = view_of(followed, "giant")
    assert evil is not None
    assert cut.is_cut
    assert evil.is_cut
    room = everything - 3 * view.blocks_max
    assert cut.blocks_max == pytest.approx(room / 2, abs=1)
    assert 0 < len(evil) <= evil.blocks_max
    assert giant.pages <= len(giant.questions) * (evil.blocks_max // PAGE + 2), (
        "and no more is read"
    )
    assert sum(each.blocks_max for _, _, each in followed.views()) <= everything
    assert sum(each.nbytes for _, _, each in followed.views()) <= 2 * MIB
    # What it had grows back once the other is gone.
    await followed.close()


async def test_a_view_that_was_cut_is_asked_for_anew_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("federation.peers.subscriptions.WHOLE_SECONDS", 0.0)
    large, giant = FakeLink("large", blocks=150_000, seed=8), Giant("giant", seed=9)
    followed = subscriptions(large, giant, views_bytes=2 * MIB)
    followed.touch(FP)
    view = await until_known(followed, large)
    await wait_for_async(lambda: view.is_cut, 5, "the view to be cut")
    task = followed._followed[("giant", FP)].task
    assert task is not None
    task.cancel()
    large.add(1)  # it is looked at with each answer
    await wait_for_async(lambda: len(view) == large.prints(view), 5, "all of it")
    assert not view.is_cut
    await followed.close()


async def test_all_anew_at_each_question_is_asked_for_ever_more_seldom() -> None:
    giant = Giant("giant", seed=9)
    followed = subscriptions(giant, views_bytes=MIB)
    followed.touch(FP)
    await wait_for_async(lambda: len(giant.questions) >= 4, 5, "some questions")
    began = time.monotonic()
    await wait_for_async(lambda: len(giant.questions) >= 5, 5, "the next one")
    assert time.monotonic() - began > 0.25
    await followed.close()


async def test_who_goes_on_promising_what_it_has_not_is_left_alone_by_its_breaker() -> None:
    """One in ten: far less than what ends a pull by itself."""
    owner = FakeLink(blocks=2000)
    followed = subscriptions(owner)
    followed.touch(FP)
    view = await until_known(followed, owner)
    before = counters.snapshot().get('moonmesh_catalog_standing_total{peer="west"}', 0)
    asked, lies = owner.hashes[:500], owner.hashes[:50]
    view.came(1000)
    for key_hash in asked:
        if key_hash in lies:
            view.refute(key_hash, time.monotonic() - 60, 1000)
        else:
            view.came(1000)
    # Those that were a view's age are taken back with the answer by which the others are judged.
    owner.log.remove(lies[0])
    owner.changed.set()
    guard = owner.guard
    await wait_for_async(lambda: guard.breaker(time.monotonic()) == "open", 5, "its breaker")
    assert view.position == owner.log.position
    assert guard.status(time.monotonic())["failures"] == {"dishonest": 5}
    assert [error.failure for error in owner.blamed] == [Failure.DISHONEST.value]
    after = counters.snapshot()['moonmesh_catalog_standing_total{peer="west"}']
    assert after - before == 49
    assert view.honesty.standing == 49
    await followed.close()


async def test_an_honest_peer_that_loses_blocks_keeps_its_breaker_closed() -> None:
    owner = FakeLink(blocks=2000)
    followed = subscriptions(owner)
    followed.touch(FP)
    view = await until_known(followed, owner)
    view.came(1000)
    for key_hash in owner.hashes[:1000]:
        view.refute(key_hash, time.monotonic() - 60, 1000)
        owner.log.remove(key_hash)
    owner.changed.set()
    await until_known(followed, owner)
    assert owner.guard.breaker(time.monotonic()) == "closed"
    assert view.honesty.standing <= 2, "of those that look like one that is held"
    await followed.close()


async def test_of_a_catalog_that_is_larger_than_a_peer_may_send_as_much_is_read() -> None:
    owner = FakeLink(blocks=600_000)
    followed = subscriptions(owner, peer_catalog_bytes=MIB)
    followed.touch(FP)
    view = await until_known(followed, owner)
    assert view.is_cut
    assert MIB // 2.3 < len(view) < MIB // 2.1
    assert owner.pages * PAGE * 2 < MIB
    await followed.close()
