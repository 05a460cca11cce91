"""What the supervisor is told of a child, its bounds, and what it tells of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from local_group.ports import PortUse

ReadyCheck = Callable[[int], Awaitable[str]]
"""Given the child's pid: "" when it is ready, else what is still awaited. Raises nothing."""

# Runs in the child before the program: dies with the supervisor, even if that died in between.
# A wrapper and not preexec_fn, which is unsafe in a process with threads (gRPC has some).
_EXEC = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


def own_group() -> dict[str, Any]:
    """For `subprocess`: a process group of the child's own, so that a terminal's ^C is ours alone.

    A session would do that too, and the kernel would then give each session an equal share of the cores,
    whatever its processes' nice values (`sched_autogroup`): with one a process, a store that mostly
    sleeps waited up to 400 ms for a core on a busy machine, and local reads with it (decision 006).
    """
    if sys.version_info >= (3, 11):
        return {"process_group": 0}
    return {"start_new_session": True}


def bound_to_us(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line that runs `argv` and is killed when this process ends, however it ends."""
    return (sys.executable, "-I", "-S", "-c", _EXEC, str(os.getpid()), *argv)


@dataclass(frozen=True)
class ChildSpec:
    """A process of the group.

    Attributes:
        name: `master`, `store-0`, `gateway`, ...: its log is `logs/<name>.log`.
        argv: the command line; argv[0] is an absolute path.
        ready: tells when it is ready.
        env: added to the supervisor's environment.
        ports: must be free whenever it is started.
    """

    name: str
    argv: tuple[str, ...]
    ready: ReadyCheck
    env: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[PortUse] = ()


@dataclass(frozen=True)
class SupervisorLimits:
    """Bounds of the supervisor; times in seconds, sizes in bytes."""

    stop_grace: float = 10.0
    """From SIGTERM to SIGKILL. A master takes 1 s."""
    kill_wait: float = 5.0
    """For SIGKILLed processes to be gone."""
    backoff_first: float = 0.5
    """Before a dead child is started again, first time ..."""
    backoff_max: float = 10.0
    """... doubled each time up to this, for ever: a group should come back by itself."""
    stable_after: float = 10.0
    """Ready for so long, a child's back-off starts anew."""
    ready_timeout: float = 60.0
    """For a restarted child to be ready; then it is killed and counts as dead."""
    ready_poll: float = 0.05
    """Between two readiness checks."""
    log_bytes: int = 16 << 20
    """A larger log is moved to `<name>.log.1` (one generation)."""
    log_check: float = 30.0
    """Between two looks at the logs' sizes."""
    write_retry: float = 1.0
    """Before the state is written again that could not be."""


@dataclass(frozen=True)
class Progress:
    """Something that a person who waits wants to see."""

    child: str
    phase: str
    detail: str = ""
    seconds: float = 0.0
    """Since the child was started."""
