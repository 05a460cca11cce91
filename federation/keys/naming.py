"""Under which key Mooncake holds a block, and which block a key is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from federation.identity import Fingerprint, stored_key
from federation.keys.namespace import Namespace

_OWN = re.compile(r"[0-9a-f]{32}/")


class Naming:
    """Names of blocks in the Mooncake of one group.

    A block is stored as `<fingerprint>/<key>`, or under its key alone where that is of a pattern of the
    namespace. The two agree with each other: what `stored` makes, `classify` takes apart, and a key that
    matches another namespace's pattern is never written by this one.

    Args:
        namespaces: their patterns have no key in common: see `federation.keys.namespace.overlaps`.
        key_bytes_max: of a key that a peer may ask for. What is stored under a longer one is of no namespace.
    """

    def __init__(self, namespaces: Iterable[Namespace], key_bytes_max: int | None = None) -> None:
        self._key_bytes_max = key_bytes_max
        self._plain: list[Fingerprint] = []
        groups: list[str] = []
        for namespace in namespaces:
            if namespace.patterns:
                self._plain.append(namespace.fingerprint())
                groups.append(f"({'|'.join(p.regex for p in namespace.patterns)})")
        # No pattern has a group of its own: the number of the group is that of the namespace.
        self._match = re.compile("|".join(groups)).fullmatch if groups else None

    @property
    def plain(self) -> frozenset[Fingerprint]:
        """Namespaces with patterns."""
        return frozenset(self._plain)

    def stored(self, fingerprint: bytes, key: str) -> str:
        """The key under which Mooncake holds a block."""
        if self._plain_of(key) == fingerprint:
            return key
        return stored_key(Fingerprint(fingerprint), key)

    def of(self, fingerprint: Fingerprint) -> Callable[[Sequence[str]], list[str]]:
        """`stored` for many keys of one namespace."""
        if fingerprint not in self._plain:
            prefix = stored_key(fingerprint, "")
            return lambda keys: [prefix + key for key in keys]
        return lambda keys: [self.stored(fingerprint, key) for key in keys]

    def classify(self, stored: str) -> tuple[Fingerprint, str] | None:
        """Namespace and key of what Mooncake lists; None where it is of none."""
        if _OWN.match(stored) is not None:
            fingerprint, key = Fingerprint(bytes.fromhex(stored[:32])), stored[33:]
            # Not what was stored before the namespace had its patterns: it is looked for elsewhere now.
            reachable = bool(key) and self._plain_of(key) != fingerprint and self._short(key)
            return (fingerprint, key) if reachable else None
        plain = self._plain_of(stored)
        return (plain, stored) if plain is not None and self._short(stored) else None

    def _short(self, key: str) -> bool:
        most = self._key_bytes_max
        # Without encoding it, where its characters tell: each takes four bytes at most.
        return most is None or 4 * len(key) <= most or _size(key) <= most

    def _plain_of(self, key: str) -> Fingerprint | None:
        if self._match is None:
            return None
        found = self._match(key)
        return None if found is None or not found.lastindex else self._plain[found.lastindex - 1]


def _size(key: str) -> int:
    return len(key.encode(errors="surrogateescape"))
