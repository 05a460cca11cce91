"""One engine process of a topology: `python -m chaos.load.process`, spoken to as `spec` says."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import IO, Any

from chaos.load.engine import Load
from chaos.load.keys import DEMO, ENVELOPES, GUEST, contents
from chaos.load.replayed import Replayed
from chaos.load.spec import EngineSpec, LoadSpec
from federation.allocator import give_back_free_memory, have_few_heaps
from federation.bench.engine import ReplayStore
from federation.bench.engine_process import open_federated

TICK_S = 0.2
LOCAL_BUFFER_BYTES = 16 * 1024 * 1024
"""For Mooncake's own copies; what an engine has that says nothing of it."""
SWITCH_S = 0.0005
"""Python's threads take turns this often: what is measured is the store, not the other threads."""


class Out:
    """Messages to the runner, from any thread."""

    def __init__(self) -> None:
        # stdout for these alone: what Mooncake prints goes to stderr, which is a log file.
        own = os.dup(1)
        os.dup2(2, 1)
        self._file: IO[str] = os.fdopen(own, "w", encoding="utf-8")
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()


class Engine:
    """The stores of this process, and the load of the run that goes on."""

    def __init__(self, spec: EngineSpec, out: Out) -> None:
        self._spec = spec
        self._out = out
        self._store = self._open(DEMO)
        self._guest = self._open(GUEST) if spec.guest else None
        self._load: Load | None = None
        self._replayed: Replayed | None = None
        self._ticking = threading.Event()

    def _open(self, namespace: str) -> ReplayStore:
        return open_federated(
            {
                "config": self._spec.config,
                "namespace": namespace,
                "envelope": ENVELOPES[namespace] if self._spec.own_namespace else None,
                "local_buffer_bytes": LOCAL_BUFFER_BYTES,
                "deadline_ms": self._spec.deadline_ms,
            }
        )

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carries out one command; the answer."""
        what = command["do"]
        if what == "prepare":
            return self._prepare(LoadSpec.model_validate(command["load"]))
        load = self._load
        assert load is not None, f"{what} before prepare"
        if what == "settle":
            return {"missing": load.settle(command["owners"], command["seconds"])}
        if what == "start":
            load.start(command["begin"])
            self._ticking = threading.Event()
            threading.Thread(target=self._tick, args=(load, self._ticking), daemon=True).start()
            return {}
        if what == "stop":
            ended = load.stop()
            self._ticking.set()
            return {
                "ended": ended,
                "samples": load.take(),
                "totals": load.totals().model_dump(),
                "store": self._store.stats(),
            }
        if what == "audit":
            return {"audit": load.audit(command["again"]).model_dump()}
        raise ValueError(f"no command {what!r}")

    def _prepare(self, spec: LoadSpec) -> dict[str, Any]:
        size = self._spec.block_bytes
        if spec.trace_rate and self._replayed is None:
            # For all runs of this process: each goes on in the trace where the last one ended.
            self._replayed = Replayed(spec.trace, spec.trace_groups, self._spec.group)
        self._load = None
        give_back_free_memory()  # what loads take and leave is not what is looked at
        self._load = Load(
            spec,
            self._spec.group,
            self._store,
            self._guest,
            contents(DEMO, size),
            contents(GUEST, size),
            self._spec.deadline_ms,
            self._replayed if spec.trace_rate else None,
        )
        self._load.prepare()
        return {"totals": self._load.totals().model_dump()}

    def _tick(self, load: Load, done: threading.Event) -> None:
        while not done.wait(TICK_S):
            self._out.send({"tick": {"samples": load.take()}})


def main() -> int:
    """Serves commands until `end` or the end of stdin; the exit code."""
    sys.setswitchinterval(SWITCH_S)
    have_few_heaps()  # as docs/operations.md has it for engines that run for long
    out = Out()
    lines = sys.stdin.buffer
    try:
        engine = Engine(EngineSpec.model_validate_json(lines.readline()), out)
    except Exception as error:
        out.send({"failed": f"{type(error).__name__}: {error}"})
        return 1
    out.send({"done": "open"})
    for line in lines:
        command = json.loads(line)
        if command["do"] == "end":
            break
        try:
            out.send({"done": command["do"], **engine.do(command)})
        except Exception as error:
            traceback.print_exc()
            out.send({"failed": f"{command['do']}: {type(error).__name__}: {error}"})
    sys.stderr.flush()
    # Not `return`: a Mooncake call that hangs must not keep this process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
