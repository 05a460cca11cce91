"""How the command line tells errors. Imports what it needs when there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from local_group.errors import MoonmeshError


def print_error(error: MoonmeshError) -> None:
    """On stderr."""
    _print(error_text(error))


def print_warning(text: str) -> None:
    """On stderr."""
    from rich.text import Text

    _print(Text.assemble(("warning", "bold yellow"), f": {text}"))


def error_text(error: MoonmeshError) -> Text:
    """`error MM101: what`, and what to do."""
    from rich.text import Text

    return Text.assemble((f"error {error.code}", "bold red"), f": {error}")


def _print(text: Text) -> None:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True, highlight=False).print(text)
