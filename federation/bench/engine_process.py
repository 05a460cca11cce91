"""One engine of a replay as a process of its own, spoken to in JSON lines on stdin and stdout.

In: a spec, then `{"n": number, "keys": [...]}` a request, then `{"end": true}` or the file's end.
Out: `{"ready": true}` or `{"failed": text}`, then an `Answer` a request, then `{"stats": {...}}`.

Spec: `factory` ("module:function", a `StoreFactory`), `settings` (what that gets), `namespace`
(hex), `block_bytes`, `chain_blocks`, `threads`, `deadline_ms`, `service`, `group`, `traces` (a
folder, or "").
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from federation import telemetry
from federation.bench.delay import MachineDelay
from federation.bench.engine import Answer, Engine, ReplayStore, StoreFactory
from federation.bench.workload import BlockBytes

FLUSH_S = 2.0
"""How long an ending engine waits for its last spans to be written."""


def main() -> int:
    """Run an engine; returns the process's exit code."""
    out = _own_stdout()
    lock = threading.Lock()

    def send(message: Mapping[str, Any]) -> None:
        line = json.dumps(message) + "\n"
        with lock:
            out.write(line)
            out.flush()

    def answer(found: Answer) -> None:
        send(found._asdict())

    lines = sys.stdin.buffer
    try:
        engine = _open(json.loads(lines.readline()), answer)
    except Exception as error:
        send({"failed": f"{type(error).__name__}: {error}"})
        return 1
    send({"ready": True})
    for line in lines:
        message = json.loads(line)
        if "end" in message:
            break
        engine.submit(message["n"], message["keys"])
    stats = engine.close()
    telemetry.flush(FLUSH_S)
    send({"stats": stats | telemetry.stats()})
    out.flush()
    # Not `return`: a Mooncake call that hangs must not keep this process (its threads are native).
    os._exit(0)


def _own_stdout() -> IO[str]:
    """stdout for our messages alone: what Mooncake prints goes to stderr, which is a log file."""
    own = os.dup(1)
    os.dup2(2, 1)
    return open(own, "w", encoding="utf-8")


def _open(spec: Mapping[str, Any], answer: Any) -> Engine:
    telemetry.setup(
        spec["service"], spec["group"], Path(spec["traces"]) if spec["traces"] else None
    )
    module, _, name = spec["factory"].partition(":")
    factory = cast(StoreFactory, getattr(importlib.import_module(module), name))
    machine = MachineDelay()  # before the store, whose native threads a fork would meet
    return Engine(
        factory(spec["settings"]),
        BlockBytes(bytes.fromhex(spec["namespace"]), spec["block_bytes"]),
        threads=spec["threads"],
        chain_blocks=spec["chain_blocks"],
        deadline_ms=spec["deadline_ms"],
        machine=machine,
        on_answer=answer,
    )


def open_federated(settings: Mapping[str, Any]) -> ReplayStore:
    """The `StoreFactory` of real replays: a FederatedStore in the group of `settings["config"]`.

    Raises:
        RuntimeError: if the group's Mooncake refuses it.
    """
    from federation.client import FederatedStore
    from federation.config import load_group

    config = load_group(Path(settings["config"]))
    envelope = settings.get("envelope") or config.namespaces[settings["namespace"]]
    store = FederatedStore()
    code = store.setup(
        config.host,
        "P2PHANDSHAKE",
        0,
        settings["local_buffer_bytes"],
        config.protocol,
        "",
        config.master_address,
        namespace=envelope,
        gateway=f"unix:{config.gateway_socket}" if config.gateway.enabled else None,
        deadline_ms=settings["deadline_ms"],
    )
    if code != 0:
        raise RuntimeError(f"FederatedStore.setup in group {config.name} returned {code}")
    return cast(ReplayStore, store)


if __name__ == "__main__":
    sys.exit(main())
