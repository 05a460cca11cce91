"""A store in this process's memory with the calls that a replay uses; faults on demand."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping
from typing import Any


class MemoryStore:
    """Blocks by key. `tamper` makes a returned block wrong; `delay_s` makes reads slow, `put_delay_s` writes;
    `lock_s` makes reads hold the interpreter's lock for so long, as a bad extension would."""

    def __init__(self) -> None:
        self.blocks: dict[str, bytes] = {}
        self.tamper: set[str] = set()
        self.peer_keys: set[str] = set()
        self.codes: dict[str, int] = {}
        self.delay_s = 0.0
        self.put_delay_s = 0.0
        self.lock_s = 0.0
        self.fail_get: Exception | None = None
        self.skip_write: set[str] = set()
        self.closed = False
        self.in_flight = 0
        self.in_flight_max = 0
        self._lock = threading.Lock()
        self._tiers = threading.local()

    def register_buffer(self, ptr: int, size: int) -> int:
        return 0

    def batch_get_into(
        self, keys: list[str], ptrs: list[int], sizes: list[int], deadline_ms: int
    ) -> list[int]:
        with self._lock:
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            if self.delay_s:
                time.sleep(self.delay_s)
            if self.lock_s:
                ctypes.PyDLL(None).usleep(int(self.lock_s * 1e6))
            if self.fail_get is not None:
                raise self.fail_get
            return [self._get(*each) for each in zip(keys, ptrs, sizes, strict=True)]
        finally:
            with self._lock:
                self.in_flight -= 1
            self._tiers.last = ["peer" if key in self.peer_keys else "local" for key in keys]

    def _get(self, key: str, ptr: int, size: int) -> int:
        if key in self.codes:
            return self.codes[key]
        data = self.blocks.get(key)
        if data is None:
            return -704
        if key in self.tamper:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if key not in self.skip_write:
            ctypes.memmove(ptr, data, min(size, len(data)))
        return len(data)

    def batch_put_from(self, keys: list[str], ptrs: list[int], sizes: list[int]) -> list[int]:
        time.sleep(self.put_delay_s)
        for key, ptr, size in zip(keys, ptrs, sizes, strict=True):
            self.blocks.setdefault(key, ctypes.string_at(ptr, size))
        return [0] * len(keys)

    def last_tiers(self) -> list[str]:
        return list(self._tiers.last)

    def stats(self) -> dict[str, Any]:
        return {"blocks": len(self.blocks)}

    def close(self) -> None:
        self.closed = True


def open_memory(settings: Mapping[str, Any]) -> MemoryStore:
    """The `StoreFactory` of engine processes in tests."""
    if settings.get("refuse"):
        raise RuntimeError("refused, as asked")
    return MemoryStore()


class DyingStore(MemoryStore):
    """Ends its process at the first read, as a crash in native code would."""

    def batch_get_into(
        self, keys: list[str], ptrs: list[int], sizes: list[int], deadline_ms: int
    ) -> list[int]:
        import os

        os.write(2, b"about to crash\n")
        os._exit(11)


def open_dying(settings: Mapping[str, Any]) -> MemoryStore:
    return DyingStore()
