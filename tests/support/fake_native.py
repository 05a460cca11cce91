"""A stand-in for `local_group.native.Native`: blocks in a dict, and a switch that freezes it.

`tests/conformance/test_native.py` holds it to what the real one does.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

from local_group.native import Replicate, StoreClosed


class FakeNative:
    """In-memory blocks. `thaw` is set; clear it, and every call waits inside until it is set.

    Attributes:
        entered: released once for each call that got inside.
        answer: if not None, every call answers this code for every key.
        calls: what was called, in order of entering.
    """

    def __init__(self) -> None:
        self.blocks: dict[str, bytes] = {}
        self.thaw = threading.Event()
        self.thaw.set()
        self.entered = threading.Semaphore(0)
        self.answer: int | None = None
        self.calls: list[str] = []
        self.closed = False
        self.leaked = False

    def _enter(self, name: str, n: int) -> list[int] | None:
        if self.closed or self.leaked:
            raise StoreClosed
        self.calls.append(name)
        self.entered.release()
        assert self.thaw.wait(30), "the test never thawed the store"
        return None if self.answer is None else [self.answer] * n

    def get(self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        results = self._enter("get", len(keys))
        if results is not None:
            return results
        if len(keys) != len(ptrs) or len(keys) != len(sizes):
            return [-600] * len(keys)
        return [self._get(*one) for one in zip(keys, ptrs, sizes, strict=True)]

    def _get(self, key: str, ptr: int, size: int) -> int:
        block = self.blocks.get(key)
        if block is None:
            return -704
        if size < len(block):
            return -600
        ctypes.memmove(ptr, block, len(block))
        return len(block)

    def put(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        replicate: Replicate | None,
    ) -> list[int]:
        results = self._enter("put", len(keys))
        if results is not None:
            return results
        for key, ptr, size in zip(keys, ptrs, sizes, strict=True):
            self.blocks.setdefault(key, ctypes.string_at(ptr, size))
        return [0] * len(keys)

    def exists(self, keys: Sequence[str]) -> list[int]:
        results = self._enter("exists", len(keys))
        return results if results is not None else [int(key in self.blocks) for key in keys]

    def remove(self, keys: Sequence[str], force: bool) -> list[int]:
        results = self._enter("remove", len(keys))
        if results is not None:
            return results
        return [-704 if self.blocks.pop(key, None) is None else 0 for key in keys]

    def register(self, ptr: int, size: int) -> int:
        return 0

    def unregister(self, ptr: int) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    def leak(self) -> None:
        self.leaked = True
