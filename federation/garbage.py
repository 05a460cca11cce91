"""Python's collector of garbage, told what a process has made for good."""

from __future__ import annotations

import gc


def leave_alone_what_is_there() -> None:
    """To be called once a process serves: its modules and parts, a hundred thousand objects, are looked at no
    more. Each look at all of them holds the event loop up, 150 ms in a gateway, and with what comes and
    goes alone a third of that."""
    gc.collect()
    gc.freeze()
