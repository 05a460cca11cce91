"""A scenario: what runs, what breaks when, and what has to hold meanwhile."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Annotated

from pydantic import Field, model_validator

from chaos.hostile.names import Answer, Attack
from chaos.invariants.parameters import Invariants
from chaos.section import (
    LINE_S,
    GroupName,
    Section,
    Topology,
    about,
    check_namespaces,
    check_one_of,
)
from chaos.steps import (
    Apply,
    Herd,
    Hostile,
    Signal,
    Step,
    Switch,
    Throttle,
    keeps_books,
    named,
    over,
    told,
    wants,
)
from federation.limits.names import GuardName

SUMMARY_CHARS = 200
DRAWN_LATER_S = 0.5
"""How far drawn steps may be apart, where their times are equal."""
NAME = r"^[a-z][a-z0-9-]{0,47}$"


class Afterwards(Section):
    """How chains of peers are read once all faults are undone."""

    peer_rate: Annotated[float, Field(strict=False, gt=0, le=1000)] = 10.0
    peer_deadline_ms: Annotated[int, Field(ge=5, le=10_000)] = 500


class Workload(Section):
    """What the engines do while the time line runs. Rates are calls a second of each engine."""

    seconds: Annotated[float, Field(strict=False, gt=0, le=LINE_S)] = 5.0
    """How long; less where `returns` is asked for and has been seen."""
    blocks: Annotated[int, Field(ge=1, le=256)] = 4
    """Blocks of a prefix chain."""
    local_chains: Annotated[int, Field(ge=1, le=10_000)] = 32
    """Chains that are in the engine's own group from the start, and read again and again."""
    local_rate: Annotated[float, Field(strict=False, ge=0, le=5000)] = 20.0
    probe_rate: Annotated[float, Field(strict=False, gt=0, le=5000)] = 100.0
    """Local reads, of one block each, of the probe: an engine of its own, in the last group, whose latency is
    judged. (Mooncake spins while it waits: more of them would be a load of their own.)"""
    peer_rate: Annotated[float, Field(strict=False, ge=0, le=1000)] = 10.0
    """Reads of chains that only a peer has; each chain once."""
    peer_threads: Annotated[int, Field(ge=1, le=64)] = 2
    writes_back: bool = True
    """Whether what no peer gave is written, as an engine does that has computed it."""
    peer_owners: Annotated[tuple[GroupName, ...] | None, Field(strict=False)] = None
    """Whose chains those are; None: of every other real group."""
    peer_readers: Annotated[tuple[GroupName, ...] | None, Field(strict=False)] = None
    """Whose engines read them; None: every group's."""
    write_rate: Annotated[float, Field(strict=False, ge=0, le=1000)] = 3.0
    exists_rate: Annotated[float, Field(strict=False, ge=0, le=1000)] = 3.0
    guest_rate: Annotated[float, Field(strict=False, ge=0, le=1000)] = 0.0
    """Reads, in the guest namespace, of chains that the hostile peers claim."""
    trace_rate: Annotated[float, Field(strict=False, ge=0, le=1000)] = 0.0
    """Requests of a trace a second, of all groups together: a prompt's chain is read wherever it is, and
    what is missing written. They go on where the run before has ended."""
    trace: Annotated[str, Field(max_length=4096)] = ""
    """The trace's file; empty: the one that comes with the package."""
    deadline_ms: Annotated[int, Field(ge=5, le=10_000)] = 200
    """Of reads of local chains, of writes and of exists."""
    peer_deadline_ms: Annotated[int, Field(ge=5, le=10_000)] = 500
    """Of reads of chains of peers, and of a trace's."""
    afterwards: Afterwards | None = None
    """None: as before. For loads under which no peer answers in time, broken or not: peer hits that
    return could not be seen."""

    @property
    def usual(self) -> bool:
        """Whether it asks as much of the machine as a workload of which nothing is said."""
        rates = {name for name in Workload.model_fields if name.endswith("_rate")} | {"blocks"}
        return self.model_dump(include=rates) == Workload().model_dump(include=rates)


class Scenario(Section):
    """One file of a suite."""

    name: Annotated[str, Field(pattern=NAME)]
    summary: Annotated[str, Field(min_length=1, max_length=SUMMARY_CHARS)]
    topology: Topology
    workload: Workload = Workload()
    steps: Annotated[tuple[Step, ...], Field(strict=False, max_length=64)] = ()
    invariants: Invariants = Invariants()
    shows: Annotated[
        tuple[Annotated[GuardName, Field(strict=False)], ...], Field(strict=False)
    ] = ()
    """Guards without which it breaks."""
    spoils: bool = False
    """Leaves the topology unfit for others (a store without its blocks): it runs last on it."""
    draws: Annotated[int, Field(ge=1, le=8)] | None = None
    """So many of the steps take place, drawn by the seed; None: all."""
    budget_s: Annotated[float, Field(strict=False, gt=0, le=600)] = 60.0
    """Seconds for all of it but the topology's start; a run that takes longer is broken off."""

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        groups, hostile = set(self.topology.groups), set(self.topology.hostile)
        taken: set[str] = set()
        for index, step in enumerate(self.steps):
            with about("steps", index):
                self._check_step(step, groups, hostile)
                if isinstance(step, Hostile):
                    if step.name in taken:
                        raise ValueError(f"a second hostile peer in one place, {step.name!r}")
                    taken.add(step.name)
        if self.draws is not None and self.draws > len(self.steps):
            with about("draws"):
                raise ValueError(f"draws {self.draws} of {len(self.steps)} steps")
        self._check_invariants(groups, hostile)
        return self

    def _check_step(self, step: Step, groups: set[str], hostile: set[str]) -> None:
        for name in named(step):
            if name not in {*groups, *hostile, *self.topology.elsewhere}:
                raise ValueError(f"names {name!r}, which the topology lacks")
        if isinstance(step, Hostile):
            if step.name not in hostile:
                raise ValueError(f"{step.name!r} is no place for a hostile peer")
            if step.target in hostile:
                raise ValueError(f"the target {step.target!r} is no real group")
            check_one_of(step.answer, [a.value for a in Answer], "answer")
            check_one_of(step.attack, [a.value for a in Attack], "attack")
            check_namespaces(step.namespaces)
        if isinstance(step, (Signal, Throttle)) and step.part.startswith("store-"):
            check_one_of(step.part, [f"store-{i}" for i in range(self.topology.stores)], "part")
        if not isinstance(step, (Hostile, Switch, Apply)) and set(named(step)) & hostile:
            raise ValueError(f"{step.do} needs real groups")
        if isinstance(step, (Switch, Apply)):
            check_one_of(step.group, groups, "group")
        if isinstance(step, Herd):
            self._check_herd(step)
        needs = wants(step)
        if needs is not None and not self._has(step, *needs):
            raise ValueError(f"{step.do} needs {needs[0]} = {needs[1]} in the topology")
        if step.at + (step.lasts or 0) > self.workload.seconds:
            raise ValueError(f"ends after the load, at {self.workload.seconds} s")
        if not over(step) and step.lasts is None:
            raise ValueError(f"{step.do} needs lasts")

    def _has(self, step: Step, field: str, value: str) -> bool:
        """Whether the topology has what a step cannot do without."""
        has = getattr(self.topology, field)
        return has is True if value == "true" else f'"{has}"' == value

    def _check_herd(self, step: Herd) -> None:
        if step.owner == step.group:
            raise ValueError("a herd asks for chains of another group")
        if step.chains > self.workload.local_chains:
            raise ValueError(f"there are {self.workload.local_chains} chains")

    def _check_invariants(self, groups: set[str], hostile: set[str]) -> None:
        def check(invariant: str, what: str, name: str, known: Collection[str]) -> None:
            with about("invariants", invariant):
                check_one_of(name, known, what)

        wanted = self.invariants
        for counter in wanted.counters:
            check("counters", "group", counter.group, groups)
        for refused in wanted.refused:
            check("refused", "group", refused.group, groups)
        for peak in wanted.peaks:
            check("peaks", "group", peak.group, groups)
            check("peaks", "peer", peak.peer, groups | hostile)
        for booked in wanted.books:
            keepers = hostile | {step.do for step in self.steps if keeps_books(step)}
            check("books", "name", booked.name, keepers)
        for owner in (wanted.returns and wanted.returns.owners) or ():
            check("returns", "owners", owner, groups)
        for group in (wanted.keeps and wanted.keeps.groups) or ():
            check("keeps", "groups", group, groups)
        if wanted.leased is not None:
            check("leased", "name", wanted.leased.name, hostile)
        if wanted.contained is not None:
            check("contained", "group", wanted.contained.group, groups)
            everyone = groups | hostile
            check("contained", "origin", wanted.contained.origin, everyone)

    def drawn(self, seed: int) -> Scenario:
        """What takes place under this seed: all steps, or those it draws, up to `DRAWN_LATER_S` later."""
        if self.draws is None:
            return self
        rng = random.Random(f"draws/{seed}")
        steps = [
            step.model_copy(update={"at": step.at + rng.uniform(0, DRAWN_LATER_S)})
            for step in rng.sample(self.steps, self.draws)
        ]
        summary = f"{self.summary}: {', '.join(map(told, steps))}"[:SUMMARY_CHARS]
        update = {"steps": tuple(steps), "draws": None, "summary": summary}
        return self.model_copy(update=update)

    @property
    def returning(self) -> tuple[str, ...]:
        """Whose chains are to be read from peers again after the fault: no hostile peer's."""
        wanted = self.invariants.returns
        return (wanted and wanted.owners) or self.topology.groups

    @property
    def window(self) -> tuple[float, float] | None:
        """From the first fault to the end of the last, in seconds of the time line."""
        if not self.steps:
            return None
        ends = [s.at + s.lasts if s.lasts else s.at for s in self.steps]
        return min(s.at for s in self.steps), max(ends)
