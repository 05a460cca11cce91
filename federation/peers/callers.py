"""Who may ask something of this group, and for what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from federation.errors import TrustError
from federation.identity import Fingerprint
from federation.trust.credentials import caller_group
from gossip.ed25519 import PublicKey

if TYPE_CHECKING:
    from federation.peering import Membership


@dataclass(frozen=True)
class Caller:
    """A peer, as far as it asks.

    Attributes:
        keys: that its statements may be signed with.
        exported: namespaces that it may have from us.
        imported: namespaces that we take from it.
    """

    name: str
    keys: Sequence[PublicKey]
    exported: frozenset[Fingerprint]
    imported: frozenset[Fingerprint] = frozenset()


class Callers(Mapping[str, Caller]):
    """All peers, by name.

    Args:
        federation: its id, which is in the names of certificates.
    """

    def __init__(self, federation: str, callers: Sequence[Caller]) -> None:
        self.federation = federation
        self._callers = {caller.name: caller for caller in callers}

    @classmethod
    def of(cls, member: Membership) -> Callers:
        """Those that peering.toml names."""
        return cls(
            member.peering.federation,
            [
                Caller(
                    peer.name,
                    [key.public for key in peer.keys],
                    member.sharing.exports(peer.name),
                    member.sharing.imports(peer.name),
                )
                for peer in member.peering.peers
            ],
        )

    def __getitem__(self, name: str) -> Caller:
        return self._callers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._callers)

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def all_exported(self) -> frozenset[Fingerprint]:
        """What any peer may have."""
        return frozenset[Fingerprint]().union(*(each.exported for each in self.values()))

    def identify(self, auth_context: Mapping[str, Sequence[bytes]]) -> Caller:
        """The peer at the other end of a connection that mTLS has let in.

        Args:
            auth_context: of the call (`context.auth_context()`).

        Raises:
            TrustError: a certificate of the federation's CA is not enough: its group must be a peer.
        """
        name = caller_group(auth_context, self.federation)
        if name is None:
            raise TrustError(f"its certificate is not of a group of federation {self.federation}")
        caller = self.get(name)
        if caller is None:
            raise TrustError(f'group "{name}" is not a peer in peering.toml', where=name)
        return caller
