"""What the tables of a scenario file have in common, and `[topology]`: what runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from chaos.network.base import Congestion
from local_group.config import MIB, parse_size

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
    elsewhere: Annotated[tuple[GroupName, ...], Field(strict=False)] = ()
    """Peers that somebody else runs: orders about them can be given."""
    stores: Annotated[int, Field(ge=1, le=8)] = 1
    dram: Size = 256 * MIB
    """Of each store."""
    lease_ttl_ms: Annotated[int, Field(ge=100, le=60_000)] = 2000
    block_bytes: Size = 64 * 1024
    limits: dict[str, int | str] = {}
    """`[limits]` of every group."""
    serving_workers: Annotated[int, Field(ge=1, le=4)] = 1
    """Processes of every group that serve peers."""
    pulling_workers: Annotated[int, Field(ge=0, le=4)] = 0
    """Processes of every group that take blocks of peers from the line."""
    coordination: Literal["file", "etcd"] = "file"
    """`[coordination]` of every group; `etcd`: a managed one each."""
    disk: Literal["shared", "own", "faulty"] = "shared"
    """Of every group's data. `own`: a small file system each; needs root. `faulty`: the journal and the
    files of coordination are on one that can be told to fail; needs FUSE."""
    clock: bool = False
    """Whether the wall clock of the groups' processes can be set; needs a C compiler."""
    congestion: Congestion = "host"
    """TCP's, in every place of namespaces. BBR, which a host may have, believes the shortest round trip of
    the last 10 s, and so sends next to nothing over a way that has just become a longer one."""
    collector: bool = False
    """Whether all groups send their spans to a collector."""
    cores: dict[GroupName, Annotated[tuple[int, ...], Field(strict=False, min_length=1)]] = {}
    """Group to the cores that its processes and its engine may use; all without."""
    runner_cores: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Cores that this process and what it breaks things with stay on, where all groups have cores of their
    own: so that making a fault takes nothing from a group that is beside it."""

    @model_validator(mode="after")
    def _names(self) -> Topology:
        before: set[str] = set()
        for field in ("groups", "hostile", "elsewhere"):
            for name in getattr(self, field):
                if name in before:
                    with about(field):
                        raise ValueError(f"the topology has {name!r} twice")
                before.add(name)
        for name, namespaces in self.hostile.items():
            with about("hostile", name):
                check_namespaces(namespaces)
        for name in self.cores:
            with about("cores"):
                check_one_of(name, self.groups)
        if self.runner_cores and set(self.cores) != set(self.groups):
            with about("runner_cores"):
                raise ValueError("each group needs cores of its own")
        return self

    @property
    def identity(self) -> str:
        """Equal for topologies that can be shared."""
        return self.model_dump_json()


@contextmanager
def about(*where: int | str) -> Iterator[None]:
    """Says of what is refused within that it is about a field below the table that is looked at: so that
    it is told with that field's line.

    Raises:
        ValidationError: for a ValueError.
    """
    try:
        yield
    except ValueError as error:
        found = InitErrorDetails(type="value_error", loc=where, input=None, ctx={"error": error})
        raise ValidationError.from_exception_data("", [found]) from error


def check_one_of(name: str, known: Collection[str], what: str = "") -> None:
    """Whether there is such a name.

    Args:
        what: is called so.

    Raises:
        ValueError: there is not; says which there are.
    """
    if name not in known:
        there = f"known here: {', '.join(sorted(known))}" if known else "the topology has none"
        raise ValueError(f"{what}{': ' if what else ''}there is no {name!r} ({there})")


def check_namespaces(names: Iterable[str]) -> None:
    """Whether the load has such namespaces.

    Raises:
        ValueError: one it has not.
    """
    from chaos.load.keys import ENVELOPES  # only here: it loads what `chaos list` can do without

    for name in names:
        check_one_of(name, ENVELOPES, "namespace")
