"""What is made for one user alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def for_this_user() -> Iterator[None]:
    """Sockets and files that are made meanwhile are for nobody else. The whole process has this mask."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
