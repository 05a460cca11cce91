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


async def test_when_its_term_is_over_it_is_silent_until_there_is_another(tmp_path: Path) -> None:
    one = make(tmp_path)
    await one.begin()
    said: list[bool] = []
    ending = asyncio.create_task(one.over(lambda: said.append(one.valid())))
    await asyncio.sleep(0)
    assert not ending.done()
    assert one._term is not None
    await one._coordination.resign(one._term)  # as if it had been lost
    await asyncio.wait_for(ending, 5)
    assert said == [False], "silent once, before it leads again"
    assert (one.valid(), one.epoch) == (True, 2)
    await one.end()
