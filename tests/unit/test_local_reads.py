"""Questions of thousands of keys: as one, and with the answers in their places."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from federation import local_reads
from federation.batch import names_of
from federation.codes import INVALID_PARAMS, RPC_TIMEOUT
from federation.local_reads import local_exists
from federation.timeouts import Deadline
from local_group.store import StoreClient
from local_group.store_config import StoreLimits
from tests.support.fake_native import FakeNative

LIMITS = StoreLimits(bounce_bytes=1 << 20, window_bytes=1 << 18)


def _stored(keys: Sequence[str]) -> list[str]:
    return [f"p/{key}" for key in keys]


def _added(keys: Sequence[str]) -> list[str]:
    """As production's: it raises where a key is no string."""
    return ["p/" + key for key in keys]


@pytest.mark.parametrize("step", [3, 16_384])
def test_each_key_has_its_answer(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_reads, "STEP_KEYS", step)
    native = FakeNative()
    native.blocks = {f"p/{n}": b"x" for n in range(0, 20, 2)}
    client = StoreClient(native, LIMITS)  # type: ignore[arg-type]
    keys = [str(n) for n in range(20)]
    try:
        found = local_exists(client, _stored, keys, Deadline(5))
        assert found == [1, 0] * 10
        assert local_exists(client, _stored, keys[::2], Deadline(5)) == [1] * 10
        assert local_exists(client, _stored, [], Deadline(5)) == []
        assert local_exists(client, _stored, keys, Deadline(0)) == [RPC_TIMEOUT] * 20
        assert local_exists(client, _stored, keys, None) == [1, 0] * 10
    finally:
        client.close()


def test_what_can_be_no_key_is_refused_by_itself() -> None:
    bad = ["", "\ud800", 7, None]
    assert names_of(_stored, ["a", *bad, "\u00e4"]) == ["p/a", "", "", "", "", "p/\u00e4"]  # type: ignore[list-item]
    assert names_of(_stored, ["a", "b"]) == ["p/a", "p/b"]
    native = FakeNative()
    native.blocks = {"p/a": b"x"}
    client = StoreClient(native, LIMITS)  # type: ignore[arg-type]
    try:
        found = local_exists(client, _stored, ["a", "", "b"], Deadline(5))
        assert found == [1, INVALID_PARAMS, 0]
        assert local_exists(client, _stored, ["a", "", "b"], None) == [1, INVALID_PARAMS, 0]
        assert local_exists(client, _stored, [""], Deadline(5)) == [INVALID_PARAMS]
        found = local_exists(client, _added, ["a", *bad, "\u00e4"], Deadline(5))  # type: ignore[list-item]
        assert found == [1, *[INVALID_PARAMS] * 4, 0]
    finally:
        client.close()
