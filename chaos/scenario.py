"""Scenarios: TOML files that say what runs, what breaks when, and what has to hold meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from chaos.hostile.names import Answer, Attack
from chaos.invariants.parameters import Invariants
from federation.errors import ConfigError, UsageError
from federation.limits.names import GuardName
from local_group.config import MIB, explain, parse_size, read_toml

SCENARIOS = Path(__file__).parent / "scenarios"
"""The packaged suites: a folder each, and `topologies/` that they share."""
TOPOLOGIES = "topologies"
NAME = r"^[a-z][a-z0-9-]{0,47}$"
LINE_S = 120.0
"""Longest time line: what needs more is a soak, and no scenario."""

GroupName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
Seconds = Annotated[float, Field(strict=False, ge=0, le=LINE_S)]
Size = Annotated[int, BeforeValidator(parse_size)]


class Section(BaseModel):
    """A table of a scenario: frozen, and nothing unknown in it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


class Topology(Section):
    """What runs. Scenarios with the same topology share one that is up."""

    groups: Annotated[tuple[GroupName, ...], Field(strict=False, min_length=1, max_length=8)]
    """Real groups: master, stores, gateway, and one engine process each."""
    hostile: dict[GroupName, Annotated[tuple[str, ...], Field(strict=False)]] = {}
    """Places for hostile peers: name to the namespaces that they may export and import."""
    stores: Annotated[int, Field(ge=1, le=8)] = 1
    dram: Size = 256 * MIB
    """Of each store."""
    lease_ttl_ms: Annotated[int, Field(ge=100, le=60_000)] = 2000
    block_bytes: Size = 64 * 1024
    limits: dict[str, int | str] = {}
    """`[limits]` of every group."""

    @model_validator(mode="after")
    def _names(self) -> Topology:
        everyone = [*self.groups, *self.hostile]
        for name in everyone:
            if everyone.count(name) > 1:
                raise ValueError(f"the topology has {name!r} twice")
        for name, namespaces in self.hostile.items():
            _check_namespaces(namespaces, f"the place {name!r}")
        return self

    @property
    def identity(self) -> str:
        """Equal for topologies that can be shared."""
        return self.model_dump_json()


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
    write_rate: Annotated[float, Field(strict=False, ge=0, le=1000)] = 3.0
    exists_rate: Annotated[float, Field(strict=False, ge=0, le=1000)] = 3.0
    guest_rate: Annotated[float, Field(strict=False, ge=0, le=1000)] = 0.0
    """Reads, in the guest namespace, of chains that the hostile peers claim."""
    deadline_ms: Annotated[int, Field(ge=5, le=10_000)] = 200
    """Of reads of local chains, of writes and of exists."""
    peer_deadline_ms: Annotated[int, Field(ge=5, le=10_000)] = 500
    """Of reads of chains of peers."""
    afterwards: Afterwards | None = None
    """None: as before. For loads under which no peer answers in time, broken or not: peer hits that
    return could not be seen."""

    @property
    def usual(self) -> bool:
        """Whether it asks as much of the machine as a workload of which nothing is said."""
        rates = {name for name in Workload.model_fields if name.endswith("_rate")} | {"blocks"}
        return self.model_dump(include=rates) == Workload().model_dump(include=rates)


class _Step(Section):
    at: Seconds
    """Seconds from the start of the load; moved by up to 0.1 s by the seed."""
    lasts: Annotated[float, Field(strict=False, gt=0, le=LINE_S)] | None = None
    """Seconds until it is undone; every step but a kill has it."""


class Signal(_Step):
    """A signal to a part of a group. `freeze` is SIGSTOP, then SIGCONT when it is over."""

    do: Literal["kill", "freeze"]
    group: GroupName
    part: Annotated[str, Field(pattern=r"^(gateway|serving|master|store-\d+)$")]


class Link(_Step):
    """A fault of the network between two groups, in the direction that bytes flow."""

    do: Literal["link"]
    source: GroupName
    to: GroupName
    both: bool = True
    """Also the other direction."""
    mode: Literal["cut", "reset", "rate", "delay", "loss", "flap"]
    """`cut`: bytes stay where they are, and nothing says so. `reset`: connections are closed with RST
    and new ones refused. `flap`: cut and healed in turn. `loss`: in network namespaces alone."""
    mbit: Annotated[float, Field(strict=False, gt=0, le=100_000)] = 10.0
    """For `rate`: Mbit/s of each direction."""
    ms: Annotated[float, Field(strict=False, gt=0, le=10_000)] = 100.0
    """For `delay`: one way. For `flap`: how long each state lasts."""
    share: Annotated[float, Field(strict=False, gt=0, lt=1)] = 0.05
    """For `loss`: of the packets of each direction."""

    @model_validator(mode="after")
    def _two_groups(self) -> Link:
        if self.source == self.to:
            raise ValueError(f"a link from {self.source} to itself")
        return self


class Hostile(_Step):
    """A hostile peer takes its place; see `chaos.hostile`."""

    do: Literal["hostile"]
    name: GroupName
    target: GroupName
    answer: str = "honest"
    """How it answers pulls: `chaos.hostile.names.Answer`."""
    attack: str = "none"
    """What it does by itself: `chaos.hostile.names.Attack`."""
    statements: Literal["honest", "replay", "equivocate"] = "honest"
    catalog: Literal["claims", "giant", "stall"] = "claims"
    claims: Annotated[tuple[GroupName, ...], Field(strict=False)] = ()
    """Whose chains it claims to hold, beside its own."""
    namespaces: Annotated[tuple[str, ...], Field(strict=False)] = ("demo",)
    """In which it claims them, whether it may or not."""


class Burn(_Step):
    """CPU that is burnt, and nothing else."""

    do: Literal["burn"]
    cores: Annotated[float, Field(strict=False, gt=0, le=64)]
    nice: Annotated[int, Field(ge=0, le=19)] = 0


Step = Annotated[Signal | Link | Hostile | Burn, Field(discriminator="do")]


class Scenario(Section):
    """One file of a suite."""

    name: Annotated[str, Field(pattern=NAME)]
    summary: Annotated[str, Field(min_length=1, max_length=200)]
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
    budget_s: Annotated[float, Field(strict=False, gt=0, le=600)] = 60.0
    """Seconds for all of it but the topology's start; a run that takes longer is broken off."""

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        groups, hostile = set(self.topology.groups), set(self.topology.hostile)
        peers = [step.name for step in self.steps if isinstance(step, Hostile)]
        if len(set(peers)) < len(peers):
            raise ValueError("two steps put a hostile peer in one place")
        for number, step in enumerate(self.steps, 1):
            for name in _named(step):
                if name not in groups | hostile:
                    raise ValueError(f"step {number} names {name!r}, which the topology lacks")
            if isinstance(step, Hostile):
                if step.name not in hostile:
                    raise ValueError(f"step {number}: {step.name!r} is no place for a hostile peer")
                if step.target in hostile:
                    raise ValueError(f"step {number}: the target {step.target!r} is no real group")
                _check_one_of(step.answer, [a.value for a in Answer], f"step {number}: answer")
                _check_one_of(step.attack, [a.value for a in Attack], f"step {number}: attack")
                _check_namespaces(step.namespaces, f"step {number}")
            if isinstance(step, Signal) and step.part.startswith("store-"):
                stores = [f"store-{i}" for i in range(self.topology.stores)]
                _check_one_of(step.part, stores, f"step {number}: part")
            if isinstance(step, (Signal, Link)) and set(_named(step)) & hostile:
                raise ValueError(f"step {number}: {step.do} needs real groups")
            if step.at + (step.lasts or 0) > self.workload.seconds:
                raise ValueError(f"step {number} ends after the load, at {self.workload.seconds} s")
            if step.do != "kill" and step.lasts is None:
                raise ValueError(f"step {number}: {step.do} needs lasts")
        self._check_invariants(groups, hostile)
        return self

    def _check_invariants(self, groups: set[str], hostile: set[str]) -> None:
        wanted = self.invariants
        for counter in wanted.counters:
            _check_one_of(counter.group, groups, "invariants.counters: group")
        for refused in wanted.refused:
            _check_one_of(refused.group, groups, "invariants.refused: group")
        for peak in wanted.peaks:
            _check_one_of(peak.group, groups, "invariants.peaks: group")
            _check_one_of(peak.peer, groups | hostile, "invariants.peaks: peer")
        for booked in wanted.books:
            _check_one_of(booked.name, hostile, "invariants.books: name")
        for owner in (wanted.returns and wanted.returns.owners) or ():
            _check_one_of(owner, groups, "invariants.returns: owners")
        if wanted.leased is not None:
            _check_one_of(wanted.leased.name, hostile, "invariants.leased: name")
        if wanted.contained is not None:
            _check_one_of(wanted.contained.group, groups, "invariants.contained: group")
            everyone = groups | hostile
            _check_one_of(wanted.contained.origin, everyone, "invariants.contained: origin")

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


def _named(step: Step) -> Iterable[str]:
    if isinstance(step, Signal):
        return (step.group,)
    if isinstance(step, Link):
        return (step.source, step.to)
    if isinstance(step, Hostile):
        return (step.name, step.target, *step.claims)
    return ()


def _check_one_of(name: str, known: Collection[str], where: str) -> None:
    if name not in known:
        there = f"known here: {', '.join(sorted(known))}" if known else "the topology has none"
        raise ValueError(f"{where}: there is no {name!r} ({there})")


def _check_namespaces(names: Iterable[str], where: str) -> None:
    from chaos.load.keys import ENVELOPES  # only here: it loads what `chaos list` can do without

    for name in names:
        _check_one_of(name, ENVELOPES, f"{where}: namespace")


def load_scenario(path: Path) -> Scenario:
    """A scenario, validated whole. `topology = "pair"` names `../topologies/pair.toml`.

    Raises:
        ConfigError: the file cannot be used; it lists every problem with its line.
    """
    path = Path(path).absolute()
    content: dict[str, Any] = dict(read_toml(path))
    named = content.get("topology")
    if isinstance(named, str):
        content["topology"] = _topology(named, path)
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        raise explain(error, path, Scenario) from error


def _topology(name: str, path: Path) -> Topology:
    places = [path.parent.parent / TOPOLOGIES, SCENARIOS / TOPOLOGIES]
    for folder in places:
        file = folder / f"{name}.toml"
        if file.is_file():
            try:
                return Topology.model_validate(dict(read_toml(file)))
            except ValidationError as error:
                raise explain(error, file, Topology) from error
    raise ConfigError(
        f"there is no topology {name!r}",
        where=str(path),
        hint=f"looked for {name}.toml in {' and '.join(map(str, places))}",
    )


def suites() -> list[str]:
    """Names of the packaged suites."""
    return sorted(p.name for p in SCENARIOS.iterdir() if p.is_dir() and p.name != TOPOLOGIES)


def find(names: Iterable[str]) -> list[Path]:
    """The scenario files that suites, `SUITE/NAME` and paths name, each once.

    Raises:
        UsageError: for a name that is none of these.
    """
    found: dict[Path, None] = {}
    for name in names:
        packaged = SCENARIOS / name
        if name in suites():
            found.update(dict.fromkeys(sorted(packaged.glob("*.toml"))))
        elif "/" in name and packaged.with_name(packaged.name + ".toml").is_file():
            found[packaged.with_name(packaged.name + ".toml")] = None
        elif Path(name).is_dir():
            found.update(dict.fromkeys(sorted(Path(name).absolute().glob("*.toml"))))
        elif Path(name).is_file():
            found[Path(name).absolute()] = None
        else:
            raise UsageError(
                f"{name!r} is no suite, scenario or file",
                hint=f"suites: {', '.join(suites())}; a scenario: smoke/NAME; or a path",
            )
    if not found:
        raise UsageError("no scenario in what was named")
    return list(found)
