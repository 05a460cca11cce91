"""The one place that holds the C++ store client."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from local_group.errors import MoonmeshError
from local_group.outcome import INVALID_PARAMS
from local_group.store_config import StoreSettings


class StoreError(MoonmeshError):
    """The store client cannot be used."""

    code = "MM211"


class StoreClosed(StoreError):  # noqa: N818  (the name says the state, not the fault)
    """The store client was closed."""

    code = "MM212"

    def __init__(self) -> None:
        super().__init__("the store client is closed", hint="connect a new one")


@dataclass(frozen=True)
class Replicate:
    """How Mooncake places a block.

    Attributes:
        replicas: copies, best effort.
        preferred_segment: the store node to place it on if it can be; "" = any.
        with_hard_pin: never evict it.
    """

    replicas: int = 1
    preferred_segment: str = ""
    with_hard_pin: bool = False


def _check_master(settings: StoreSettings) -> None:
    """Asks for a TCP connection first: with nobody there, Mooncake's `setup` holds the
    interpreter's lock for 4.4 s a try, and no Python code of this process runs meanwhile."""
    host, _, port = settings.master_address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return  # such as etcd://HOST:PORT: Mooncake's to find out
    try:
        socket.create_connection((host.strip("[]"), int(port)), settings.connect_timeout_s).close()
    except OSError as error:
        raise StoreError(
            f"no master answers: {error}",
            where=settings.master_address,
            hint="is the group up?",
        ) from error


def _get_each_once(
    store: Any, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]
) -> list[int]:
    """`batch_get_into`, with each key into the largest of its places, and from there into the others."""
    largest: dict[str, int] = {}
    for i, key in enumerate(keys):
        at = largest.setdefault(key, i)
        if sizes[i] > sizes[at]:
            largest[key] = i
    places = list(largest.values())
    got = store.batch_get_into(list(largest), [ptrs[i] for i in places], [sizes[i] for i in places])
    found = dict(zip(largest, got, strict=True))
    results = []
    for i, key in enumerate(keys):
        size, at = int(found[key]), largest[key]
        if size > sizes[i]:
            size = INVALID_PARAMS
        if size > 0 and i != at:
            ctypes.memmove(ptrs[i], ptrs[at], size)
        results.append(size)
    return results


class Native:
    """`MooncakeDistributedStore`, from `setup` to `close`. A use after `close` is `StoreClosed`:
    in Mooncake it is a segmentation fault. Thread-safe as Mooncake is.

    Args:
        as_it_comes: with Mooncake's own timeouts and lanes, not those of the settings: to compare with.
    """

    def __init__(self, settings: StoreSettings, *, as_it_comes: bool = False) -> None:
        _check_master(settings)
        for name, value in settings.environment().items() if not as_it_comes else ():
            # Mooncake reads some of them once, when its library is loaded.
            os.environ.setdefault(name, value)
        try:
            from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        except ImportError as error:
            raise StoreError(
                f"Mooncake cannot be loaded: {error}",
                hint="install libibverbs1 librdmacm1 ibverbs-providers libnuma1 libcurl4 (Debian, Ubuntu)",
            ) from error
        self._config_type = ReplicateConfig
        self._default_config = ReplicateConfig()
        store = MooncakeDistributedStore()
        # For the life of the process, until `close` has returned: neither a garbage collection nor
        # the interpreter's exit may run the C++ destructor while a call is inside it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
        self._store: Any = store
        code = store.setup(
            settings.local_hostname,
            settings.metadata_server,
            settings.global_segment_size,
            settings.local_buffer_size,
            settings.protocol,
            settings.rdma_devices,
            settings.master_address,
            None,
            False,
            "",
            settings.tenant_id,
        )
        if code != 0:
            self._store = None
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(store))
            raise StoreError(
                f"Mooncake's setup returned {code}",
                where=settings.master_address,
                hint="is the master running, and does local_hostname resolve here?",
            )

    def _open(self) -> Any:
        store = self._store
        if store is None:
            raise StoreClosed
        return store

    def get(self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """`batch_get_into`: a size or a negative code per key.

        A key may be there more than once. Mooncake (0.3.13) answers each with the block's size then, and
        fills one of the places: so it is asked for each key once, and the rest is copied.
        """
        store = self._open()
        if len(set(keys)) < len(keys) == len(ptrs) == len(sizes):
            return _get_each_once(store, keys, ptrs, sizes)
        result: list[int] = store.batch_get_into(keys, ptrs, sizes)
        return result

    def put(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        replicate: Replicate | None,
    ) -> list[int]:
        """`batch_put_from`: 0 or a negative code per key.

        Of a key that is there more than once, the first bytes are put. Which of them Mooncake would take is
        anybody's guess.
        """
        store = self._open()
        config = self._default_config
        if replicate is not None:
            config = self._config_type()
            config.replica_num = replicate.replicas
            config.preferred_segment = replicate.preferred_segment
            config.with_hard_pin = replicate.with_hard_pin
        if len(set(keys)) < len(keys) == len(ptrs) == len(sizes):
            first = {key: i for i, key in reversed(list(enumerate(keys)))}
            places = list(first.values())
            codes = store.batch_put_from(
                list(first), [ptrs[i] for i in places], [sizes[i] for i in places], config
            )
            put = dict(zip(first, codes, strict=True))
            return [put[key] for key in keys]
        result: list[int] = store.batch_put_from(keys, ptrs, sizes, config)
        return result

    def exists(self, keys: Sequence[str]) -> list[int]:
        """`batch_is_exist`: 1, 0 or a negative code per key."""
        result: list[int] = self._open().batch_is_exist(keys)
        return result

    def sizes(self, keys: Sequence[str]) -> list[int]:
        """`get_size`, key by key: bytes or a negative code."""
        store = self._open()
        return [int(store.get_size(key)) for key in keys]

    def remove(self, keys: Sequence[str], force: bool) -> list[int]:
        """`batch_remove`: 0 or a negative code per key."""
        result: list[int] = self._open().batch_remove(keys, force)
        return result

    def register(self, ptr: int, size: int) -> int:
        """`register_buffer`: 0 or a negative code."""
        return int(self._open().register_buffer(ptr, size))

    def unregister(self, ptr: int) -> int:
        """`unregister_buffer`: 0 or a negative code."""
        return int(self._open().unregister_buffer(ptr))

    def close(self) -> None:
        """Closes Mooncake's client, when no call is inside it. Up to 1 s, measured, in which no
        Python code of this process runs: Mooncake does not release the interpreter's lock here."""
        store, self._store = self._store, None
        if store is not None:
            store.close()
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(store))

    def leak(self) -> None:
        """Forgets the C++ object without touching it; it lives as long as the process."""
        self._store = None
