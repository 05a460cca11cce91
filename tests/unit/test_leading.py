"""A gateway leads before it speaks, and is silent once its term is over."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from federation import leading
from federation.config import load_group
from federation.leading import Leading
from tests.support.groups import write_group
from tests.support.wait import wait_for_async


def make(folder: Path) -> Leading:
    return Leading(load_group(write_group(folder, port_base=24000)))


async def test_it_leads_and_gives_it_up(tmp_path: Path) -> None:
    one, two = make(tmp_path), make(tmp_path)
    assert not one.valid()
    await one.begin()
    assert (one.valid(), one.epoch) == (True, 1)
    await one.end()
    assert not one.valid()
    await two.begin()
    assert two.epoch == 2
    await two.end()


async def test_it_says_that_it_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "SAY_AFTER_S", 0.05)
    caplog.set_level(logging.INFO)
    one, two = make(tmp_path), make(tmp_path)
    await one.begin()
    waiting = asyncio.create_task(two.begin())
    await wait_for_async(lambda: "waiting for the term" in caplog.text, 5, "a word")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await two.end()
    await one.end()


async def test_a_term_that_is_lost_is_told_and_another_can_follow(tmp_path: Path) -> None:
    one = make(tmp_path)
    await one.begin()
    losing = asyncio.create_task(one.lost())
    await asyncio.sleep(0)
    assert not losing.done()
    assert one._term is not None
    await one._coordination.resign(one._term)  # as if it had been lost
    await asyncio.wait_for(losing, 5)
    assert not one.valid()
    await one.begin()
    assert (one.valid(), one.epoch) == (True, 2)
    await one.end()


async def test_a_term_that_goes_on_in_a_higher_epoch_is_not_lost(tmp_path: Path) -> None:
    one = make(tmp_path)
    await one.begin()
    losing = asyncio.create_task(one.lost())
    assert await one.above(40) == 41
    assert (one.valid(), one.epoch) == (True, 41)
    assert one._term is not None
    await wait_for_async(lambda: not one._raising.locked(), 5, "it to be looked at")
    assert not losing.done()
    await one._coordination.resign(one._term)
    await asyncio.wait_for(losing, 5)
    await one.end()
