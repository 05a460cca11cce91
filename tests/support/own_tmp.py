"""A TMPDIR for one test: what it starts finds nothing of others there, and they nothing of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def own_tmp() -> Iterator[Path]:
    """For this process and all that it starts meanwhile; removed at the end.

    Its path is short, since unix sockets lie below it. Ports are claimed in the TMPDIR that all tests
    share, so `free_port_base` is to be asked before.
    """
    path = Path(tempfile.mkdtemp(prefix="mmt-", dir="/tmp"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(path))
            patch.setattr(tempfile, "tempdir", None)
            yield path
    finally:
        shutil.rmtree(path)
