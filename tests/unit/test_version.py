"""Version vectors: what they say about each other, and that they never go back."""

from __future__ import annotations

from gossip.version import Version, VersionVector, missing


def test_versions_order_by_epoch_first() -> None:
    assert Version(2, 1) > Version(1, 999)
    assert Version(2, 2) > Version(2, 1)
    assert str(Version(3, 7)) == "3.7"


def test_advance_takes_only_what_is_newer() -> None:
    vector = VersionVector({"east": Version(2, 5)})

    assert vector.advance("east", Version(2, 6))["east"] == Version(2, 6)
    assert vector.advance("east", Version(1, 99)) is vector
    assert vector.advance("east", Version(2, 5)) is vector
    assert vector.advance("west", Version(1, 1))["west"] == Version(1, 1)
    assert vector["east"] == Version(2, 5)
    assert "west" not in vector


def test_missing_names_what_the_other_lacks() -> None:
    ours = VersionVector({"a": Version(1, 2), "b": Version(1, 1), "c": Version(2, 1)})
    theirs = VersionVector({"a": Version(1, 1), "b": Version(1, 1), "d": Version(9, 9)})

    assert missing(ours, theirs) == ("a", "c")
    assert missing(theirs, ours) == ("d",)
    assert not ours.dominates(theirs)
    assert ours.merge(theirs).dominates(theirs)
    assert repr(theirs) == "VersionVector(a: 1.1, b: 1.1, d: 9.9)"
