"""`moonmesh locate`: which groups have how much of a prefix chain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from federation.cli.chain import (
    KeysArgument,
    KeysFileOption,
    NamespaceOption,
    named_namespace,
    read_chain,
)
from federation.cli.group import ConfigOption

if TYPE_CHECKING:
    from federation.router import Located, Router

LOOK_AGAIN_S: Final = 0.1
"""Between two questions while catalogs are on their way."""


def locate(
    keys: KeysArgument = None,
    namespace: NamespaceOption = "",
    keys_file: KeysFileOption = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0.0, max=60.0, help="Seconds to wait for catalogs of peers that are not here yet."
        ),
    ] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: ConfigOption = Path("group.toml"),
) -> None:
    """Show how much of a prefix chain this group and its peers have.

    For each group the leading run of the chain, in blocks and bytes; how old that knowledge is; what pulling
    it would take, as the latest pulls went, and what computing it would (`prefill_tokens_per_second` of the
    namespace). It is what the gateway believes, from memory: nobody is asked, and what was there a moment ago
    may be gone. "~" marks what is estimated, "unknown" what nothing tells. The namespace is followed at peers
    for a while after this, as if an engine had asked for it.
    """
    from federation.config import load_group
    from federation.router import Router

    group = load_group(config)
    space = named_namespace(group, namespace, config)
    chain = read_chain(keys, keys_file, group.limits.key_bytes_max)
    with Router(f"unix:{group.gateway_socket}", space) as router:
        found = _ask(router, chain, wait)
    if as_json:
        _print_json(found, len(chain))
    else:
        _print_table(found, len(chain))


def _ask(router: Router, chain: Sequence[str], wait: float) -> list[Located]:
    """Asks until all usable peers' catalogs are here, or the wait is over."""
    import time

    from federation.peers.subscriptions import NOT_SHARED

    until = time.monotonic() + wait
    while True:
        found = router.locate(chain)
        coming = any(
            each.blocks is None
            and each.usable
            and not each.own
            and not each.reason.startswith(NOT_SHARED)
            for each in found
        )
        if not coming or time.monotonic() >= until:
            return found
        time.sleep(LOOK_AGAIN_S)


def _print_json(found: Sequence[Located], keys: int) -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps({"keys": keys, "groups": [asdict(each) for each in found]}, indent=2))


def _print_table(found: Sequence[Located], keys: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "group", f"of {keys} blocks", "bytes", "known", "to pull", "to compute", "", box=None
    )
    for each in found:
        cells = [
            f"{each.group} (this one)" if each.own else each.group,
            "unknown" if each.blocks is None else str(each.blocks),
            _size(each),
            _age(each),
            _pull(each),
            "unknown" if each.compute_ms is None else f"~{each.compute_ms:.1f} ms",
            each.reason,
        ]
        table.add_row(*map(Text, cells))
    Console(highlight=False, soft_wrap=True).print(table)


def _size(found: Located) -> str:
    if found.bytes is None:
        return "unknown"
    about = "~" if found.bytes_estimated else ""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if found.bytes >= size:
            return f"{about}{found.bytes / size:.1f} {unit}"
    return f"{about}{found.bytes} B"


def _age(found: Located) -> str:
    if found.own:
        return "itself" if found.blocks is not None else "unknown"
    return "unknown" if found.age_ms is None else f"{found.age_ms:.0f} ms ago"


def _pull(found: Located) -> str:
    if found.own:
        return "-"
    return "unknown" if found.pull_ms is None else f"~{found.pull_ms:.1f} ms"
