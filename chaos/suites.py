"""Finding and reading scenario files: suites that come with the package, and users' own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from chaos.scenario import Scenario
from chaos.section import Section, Topology
from federation.errors import ConfigError, UsageError
from local_group.config import explain, read_toml
from local_group.toml import Location, dotted, find_line

SCENARIOS = Path(__file__).parent / "scenarios"
"""The packaged suites: a folder each, and `topologies/` that they share."""
TOPOLOGIES = "topologies"
SUITE_FILE = "suite.toml"
"""In a folder of scenarios: which others belong to it."""
ALL = "all"
"""The suite of all packaged scenarios."""


def load_scenario(path: Path) -> Scenario:
    """A scenario, validated whole. `topology = "pair"` names `topologies/pair.toml`, in its folder or
    the one above, else the packaged one.

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
        raise explain(error, path, Scenario, _field) from error


def _field(location: Location) -> str:
    """How messages name a field: steps are counted from 1."""
    if location[:1] != ("steps",) or len(location) < 2:
        return dotted(location)
    step = f"step {int(location[1]) + 1}"
    return f"{step}: {dotted(location[2:])}" if location[2:] else step


def _line(path: Path, *field: str) -> str:
    """A file that has been read, with the line of a field of it."""
    line = find_line(path.read_text("utf-8").splitlines(), field)
    return f"{path}:{line}" if line else str(path)


def _topology(name: str, path: Path) -> Topology:
    places = [path.parent / TOPOLOGIES, path.parent.parent / TOPOLOGIES, SCENARIOS / TOPOLOGIES]
    for folder in places:
        file = folder / f"{name}.toml"
        if file.is_file():
            try:
                return Topology.model_validate(dict(read_toml(file)))
            except ValidationError as error:
                raise explain(error, file, Topology) from error
    raise ConfigError(
        f"there is no topology {name!r}",
        where=_line(path, "topology"),
        hint=f"looked for {name}.toml in {', '.join(map(str, places))}",
    )


def suites() -> list[str]:
    """Names of the packaged suites, but for `all`."""
    return sorted(p.name for p in SCENARIOS.iterdir() if p.is_dir() and p.name != TOPOLOGIES)


def find(names: Iterable[str]) -> list[Path]:
    """The scenario files that suites, `SUITE/NAME` and paths name, each once.

    Raises:
        UsageError: for a name that is none of these, and a folder without a scenario.
        ConfigError: two of the files give their scenarios one name, or one cannot be read.
    """
    found: dict[Path, None] = {}
    for name in names:
        found.update(dict.fromkeys(_found(name)))
    files: dict[str, Path] = {}
    for file in found:
        own = _name(file)
        if files.setdefault(own, file) != file:
            raise ConfigError(
                f"its scenario has the name {own!r}, and so has that of {files[own]}",
                where=_line(file, "name"),
                hint="reports tell runs apart by it: give one another name, or run them one by one",
            )
    return list(found)


def _name(file: Path) -> str:
    """Of its scenario; of one that has none that can be used, something that no other has."""
    if file.is_relative_to(SCENARIOS):
        return file.stem  # a test sees to that
    name = read_toml(file).get("name")
    return name if isinstance(name, str) else str(file)


def _found(name: str) -> list[Path]:
    packaged = SCENARIOS / name
    if name == ALL:
        return find(suites())
    if name in suites():
        return _of_folder(packaged)
    if "/" in name and packaged.with_name(packaged.name + ".toml").is_file():
        return [packaged.with_name(packaged.name + ".toml")]
    if Path(name).is_dir():
        return _of_folder(Path(name).absolute())
    if Path(name).is_file():
        return [Path(name).absolute()]
    known = f"suites: {ALL}, {', '.join(suites())}"
    raise UsageError(
        f"{name!r} is no suite, scenario or file",
        hint=f"{known}; a scenario: smoke/NAME; or a file or folder of your own",
    )


def _of_folder(folder: Path) -> list[Path]:
    """Its own scenarios, and those that its `suite.toml` names."""
    files = [file for file in sorted(folder.glob("*.toml")) if file.name != SUITE_FILE]
    if (folder / SUITE_FILE).is_file():
        files += _also(folder / SUITE_FILE)
    if not files:
        raise UsageError(
            "has no scenario",
            where=str(folder),
            hint="a scenario is a file NAME.toml in it: see docs/chaos.md, Writing a scenario",
        )
    return files


class _Suite(Section):
    """`suite.toml`."""

    also: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[a-z-]+/[a-z0-9-]+$")], ...],
        Field(strict=False, min_length=1, max_length=200),
    ]
    """`SUITE/NAME` of packaged scenarios that belong to this suite as well."""


def _also(path: Path) -> list[Path]:
    try:
        names = _Suite.model_validate(dict(read_toml(path))).also
    except ValidationError as error:
        raise explain(error, path, _Suite) from error
    files = {name: SCENARIOS / f"{name}.toml" for name in names}
    for name, file in files.items():
        if not file.is_file():
            raise ConfigError(
                f"also: there is no packaged scenario {name!r}",
                where=_line(path, "also"),
                hint="`moonmesh chaos list` shows which there are",
            )
    return list(files.values())
