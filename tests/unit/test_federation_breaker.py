"""The federation's breaker, as an engine has it: a silent call is a reason to ask, not a verdict."""

from __future__ import annotations

import random

from federation.limits.federation import (
    ASK_SECONDS,
    DOUBT_SECONDS,
    LOOK_AGAIN_SECONDS,
    SLOW_PONGS,
    SLOW_SECONDS,
    SLOW_WITHIN_SECONDS,
    FederationBreaker,
)
from local_group.breaker import BreakerState

LATE = SLOW_SECONDS + 0.01


def made(*, doubts: bool = True) -> FederationBreaker:
    return FederationBreaker(random.Random(1), doubts=doubts)


def test_a_silent_call_is_asked_about_and_then_no_new_one_is_made() -> None:
    breaker = made()
    breaker.begin(1.0)
    assert not breaker.asks(1.0 + ASK_SECONDS - 0.001)
    assert breaker.asks(1.001 + ASK_SECONDS)
    assert breaker.passes(1.0 + DOUBT_SECONDS - 0.001)
    assert not breaker.passes(1.001 + DOUBT_SECONDS)
    assert breaker.state(1.2) is BreakerState.CLOSED, "nobody has found it gone yet"


def test_any_word_of_the_gateway_ends_the_doubt() -> None:
    breaker = made()
    slow, other = breaker.begin(1.0), breaker.begin(1.0)
    breaker.heard(other, 1.14)
    assert breaker.passes(1.2), "its peers may be slow"
    assert not breaker.passes(1.141 + DOUBT_SECONDS)
    breaker.answered(1.28, 1.29)
    assert breaker.passes(1.3)
    breaker.end(slow)
    breaker.end(other)
    assert breaker.passes(99.0), "nobody waits for anything"
    assert breaker.open == 0


def test_a_call_that_falls_silent_in_its_midst_is_asked_about_too() -> None:
    breaker = made()
    call = breaker.begin(1.0)
    breaker.heard(call, 1.01)
    assert not breaker.asks(1.02)
    assert breaker.asks(1.011 + ASK_SECONDS)


def test_no_answer_opens_it_and_those_that_wait_without_a_word_are_left() -> None:
    breaker = made()
    silent, lively = breaker.begin(1.0), breaker.begin(1.0)
    breaker.heard(lively, 1.29)
    assert breaker.left(1.3) == []
    breaker.lost(1.3)
    assert breaker.state(1.3) is BreakerState.OPEN
    assert breaker.left(1.3) == [silent]
    assert not breaker.passes(1.3)


def test_it_is_probed_with_bounded_pauses_and_closes_with_an_answer() -> None:
    breaker, now = made(), 1.0
    breaker.lost(now)
    for _ in range(20):
        pause = breaker.retry_in(now)
        assert 0 < pause <= LOOK_AGAIN_SECONDS
        now += pause
        assert breaker.may_probe(now)
        assert not breaker.passes(now), "nobody but the probe asks"
        breaker.lost(now)
    now += breaker.retry_in(now)
    breaker.answered(now, now + 0.01)
    assert breaker.passes(now + 0.01)
    assert breaker.opened == 21


def test_slow_answers_open_it_and_one_alone_does_not() -> None:
    breaker = made()
    for n in range(SLOW_PONGS - 1):
        breaker.answered(float(n), n + LATE)
    assert breaker.passes(5.0)
    breaker.answered(5.0, 5.0 + LATE)
    assert breaker.state(5.0 + LATE) is BreakerState.OPEN
    assert breaker.slow_pongs == SLOW_PONGS


def test_slow_answers_far_apart_prove_nothing() -> None:
    breaker = made()
    for n in range(10):
        breaker.answered(n * SLOW_WITHIN_SECONDS, n * SLOW_WITHIN_SECONDS + LATE)
    assert breaker.opened == 0


def test_one_that_is_slow_still_is_not_taken_back() -> None:
    breaker = made()
    breaker.lost(1.0)
    now = 1.0 + breaker.retry_in(1.0)
    breaker.answered(now, now + LATE)
    assert breaker.state(now + LATE) is BreakerState.OPEN
    now += LATE + breaker.retry_in(now + LATE)
    breaker.answered(now, now + SLOW_SECONDS)
    assert breaker.passes(now + SLOW_SECONDS)


def test_switched_off_for_a_test_it_knows_only_a_gateway_that_is_gone() -> None:
    breaker = made(doubts=False)
    breaker.begin(1.0)
    assert not breaker.asks(9.0)
    assert breaker.passes(9.0)
    for _ in range(SLOW_PONGS):
        breaker.answered(9.0, 9.0 + LATE)
    assert breaker.opened == 0
    breaker.lost(9.5)
    assert not breaker.passes(9.5)
