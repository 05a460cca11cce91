"""Burns a share of one core, and does nothing else: `python -m chaos.faults.burner SHARE [NICE]`."""

from __future__ import annotations

import os
import sys
import time

PERIOD_S = 0.01


def burn(share: float) -> None:
    """Computes for `share` of each period, and sleeps for the rest, for ever."""
    due = time.monotonic()
    while True:
        due += PERIOD_S
        # By CPU time: what the scheduler gave to others is not counted as burnt.
        end = time.process_time() + share * PERIOD_S
        while time.process_time() < end:
            sum(range(200))
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic() - PERIOD_S)


if __name__ == "__main__":
    os.nice(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    burn(float(sys.argv[1]))
