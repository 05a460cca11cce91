"""What a start has made is left alone, and what comes later is collected as ever."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, weakref
from federation.garbage import leave_alone_what_is_there

class Part:
    pass

def ring():
    part = Part()
    part.itself = part
    return weakref.ref(part)

before = ring()
leave_alone_what_is_there()
frozen, looked_at = gc.get_freeze_count(), len(gc.get_objects())
after = ring()
gc.collect()
print(before() is None, frozen > 50 * looked_at, after() is None)
"""


def test_what_is_there_is_looked_at_no_more_and_what_comes_is() -> None:
    said = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True, timeout=30)
    assert said.split() == ["True", "True", "True"]
