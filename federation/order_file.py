"""Where the orders of an operator are kept: a small durable file in the group's data_dir."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from federation.errors import MoonmeshError
from federation.limits.orders import RECORD_BYTES_MAX, Orders
from local_group.slots import SlotFile

FILE_NAME = "orders"
LOCK_SECONDS = 2.0
"""How long a change waits for another one: each takes some ms."""
_POLL_SECONDS = 0.01


class OrderError(MoonmeshError):
    """The orders cannot be read or written."""

    code = "MM323"


class OrderFile:
    """The orders of one place: of the gateway whose data_dir it is, of its serving process and engines.

    Replaced whole or not at all, and on disk when `change` returns; a full disk does not keep it from being
    changed once it exists.

    Args:
        data_dir: of the group, at this place.
    """

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / FILE_NAME
        self._slots = SlotFile(self.path, RECORD_BYTES_MAX, durable=True)

    def read(self) -> Orders:
        """What holds; nothing is switched off where there is no file.

        Raises:
            OrderError: the file is there and cannot be read.
        """
        try:
            raw = self._slots.read()
            there = raw is not None or self.path.exists()
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from error
        if not there:
            return Orders()
        try:
            return Orders.decode(raw or b"")
        except ValueError as error:
            raise self._unusable(f"is damaged: {error}") from error

    def change(self, change: Callable[[Orders], Orders], *, anew: bool = False) -> Orders:
        """Replaces what holds by what `change` makes of it; the result is durable.

        Args:
            anew: goes by nothing being switched off where the file cannot be read.

        Raises:
            OrderError: it cannot be read or written.
        """
        try:
            with self._locked():
                try:
                    orders = self.read()
                except OrderError:
                    if not anew:
                        raise
                    orders = Orders()
                changed = change(orders)
                self._slots.write(changed.encode())
        except OSError as error:
            raise self._unusable(f"cannot be written: {error.strerror}") from error
        return changed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time. The folder is what is locked: the file may be made anew."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            until = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise self._unusable("is being changed by another command") from None
                    time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(folder)

    def _unusable(self, what: str) -> OrderError:
        return OrderError(
            f"the record of what is switched off {what}",
            where=str(self.path),
            hint="`moonmesh federation off` or `moonmesh federation on --forget` writes it anew, "
            "and no peer is paused then",
        )
