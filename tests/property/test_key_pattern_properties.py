"""Whether two key patterns have a key in common is decided exactly: keys made from either are the proof."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from federation.errors import ConfigError
from federation.keys.namespace import Namespace
from federation.keys.pattern import Pattern

FIELDS = {
    "model": "m",
    "revision": "r",
    "engine": "e",
    "kv_dtype": "bf16",
    "block_tokens": 64,
    "layout": "l",
    "tp": 12,
}
_PARTS = [
    "x",
    "y",
    "/",
    "_",
    "1",
    "ab",
    "{hex}",
    "{hex:2}",
    "{int}",
    "{text}",
    "{tp_rank}",
    "{a|ab}",
]
_TEXTS = st.lists(st.sampled_from(_PARTS), min_size=1, max_size=6).map(lambda p: "x" + "".join(p))


def _made(text: str) -> Pattern | None:
    try:
        (pattern,) = Namespace.of({**FIELDS, "keys": (text,)}).patterns
    except ConfigError:
        return None
    return pattern


def _some_key(pattern: Pattern, rng: random.Random) -> str:
    """A key that the automaton of the pattern lets through, by a walk at random."""
    automaton, at, key = pattern.automaton(), 0, ""
    while at != automaton.end or (automaton.edges[at] and rng.random() < 0.5):
        chars, at = rng.choice(automaton.edges[at])
        pool = (
            sorted(set("xy/_1ab09fz") - chars.members) if chars.negated else sorted(chars.members)
        )
        key += rng.choice(pool)
    return key


@settings(max_examples=300, deadline=None)
@given(_TEXTS, _TEXTS, st.integers())
def test_a_common_key_is_one_and_none_means_none(one: str, other: str, seed: int) -> None:
    left, right = _made(one), _made(other)
    if left is None or right is None:
        return
    common = left.common(right)
    assert (common is None) == (right.common(left) is None)
    if common is not None:
        assert left.matches(common)
        assert right.matches(common)
        return
    rng = random.Random(seed)
    for _ in range(20):
        assert not right.matches(_some_key(left, rng))
        assert not left.matches(_some_key(right, rng))


@settings(max_examples=200, deadline=None)
@given(_TEXTS, st.integers())
def test_what_is_compared_is_what_is_matched(text: str, seed: int) -> None:
    pattern = _made(text)
    if pattern is not None:
        rng = random.Random(seed)
        assert all(pattern.matches(_some_key(pattern, rng)) for _ in range(10))
        assert pattern.common(pattern) is not None
