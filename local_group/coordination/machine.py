"""What the members of a Raft group agree on: the epoch, who leads, the configuration. Without IO.

Every member applies the same commands in the same order, so nothing here looks at a clock: who waits to
lead counts time on its own side (`lease.Patience`), and names the stamp that it has waited for. A command
that is applied twice, because its answer was lost, answers the same and changes nothing.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from local_group.coordination.base import EPOCH_MAX, KEYS_MAX

REFUSED = 0
"""Answer to a command of who does not lead, or whose claim was overtaken."""
DONE = 1
FULL = -1
"""Answer to a put of one key too many."""
USED_UP = -2
"""Answer to a claim after the last epoch."""


@dataclass(frozen=True)
class Tenure:
    """A term, as all members know it.

    Attributes:
        holder: unique to one campaign of one process.
        seconds: of its lease, counted from each stamp.
    """

    holder: str
    member: str
    address: str
    epoch: int
    seconds: float


@dataclass
class Machine:
    """The replicated state.

    Attributes:
        epoch: the last that was given.
        standing: a stamp, changed by everything that a claim must not overlook; and who leads, or None.
            One attribute, replaced as a whole: another thread that reads it gets two that belong together.
        written: the last put of this tenure.
        values: the configuration.
    """

    epoch: int = 0
    standing: tuple[int, Tenure | None] = (0, None)
    written: int = 0
    values: dict[str, bytes] = field(default_factory=dict)

    def claim(
        self, holder: str, member: str, address: str, seconds: float, stamp: int, floor: int
    ) -> int:
        """The epoch of a new term; REFUSED if the stamp has changed; USED_UP."""
        last, tenure = self.standing
        if tenure is not None and tenure.holder == holder:
            # Asked for again, so counted from then on by its holder: others have to wait anew.
            self.standing = (last + 1, tenure)
            return tenure.epoch
        if stamp != last:
            return REFUSED
        return self._begin(holder, member, address, seconds, floor)

    def above(self, holder: str, epoch: int, floor: int) -> int:
        """The epoch of a new term of the same leader; REFUSED; USED_UP."""
        _, tenure = self.standing
        if tenure is None or tenure.holder != holder:
            return REFUSED
        if tenure.epoch != epoch:  # done already, by a command whose answer was lost
            return tenure.epoch
        return self._begin(holder, tenure.member, tenure.address, tenure.seconds, floor)

    def renew(self, holder: str) -> int:
        """DONE or REFUSED."""
        stamp, tenure = self.standing
        if tenure is None or tenure.holder != holder:
            return REFUSED
        self.standing = (stamp + 1, tenure)
        return DONE

    def resign(self, holder: str) -> int:
        """DONE or REFUSED."""
        stamp, tenure = self.standing
        if tenure is None or tenure.holder != holder:
            return REFUSED
        self.standing = (stamp + 1, None)
        return DONE

    def put(self, epoch: int, number: int, key: str, value: bytes) -> int:
        """DONE, REFUSED (another term) or FULL.

        Args:
            number: of the puts of this term, from 1: an old one that comes late writes nothing.
        """
        _, tenure = self.standing
        if tenure is None or tenure.epoch != epoch:
            return REFUSED
        if number <= self.written:
            return DONE
        if key not in self.values and len(self.values) >= KEYS_MAX:
            return FULL
        self.written = number
        self.values[key] = value
        return DONE

    def to_json(self) -> dict[str, Any]:
        """All of it, for a snapshot."""
        stamp, tenure = self.standing
        values = {key: base64.b64encode(value).decode() for key, value in self.values.items()}
        return {
            "epoch": self.epoch,
            "stamp": stamp,
            "tenure": tenure and vars(tenure),
            "written": self.written,
            "values": values,
        }

    def load(self, content: dict[str, Any]) -> None:
        """Become what a snapshot says. Raises KeyError, TypeError or ValueError if it is none."""
        tenure = content["tenure"]
        other = Machine(
            int(content["epoch"]),
            (int(content["stamp"]), None if tenure is None else Tenure(**tenure)),
            int(content["written"]),
            {key: base64.b64decode(value) for key, value in content["values"].items()},
        )
        self.__dict__.update(other.__dict__)

    def _begin(self, holder: str, member: str, address: str, seconds: float, floor: int) -> int:
        epoch = max(self.epoch, floor) + 1
        if epoch > EPOCH_MAX:
            return USED_UP
        self.epoch = epoch
        self.written = 0
        self.standing = (self.standing[0] + 1, Tenure(holder, member, address, epoch, seconds))
        return epoch
