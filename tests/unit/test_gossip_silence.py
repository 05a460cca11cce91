"""Silence, seen from several groups: suspicion, witnesses, one-way links, and many groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossip.detector import Arrivals, LocalHealth, Silence
from gossip.events import LinkChanged, PeerDown, PeerSuspect, PeerUp
from gossip.membership import Link, PeerState
from gossip.probes import Probes
from gossip.version import Version
from tests.support.gossip import CONFIG, World, engine, says


def test_a_killed_group_is_suspect_then_down_by_two_observers() -> None:
    world = World("abcd")
    world.run(10)
    world.killed = {"d"}
    world.run(15)
    for name in "abc":
        assert world.state(name, "d") is PeerState.DOWN
        (suspect,) = world.happened(name, PeerSuspect)
        assert isinstance(suspect, PeerSuspect)
        assert 3.0 <= suspect.silence <= 6.0
        (down,) = world.happened(name, PeerDown)
        assert isinstance(down, PeerDown)
        assert down.witnesses
        assert name not in down.witnesses
        assert 12.0 <= down.silence < 14.0
    world.start("d", epoch=2)
    world.run(2)
    assert world.states() == {PeerState.ALIVE}


def test_with_nobody_else_to_ask_it_stays_suspect() -> None:
    world = World("abc")
    world.run(5)
    world.killed = {"b", "c"}
    world.run(60)
    assert world.state("a", "b") is world.state("a", "c") is PeerState.SUSPECT


def test_of_two_groups_time_alone_decides() -> None:
    world = World("ab")
    world.run(5)
    world.killed = {"b"}
    world.run(14)
    assert world.state("a", "b") is PeerState.DOWN


def test_a_one_way_cut_shows_at_both_ends_within_two_rounds_and_others_keep_it_alive() -> None:
    world = World("abcd")
    world.run(10)
    world.cut = {("a", "b")}
    world.run(2)
    assert world.link("b", "a") is Link.WE_DO_NOT_HEAR
    assert world.link("a", "b") is Link.NOT_HEARD
    assert world.engines["a"].pullable("b", world.now), "one late hello must not stop pulls"
    world.run(10)
    assert world.states() == {PeerState.ALIVE}
    assert not world.engines["a"].pullable("b", world.now)
    assert not world.engines["b"].pullable("a", world.now)
    assert world.engines["c"].pullable("a", world.now)
    assert not world.happened("b", PeerSuspect)
    world.cut.clear()
    world.run(2)
    assert world.link("b", "a") is world.link("a", "b") is Link.BOTH
    changes = [e.link for e in world.happened("b", LinkChanged) if isinstance(e, LinkChanged)]
    assert changes[0] is Link.WE_DO_NOT_HEAR
    assert changes[-1] is Link.BOTH


def test_a_link_that_is_cut_now_one_way_and_now_both_is_cut_all_the_time() -> None:
    east = engine("east", "west", "north")
    links, seq = set(), 0
    for tenths in range(100):
        now = tenths / 10
        if tenths % 20 == 0:  # two intervals apart: later than `direct_after`
            seq += 1
            east.receive("west", says(seq=seq, not_heard_from=("east",)), now)
        east.tick(now)
        (west,) = [peer for peer in east.view(now).peers if peer.name == "west"]
        links.add(west.link)
        assert east.pullable("west", now) is (now < CONFIG.route_after * CONFIG.hello_interval)
    assert links == {Link.NOT_HEARD, Link.NEITHER}


def test_a_lost_hello_is_asked_for_within_the_round() -> None:
    east = engine("east", "west", "north")
    for name in ("west", "north"):
        east.receive(name, says(name), 0.9)
    east.tick(1.0)
    east.receive("north", says("north", seq=2), 1.9)
    east.tick(2.0)
    east.outbox()
    east.tick(2.2)
    (out,) = east.outbox()
    assert out.peer == "west"
    assert (out.hello.have_epoch, out.hello.have_seq) == (1, 1), "so its answer has what is newer"


def test_an_old_statement_from_memory_does_not_raise_the_dead() -> None:
    world = World("abc")
    world.run(5)
    world.cut = {("c", "a"), ("b", "a"), ("a", "b"), ("a", "c")}
    world.run(3)
    world.killed = {"c"}  # b has later statements of c than a
    world.run(20)
    world.start("a", epoch=2)
    world.cut.clear()
    before = len(world.happened("a", PeerUp))
    world.run(20)
    assert world.engines["a"].version_of("c") == world.engines["b"].version_of("c")
    assert world.state("a", "c") is PeerState.UNHEARD
    assert PeerUp("c") not in world.happened("a", PeerUp)[before:]


def test_an_old_statement_from_memory_does_not_put_suspicion_off() -> None:
    world = World("abc")
    world.run(5)
    world.cut = {("c", "a"), ("b", "a"), ("a", "b"), ("a", "c")}
    world.run(3)
    world.killed = {"c"}  # b has later statements of c than a
    world.run(6)
    assert world.state("a", "c") is PeerState.SUSPECT
    before = len(world.happened("a", PeerUp))
    world.cut.clear()
    world.run(8)
    assert world.engines["a"].version_of("c") == world.engines["b"].version_of("c")
    assert PeerUp("c") not in world.happened("a", PeerUp)[before:]
    assert world.state("a", "c") is PeerState.DOWN
    down = [e for e in world.happened("a", PeerDown) if isinstance(e, PeerDown) and e.peer == "c"]
    assert [e.witnesses for e in down] == [("b",)], "asked after that statement came"
    assert 12.0 <= down[0].silence < 15.0


def test_names_of_the_unheard_are_bounded() -> None:
    config = replace(CONFIG, max_not_heard=2)
    world = World("abcdef", config=config)
    world.run(3)
    world.killed = set("bcde")
    world.run(3)
    said = world.engines["f"].view(world.now)
    (a,) = [p for p in said.peers if p.name == "a"]
    assert a.link is Link.BOTH
    statement = world.engines["a"].greeting().message
    assert statement is not None
    assert b"bcde" not in statement.statement.body


def test_above_full_mesh_rumours_reach_everybody() -> None:
    config = replace(CONFIG, full_mesh=4, fanout=2)
    world = World("abcdefgh", config=config)
    world.loss = 0.2
    world.run(40)
    assert world.states() == {PeerState.ALIVE}
    before = world.engines["a"].version
    world.engines["a"].set_health(world.engines["a"].view(0).peers[0].health.DRAINING)
    world.run(6)
    assert all(world.engines[n].version_of("a") > before for n in "bcdefgh")
    assert world.link("a", "b") is None, "no link is judged that is not used each round"


# The parts


def test_suspicion_grows_with_silence_and_learns_the_pace() -> None:
    silence = Silence(1.0, CONFIG)
    steady, lame = Arrivals(silence), Arrivals(silence)
    for _ in range(60):
        steady.add(1.0)
        lame.add(2.5)
    assert CONFIG.suspect_floor <= steady.suspect_after < lame.suspect_after
    assert lame.suspect_after <= CONFIG.suspect_ceiling
    assert steady.phi(1.0) < 1 < steady.phi(3.0) < steady.phi(5.0)
    assert steady.phi(steady.suspect_after) == pytest.approx(CONFIG.phi, rel=0.01)
    assert steady.phi(1e9) == float("inf")


def test_nobody_trains_the_detector_out_of_its_bounds() -> None:
    fast, slow = Arrivals(Silence(1.0, CONFIG)), Arrivals(Silence(1.0, CONFIG))
    for gap in range(500):
        fast.add(0.0)
        slow.add(1e9 * (gap % 2))
    assert fast.suspect_after >= CONFIG.suspect_floor
    assert slow.suspect_after == CONFIG.suspect_ceiling


def test_health_recovers_a_step_a_calm_interval() -> None:
    health = LocalHealth(CONFIG, 0.0)
    for _ in range(20):
        health.stalled(0.0)
    assert (health.score, health.factor) == (CONFIG.health_max, 3.0)
    for tenth in range(1, 11):
        health.calm(tenth / 10)
    assert health.score == CONFIG.health_max - 1
    for second in range(2, 20):
        health.calm(float(second))
    assert (health.score, health.factor) == (0, 1.0)


def test_questions_are_bounded_and_keep_their_time() -> None:
    probes = Probes(2.0, replace(CONFIG, max_probed=2))
    assert probes.ask("a", "x", Version(1, 1), 0.0)
    assert not probes.ask("a", "x", Version(1, 1), 1.9), "asked again, it is the same question"
    assert probes.ask("b", "x", Version(1, 5), 1.0)
    assert not probes.ask("c", "x", Version(1, 1), 1.0)
    assert (len(probes), probes.refused) == (2, 1)
    assert probes.heard("x", Version(1, 3)) == ["a"]
    assert list(probes.over(2.9)) == []
    assert list(probes.over(3.0)) == [("b", "x", Version(1, 5))]
    assert (len(probes), probes.next_at) == (0, float("inf"))


def test_who_asks_about_everybody_leaves_each_other_asker_its_share() -> None:
    probes = Probes(2.0, replace(CONFIG, max_probed=8))
    told = [probes.ask("greedy", f"x{number}", Version(1, 1), 0.0) for number in range(20)]
    assert told == [True] * 8 + [False] * 12, "alone, it may have all of it"
    for number in range(3):
        for asker in ("b", "c", "d"):
            took = probes.ask(asker, f"y{number}", Version(1, 1), 1.0)
            assert took is (number < 2), f"{asker} has its share of 8, a quarter, and no more"
    assert not probes.ask("greedy", "z", Version(1, 1), 1.0), "it gets nothing back"
    assert len(probes) == 8
    assert list(probes.over(2.0)) == [("greedy", f"x{n}", Version(1, 1)) for n in range(2)]
    assert len(list(probes.over(3.0))) == 6
    assert (len(probes), probes.open, probes.next_at) == (0, {}, float("inf"))
