"""`asyncio.timeout` for every Python that we run on.

Not `asyncio.wait_for`: before Python 3.12 it can swallow a cancellation that comes in the very moment
in which its future is done, and what was to end goes on for ever.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout, timeout_at
else:
    from async_timeout import timeout, timeout_at

__all__ = ["timeout", "timeout_at"]
