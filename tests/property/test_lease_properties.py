"""Never two terms at once: clocks that run apart, messages that take their time, processes that freeze."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from local_group.coordination.lease import Lease, Patience
from local_group.coordination.machine import REFUSED, Machine

LEASE = 2.0
DRIFT = 0.04
"""How much faster or slower a clock may run: 4 % either way is within the margin of 10 %."""
STEP = 0.05


@dataclass
class Member:
    """One process. It sees the machine as it was when it last looked, on its own clock."""

    name: str
    rate: float
    frozen_until: float = 0.0
    patience: Patience = field(default_factory=Patience)
    lease: Lease | None = None
    epoch: int = 0
    holder: str = ""
    campaigns: int = 0
    asked: list[tuple[float, float, int]] = field(default_factory=list)
    """Commands under way: when each is applied; when it was asked for (own clock); the stamp of a claim,
    or -1 for a renewal."""
    answers: list[tuple[float, float, int]] = field(default_factory=list)
    """When an answer arrives, when it was asked for (own clock), and what it says."""

    def clock(self, now: float) -> float:
        return now * self.rate


def apply(member: Member, machine: Machine, now: float, rng: random.Random) -> None:
    """What has arrived is done, whether who has asked for it is frozen or not."""
    for due in [each for each in member.asked if each[0] <= now]:
        member.asked.remove(due)
        _, sent, stamp = due
        if stamp < 0:
            epoch = member.epoch if machine.renew(member.holder) else REFUSED
        else:
            epoch = machine.claim(member.holder, member.name, "", LEASE, stamp, 0)
        member.answers.append((now + delay(rng), sent, epoch))


def delay(rng: random.Random) -> float:
    """Mostly none to speak of, at times most of a lease."""
    return float(rng.random() ** 6 * 1.5)


def step(member: Member, machine: Machine, now: float, rng: random.Random) -> None:
    """What the shells of the backends do, with every delay that there can be."""
    if now < member.frozen_until:
        return
    own = member.clock(now)
    due = [answer for answer in member.answers if answer[0] <= now]
    member.answers = [answer for answer in member.answers if answer[0] > now]
    for _, sent, epoch in due:
        if epoch == REFUSED:
            continue
        if member.lease is None:
            member.lease, member.epoch = Lease(LEASE, sent), epoch
        elif epoch == member.epoch:
            member.lease.renewed(sent, own)
    idle = not member.asked and not member.answers
    if member.lease is not None:
        if not member.lease.holds(own):
            member.lease, member.patience = None, Patience()
            member.asked, member.answers = [], []
        elif own >= member.lease.renew_at and idle:
            member.asked.append((now + delay(rng), own, -1))
        return
    stamp, tenure = machine.standing
    if own >= member.patience.until(stamp, LEASE if tenure else 0.0, own) and idle:
        member.campaigns += 1
        member.holder = f"{member.name}{member.campaigns}"
        member.asked.append((now + delay(rng), own, stamp))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_never_two_terms_at_once(seed: int) -> None:
    rng = random.Random(seed)
    machine = Machine()
    members = [Member(name, 1 + rng.choice([-DRIFT, 0.0, DRIFT])) for name in "abc"]
    epochs: list[int] = []
    now = 0.0
    while now < 60.0:
        now += STEP * rng.random()
        member = rng.choice(members)
        if rng.random() < 0.006:
            member.frozen_until = now + rng.random() * 8
        for each in members:
            apply(each, machine, now, rng)
        step(member, machine, now, rng)
        valid = [m for m in members if m.lease is not None and m.lease.holds(m.clock(now))]
        assert len(valid) <= 1, f"{[m.name for m in valid]} at {now}"
        if valid and (not epochs or epochs[-1] != valid[0].epoch):
            epochs.append(valid[0].epoch)
    assert epochs == sorted(set(epochs))
    assert len(epochs) >= 1
