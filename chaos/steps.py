"""What a time line is made of: one class a kind of fault, as a scenario's `[[steps]]` gives it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from chaos.section import LINE_S, GroupName, Seconds, Section


class _Step(Section):
    at: Seconds
    """Seconds from the start of the load; moved by up to 0.1 s by the seed."""
    lasts: Annotated[float, Field(strict=False, gt=0, le=LINE_S)] | None = None
    """Seconds until it is undone. Every step but a kill and a restart has it; of these it says for how long
    what comes of them counts as the fault."""


class Signal(_Step):
    """A signal to a part of a group. `freeze` is SIGSTOP, then SIGCONT when it is over; `restart` is
    SIGTERM: `moonmesh up` starts the part anew."""

    do: Literal["kill", "freeze", "restart"]
    group: GroupName
    part: Annotated[str, Field(pattern=r"^(gateway|serving|master|etcd|store-\d+)$")]


class Throttle(_Step):
    """A part of a group runs for a part of the time: stopped and let run in turn."""

    do: Literal["throttle"]
    group: GroupName
    part: Annotated[str, Field(pattern=r"^(gateway|serving|master|etcd|store-\d+)$")]
    stopped_ms: Annotated[float, Field(strict=False, ge=1, le=1000)] = 60.0
    runs_ms: Annotated[float, Field(strict=False, ge=1, le=1000)] = 3.0
    """So little that hardly a question of a master fits one."""


class Link(_Step):
    """A fault of the network between two groups, in the direction that bytes flow."""

    do: Literal["link"]
    source: GroupName
    to: GroupName
    both: bool = True
    """Also the other direction."""
    mode: Literal["cut", "reset", "rate", "delay", "loss", "flap", "fall", "jitter", "reorder"]
    """`cut`: bytes stay where they are, and nothing says so. `reset`: connections are closed with RST
    and new ones refused. `flap`: cut and healed in turn. `fall`: a rate that is halved again and again.
    `jitter`: a delay that changes. `loss`, `reorder`: in network namespaces alone."""
    mbit: Annotated[float, Field(strict=False, gt=0, le=100_000)] = 10.0
    """For `rate`: Mbit/s of each direction. For `fall`: at first."""
    ms: Annotated[float, Field(strict=False, gt=0, le=10_000)] = 100.0
    """For `delay`: one way. For `jitter`: one way, at most. For `reorder`: how much later the packets come
    that are overtaken. For `flap`: how long each state lasts. For `fall`: how long each rate lasts."""
    share: Annotated[float, Field(strict=False, gt=0, lt=1)] = 0.05
    """For `loss`, `reorder`: of the packets of each direction."""

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
    group: GroupName | None = None
    """Where `[topology] cores` keeps this group; None: anywhere."""


class Squeeze(_Step):
    """A gateway, its serving process included, gets less than it needs of something."""

    do: Literal["squeeze"]
    group: GroupName
    what: Literal["descriptors", "file-bytes", "memory", "cpu"]
    """`descriptors`: no new ones (RLIMIT_NOFILE). `file-bytes`: no file grows beyond `to` (RLIMIT_FSIZE:
    writes fail with EFBIG). `memory`, `cpu`: a cgroup of its own, which needs root."""
    to: Annotated[float, Field(strict=False, ge=0)] = 0.0
    """`file-bytes`: bytes. `memory`: bytes beyond those it has now. `cpu`: cores. `descriptors`: beyond those
    that it has open now."""


class Disk(_Step):
    """The disk of a group's data fails; `[topology] disk` gives it one that can."""

    do: Literal["disk"]
    group: GroupName
    mode: Literal["full", "errors"]
    """`full`: ENOSPC; journal, coordination, logs and spans are on it. `errors`: EIO from each write and
    sync of the journal and of coordination."""


class Clock(_Step):
    """The wall clock of a group jumps, and jumps back; `[topology] clock` lets it."""

    do: Literal["clock"]
    group: GroupName
    hours: Annotated[float, Field(strict=False, ge=-48, le=48)]


class Certificate(_Step):
    """A gateway is restarted with a certificate that is soon over; at the end it gets a new one."""

    do: Literal["certificate"]
    group: GroupName
    valid_s: Annotated[float, Field(strict=False, gt=0, le=60)]
    """Seconds for which it is valid, from the step on."""


class Collector(_Step):
    """The collector that `[topology] collector` has all groups send their spans to."""

    do: Literal["collector"]
    mode: Literal["dead", "slow"]
    """`dead`: nothing listens. `slow`: it takes connections, and answers nothing."""


class Herd(_Step):
    """Many engine clients at once: each has a connection of its own to the gateway's socket, and all ask for
    the same chains, which only a peer has."""

    do: Literal["herd"]
    group: GroupName
    owner: GroupName
    """Whose chains."""
    clients: Annotated[int, Field(ge=1, le=2000)] = 500
    chains: Annotated[int, Field(ge=1, le=32)] = 4
    """So many different ones; `workload.local_chains` has to have them."""
    deadline_ms: Annotated[int, Field(ge=5, le=10_000)] = 1000
    """Of each call."""


class Switch(_Step):
    """An operator's order, given at a group and taken back: `moonmesh peer pause|drain`, `federation off`."""

    do: Literal["switch"]
    group: GroupName
    order: Literal["pause", "drain", "off"]
    peer: GroupName | None = None
    """For `pause` and `drain`: which peer of it."""

    @model_validator(mode="after")
    def _about_whom(self) -> Switch:
        if (self.order == "off") != (self.peer is None):
            raise ValueError(
                "switch off is for all peers" if self.peer else f"switch {self.order} needs a peer"
            )
        return self


class Apply(_Step):
    """A changed peering.toml is put on trial at a group, with a wrong key for one of its peers: `moonmesh
    config apply`. The gateway is to take it back by itself before the step is over."""

    do: Literal["apply"]
    group: GroupName
    peer: GroupName
    """Whose key is nobody's in it."""

    @model_validator(mode="after")
    def _two_groups(self) -> Apply:
        if self.group == self.peer:
            raise ValueError(f"{self.group} is no peer of its own")
        return self


_Kind = (
    Signal
    | Throttle
    | Link
    | Hostile
    | Burn
    | Squeeze
    | Disk
    | Clock
    | Certificate
    | Collector
    | Herd
    | Switch
    | Apply
)

FAULTS = sorted(
    word for kind in get_args(_Kind) for word in get_args(kind.model_fields["do"].annotation)
)
"""What `do` may be."""


def _known(step: object) -> object:
    if isinstance(step, dict) and (do := step.get("do")) not in FAULTS:
        what = "do is missing: add it" if do is None else f"there is no fault {do!r}"
        raise ValueError(f"{what}; there are: {', '.join(FAULTS)}")
    return step


Step = Annotated[Annotated[_Kind, Field(discriminator="do")], BeforeValidator(_known)]


def named(step: Step) -> Iterable[str]:
    """The places of the topology that a step names."""
    if isinstance(step, (Signal, Throttle, Squeeze, Disk, Clock, Certificate)):
        return (step.group,)
    if isinstance(step, Link):
        return (step.source, step.to)
    if isinstance(step, Hostile):
        return (step.name, step.target, *step.claims)
    if isinstance(step, Herd):
        return (step.group, step.owner)
    if isinstance(step, Switch):
        return (step.group,) if step.peer is None else (step.group, step.peer)
    if isinstance(step, Apply):
        return (step.group, step.peer)
    if isinstance(step, Burn):
        return (step.group,) if step.group is not None else ()
    return ()


def over(step: Step) -> bool:
    """Whether it is done at once, with nothing to undo."""
    return isinstance(step, Signal) and step.do != "freeze"


def wants(step: Step) -> tuple[str, str] | None:
    """What of `[topology]` a step cannot do without: the field, and what to write there."""
    if isinstance(step, Disk):
        return "disk", '"faulty"' if step.mode == "errors" else '"own"'
    if isinstance(step, Clock):
        return "clock", "true"
    if isinstance(step, Collector):
        return "collector", "true"
    if isinstance(step, (Signal, Throttle)) and step.part == "etcd":
        return "coordination", '"etcd"'
    return None


def keeps_books(step: Step) -> bool:
    """Whether it counts what it did, under its own word, for the invariant `books`."""
    counting = (Squeeze, Disk, Clock, Collector, Herd, Certificate, Switch, Throttle, Apply)
    return isinstance(step, counting)


def told(step: Step) -> str:
    """A step in a few words, for reports."""
    if isinstance(step, (Signal, Throttle)):
        return f"{step.do} {step.part} of {step.group}"
    if isinstance(step, Apply):
        return f"a wrong key for {step.peer} at {step.group}"
    if isinstance(step, Link):
        return f"{step.mode} {step.source} {'-' if step.both else '>'} {step.to}"
    if isinstance(step, Hostile):
        does = [w for w in (step.answer, step.attack) if w not in ("honest", "none")]
        does += [step.statements] * (step.statements != "honest")
        does += [step.catalog] * (step.catalog != "claims")
        return f"hostile {step.name}: {', '.join(does) or 'honest'}"
    if isinstance(step, Burn):
        return f"burn {step.cores:g} cores"
    if isinstance(step, Squeeze):
        return f"{step.what} of {step.group}"
    if isinstance(step, (Disk, Collector)):
        return f"{step.do} {step.mode}"
    if isinstance(step, Herd):
        return f"{step.clients} clients at {step.group}"
    if isinstance(step, Switch):
        whom = "the federation is off" if step.peer is None else f"{step.order} {step.peer}"
        return f"{whom} at {step.group}"
    return f"{step.do} of {step.group}"
