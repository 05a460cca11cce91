"""Connecting a store client: what a user is told, and when."""

from __future__ import annotations

import socket

import pytest

from local_group.store import StoreClient, StoreError, StoreSettings
from tests.support.timing import Timed

pytestmark = [pytest.mark.real, pytest.mark.alone]


def test_no_master_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with Timed() as timed, pytest.raises(StoreError, match="no master answers") as caught:
            StoreClient.connect(StoreSettings(address))
    timed.check(0.2, "connect")
    assert str(caught.value).startswith(f"{address}: no master answers")
    assert caught.value.hint == "is the group up?"


def test_something_else_at_the_masters_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(StoreError, match="setup returned -") as caught:
            StoreClient.connect(StoreSettings(address))
    assert caught.value.where == address
