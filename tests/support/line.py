"""The line between two groups of a federation, which can be cut in one direction."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from tests.support.federation import Federation
from tests.support.groups import environment, free_port_base


class Line:
    """Two groups reach each other through `chaos.faults.proxy`, between `with` and its end.

    To be made before the federation is started: it changes the addresses in their peering.toml.
    """

    def __init__(self, federation: Federation, one: str, other: str) -> None:
        base = free_port_base()
        self._links: list[dict[str, Any]] = []
        for listen, (source, to) in enumerate(((one, other), (other, one)), base):
            target = federation.ports[to] + 2
            self._links.append({"source": source, "to": to, "listen": listen, "target": target})
            path = federation.folder / source / "peering.toml"
            text = path.read_text()
            assert text.count(f"127.0.0.1:{target}") == 1
            path.write_text(text.replace(f"127.0.0.1:{target}", f"127.0.0.1:{listen}"))

    def __enter__(self) -> Line:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.faults.proxy"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say({"links": self._links}, "ready")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @contextmanager
    def cut(self, source: str, to: str) -> Iterator[None]:
        """Meanwhile nothing of what `source` says reaches `to`, whoever dialled; then all that waited."""
        self._say({"source": source, "to": to, "mode": "cut"}, "ok")
        try:
            yield
        finally:
            self._say({"source": source, "to": to, "mode": "clear"}, "ok")

    def _say(self, message: dict[str, Any], answer: str) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{answer}\n"
