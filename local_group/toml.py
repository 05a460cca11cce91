"""Reading TOML files, and telling people what is wrong in them, with the line."""

from __future__ import annotations

import contextlib
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from local_group.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

FILE_BYTES_MAX = 1 << 20
"""Bytes. A config file is a page of text; more is a wrong file."""

Location = tuple[int | str, ...]


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        ConfigError: it cannot be read, or is not TOML; with the line.
    """
    return _parse(_read_text(path), path)


def read_top(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Some keys from before the first table, of a file that need not be TOML as a whole.

    Raises:
        ConfigError: it cannot be read.
    """
    content: dict[str, Any] = {}
    for line in _read_text(path).splitlines():
        if _HEADER.match(line):
            break
        match = _KEY.match(line)
        if match and match[1] in keys:
            with contextlib.suppress(tomllib.TOMLDecodeError, RecursionError):
                content |= tomllib.loads(line)
    return content


def dotted(location: Location) -> str:
    """A field as messages name it, if nothing else is said."""
    return ".".join(map(str, location))


def explain(
    error: ValidationError,
    path: Path,
    model: type[BaseModel] | None = None,
    name: Callable[[Location], str] = dotted,
) -> ConfigError:
    """One ConfigError that lists every problem as `file:line: field.path: what (hint)`.

    Args:
        error: what pydantic found.
        path: the file it came from; it is read again to find the lines.
        model: its model; with it, unknown keys get the nearest known name as a hint.
        name: how a field is named.
    """
    try:
        lines = _read_text(path).splitlines()
    except ConfigError:
        lines = []
    problems = [_problem(detail, path, lines, model, name) for detail in error.errors()]
    if len(problems) == 1:
        return ConfigError(problems[0])
    lines_of_text = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(f"{path}: {len(problems)} problems\n{lines_of_text}")


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(
            "there is no such file", where=str(path), hint="name the right one with -c"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(path), hint="check path and permissions"
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError("is larger than 1 MiB", where=str(path), hint="is this the right file?")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            "is not UTF-8 text", where=f"{path}:{line}", hint="save it as UTF-8"
        ) from error


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = tomllib.loads(text)
        return content
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        match = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        if match:
            where = f"{path}:{match[1]}:{match[2]}"
            message = message[: match.start()]
        else:  # "(at end of document)"
            where = f"{path}:{text.count(chr(10)) + 1}"
        raise ConfigError(
            f"is not TOML: {message[:1].lower()}{message[1:]}",
            where=where,
            hint='write key = value; put text in "quotes"',
        ) from error
    except RecursionError:
        raise ConfigError(
            "is nested too deep", where=str(path), hint="is this the right file?"
        ) from None


def _problem(
    detail: ErrorDetails,
    path: Path,
    lines: Sequence[str],
    model: type[BaseModel] | None,
    name: Callable[[Location], str],
) -> str:
    location, around = _follow(tuple(part for part in detail["loc"] if part != "[key]"), model)
    what = _words(detail)
    if detail["type"] == "extra_forbidden":
        what = "is not a known key"
        near = _nearest(location, around)
        if near:
            what += f" ({near})"
    line = find_line(lines, location)
    where = f"{path}:{line}" if line else str(path)
    field = name(location)
    return f"{where}: {field}: {what}" if field else f"{where}: {what}"


def _words(detail: ErrorDetails) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail.get("input")
    shown = repr(value) if isinstance(value, (str, int, float, bool)) else type(value).__name__
    expected = {
        "int_type": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "string_type": 'text in "quotes"',
        "dict_type": "a table",
        "model_type": "a table",
        "model_attributes_type": "a table",
        "list_type": "a list",
        "tuple_type": "a list",
    }.get(kind)
    if expected:
        return f"must be {expected}, not {shown}"
    if kind == "missing":
        return "is missing: add it"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"must be one of {context['expected']}, not {shown}"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = context.get("ge", context.get("le"))
        side = "at least" if kind == "greater_than_equal" else "at most"
        return f"must be {side} {bound}, not {shown}"
    if kind == "string_too_short":
        return "must not be empty"
    message = detail["msg"]
    return f"{message[:1].lower()}{message[1:]} (it is {shown})"


def _nearest(location: Location, around: Sequence[type[BaseModel]]) -> str:
    """`did you mean "x"?` for an unknown key, from the fields of the models at that place."""
    known = [f.alias or name for model in around for name, f in model.model_fields.items()]
    if not known:
        return ""
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{near[0]}"?'
    return "known here: " + ", ".join(dict.fromkeys(known))


def _follow(
    location: Location, model: type[BaseModel] | None
) -> tuple[Location, list[type[BaseModel]]]:
    """A location as the file has it, and the models around its last part: where a field is one of several
    models, pydantic puts the word that says which into the location."""
    plain: list[int | str] = []
    around: list[type[BaseModel]] = []
    models = [] if model is None else [model]
    for part in location:
        told = [each for each in models if part in _words_in(each)] if len(models) > 1 else []
        if told:
            models = told
            continue
        plain.append(part)
        around, models = models, _below(models, part)
    return tuple(plain), around


def _below(models: list[type[BaseModel]], part: int | str) -> list[type[BaseModel]]:
    for model in models:
        for name, field in model.model_fields.items():
            if part == (field.alias or name):
                return _models_in(field.annotation)
    # A key of a mapping, or an index: the container's element type is what we are in already.
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _words_in(model: type[BaseModel]) -> list[Any]:
    """What its fields of a few words may be."""
    fields = [field.annotation for field in model.model_fields.values()]
    return [word for field in fields if get_origin(field) is Literal for word in get_args(field)]


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")


def find_line(lines: Sequence[str], location: Location) -> int:
    """The line (from 1) of a field in TOML text, or of the nearest table around it; 0 if unknown.

    Good for the files that people write: headers and `key = value`, one a line. A key inside an
    inline table is found at the line of that table.
    """
    wanted = tuple(str(part) for part in location)
    table: tuple[str, ...] = ()
    counts: dict[tuple[str, ...], int] = {}
    best, best_length = 0, 0
    for number, line in enumerate(lines, start=1):
        header = _HEADER.match(line)
        if header:
            table = _split(header[2])
            if header[1] == "[[":
                index = counts.get(table, -1) + 1
                counts[table] = index
                if table == wanted and not best:  # the whole array is meant
                    best, best_length = number, len(table)
                table = (*table, str(index))
            full = table
        else:
            key = _KEY.match(line)
            if not key:
                continue
            full = (*table, *_split(key[1]))
        if len(full) > best_length and wanted[: len(full)] == full:
            best, best_length = number, len(full)
    return best


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
