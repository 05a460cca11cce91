"""Key patterns: what the keys of one namespace look like, in a form that is safe to match and to compare.

    {model}_{hex:64}_{tp_rank}_{k|v}

Text stands for itself. In braces is either a field of the envelope, which stands for its value, or what
differs from key to key:

    {tp_rank} {pp_rank} {cp_rank}   a number from 0 up to the envelope's size less one
    {hex} {hex:64}                  lower-case hexadecimal digits, any number or just so many
    {int}                           decimal digits
    {text}                          one or more characters up to the one that follows in the pattern
    {one|other}                     one of these words

A pattern matches whole keys. Where a field ends is always decided by the next character, so matching takes
time that grows with the key alone, whatever the pattern: users' regular expressions would not promise that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from federation.keys.automaton import Automaton, Chars, common_key

if TYPE_CHECKING:
    from federation.identity import Envelope

PATTERN_CHARS_MAX = 512
FIELDS_MAX = 16
"""Fields in braces of one pattern."""
WORDS_MAX = 1024
"""Words of one choice; so also the most ranks that a rank field takes."""
HEX_MAX = 256
"""Digits of `{hex:N}`."""

_HEX = frozenset("0123456789abcdef")
_DIGITS = frozenset("0123456789")
_CONTROL = frozenset(map(chr, (*range(32), 127)))
_ANY = Chars(_CONTROL | {","}, negated=True)
"""No comma: the master cannot be asked for the size of such a key without a lease."""
_RANKS = {"tp_rank": "tp", "pp_rank": "pp", "cp_rank": "cp"}
_SPLIT = re.compile(r"\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z0-9_.:@%/+-]+")


@dataclass(frozen=True, slots=True)
class _Many:
    """One or more characters of a set, or `count` of them."""

    chars: Chars
    count: int = 0

    def regex(self) -> str:
        inside = "".join(map(re.escape, sorted(self.chars.members)))
        return f"[{'^' if self.chars.negated else ''}{inside}]" + (
            f"{{{self.count}}}" if self.count else "+"
        )

    def clashes(self, follower: str) -> bool:
        """Whether `follower` could be of the field as well as behind it."""
        return not self.count and (follower in self.chars.members) != self.chars.negated

    def build(self, automaton: Automaton) -> None:
        if not self.count:
            automaton.repeat(self.chars)
        for _ in range(self.count):
            automaton.step(self.chars)


@dataclass(frozen=True, slots=True)
class _Choice:
    words: tuple[str, ...]

    def regex(self) -> str:
        # The longest first, so that the first that fits is the one that stays.
        ordered = sorted(self.words, key=lambda word: (-len(word), word))
        return f"(?:{'|'.join(map(re.escape, ordered))})"

    def clashes(self, follower: str) -> bool:
        return any(
            other.startswith(word) and other[len(word) :].startswith(follower)
            for word in self.words
            for other in self.words
            if len(other) > len(word)
        )

    def build(self, automaton: Automaton) -> None:
        automaton.choice(self.words)


_Part = str | _Many | _Choice


class Pattern:
    """One pattern, for one envelope.

    Args:
        text: see the module.
        envelope: whose values the fields stand for.

    Raises:
        ValueError: it is no pattern; it says why and what to do.
    """

    def __init__(self, text: str, envelope: Envelope) -> None:
        self.text = text
        if not 0 < len(text) <= PATTERN_CHARS_MAX:
            raise ValueError(f"a pattern has 1 to {PATTERN_CHARS_MAX} characters")
        self._automaton: Automaton | None = None
        self._parts = _merged(_parts(text, envelope))
        self._check()
        self.regex = "".join(p if isinstance(p, str) else p.regex() for p in self._escaped())
        self._matches = re.compile(self.regex).fullmatch
        head = self._parts[0]
        self._head = head if isinstance(head, str) else ""

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def matches(self, key: str) -> bool:
        """Whether `key`, the whole of it, is of this form."""
        return self._matches(key) is not None

    def common(self, other: Pattern) -> str | None:
        """A key that both patterns match; None if there is none: that is certain."""
        head = min(self._head, other._head, key=len)
        if not (self._head.startswith(head) and other._head.startswith(head)):
            return None
        return common_key(self.automaton(), other.automaton(), head)

    def automaton(self) -> Automaton:
        """The same language, to be compared."""
        if self._automaton is None:
            self._automaton = Automaton()
            for part in self._parts:
                if isinstance(part, str):
                    self._automaton.word(part)
                else:
                    part.build(self._automaton)
        return self._automaton

    def _escaped(self) -> list[str | _Many | _Choice]:
        return [re.escape(part) if isinstance(part, str) else part for part in self._parts]

    def _check(self) -> None:
        fields = [part for part in self._parts if not isinstance(part, str)]
        if not any(isinstance(part, _Many) for part in fields):
            raise ValueError(
                "it matches a few keys only: what differs from block to block has to be in it, "
                "as {hex}, {int} or {text}"
            )
        if len(fields) > FIELDS_MAX:
            raise ValueError(f"{len(fields)} fields in braces are more than {FIELDS_MAX}")
        for part, follower in zip(self._parts, self._parts[1:], strict=False):
            if isinstance(part, str):
                continue
            if not isinstance(follower, str):
                raise ValueError("two fields side by side: put text between them")
            if part.clashes(follower[0]):
                raise ValueError(
                    f"where a field ends would be unclear: {follower[0]!r}, which follows it, could be "
                    "part of it"
                )
        example = common_key(self.automaton(), _OWN_KEYS)
        if example is not None:
            raise ValueError(
                f"it would match keys that Moonmesh makes itself, such as {example!r}: begin it with "
                "text"
            )


def _parts(text: str, envelope: Envelope) -> list[_Part]:
    pieces = _SPLIT.split(text)
    if any(brace in piece for piece in pieces[::2] for brace in "{}"):
        raise ValueError("a brace without its other half")
    parts: list[_Part] = []
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            if (_CONTROL | {","}) & set(piece):
                raise ValueError("a comma or a control character in it: such keys are not served")
            parts.append(piece)
        else:
            parts.append(_field(piece, envelope))
    return [part for part in parts if part != ""]


def _field(name: str, envelope: Envelope) -> _Part:
    kind, _, count = name.partition(":")
    if name in _RANKS:
        size = getattr(envelope, _RANKS[name])
        if size > WORDS_MAX:
            raise ValueError(f"{{{name}}} of {size} ranks; at most {WORDS_MAX}: use {{int}}")
        return _Choice(tuple(map(str, range(size))))
    if name == "hex":
        return _Many(Chars(_HEX))
    if kind == "hex":
        if not count.isascii() or not count.isdigit() or not 0 < int(count) <= HEX_MAX:
            raise ValueError(f"{{{name}}}: give the number of digits, 1 to {HEX_MAX}")
        return _Many(Chars(_HEX), int(count))
    if name == "int":
        return _Many(Chars(_DIGITS))
    if name == "text":
        return _Many(_ANY)
    if "|" in name:
        words = tuple(name.split("|"))
        if len(words) > WORDS_MAX or not all(map(_WORD.fullmatch, words)):
            raise ValueError(f"{{{name}}}: each word is one or more of A-Z a-z 0-9 _.:@%/+-")
        if len(set(words)) < len(words):
            raise ValueError(f"{{{name}}}: a word is there twice")
        return _Choice(words)
    if name in envelope.fields():
        value = str(envelope.fields()[name])
        if not value:
            raise ValueError(f"{{{name}}} is empty in this namespace: leave it out")
        return value
    known = [*envelope.fields(), *_RANKS, "hex", "hex:N", "int", "text", "one|other"]
    raise ValueError(f"{{{name}}} is no field: there are {', '.join(known)}")


def _merged(parts: list[_Part]) -> list[_Part]:
    """Without two texts side by side, a field of the envelope being one; `{text}` up to what follows it."""
    merged: list[_Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, str) and isinstance(last, str):
            merged[-1] = last + part
            continue
        if isinstance(part, str) and isinstance(last, _Many) and last.chars is _ANY:
            merged[-1] = _Many(Chars(_ANY.members | {part[0]}, negated=True))
        merged.append(part)
    return merged


def _own_keys() -> Automaton:
    automaton = Automaton()
    for _ in range(32):
        automaton.step(Chars(_HEX))
    automaton.word("/")
    automaton.repeat(Chars(frozenset(), negated=True))
    return automaton


_OWN_KEYS = _own_keys()
"""`<fingerprint>/<key>`: see `federation.identity.stored_key`."""
