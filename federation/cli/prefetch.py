"""`moonmesh prefetch`: brings a chain of peers' blocks into this group's pool, before an engine wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    from federation.config import GroupFile
    from federation.keys.namespace import Namespace

LOOK_AGAIN_S: Final = 0.2
"""Between two looks at what is here."""


def prefetch(
    keys: KeysArgument = None,
    namespace: NamespaceOption = "",
    keys_file: KeysFileOption = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long it may take.")] = 10.0,
    config: ConfigOption = Path("group.toml"),
) -> None:
    """Pull what peers have of a prefix chain, and this group lacks, into its Mooncake.

    For engines that use Mooncake directly: they never ask the gateway, and find what is in the pool. Exit
    code 0 if all of the chain is known to be there in the end, 1 if not.
    """
    from federation.config import load_group
    from local_group.admin import is_askable

    group = load_group(config)
    space = named_namespace(group, namespace, config)
    chain = list(dict.fromkeys(read_chain(keys, keys_file, group.limits.key_bytes_max)))
    known = [key for key in chain if is_askable(key)]
    before, here = _run(group, space, known, seconds)
    said = f"{here} of {len(chain)} blocks are here; {here - before} were brought"
    if unknown := len(chain) - len(known):
        said += f"; {unknown} cannot be asked for: a comma in the key"
    typer.echo(said)
    if here < len(chain):
        raise typer.Exit(1)


def _run(
    group: GroupFile, space: Namespace, chain: Sequence[str], seconds: float
) -> tuple[int, int]:
    """How many blocks were here before, and are now."""
    import time

    import grpc

    from federation.errors import MoonmeshError
    from local_group.admin import SyncAdminClient

    until = time.monotonic() + seconds
    stored = group.naming.of(space.fingerprint())
    names = dict(zip(stored(chain), chain, strict=True))
    where = str(group.gateway_socket)
    with (
        SyncAdminClient(group.admin_url) as admin,
        grpc.insecure_channel(f"unix:{group.gateway_socket}") as channel,
    ):
        before = here = len(_known(admin.query(names)))
        try:
            pull = _Puller(channel, space, until)
            while here < len(chain):
                present = _known(admin.query(names))
                here = len(present)
                missing = [key for name, key in names.items() if name not in present]
                if not missing or time.monotonic() >= until:
                    break
                pull.ask(missing)
                time.sleep(LOOK_AGAIN_S)
        except grpc.RpcError as error:
            code = error.code().name if isinstance(error, grpc.Call) else type(error).__name__
            raise MoonmeshError(
                f"the gateway does not answer: {code}", where=where, hint="is the group up?"
            ) from error
    return before, here


def _known(sizes: Mapping[str, int | None]) -> set[str]:
    """Names of what is here for sure, in memory or on SSD. Of what the master answers an error (it is being
    written, say, or its writer has gone in the midst of it) nothing is known."""
    return {name for name, size in sizes.items() if size is not None}


class _Puller:
    """Asks the gateway for what is missing, as an engine would that looks ahead."""

    def __init__(self, channel: object, space: Namespace, until: float) -> None:
        import time

        import grpc

        from federation.errors import MoonmeshError
        from federation.request_limits import RequestLimits
        from federation.transfer.handover import ATTACH_METHOD, EXISTS_METHOD
        from moonmesh.v1 import engine_pb2

        assert isinstance(channel, grpc.Channel)
        self._fingerprint = space.fingerprint()
        self._until = until
        self._exists = channel.unary_unary(EXISTS_METHOD)
        asked = engine_pb2.AttachRequest(
            envelope_json=space.canonical(), patterns=(p.text for p in space.patterns)
        )
        raw = channel.unary_unary(ATTACH_METHOD)(
            asked.SerializeToString(), timeout=max(0.1, until - time.monotonic())
        )
        reply = engine_pb2.AttachReply.FromString(raw)
        if not reply.federated:
            raise MoonmeshError(reply.reason, where=f"group {reply.group}")
        self._limits = RequestLimits.told(reply.limits)

    def ask(self, keys: Sequence[str]) -> None:
        """Starts pulls of the leading run that peers have, and waits for them to land."""
        import time

        from federation.transfer.fair import PullClass
        from moonmesh.v1 import engine_pb2

        for piece in self._limits.pieces(keys):
            left = self._until - time.monotonic()
            if left <= 0:
                return
            request = engine_pb2.ExistsRequest(
                fingerprint=self._fingerprint,
                keys=keys[piece],
                wait_ms=int(1000 * min(left, 1.0)),
                pull_class=PullClass.PREFETCH.name,
            )
            raw = self._exists(request.SerializeToString(), timeout=left + 1.0)
            if not all(engine_pb2.ExistsReply.FromString(raw).landed):
                return
