"""Says what was given in the place of a block: the next question of whoever finds wrong bytes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from federation.bench.workload import BlockBytes

LOOKED_AT = 5000
"""Of the blocks that an engine has written, the last: it may have been given the bytes of one of these."""


def mixup(
    what: str,
    blocks: BlockBytes,
    row: npt.NDArray[np.uint8],
    asked: Sequence[str],
    stored: Sequence[str],
) -> str:
    """One line.

    Args:
        what: was asked for, by whom.
        row: what came.
        asked: keys of the same call.
        stored: all that this engine has written.
    """
    known = (*asked, *stored[-LOOKED_AT:])
    whose = next((key for key in known if not blocks.wrong_bytes([key], row[None])), None)
    given = f"the bytes of {whose}" if whose else f"{row[:16].tobytes().hex()}..."
    return f"{what} at {time.monotonic():.3f}: {given}"
