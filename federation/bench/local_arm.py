"""One way of reaching the local Mooncake, in a process of its own: plain, or through FederatedStore.

Plain is Mooncake with the settings that it has by itself: what an engine has that knows nothing of us.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

import numpy as np

from federation.bench.engine_process import open_federated
from federation.errors import MoonmeshError
from local_group.native import Native
from local_group.store_config import StoreSettings

Call = Literal["get", "put", "exists"]
CALLS: Final[tuple[Call, ...]] = ("get", "put", "exists")
ANSWER_S: Final = 60.0
"""Longest wait for one call: Mooncake's own timeouts are shorter."""
SMALL_BYTES: Final = 64
"""Of the blocks that are asked after: their bytes do not matter."""
FILL_KEYS: Final = 1000
"""Blocks put at once while the pool is filled."""


class ArmError(MoonmeshError):
    """A call that was to be measured has failed."""

    code = "MM245"


@dataclass(frozen=True)
class Spec:
    """What an arm needs to know. Its keys are those that FederatedStore gives to Mooncake.

    Attributes:
        settings: of `engine_process.open_federated`; None: plain Mooncake.
        prefix: before each key, in Mooncake.
        blocks, block_bytes: of one get and one put.
        exists_keys: of one `batch_is_exist`.
    """

    name: str
    settings: dict[str, Any] | None
    master: str
    host: str
    protocol: str
    local_buffer_bytes: int
    prefix: str
    blocks: int
    block_bytes: int
    exists_keys: int


class _Federated:
    def __init__(self, spec: Spec) -> None:
        assert spec.settings is not None
        store: Any = open_federated(spec.settings)
        self.register = store.register_buffer
        self.get, self.put, self.exists = (
            store.batch_get_into,
            store.batch_put_from,
            store.batch_is_exist,
        )


class _Plain:
    def __init__(self, spec: Spec) -> None:
        settings = StoreSettings(
            master_address=spec.master,
            local_hostname=spec.host,
            protocol=spec.protocol,
            local_buffer_size=spec.local_buffer_bytes,
        )
        store = Native(settings, as_it_comes=True)
        self.register, self.get, self.exists, self._put = (
            store.register,
            store.get,
            store.exists,
            store.put,
        )
        self._remove = store.remove

    def put(self, keys: list[str], pointers: list[int], sizes: list[int]) -> list[int]:
        return self._put(keys, pointers, sizes, None)

    def remove(self, keys: list[str]) -> None:
        """What was put; at once, whatever leases there are."""
        self._remove(keys, True)


class Arm:
    """Its process, and the pipe to it."""

    def __init__(self, spec: Spec) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(spec, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.name = spec.name

    def ready(self) -> None:
        """Waits until its store is open.

        Raises:
            ArmError: if that fails.
        """
        self._answer("start")

    def ask(self, what: str, number: int = 0) -> float:
        """Has a call made; ms that it took.

        Raises:
            ArmError: if it fails, or the process ends or hangs.
        """
        try:
            self._pipe.send((what, number))
        except OSError as error:
            raise ArmError(f"its process has ended ({what} {number})", where=self.name) from error
        return self._answer(f"{what} {number}")

    def _answer(self, what: str) -> float:
        try:
            answered = self._pipe.poll(ANSWER_S)
            found = self._pipe.recv() if answered else f"no answer in {ANSWER_S:.0f} s"
        except (EOFError, OSError):
            found = "its process has ended"
        if isinstance(found, str):
            raise ArmError(f"{what}: {found}", where=self.name)
        return float(found)

    def close(self) -> None:
        """Ends the process; what it has of Mooncake goes with it."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _main(spec: Spec, pipe: Connection) -> None:
    try:
        work = _Work(spec)
        pipe.send(0.0)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    while True:
        what, number = pipe.recv()
        try:
            pipe.send(work.do(what, number))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")


class _Work:
    """The calls, with their keys and memory made before the clock starts."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._store: Any = _Plain(spec) if spec.settings is None else _Federated(spec)
        plain = spec.settings is None
        self._prefix = spec.prefix if plain else ""
        random = np.random.default_rng(1)
        self._memory = random.integers(0, 256, (spec.blocks, spec.block_bytes), np.uint8)
        base = self._memory.ctypes.data
        self._pointers = [base + place * spec.block_bytes for place in range(spec.blocks)]
        self._sizes = [spec.block_bytes] * spec.blocks
        self._read = [f"{self._prefix}read/{place}" for place in range(spec.blocks)]
        self._asked = [f"{self._prefix}asked/{place}" for place in range(spec.exists_keys)]
        if self._store.register(base, self._memory.nbytes) != 0:
            raise ArmError("Mooncake did not register the memory", where=spec.name)

    def do(self, what: str, number: int) -> float:
        store, spec = self._store, self._spec
        if what == "fill":
            self._fill()
            return 0.0
        if what == "remove":
            for arm in ("federated", "plain", "plain again"):
                store.remove([f"{spec.prefix}{key}" for key in self._written(arm, number)])
            return 0.0
        keys = [self._prefix + key for key in self._written(spec.name, number)]
        begin = time.perf_counter()
        if what == "get":
            codes = store.get(self._read, self._pointers, self._sizes)
        elif what == "put":
            codes = store.put(keys, self._pointers, self._sizes)
        else:
            codes = store.exists(self._asked)
        took = 1e3 * (time.perf_counter() - begin)
        wanted = {"get": spec.block_bytes, "put": 0, "exists": 1}[what]
        wrong = [code for code in codes if code != wanted]
        if wrong:
            raise ArmError(
                f"{len(wrong)} of {len(codes)} codes are not {wanted}, such as {wrong[0]}"
            )
        return took

    def _written(self, arm: str, number: int) -> list[str]:
        name = arm.replace(" ", "-")
        return [f"{name}/{number}/{place}" for place in range(self._spec.blocks)]

    def _fill(self) -> None:
        """What is read and asked after later."""
        store, base = self._store, self._pointers[0]
        store.put(self._read, self._pointers, self._sizes)
        for start in range(0, len(self._asked), FILL_KEYS):
            keys = self._asked[start : start + FILL_KEYS]
            store.put(keys, [base] * len(keys), [SMALL_BYTES] * len(keys))
