"""Looking up the name of a peer may hang: nothing else waits for that."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from federation.trust.diagnose import diagnose
from tests.support.credentials import Made


async def test_names_that_hang_keep_no_thread_that_others_need(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path_factory.mktemp("federation"))
    release = threading.Event()

    def hang(*_: Any, **__: Any) -> Any:
        release.wait(10)
        raise socket.gaierror("no")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        said = [
            asyncio.create_task(diagnose(f"peer-{n}.invalid:1", made.of("west"), "east", 0.4))
            for n in range(50)
        ]
        await asyncio.sleep(0)  # all of them have begun
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "written"), 2) == "written"
        assert set(await asyncio.gather(*said)) == {
            f"host name 'peer-{n}.invalid' cannot be resolved" for n in range(50)
        }
    finally:
        release.set()
