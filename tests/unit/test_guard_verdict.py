"""What a call proves about its peer, and what it does not."""

from __future__ import annotations

import random

import pytest

from federation.limits.names import BLAMELESS, Failure, GuardName, Kind
from federation.limits.pulse import Pulse
from federation.limits.verdict import Verdicts
from local_group.breaker import BreakerLimits, BreakerState

SILENCE, STALL = 0.3, 3.0
HONESTY_PULLS, HONESTY_BLOCKS_MIN = 24, 16
LIMITS = BreakerLimits(failures=3, window=20, open_s=1.0, open_max_s=8.0, jitter=0.0)


def verdicts(*off: GuardName, doubt_s: float = 0.0) -> Verdicts:
    return Verdicts(
        LIMITS,
        random.Random(1),
        Pulse(SILENCE, STALL),
        slow_s=2.0,
        slow_rate=1000,
        dishonest=0.5,
        honesty_pulls=HONESTY_PULLS,
        honesty_blocks_min=HONESTY_BLOCKS_MIN,
        doubt_s=doubt_s,
        doubt_every_s=60.0,
        off=frozenset(off),
    )


def pull(found: Verdicts, failure: Failure | None, now: float = 0.0, **facts: float) -> None:
    """One call, begun and ended at `now`; a timeout after just the silence that counts."""
    began = now - SILENCE if failure is Failure.TIMEOUT else now
    probe = found.begin(Kind.PULL, began)
    facts.setdefault("seconds", 0.1)
    found.end(Kind.PULL, failure, now, began=began, probe=probe, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", [f for f in Failure if f not in BLAMELESS])
def test_each_kind_of_failure_opens_it_at_the_limit_and_not_before(failure: Failure) -> None:
    found = verdicts()
    for _ in range(LIMITS.failures - 1):
        pull(found, failure)
    assert found.wait(Kind.PULL, 0.0) == 0
    pull(found, failure)
    assert found.wait(Kind.PULL, 0.0) == pytest.approx(1.0)
    assert found.failures == {failure: LIMITS.failures}


@pytest.mark.parametrize("failure", sorted(BLAMELESS))
def test_what_is_not_the_peers_doing_never_opens_it(failure: Failure) -> None:
    found = verdicts()
    for _ in range(50):
        pull(found, failure)
    assert found.state(0.0) is BreakerState.CLOSED


def test_a_pull_that_ended_well_but_too_slowly_is_a_failure() -> None:
    found = verdicts()
    pull(found, None, seconds=2.0, moved=2000)
    pull(found, None, seconds=1.99, moved=0)
    assert found.failures == {}
    pull(found, None, seconds=2.0, moved=1999)
    assert found.failures == {Failure.SLOW: 1}


def test_a_pull_that_was_given_up_tells_of_a_slow_peer_too() -> None:
    found = verdicts()
    pull(found, Failure.OURS, seconds=5.0, moved=5)
    assert found.failures == {Failure.SLOW: 1}


def timed_out(found: Verdicts, began: float, now: float) -> None:
    """A pull whose deadline passed at `now`."""
    probe = found.begin(Kind.PULL, began)
    found.end(Kind.PULL, Failure.TIMEOUT, now, began=began, probe=probe, seconds=now - began)


def test_a_passed_deadline_counts_from_the_silence_on() -> None:
    found = verdicts()
    timed_out(found, 0.0, SILENCE - 0.01)
    assert found.failures == {Failure.OURS: 1}
    timed_out(found, 0.0, SILENCE)
    assert found.failures[Failure.TIMEOUT] == 1


def test_any_byte_of_any_answer_ends_the_silence() -> None:
    found = verdicts()
    found.pulse.heard(0.75)
    timed_out(found, 0.0, 1.0)
    assert found.failures == {Failure.OURS: 1}
    timed_out(found, 0.0, 0.75 + SILENCE)
    assert found.failures[Failure.TIMEOUT] == 1


def test_signs_of_life_do_not_excuse_a_peer_that_never_sends_a_block() -> None:
    found = verdicts()
    now = 0.0
    while found.state(now) is BreakerState.CLOSED and now < 60:
        found.pulse.heard(now + 0.3)  # a hello is answered, a byte trickles in
        timed_out(found, now, now + 0.32)
        now += 0.32
    assert STALL <= now < STALL + 3 * 0.32 + 0.01
    assert found.failures[Failure.TIMEOUT] == LIMITS.failures


def test_a_peer_that_is_of_use_is_not_cut_off_by_callers_in_a_hurry() -> None:
    found = verdicts()
    for n in range(1000):
        found.pulse.useful(0.1 * n + 0.2)  # for a caller with more time
        timed_out(found, 0.1 * n, 0.1 * n + 0.32)
    assert found.state(100.0) is BreakerState.CLOSED
    assert set(found.failures) == {Failure.OURS}


def test_time_without_a_pull_is_not_fruitless() -> None:
    found = verdicts()
    found.begin(Kind.PULL, 0.0)
    found.pulse.useful(0.1)
    found.end(Kind.PULL, None, 0.1, began=0.0, probe=False, seconds=0.1)
    for minute in range(1, 5):
        found.pulse.heard(60.0 * minute + 0.2)
        timed_out(found, 60.0 * minute, 60.0 * minute + 0.35)
    assert found.failures == {Failure.OURS: 4}
    found.pulse.heard(300.0)
    assert not found.pulse.to_blame(300.0, 300.1), "nor where none is open now"


def test_pulls_that_are_open_together_are_fruitless_for_the_time_of_one() -> None:
    found = verdicts()
    for n in range(10):
        found.begin(Kind.PULL, n / 100)
    found.pulse.heard(0.9)
    for n in range(10):
        found.end(Kind.PULL, Failure.TIMEOUT, 1.0, began=n / 100, probe=False)
    assert found.failures == {Failure.OURS: 10}
    found.begin(Kind.PULL, 9.0)
    found.pulse.heard(9.0 + STALL - 1.0)
    assert not found.pulse.to_blame(9.0, 9.0 + STALL - 1.0 - 0.01)
    assert found.pulse.to_blame(9.0, 9.0 + STALL - 1.0 + 0.01)


def test_heard_anew_an_open_breaker_lets_one_probe_pass_and_no_more() -> None:
    found = verdicts()
    for _ in range(3):
        pull(found, Failure.ERROR)
    assert not found.second_chance(5.0), "it is half-open by itself"
    assert found.begin(Kind.PULL, 5.0)
    found.end(Kind.PULL, Failure.ERROR, 5.0, began=5.0, probe=True)
    assert found.wait(Kind.PULL, 5.1) == pytest.approx(1.9)
    assert found.second_chance(5.1)
    assert found.state(5.1) is BreakerState.HALF_OPEN, "not closed"
    assert found.wait(Kind.PULL, 5.1) == 0
    assert found.begin(Kind.PULL, 5.1)
    assert found.wait(Kind.PULL, 5.1) > 0, "one probe"
    found.end(Kind.PULL, Failure.ERROR, 5.2, began=5.15, probe=True)
    assert found.wait(Kind.PULL, 5.2) == pytest.approx(4.0), "the back-off was kept, and doubles"


def test_a_peer_that_bounces_gets_a_second_chance_once_in_a_while() -> None:
    found = verdicts()
    for _ in range(3):
        pull(found, Failure.ERROR)
    chances = 0
    for tenth in range(1, 101):
        now = tenth / 10
        chances += found.second_chance(now)  # a new epoch ten times a second
        if found.wait(Kind.PULL, now) == 0:
            probe = found.begin(Kind.PULL, now)
            found.end(Kind.PULL, Failure.ERROR, now + 0.01, began=now, probe=probe)
    assert 5 <= chances <= 10 / LIMITS.open_s


def test_a_closed_breaker_has_no_use_for_a_second_chance() -> None:
    found = verdicts()
    assert not found.second_chance(0.0)
    assert found.state(0.0) is BreakerState.CLOSED


def test_failures_far_apart_are_no_outage() -> None:
    found = verdicts()
    for hour in range(20):
        pull(found, Failure.ERROR, 3600.0 * hour)
    assert found.state(3600.0 * 20) is BreakerState.CLOSED


def test_a_liar_is_found_out_after_enough_promises() -> None:
    found = verdicts()
    for _ in range(HONESTY_BLOCKS_MIN - 1):
        pull(found, None, promised=1, kept=0)
    assert found.failures == {}
    pull(found, None, promised=1, kept=0)
    assert found.failures == {Failure.DISHONEST: 1}


def test_who_loses_all_at_once_is_excused_for_a_moment() -> None:
    found = verdicts(doubt_s=2.0)
    for n in range(200):  # until it has listed what is left, and its catalog says so
        pull(found, None, 100.0 + n / 100, promised=10, kept=0)
    assert found.failures == {}
    for n in range(200):
        pull(found, None, 103.0 + n, promised=10, kept=10)
    assert found.failures == {}
    assert found.state(400.0) is BreakerState.CLOSED


def test_who_goes_on_claiming_what_is_not_there_is_cut_off_after_that_moment() -> None:
    found = verdicts(doubt_s=2.0)
    now = 0.0
    while found.wait(Kind.PULL, now) == 0 and now < 60:
        pull(found, None, now, promised=10, kept=0)
        now += 0.05
    assert 2.0 <= now < 2.6
    # And gets the next moment a minute later, not before.
    for n in range(1000):
        pull(found, None, 3.0 + n / 20, promised=10, kept=0)
    assert found.failures[Failure.DISHONEST] > 900


def test_half_of_the_promises_kept_is_enough() -> None:
    found = verdicts()
    for _ in range(100):
        pull(found, None, promised=10, kept=5)
    assert found.failures == {}
    pull(found, None, promised=10, kept=4)
    assert found.failures == {Failure.DISHONEST: 1}


def test_one_evicted_chain_of_an_honest_peer_is_no_lie() -> None:
    found = verdicts()
    for _ in range(HONESTY_PULLS):
        pull(found, None, promised=10, kept=10)
    pull(found, None, promised=100, kept=0)
    assert found.failures == {}


def test_old_promises_are_forgotten() -> None:
    found = verdicts(GuardName.BREAKER)
    for _ in range(HONESTY_PULLS):
        pull(found, None, promised=10, kept=0)
    assert found.broken_share == 1
    for _ in range(HONESTY_PULLS):
        pull(found, None, promised=10, kept=10)
    assert found.broken_share == 0
    assert (found._promised, found._broken) == (10 * HONESTY_PULLS, 0)


def test_half_open_lets_one_probe_pass_and_its_verdict_decides() -> None:
    found = verdicts()
    for _ in range(3):
        pull(found, Failure.ERROR)
    assert found.wait(Kind.PULL, 0.5) == pytest.approx(0.5)
    assert found.wait(Kind.PULL, 1.0) == 0
    assert found.begin(Kind.PULL, 1.0), "it is the probe"
    assert found.wait(Kind.PULL, 1.0) > 0, "and the only one"
    found.end(Kind.PULL, Failure.ERROR, 1.0, began=1.0, probe=True)
    assert found.wait(Kind.PULL, 1.0) == pytest.approx(2.0), "back-off doubles"
    pull(found, None, 3.0)
    assert found.state(3.0) is BreakerState.CLOSED


def test_a_call_from_before_the_opening_decides_nothing() -> None:
    found = verdicts()
    for _ in range(3):
        pull(found, Failure.ERROR)
    probe = found.begin(Kind.PULL, 1.0)
    # It began before the breaker opened, and ends while the probe is out.
    found.end(Kind.PULL, None, 1.0, began=0.0, probe=False)
    assert found.state(1.0) is BreakerState.HALF_OPEN
    found.end(Kind.PULL, Failure.ERROR, 1.0, began=0.0, probe=False)
    assert found.state(1.0) is BreakerState.HALF_OPEN
    found.end(Kind.PULL, Failure.OURS, 1.0, began=0.0, probe=False)
    assert found.wait(Kind.PULL, 1.0) > 0, "the probe is still out"
    found.end(Kind.PULL, None, 1.0, began=1.0, probe=probe)
    assert found.state(1.0) is BreakerState.CLOSED


def test_a_probe_that_proved_nothing_makes_room_for_the_next() -> None:
    found = verdicts()
    for _ in range(3):
        pull(found, Failure.ERROR)
    pull(found, Failure.SHED, 1.0)
    assert found.wait(Kind.PULL, 1.0) == 0


def test_catalogs_wait_while_it_is_open_and_are_no_probes() -> None:
    found = verdicts()
    for _ in range(3):
        found.end(Kind.CATALOG, Failure.PROTOCOL, 0.0, began=0.0, probe=False)
    assert found.wait(Kind.CATALOG, 0.5) == pytest.approx(0.5)
    assert found.wait(Kind.CATALOG, 1.0) == 0
    assert not found.begin(Kind.CATALOG, 1.0)
    found.end(Kind.CATALOG, None, 1.0, began=1.0, probe=False)
    assert found.state(1.0) is BreakerState.HALF_OPEN, "a catalog does not show that blocks come"
    assert found.wait(Kind.PULL, 1.0) == 0, "and takes no probe"
    assert found.begin(Kind.PULL, 1.0)
    found.end(Kind.CATALOG, Failure.OURS, 1.0, began=1.0, probe=False)
    assert found.wait(Kind.PULL, 1.0) > 0, "nor does it make room for another"


@pytest.mark.parametrize("failure", [Failure.UNREACHABLE, Failure.TIMEOUT, Failure.ERROR])
def test_a_catalog_that_does_not_come_is_left_to_gossip(failure: Failure) -> None:
    found = verdicts()
    for _ in range(10):
        found.end(Kind.CATALOG, failure, 0.0, began=0.0, probe=False)
    assert found.state(0.0) is BreakerState.CLOSED


def test_hellos_pass_always_and_prove_nothing() -> None:
    found = verdicts()
    for _ in range(10):
        found.end(Kind.HELLO, Failure.UNREACHABLE, 0.0, began=0.0, probe=False)
    assert found.state(0.0) is BreakerState.CLOSED
    for _ in range(3):
        pull(found, Failure.ERROR)
    assert found.wait(Kind.HELLO, 0.0) == 0


def test_what_no_call_ended_with_can_be_noted() -> None:
    found = verdicts()
    for _ in range(3):
        found.note(Failure.PROTOCOL, 0.0)
    assert found.state(0.0) is BreakerState.OPEN


def test_switched_off_it_lets_all_pass_and_still_counts() -> None:
    found = verdicts(GuardName.BREAKER)
    for _ in range(10):
        pull(found, Failure.DIGEST)
        found.note(Failure.PROTOCOL, 0.0)
    assert found.wait(Kind.PULL, 0.0) == 0
    assert found.state(0.0) is BreakerState.CLOSED
    assert found.failures == {Failure.DIGEST: 10, Failure.PROTOCOL: 10}


@pytest.mark.parametrize("guard", [GuardName.SLOW, GuardName.HONESTY])
def test_a_measure_that_is_switched_off_finds_nothing(guard: GuardName) -> None:
    found = verdicts(guard)
    for _ in range(100):
        if guard is GuardName.SLOW:
            pull(found, None, seconds=60.0, moved=1)
        else:
            pull(found, None, promised=10, kept=0)
    assert found.failures == {}
