"""The serving process leaves the cores to others, with every thread that it has."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, threading
from federation.serving import stand_back
over = threading.Event()
threads = [threading.Thread(target=over.wait) for _ in range(3)]
for thread in threads:
    thread.start()
stand_back(7)
late = threading.Thread(target=over.wait)
late.start()
for name in os.listdir("/proc/self/task"):
    print(os.sched_getscheduler(int(name)) == os.SCHED_BATCH, os.getpriority(os.PRIO_PROCESS, int(name)))
over.set()
"""


def test_every_thread_has_a_smaller_share_and_interrupts_nobody() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    lines = told.stdout.splitlines()
    assert len(lines) >= 5
    assert set(lines) == {"True 7"}
