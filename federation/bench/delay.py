"""How late threads are woken: by the machine, which is nobody's fault here, and by our own process."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

from federation.bench import sleeper

STARTED_S = 10.0
"""How long the sleeper may take to begin."""


class Delay(Protocol):
    """What an engine asks of the machine's delay; a fake in tests."""

    def within(self, begin: float, end: float) -> float: ...
    def restart(self) -> None: ...
    def worst(self) -> float: ...
    def close(self) -> None: ...


class MachineDelay:
    """How late the machine wakes a process that does nothing but sleep, with our processors and our
    priority.

    In a process of its own: a thread of this one would also wait for the interpreter's lock, and a
    call that holds that lock for long would be excused by the very harm that it does.

    Raises:
        OSError: if the process cannot be started, or does not begin.
    """

    def __init__(self) -> None:
        descriptor = os.memfd_create("moonmesh-delay")
        try:
            os.ftruncate(descriptor, sleeper.MEMORY_BYTES)
            self._memory = mmap.mmap(descriptor, sleeper.MEMORY_BYTES)
            # In this process's session and group: scheduled as we are, killed as we are.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(sleeper.__file__)), str(descriptor),
                 str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(descriptor,),
            )  # fmt: skip
        finally:
            os.close(descriptor)
        end = time.monotonic() + STARTED_S
        while self._due() == 0.0:
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise OSError("the process that measures the machine's delay did not begin")
            time.sleep(0.005)

    @property
    def pid(self) -> int:
        """Of the process that sleeps."""
        return self._process.pid

    def within(self, begin: float, end: float) -> float:
        """The longest single delay within [begin, end] (monotonic), in seconds: of one that began
        before or ended after, what lies between. 0 if the process that measures has died: nothing is
        excused by what was not measured."""
        worst = 0.0
        (count,) = sleeper.COUNT.unpack_from(self._memory, 0)
        for i in range(min(count, sleeper.KEPT)):
            due, woken = sleeper.NOTE.unpack_from(
                self._memory, sleeper.NOTES_AT + i * sleeper.NOTE.size
            )
            worst = max(worst, min(woken, end) - max(due, begin))
        if self._process.poll() is None:  # a delay may be under way
            worst = max(worst, min(time.monotonic(), end) - max(self._due(), begin))
        return worst

    def restart(self) -> None:
        """Let `worst` begin anew."""
        sleeper.TIME.pack_into(self._memory, sleeper.WORST_AT, 0.0)

    def worst(self) -> float:
        """The longest delay since the start, or `restart`, in seconds."""
        return float(sleeper.TIME.unpack_from(self._memory, sleeper.WORST_AT)[0])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _due(self) -> float:
        return float(sleeper.TIME.unpack_from(self._memory, sleeper.DUE_AT)[0])


class ThreadDelay:
    """How late a Python thread of this process is woken, at worst: what it has beyond the machine's
    delay is the interpreter's lock. Told in reports; excuses nothing."""

    STEP_S = 0.005

    def __init__(self) -> None:
        self._worst = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="thread-delay", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic() + self.STEP_S
        while not self._end.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            self._worst = max(self._worst, now - due)
            due = now + self.STEP_S

    def worst(self) -> float:
        """The longest delay since the start, in seconds."""
        return self._worst

    def close(self) -> None:
        self._end.set()
        self._thread.join(1.0)
