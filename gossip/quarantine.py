"""Peers that contradict themselves, or say what cannot be: named, with what it takes to be believed again.

Only what is proven counts: by the peer's own signature, or because its own connection brought it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from gossip.statement import Reason
from gossip.version import Version


class Heal(enum.Enum):
    """What ends a quarantine, beside an operator."""

    STATEMENT = "a newer valid statement, from the peer itself"
    EPOCH = "a valid statement of a higher epoch"

    @property
    def is_strict(self) -> bool:
        """Whether nothing but a new epoch, or an operator, ends it."""
        return self is Heal.EPOCH


HEALED_BY: Final[dict[Reason, Heal]] = {
    Reason.BAD_SIGNATURE: Heal.STATEMENT,
    Reason.OVERSIZE: Heal.STATEMENT,
    Reason.OTHER_GROUP: Heal.STATEMENT,
    Reason.BEYOND_HEADROOM: Heal.STATEMENT,
    Reason.EQUIVOCATION: Heal.EPOCH,
    Reason.TWO_SPEAKERS: Heal.EPOCH,
}
"""Reasons for quarantine. Others are counted alone: a restart, or another release, explains them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Why a peer is not pulled from, and since when."""

    reason: Reason
    detail: str
    since: float
    """Monotonic seconds."""
    epoch: int
    """Of the peer, when it began."""

    @property
    def heal(self) -> Heal:
        """What ends it, beside an operator."""
        return HEALED_BY[self.reason]

    def is_healed_by(self, version: Version, *, direct: bool) -> bool:
        """Whether a valid statement, newer than all before, ends it.

        Args:
            direct: it came from the peer itself.
        """
        if self.heal is Heal.EPOCH:
            return version.epoch > self.epoch
        return direct
