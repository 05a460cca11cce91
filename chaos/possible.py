"""Which faults can be made here, and why others cannot: those are reported as not run, and break nothing."""

from __future__ import annotations

import os
import shutil
from functools import cache

from chaos.faults import clocks, disks, passthrough, squeezing
from chaos.network.base import Kind
from chaos.network.choose import why_not_on
from chaos.scenario import Scenario
from chaos.section import Topology
from chaos.steps import Squeeze


def why_not(scenario: Scenario, kind: Kind) -> str | None:
    """Why a scenario cannot be run here, with what to do about it; None if it can.

    Args:
        kind: of the network of the run.
    """
    reasons = [why_not_on(kind, scenario), _topology(scenario.topology)]
    for step in scenario.steps:
        if isinstance(step, Squeeze) and step.what in ("memory", "cpu"):
            reasons.append(_cgroup("cpu" if step.what == "cpu" else "memory"))
    return next((reason for reason in reasons if reason), None)


def _topology(topology: Topology) -> str | None:
    if topology.disk == "own" and (why := disks.why_not()):
        return why
    if topology.disk == "faulty" and (why := passthrough.why_not()):
        return why
    if topology.clock and (why := clocks.why_not()):
        return why
    if topology.coordination == "etcd" and shutil.which("etcd") is None:
        return "it needs etcd (apt-get install etcd-server)"
    if topology.cores:
        if shutil.which("taskset") is None:
            return "it needs taskset (apt-get install util-linux)"
        missing = {core for cores in topology.cores.values() for core in cores}
        missing |= set(topology.runner_cores)
        missing -= os.sched_getaffinity(0)
        if missing:
            return f"this process may not use core {', '.join(map(str, sorted(missing)))}"
    return None


_cgroup = cache(squeezing.why_not)
