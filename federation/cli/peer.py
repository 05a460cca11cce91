"""`moonmesh peer`: the certificates and keys by which groups know each other; see also `cli.switch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.cli.group import ConfigOption
from federation.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from federation.peering import Peering
    from federation.trust.authority import Authority
    from federation.trust.keys import StatementKey

app = typer.Typer(
    no_args_is_help=True,
    help="The groups of a federation: certificates and keys, and what holds for each.",
)

GROUPS_MAX = 64


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="Where everything is written.")],
    federation: Annotated[
        str | None, typer.Option(help="The federation's id: a-z, 0-9, -.", metavar="NAME")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            help="A group and the address of its gateway for peers (port_base + 2), of each if it "
            "has several; once a group.",
            metavar="NAME=HOST:PORT[,HOST:PORT...]",
        ),
    ] = None,
    namespaces: Annotated[
        str,
        typer.Option(help="Namespaces that all groups share with each other, comma-separated."),
    ] = "*",
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="Days that the certificates are valid.")
    ] = 397,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make new certificates; CAs and statement keys stay.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Make EVERYTHING anew, and overwrite what is there.")
    ] = False,
) -> None:
    """Makes the CA, certificates and keys of a federation's groups.

    With --group, also each group's peering.toml. Without, FOLDER holds a folder a group with its
    peering.toml already, and the credentials that those name are made. What exists is kept.
    """
    from federation.trust.authority import Authority

    if force and renew:
        raise UsageError("--force and --renew exclude each other", hint="--force makes all anew")
    if group:
        name, addresses = _asked(federation, group)
        shared = _names(namespaces)
        files: dict[str, Peering] = {}
        targets = {g: folder / g / "credentials" for g in addresses}
        if not force:
            _refuse_existing([folder / g / "peering.toml" for g in addresses])
    else:
        files = _existing(folder, federation)
        name, addresses, shared = next(iter(files.values())).federation, {}, []
        targets = {g: peering.own.credentials for g, peering in files.items()}
    authority = Authority(folder / "ca", name, days=days, force=force, renew=renew)
    keys = {g: authority.group(g, target) for g, target in targets.items()}
    for g in addresses:
        path = folder / g / "peering.toml"
        _write(path, _peering_text(name, g, addresses, keys, shared))
        authority.made.written.append(path)
    _tell(folder, targets, authority, days)
    for g, peering in files.items():
        _check_inline_keys(g, peering, keys)


@app.command("show")
def show(
    config: Annotated[Path, typer.Option("--config", "-c", help="A group's peering.toml.")] = Path(
        "peering.toml"
    ),
) -> None:
    """Shows a group's peers, keys, what is shared with each, and when its certificates expire."""
    from rich.console import Console
    from rich.table import Table

    from federation.peering import load_peering
    from federation.trust.credentials import load_credentials, when

    peering = load_peering(config)
    own = load_credentials(peering.own.credentials, peering.own.group, peering.federation)
    console = Console()
    table = Table(title=f"federation {peering.federation}, as group {own.group} sees it")
    for heading in ("group", "address", "statement key", "export", "import"):
        table.add_column(heading, overflow="fold")
    table.add_row(f"{own.group} (self)", "", own.statement_key.fingerprint(), "", "")
    for peer in peering.peers:
        table.add_row(
            peer.name,
            "\n".join(peer.gateways),
            "\n".join(key.fingerprint() for key in peer.keys),
            ", ".join(peer.exports) or "-",
            ", ".join(peer.imports) or "-",
        )
    console.print(table)
    console.print(
        f"certificate: {own.tls.name}, valid until {when(own.not_after)} "
        f"({own.tls.days_left():.0f} days)",
        highlight=False,
    )


@app.command("release")
def release(
    peer: Annotated[
        str, typer.Argument(metavar="NAME", help="The peer, as peering.toml names it.")
    ],
    config: ConfigOption = Path("group.toml"),
) -> None:
    """Take a peer out of quarantine, where it does not come out by itself.

    `moonmesh status` says why it is in it. Find out first: a peer that goes on like that is back in it at
    once. Exit code 1 if it was not in quarantine.
    """
    from rich.console import Console

    from federation.cli.health import ask_release
    from federation.config import load_group
    from federation.errors import MoonmeshError

    socket = load_group(config).gateway_socket
    reply = ask_release(socket, peer)
    if isinstance(reply, str):
        raise MoonmeshError(reply, where=str(socket), hint="is the group up?")
    if not reply.known:
        names = ", ".join(reply.peers) or "none"
        raise UsageError(f'"{peer}" is not a peer of this group', hint=f"its peers: {names}")
    out = Console(highlight=False, markup=False)
    if not reply.reason:
        out.print(f"{peer} is not in quarantine")
        raise typer.Exit(1)
    out.print(f"{peer} is out of quarantine ({reply.reason})")


def _asked(federation: str | None, groups: list[str]) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The federation and `{group: addresses}` of the command line.

    Raises:
        UsageError: says which option is wrong.
    """
    from federation.config import GATEWAYS_MAX
    from federation.peering import check_label, check_peer_address

    if federation is None:
        raise UsageError("--group needs --federation NAME", hint="the id all its groups share")
    if len(groups) > GROUPS_MAX:
        raise UsageError(f"{len(groups)} groups are more than {GROUPS_MAX}")
    addresses: dict[str, tuple[str, ...]] = {}
    taken: dict[str, str] = {}
    try:
        check_label(federation, "a federation's id")
        for text in groups:
            group, equals, listed = text.partition("=")
            if not equals:
                raise ValueError(f'"{text}" is not NAME=HOST:PORT')
            check_label(group, "a group's name")
            if group == "ca":
                raise ValueError('"ca" is the folder of the CA: choose another name for the group')
            if group in addresses:
                raise ValueError(f'group "{group}" is given twice')
            addresses[group] = tuple(map(check_peer_address, listed.split(",")))
            if len(addresses[group]) > GATEWAYS_MAX:
                raise ValueError(
                    f'group "{group}" has {len(addresses[group])} addresses: at most {GATEWAYS_MAX}'
                )
            for address in addresses[group]:
                other = taken.setdefault(address.lower(), group)
                if other != group:
                    raise ValueError(f'two groups have the address "{address}"')
            if len({address.lower() for address in addresses[group]}) < len(addresses[group]):
                raise ValueError(f'group "{group}" has an address twice')
    except ValueError as error:
        raise UsageError(str(error), where="peer init") from None
    return federation, addresses


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not name.isprintable() or set(name) & set("\"'\\") or len(name) > 64:
            raise UsageError(f"{name!r} cannot be a namespace's name", where="--namespaces")
    return names


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _refuse_existing(paths: list[Path]) -> None:
    for path in paths:
        if path.exists():
            raise UsageError(
                "exists already, and is not overwritten",
                where=str(path),
                hint="leave out --group to make the credentials it names, or use --force",
            )


def _existing(folder: Path, federation: str | None) -> dict[str, Peering]:
    """The peering files of a folder's groups, which must be of one federation.

    Raises:
        ConfigError: a file cannot be used, or there is none.
    """
    from federation.peering import load_peering

    paths = sorted(folder.glob("*/peering.toml"))
    if not paths:
        raise UsageError(
            "there is no */peering.toml in it",
            where=str(folder),
            hint="give --federation NAME and --group NAME=HOST:PORT for each group to make them",
        )
    found: dict[str, Peering] = {}
    for path in paths:
        peering = load_peering(path, read_keys=False)
        other = found.get(peering.own.group)
        if other is not None:
            raise ConfigError(
                f'is of group "{peering.own.group}", and so is {other.path}', where=str(path)
            )
        wanted = federation or next(iter(found.values()), peering).federation
        if peering.federation != wanted:
            raise ConfigError(
                f'is of federation "{peering.federation}", not "{wanted}"', where=str(path)
            )
        found[peering.own.group] = peering
    return found


def _check_inline_keys(group: str, peering: Peering, keys: dict[str, StatementKey]) -> None:
    """Says where a peering.toml has another key for a group than the one that is used now."""
    for peer in peering.peers:
        if peer.key is not None and peer.name in keys and keys[peer.name] not in peer.keys:
            raise ConfigError(
                f'group {group} has another key for peer "{peer.name}" than its identity.pub',
                where=str(peering.path),
                hint=f'write  key = "{keys[peer.name]}"',
            )


def _peering_text(
    federation: str,
    group: str,
    addresses: dict[str, tuple[str, ...]],
    keys: dict[str, StatementKey],
    namespaces: list[str],
) -> str:
    shared = "[" + ", ".join(f'"{name}"' for name in namespaces) + "]"
    text = f"""# Group {group} of federation {federation}; its peers find it at {", ".join(addresses[group])}.
federation = "{federation}"

[self]
group = "{group}"              # must equal `name` in group.toml
credentials = "credentials"  # folder, relative to this file
"""
    for peer, found in addresses.items():
        if peer == group:
            continue
        listed = ", ".join(f'"{address}"' for address in found)
        way = (
            f"address = {listed}" if len(found) == 1 else f"addresses = [{listed}]  # its gateways"
        )
        text += f"""
[[peers]]
name = "{peer}"
{way}
key = "{keys[peer]}"
export = {shared}  # namespaces of group.toml that {peer} may have from here
import = {shared}  # namespaces that are taken from {peer}
"""
    return text


def _tell(folder: Path, targets: dict[str, Path], authority: Authority, days: int) -> None:
    """Says what was made, what it is for, and where it belongs."""
    from rich.console import Console

    out = Console(highlight=False, soft_wrap=True, markup=False)  # a path may have [ in it
    made = authority.made
    out.print(f"{len(made.written)} files written, {len(made.kept)} kept as they were.")
    out.print(
        f"\n{folder / 'ca'}: the CAs and their private keys. Keep it offline; no host needs it."
    )
    out.print("\nCopy each group's folder to the host of its gateway, as it is (cp -a, rsync -a):")
    for group, target in targets.items():
        out.print(f"  {group}: {target.parent}")
    out.print("\nWhat is in it:")
    for name, what in (
        ("peering.toml", "its peers: their addresses and statement keys, what is shared"),
        ("credentials/ca.pem", "whom it believes: the federation's CA"),
        ("credentials/cert.pem, key.pem", f"its gateway, towards peers; valid {days} days"),
        ("credentials/identity.key", "signs what the group says of itself"),
        ("credentials/identity.pub", "the public half, as its peers' peering.toml have it"),
        (
            "credentials/engine-server.*",
            "its gateway, towards its engines and gateways on other hosts",
        ),
        ("credentials/engine-client.*", "those engines; they need engine-ca.pem too, and no more"),
    ):
        out.print(f"  {name:<30} {what}")
