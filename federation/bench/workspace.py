"""The temporary folder of a run; and what a run that was killed has left in one."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from federation.config import load_group
from federation.errors import MoonmeshError
from local_group.lifecycle import stop_group
from local_group.state import ProcessId

RUN_FILE = "run.json"
"""In a run's folder while it runs: which process it is."""
RUN_FILE_BYTES = 4096
PREFIX = "mm-"
"""Short: the gateway's unix socket lies below it, and its path may have 107 bytes."""
LEFT_MAX = 100
"""Most abandoned folders that one start clears."""

Say = Callable[[str], None]


class Workspace:
    """A temporary folder that is removed, unless something went wrong: then it is kept to look at.

    Before it makes one it takes down what killed runs have left, which may hold the same ports.

    Args:
        name: of the command, e.g. `bench`.
        say: told where the logs are when they are kept.
    """

    def __init__(self, name: str, say: Say) -> None:
        reap_abandoned(say)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
        me = ProcessId.of(os.getpid())
        assert me is not None
        (self.path / RUN_FILE).write_text(me.model_dump_json())
        self.keep = False
        self._say = say

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.keep or kind is not None:
            (self.path / RUN_FILE).unlink(missing_ok=True)  # it ended by itself: nothing to clear
            self._say(f"the logs are kept in {self.path}")
        else:
            shutil.rmtree(self.path, ignore_errors=True)


def reap_abandoned(say: Say) -> None:
    """Stop the groups of runs that were killed (`kill -9`), and remove their folders.

    Their groups have supervisors of their own, which go on. A folder whose groups cannot be stopped
    is left, and named.
    """
    for folder in list(_abandoned())[:LEFT_MAX]:
        say(f"an earlier run was killed: taking down what it has left in {folder}")
        try:
            for path in sorted(folder.glob("*/*/group.toml")):
                stop_group(load_group(path))
        except MoonmeshError as error:
            say(f"that is left as it is: {error}")
            continue
        shutil.rmtree(folder, ignore_errors=True)


def _abandoned() -> Iterator[Path]:
    """Folders of runs of this user whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        try:
            found = folder.lstat()
            # Anybody may make such a folder in /tmp: only what is ours alone is followed.
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            with open(folder / RUN_FILE, "rb") as file:
                owner = ProcessId.model_validate_json(file.read(RUN_FILE_BYTES))
        except (OSError, ValidationError):
            continue
        if not owner.alive():
            yield folder
