"""What the members of a Raft group agree on."""

from __future__ import annotations

import json

from gossip.config import GossipConfig
from local_group.coordination.base import EPOCH_MAX, KEYS_MAX
from local_group.coordination.machine import DONE, FULL, REFUSED, USED_UP, Machine


def claim(machine: Machine, holder: str, stamp: int | None = None, floor: int = 0) -> int:
    last = machine.standing[0] if stamp is None else stamp
    return machine.claim(holder, holder[0], f"unix:{holder}", 2.0, last, floor)


def test_a_claim_names_what_it_has_waited_for() -> None:
    machine = Machine()
    assert claim(machine, "a1") == 1
    seen = machine.standing[0]
    assert machine.renew("a1") == DONE
    assert claim(machine, "b1", seen) == REFUSED
    assert claim(machine, "b1") == 2
    assert machine.renew("a1") == REFUSED
    assert machine.resign("a1") == REFUSED


def test_a_claim_whose_answer_was_lost() -> None:
    machine = Machine()
    assert claim(machine, "a1", 0) == 1
    seen = machine.standing[0]
    assert claim(machine, "a1", 0) == 1
    # It counts its lease from the second time, so who has waited since the first is refused.
    assert claim(machine, "b1", seen) == REFUSED


def test_who_resigns_can_be_followed_at_once() -> None:
    machine = Machine()
    claim(machine, "a1")
    seen = machine.standing[0]
    assert machine.resign("a1") == DONE
    assert machine.standing[1] is None
    assert claim(machine, "b1", seen) == REFUSED
    assert claim(machine, "b1") == 2


def test_above_a_floor() -> None:
    machine = Machine()
    assert claim(machine, "a1", floor=40) == 41
    assert machine.above("a1", 41, 99) == 100
    assert machine.above("a1", 41, 99) == 100, "done twice"
    assert machine.above("b1", 100, 200) == REFUSED
    assert claim(machine, "b1", floor=7) == 101
    assert Machine(epoch=EPOCH_MAX).claim("a", "a", "", 1.0, 0, 0) == USED_UP
    assert GossipConfig().max_epoch == EPOCH_MAX, "in a later one nobody would be believed"


def test_puts_are_fenced_and_in_order() -> None:
    machine = Machine()
    claim(machine, "a1")
    assert machine.put(1, 1, "k", b"1") == DONE
    assert machine.put(1, 3, "k", b"3") == DONE
    assert machine.put(1, 2, "k", b"2") == DONE, "late, and without effect"
    assert machine.values == {"k": b"3"}
    claim(machine, "b1")
    assert machine.put(1, 4, "k", b"4") == REFUSED
    assert machine.put(2, 1, "k", b"5") == DONE
    assert machine.resign("b1") == DONE
    assert machine.put(2, 2, "k", b"6") == REFUSED
    assert machine.values == {"k": b"5"}


def test_keys_have_an_end() -> None:
    machine = Machine()
    claim(machine, "a1")
    for i in range(KEYS_MAX):
        assert machine.put(1, i + 1, f"k{i}", b"") == DONE
    assert machine.put(1, KEYS_MAX + 1, "one-more", b"") == FULL
    assert machine.put(1, KEYS_MAX + 2, "k0", b"1") == DONE


def test_a_snapshot_is_all_of_it() -> None:
    machine = Machine()
    claim(machine, "a1", floor=6)
    machine.put(7, 1, "k", b"\0\xff")
    other = Machine()
    other.load(json.loads(json.dumps(machine.to_json())))
    assert other == machine
    machine.resign("a1")
    other.load(json.loads(json.dumps(machine.to_json())))
    assert other == machine
