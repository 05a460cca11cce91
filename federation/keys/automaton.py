"""Whether two key patterns can match one key: decided exactly, with a key that shows it; no regex engine.

A pattern is a small automaton over characters. Two of them have a key in common if, walked side by side
over the same characters, both can arrive at their end. What is walked are pairs of states, so the work is
bounded by the product of their sizes, and patterns part at the first character that differs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_PLAIN = "xyz0123456789abcdefghijklmnopqrstuvwABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:@/"
"""Characters that an example is made of where any will do."""


@dataclass(frozen=True, slots=True)
class Chars:
    """A set of characters: those of `members`, or all others."""

    members: frozenset[str]
    negated: bool = False

    def common(self, other: Chars) -> str | None:
        """A character that is in both; None if there is none."""
        if self.negated and other.negated:
            outside = self.members | other.members
            plain = next((c for c in _PLAIN if c not in outside), None)
            return plain or next(c for n in range(0x4E00, 0xFFFF) if (c := chr(n)) not in outside)
        if self.negated:
            return other.common(self)
        both = self.members - other.members if other.negated else self.members & other.members
        return min(both, default=None)


@dataclass(slots=True)
class Automaton:
    """States from 0, where it begins; what each reads on its way to which other; where it may end."""

    edges: list[list[tuple[Chars, int]]] = field(default_factory=lambda: [[]])
    end: int = 0

    def step(self, chars: Chars) -> None:
        """Behind the end, one of `chars`."""
        self.edges.append([])
        self.edges[self.end].append((chars, len(self.edges) - 1))
        self.end = len(self.edges) - 1

    def word(self, text: str) -> None:
        """Behind the end, this text."""
        for char in text:
            self.step(Chars(frozenset(char)))

    def repeat(self, chars: Chars) -> None:
        """Behind the end, one or more of `chars`."""
        self.step(chars)
        self.edges[self.end].append((chars, self.end))

    def choice(self, words: tuple[str, ...]) -> None:
        """Behind the end, one of these texts, none of them empty."""
        begin, last = self.end, []
        for word in words:
            self.end = begin
            self.word(word[:-1])
            last.append((self.end, Chars(frozenset(word[-1]))))
        self.edges.append([])
        self.end = len(self.edges) - 1
        for state, chars in last:
            self.edges[state].append((chars, self.end))


def common_key(one: Automaton, other: Automaton, head: str = "") -> str | None:
    """A shortest key that both match; None if there is none.

    Args:
        head: text that both begin with: it need not be walked.
    """
    start = (len(head), len(head))
    came: dict[tuple[int, int], tuple[tuple[int, int], str]] = {}
    waiting = deque([start])
    seen = {start}
    while waiting:
        here = waiting.popleft()
        if here == (one.end, other.end):
            chars = []
            while here != start:
                here, read = came[here]
                chars.append(read)
            return head + "".join(reversed(chars))
        for left, to_left in one.edges[here[0]]:
            for right, to_right in other.edges[here[1]]:
                there = (to_left, to_right)
                if there not in seen and (char := left.common(right)) is not None:
                    seen.add(there)
                    came[there] = (here, char)
                    waiting.append(there)
    return None
