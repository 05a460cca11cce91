"""A caller's memory, by address: what ctypes makes of it, without a copy."""

from __future__ import annotations

import ctypes
from typing import Any


def bytes_at(pointer: int, size: int) -> memoryview:
    """`size` bytes at an address. The caller vouches for the address."""
    return memoryview((ctypes.c_char * size).from_address(pointer)).cast("B")


def pointer_to(view: memoryview) -> tuple[int, Any]:
    """The address of the bytes of `view`, and what has to be kept alive while it is used.

    ctypes points only into memory that it may write: what is read-only is copied once.
    """
    owner: Any = ctypes.c_char_p(bytes(view)) if view.readonly else _buffer(view)
    return ctypes.cast(owner, ctypes.c_void_p).value or 0, owner


def copy_between(source: int, target: int, size: int) -> None:
    """Copies bytes between addresses; other threads run meanwhile. The caller vouches for both."""
    ctypes.memmove(target, source, size)


def _buffer(data: memoryview) -> Any:
    return (ctypes.c_char * len(data)).from_buffer(data)
