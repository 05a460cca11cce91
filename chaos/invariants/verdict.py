"""What became of one invariant in one run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Held or broken, with the figure it hangs on."""

    name: str
    held: bool
    value: float | int | None = None
    limit: str = ""
    detail: str = ""
    unsure: bool = False
    """It holds only because the figures' spread does not let us say that it does not."""
    off: str = ""
    """Why it was not judged; then `held` says nothing."""
