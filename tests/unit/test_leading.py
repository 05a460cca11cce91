"""A gateway leads before it speaks, follows without a term, and leads again when it can."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from federation import leading
from federation.config import load_group
from federation.leading import Leading, address_for_followers
from local_group.coordination.base import Leader
from local_group.process_errors import CoordinationError, Fenced
from tests.support.groups import write_group
from tests.support.wait import wait_for_async


class Gateway:
    """One gateway's terms, with what was told of them."""

    def __init__(self, folder: Path, port_base: int = 24000) -> None:
        self.problems: list[str] = []
        self.told: list[tuple[str, int]] = []
        path = write_group(folder, port_base=port_base)
        self.terms = Leading(load_group(path), self.problems.append)
        self.running: asyncio.Task[None] | None = None

    def run(self) -> None:
        self.running = asyncio.create_task(
            self.terms.run(
                lambda epoch: self.told.append(("leads", epoch)),
                lambda epoch: self.told.append(("follows", epoch)),
            )
        )

    async def lose(self) -> None:
        """As if its term had been lost."""
        assert self.terms._term is not None
        await self.terms._coordination.resign(self.terms._term)

    async def end(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        await self.terms.end()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "FIRST_TERM_S", 0.05)


async def test_it_leads_and_gives_it_up(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path), Gateway(tmp_path)
    assert (one.terms.valid(), one.terms.epoch) == (False, 0)
    await one.terms.start()
    assert (one.terms.valid(), one.terms.epoch) == (True, 1)
    await one.end()
    assert not one.terms.valid()
    await two.terms.start()
    assert (two.terms.valid(), two.terms.epoch) == (True, 2)
    await two.end()


async def test_a_second_one_follows_until_the_first_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    caplog.set_level(logging.INFO)
    one, two = Gateway(tmp_path), Gateway(tmp_path, 24100)
    await one.terms.start()
    assert await one.terms.leader() is None, "nobody else"
    await two.terms.start()
    assert "waiting for the term" in caplog.text
    two.run()
    assert await two.terms.leader() == Leader("127.0.0.1:24002", two.terms._coordination.address, 1)
    assert (two.terms.valid(), two.told) == (False, [])
    await one.end()
    await wait_for_async(lambda: two.told == [("leads", 2)], 5, "the second to lead")
    await two.end()


async def test_a_term_that_is_lost_is_told_and_another_follows(tmp_path: Path) -> None:
    one = Gateway(tmp_path)
    await one.terms.start()
    one.run()
    await asyncio.sleep(0)
    assert one.told == [], "the first one was told by start"
    await one.lose()
    await wait_for_async(lambda: len(one.told) == 2, 5, "its next term")
    assert one.told == [("follows", 1), ("leads", 2)]
    assert one.terms.valid()
    await one.end()


async def test_a_term_that_goes_on_in_a_higher_epoch_is_not_lost(tmp_path: Path) -> None:
    one = Gateway(tmp_path)
    await one.terms.start()
    one.run()
    assert await one.terms.above(40) == 41
    assert (one.terms.valid(), one.terms.epoch) == (True, 41)
    await wait_for_async(lambda: not one.terms._raising.locked(), 5, "it to be looked at")
    assert one.told == []
    await one.lose()
    await wait_for_async(lambda: len(one.told) == 2, 5, "its next term")
    assert one.told == [("follows", 41), ("leads", 42)]
    await one.end()


async def test_a_follower_cannot_raise_the_epoch(tmp_path: Path, impatient: None) -> None:
    one, two = Gateway(tmp_path), Gateway(tmp_path)
    await one.terms.start()
    await two.terms.start()
    with pytest.raises(Fenced, match="does not lead"):
        await two.terms.above(40)
    await two.end()
    await one.end()


async def test_the_leader_of_an_older_term_is_nobody(tmp_path: Path) -> None:
    one = Gateway(tmp_path)
    await one.terms.start()
    found = [Leader("a", "unix:a", 7), Leader("b", "unix:b", 6), Leader("b", "unix:b", 8)]

    async def leader() -> Leader:
        return found.pop(0)

    one.terms._coordination.leader = leader  # type: ignore[method-assign]
    assert [await one.terms.leader() for _ in range(3)] == [
        Leader("a", "unix:a", 7),
        None,
        Leader("b", "unix:b", 8),
    ]
    assert one.terms.known == Leader("b", "unix:b", 8)
    await one.end()


async def test_that_nobody_leads_is_a_problem_after_a_while_and_names_no_former_leader(
    tmp_path: Path,
) -> None:
    one, two = Gateway(tmp_path), Gateway(tmp_path)
    await two.terms.start()
    answers: list[Leader | None] = [Leader("a", "unix:a", 1)]

    async def leader() -> Leader | None:
        if answers:
            return answers.pop(0)
        raise CoordinationError("nobody answers")

    one.terms._coordination.leader = leader  # type: ignore[method-assign]
    await one.terms.leader()
    assert one.terms.known is not None
    late = time.monotonic() + leading.LEADERLESS_S + 1
    assert one.terms.problem(late) == ""
    await one.terms.leader()
    assert one.terms.known is None
    assert one.terms.newest == 1, "an older one is not believed later on"
    assert one.terms.problem(time.monotonic()) == ""
    assert one.terms.problem(late + 1).startswith("nobody is known to lead")
    answers.append(Leader("a", "unix:a", 1))
    await one.terms.leader()
    assert one.terms.problem(late + 2) == ""
    await two.end()
    await one.end()


async def test_one_that_can_no_longer_lead_goes_on_as_a_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "AGAIN_S", 0.01)
    one = Gateway(tmp_path)
    await one.terms.start()
    tries: list[int] = []
    campaign = one.terms._coordination.campaign

    async def damaged(floor: int = 0) -> object:
        tries.append(floor)
        if len(tries) < 3:
            raise CoordinationError("the epoch file is damaged")
        return await campaign(floor)

    one.terms._coordination.campaign = damaged  # type: ignore[assignment, method-assign]
    one.run()
    await one.lose()
    await wait_for_async(lambda: len(one.told) == 2, 5, "its next term")
    assert one.told == [("follows", 1), ("leads", 2)]
    assert tries == [1, 1, 1], "above the epoch that it had"
    assert one.problems == ["this gateway cannot lead: the epoch file is damaged"] * 2
    await one.end()


def test_followers_on_other_hosts_come_where_engines_do(tmp_path: Path) -> None:
    config = load_group(write_group(tmp_path, port_base=24000))
    assert address_for_followers(config) == f"unix:{tmp_path}/data/run/gateway.sock"
    gateway = config.gateway.model_copy(update={"engines_tcp": True})
    assert address_for_followers(config.model_copy(update={"gateway": gateway})) == (
        "127.0.0.1:24003"
    )


async def test_one_that_is_barred_stands_for_nothing(tmp_path: Path, impatient: None) -> None:
    one, two = Gateway(tmp_path), Gateway(tmp_path)
    found = ["another pool"]

    async def look() -> None:
        two.terms.bar(found[-1])

    await one.terms.start()
    await two.terms.start(look)
    two.run()
    await one.end()
    assert await two.terms._coordination.leader() is None
    three = Gateway(tmp_path)  # stands for the same term, has it, and gives it up
    await three.terms.start()
    three.run()
    await wait_for_async(three.terms.valid, 5, "another to lead")
    await three.end()
    assert await two.terms._coordination.leader() is None
    assert (two.terms.valid(), two.terms.barred, two.terms.role) == (
        False,
        "another pool",
        "neither leads nor follows",
    )
    found.append("")
    two.terms.bar("")
    await wait_for_async(lambda: two.told == [("leads", 3)], 5, "it to lead when it may")
    two.terms.bar("another pool")
    assert two.terms.valid(), "a term that it has goes on"
    await two.lose()
    await wait_for_async(lambda: two.told[-1] == ("follows", 3), 5, "the end of it")
    assert await two.terms._coordination.leader() is None
    await two.end()


async def test_one_that_waits_to_lead_stands_back_when_it_is_barred(
    tmp_path: Path, impatient: None
) -> None:
    one, two, three = Gateway(tmp_path), Gateway(tmp_path), Gateway(tmp_path)
    await one.terms.start()
    await two.terms.start()
    two.run()
    two.terms.bar("another pool")
    await one.end()
    await three.terms.start()
    assert (three.terms.valid(), two.told) == (True, [])
    await three.end()
    two.terms.bar("")
    await wait_for_async(lambda: two.told == [("leads", 3)], 5, "it to stand again")
    await two.end()


async def test_a_first_look_that_hangs_delays_it_no_longer_than_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(leading, "LAST_LOOK_S", 0.05)
    one = Gateway(tmp_path)
    await asyncio.wait_for(one.terms.start(asyncio.Event().wait), 5)  # type: ignore[arg-type]
    assert one.terms.valid()
    await one.end()


async def test_what_a_leader_publishes_others_read(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path), Gateway(tmp_path)
    with pytest.raises(Fenced):
        await one.terms.publish("pool", b"x")
    await one.terms.start()
    await one.terms.publish("pool", b"x")
    assert (await two.terms.published("pool"), await two.terms.published("else")) == (b"x", None)
    await one.end()


async def test_what_is_found_at_the_moment_of_a_takeover_ends_it(
    tmp_path: Path, impatient: None
) -> None:
    one, two, three = Gateway(tmp_path), Gateway(tmp_path), Gateway(tmp_path)
    looks: list[str] = []

    async def look() -> None:
        """Coordination was gone when it began: what there is against it is known later."""
        looks.append("looked")
        two.terms.bar("" if len(looks) == 1 else "another pool")

    await one.terms.start()
    await two.terms.start(look)
    two.run()
    await one.end()
    await wait_for_async(lambda: len(looks) == 2, 5, "it to win")
    await three.terms.start()
    assert three.terms.valid(), "the term was given up at once"
    assert (two.terms.valid(), two.told, two.terms.barred) == (False, [], "another pool")
    await three.end()
    await two.end()


async def test_a_look_that_hangs_delays_a_takeover_no_longer_than_so(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(leading, "LAST_LOOK_S", 0.05)
    one, two = Gateway(tmp_path), Gateway(tmp_path)
    await one.terms.start()
    await two.terms.start(asyncio.Event().wait)  # type: ignore[arg-type]
    two.run()
    await one.end()
    await wait_for_async(lambda: two.told == [("leads", 2)], 5, "the second to lead")
    await two.end()


async def test_one_that_ends_while_it_takes_over_leaves_no_lease_behind(
    tmp_path: Path, impatient: None
) -> None:
    one, two, three = Gateway(tmp_path), Gateway(tmp_path), Gateway(tmp_path)
    looking = asyncio.Event()

    async def look() -> None:
        if two.running is not None:
            looking.set()
            await asyncio.Event().wait()

    await one.terms.start()
    await two.terms.start(look)
    two.run()
    await one.end()
    await asyncio.wait_for(looking.wait(), 5)
    await two.end()
    await three.terms.start()
    assert three.terms.valid()
    await three.end()


async def test_one_that_stands_down_leads_no_more(tmp_path: Path) -> None:
    one, two = Gateway(tmp_path), Gateway(tmp_path)
    await one.terms.start()
    one.run()
    one.terms.bar("another pool")
    await one.terms.stand_down()
    await wait_for_async(lambda: one.told == [("follows", 1)], 5, "its end")
    assert not one.terms.valid()
    await two.terms.start()
    assert two.terms.valid()
    await two.end()
    one.terms.bar("")
    await wait_for_async(lambda: one.told[1:] == [("leads", 3)], 5, "it to stand again")
    await one.end()
