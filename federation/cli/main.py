"""`moonmesh`: the command line. A command imports what it needs when it runs: `--help` is quick."""

from __future__ import annotations

import contextlib
import importlib
import sys
from importlib import metadata

import typer

from federation.cli import (
    apply,
    bench,
    demo,
    group,
    locate,
    namespaces,
    new_pool,
    peer,
    prefetch,
    purge,
    reference,
    switch,
    trace,
)
from federation.cli.errors import print_error
from local_group.errors import MoonmeshError

app = typer.Typer(
    name="moonmesh",
    help="Federates independent Mooncake KV-cache clusters (groups).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a defect gets a plain traceback, a user's mistake none
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(group.up)
app.command()(group.down)
app.command()(group.status)
app.command()(demo.demo)
app.command()(purge.purge)
app.command()(namespaces.namespaces)
app.command()(prefetch.prefetch)
app.command()(new_pool.new_pool)
app.command()(locate.locate)
for command in (switch.pause, switch.drain, switch.resume):
    peer.app.command()(command)
app.add_typer(peer.app, name="peer")
app.add_typer(switch.app, name="federation")
app.add_typer(bench.app, name="bench")
app.add_typer(trace.app, name="trace")
reference.app.command()(apply.apply)
app.add_typer(reference.app, name="config")

EXTENSIONS = "moonmesh.commands"
"""Entry points of this group add commands: what lies above this layer is not imported by name. One that
is called `bench.NAME` is a command of `moonmesh bench`."""
FROM_SOURCE = {
    "chaos": "chaos.cli:app",
    "sim": "chaos.sim.cli:app",
    "bench.gossip": "chaos.sim.bench_cli:gossip",
}
"""Those of this repository, for a source tree whose entry points are not installed."""


def _extend() -> None:
    found = {point.name: point.value for point in metadata.entry_points(group=EXTENSIONS)}
    for name, value in {**FROM_SOURCE, **found}.items():
        module, _, attribute = value.partition(":")
        with contextlib.suppress(ModuleNotFoundError):  # an installation may leave it out
            command = getattr(importlib.import_module(module), attribute)
            parent, _, leaf = name.rpartition(".")
            if parent == "bench":
                bench.app.command(leaf)(command)
            else:
                app.add_typer(command, name=name)


_extend()


def main() -> None:
    """Run the command line and exit: 0, 1 (it failed), 2 (usage or configuration), 130 (^C).

    What takes down first what it started ends with 128 + the number of the signal.
    """
    try:
        app()
    except MoonmeshError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
