"""Which network a run has, and making it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from chaos.network.base import Kind, Network, Places
from chaos.network.loopback import Loopback, free_ports
from chaos.network.namespaces import Namespaces
from chaos.network.tools import why_not
from chaos.scenario import Scenario
from chaos.section import Topology
from chaos.steps import Link
from federation.errors import UsageError

Wish = Literal["loopback", "namespaces", "auto"]


def choose(wish: Wish, say: Callable[[str], None]) -> Kind:
    """The kind of network that is wished for.

    Args:
        say: told why `auto` is loopback, where it is.

    Raises:
        UsageError: namespaces are wished for, and cannot be made here.
    """
    if wish == "loopback":
        return "loopback"
    problem = why_not()
    if problem is None:
        return "namespaces"
    what, hint = problem
    if wish == "namespaces":
        raise UsageError(what, hint=hint)
    say(f"the network is loopback: {what} ({hint})")
    return "loopback"


def why_not_on(kind: Kind, scenario: Scenario) -> str | None:
    """Why a scenario's faults cannot be made on this network; None if they can."""
    modes = {"flap", "fall", *(Loopback if kind == "loopback" else Namespaces).modes}
    for step in scenario.steps:
        if isinstance(step, Link) and step.mode not in modes:
            return (
                f"{step.mode} of a link cannot be made on {kind} (run it with --network namespaces,"
                " as root)"
            )
    return None


def make(
    kind: Kind,
    topology: Topology,
    folder: Path,
    port_base: int,
    stage: str,
    owns: Callable[[Sequence[str]], None],
) -> Network:
    """A network for a topology, not yet up.

    Args:
        folder: for its logs.
        port_base: on loopback, where to look for free ports; in namespaces all are.
        stage: id of the run, and number of the topology in it.
        owns: told the names of namespaces before there are any.

    Raises:
        ChaosError: no ports are free.
    """
    groups, hostile = topology.groups, tuple(topology.hostile)
    if kind == "loopback":
        places = free_ports(groups, hostile, topology.stores, port_base)
        return Loopback(places, folder / "proxy.log")
    places, log = Places(groups, hostile, port_base), folder / "delay.log"
    return Namespaces(places, stage, owns, log, topology.congestion)
