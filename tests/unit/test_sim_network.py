"""The simulator's clock and network: order, fates of messages, and equal runs from equal seeds."""

from __future__ import annotations

from random import Random

import pytest

from chaos.sim.clock import Clock
from chaos.sim.convergence import percentile
from chaos.sim.network import LATE_SECONDS, QUEUE_BYTES, Conditions, Network


def test_actions_run_in_the_order_of_their_times_then_of_their_calls() -> None:
    clock = Clock()
    ran: list[tuple[float, str]] = []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "late")):
        clock.at(when, lambda name=name: ran.append((clock.now, name)))
    clock.run(5.0)
    assert ran == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert (clock.now, len(clock)) == (5.0, 1)


def test_what_comes_of_an_action_is_run_too_and_the_past_is_now() -> None:
    clock = Clock()
    ran: list[float] = []

    def first() -> None:
        clock.at(clock.now + 1, lambda: ran.append(clock.now))
        clock.at(clock.now - 1, lambda: ran.append(clock.now))

    clock.at(1.0, first)
    clock.run(2.0)
    assert ran == [1.0, 2.0]


def network(**conditions: float) -> Network:
    return Network(Random(1), Conditions(delay=0.5, **conditions))


def test_a_calm_link_takes_its_delay() -> None:
    calm = network()
    assert calm.send("a", "b", 100, 3.0) == (3.5,)
    assert (calm.traffic.messages, calm.traffic.bytes, calm.traffic.lost) == (1, 100, 0)


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_so_many_messages_are_lost(share: float) -> None:
    lossy = network(loss=share)
    lost = sum(lossy.send("a", "b", 1, 0.0) == () for _ in range(10_000))
    assert abs(lost / 10_000 - share) < 0.02
    assert lossy.traffic.lost == lost


def test_jitter_repetition_and_overtaking_stay_within_their_bounds() -> None:
    rough = network(jitter=0.2, duplicated=0.3, overtaken=0.3)
    fates = [rough.send("a", "b", 1, 0.0) for _ in range(2000)]
    assert {len(fate) for fate in fates} == {1, 2}
    assert all(0.5 <= at <= 0.7 + 2 * LATE_SECONDS for fate in fates for at in fate)
    assert any(at > 0.7 for fate in fates for at in fate[:1])


def test_a_cut_is_of_one_direction_and_lasts_until_the_last_of_its_faults_ends() -> None:
    cut = network()
    for _ in range(2):
        cut.cut([("a", "b")])
    assert cut.send("a", "b", 1, 0.0) == ()
    assert cut.send("b", "a", 1, 0.0) == (0.5,)
    cut.heal([("a", "b")])
    assert cut.send("a", "b", 1, 0.0) == ()
    cut.heal([("a", "b")])
    cut.heal([("a", "b")])  # once too often: it does not make up for a later cut
    assert cut.send("a", "b", 1, 0.0) == (0.5,)
    cut.cut([("a", "b")])
    assert cut.send("a", "b", 1, 0.0) == ()


def test_what_waits_in_front_of_a_clogged_link_passes_when_it_is_clogged_no_more() -> None:
    clogged = network()
    clogged.link("a", "b").conditions = Conditions(
        delay=0.5, bytes_per_second=1000, clogged_until=1.5
    )
    assert clogged.send("a", "b", 1000, 0.0) == (1.5,)
    assert clogged.send("a", "b", 1000, 0.0) == (2.0,)
    assert clogged.send("a", "b", 100_000, 0.0) == (2.0,)


def test_a_clogged_link_passes_bytes_at_its_rate_and_loses_what_does_not_fit() -> None:
    clogged = network()
    clogged.link("a", "b").conditions = Conditions(delay=0.5, bytes_per_second=1000)
    assert clogged.send("a", "b", 1000, 0.0) == (1.5,)
    assert clogged.send("a", "b", 1000, 0.0) == (2.5,)
    assert clogged.send("a", "b", 1000, 1.0) == (3.5,)  # one second has passed meanwhile
    assert clogged.send("a", "b", QUEUE_BYTES, 1.0) == ()
    assert clogged.send("b", "a", 1000, 0.0) == (0.5,)
    assert clogged.traffic.queued_bytes_max <= QUEUE_BYTES
    clogged.heal_all()
    assert clogged.send("a", "b", 1000, 1.0) == (1.5,)


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7.0
