"""The root of every error a user can meet: what happened, where, what to do; a stable code."""

from __future__ import annotations

from typing import ClassVar


class MoonmeshError(Exception):
    """An error that is told to a user without a traceback.

    Args:
        what: one clause that says what is wrong.
        where: file, key, address or log it is about.
        hint: what to do about it.

    Attributes:
        code: stable across releases, for scripts and searches (`MM` and three digits).
        exit_code: of the command line: 2 for a usage or configuration error, else 1.
    """

    code: ClassVar[str] = "MM000"
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  {self.hint}" if self.hint else text


class ConfigError(MoonmeshError):
    """A configuration file, or a value in it, cannot be used."""

    code = "MM101"
    exit_code = 2


class UsageError(MoonmeshError):
    """A command was called in a way it does not understand."""

    code = "MM102"
    exit_code = 2
