"""Sizes as people write them."""

from __future__ import annotations

import pytest

from local_group.config import parse_size


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (1, 1),
        ("1", 1),
        ("7 B", 7),
        ("2KiB", 2048),
        ("1.5 MiB", 3 << 19),
        ("1 gib", 1 << 30),
        ("3 KB", 3000),
        ("2 MB", 2_000_000),
        ("1.5 GB", 1_500_000_000),
        (f"{(1 << 60) + 1}", (1 << 60) + 1),
    ],
)
def test_sizes(value: object, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["", "x", "1 XB", "-1", "1 MiB 2", "1e3", 1.5, None, True, "MiB"])
def test_not_sizes(value: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(value)
