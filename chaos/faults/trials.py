"""A peering.toml with a wrong key in it, put on trial at a real group as an operator does it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chaos.errors import ChaosError
from federation.bench.groups import moonmesh
from federation.bench.piped import last_lines
from federation.config import GroupFile
from federation.trial import Trial, TrialFile, digest_of, replace_text
from federation.trust.keys import StatementKey

APPLY_S = 20.0
OVER = "the step was over"
"""Why a trial is taken back that its gateway has not."""


def with_key(text: str, peer: str, key: str) -> str:
    """A peering.toml in which a peer has another key.

    Raises:
        ChaosError: there is no such peer in it.
    """
    head, *blocks = re.split(r"(?m)^(?=\[\[peers\]\])", text)
    for place, block in enumerate(blocks):
        if re.search(rf'(?m)^name = "{re.escape(peer)}"$', block):
            blocks[place], n = re.subn(r"(?m)^key(_file)? = .*$", f'key = "{key}"', block)
            if n == 1:
                return head + "".join(blocks)
    raise ChaosError(f"peering.toml has no key of {peer}")


class WrongKey:
    """One trial, from `begin` to `end`.

    Args:
        config, path: the group's, and where its group.toml is.
        folder: for the new file, and for what the command says.
    """

    def __init__(self, config: GroupFile, path: Path, folder: Path) -> None:
        assert config.gateway.peering is not None
        self._config = config
        self._path = path
        self._folder = folder
        self._peering = config.gateway.peering
        self._before = ""
        self._wanted = ""

    async def begin(self, peer: str) -> None:
        """Puts a file on trial in which the peer has a key that nobody signs with.

        Raises:
            ChaosError: it is not on trial.
        """
        self._before = self._peering.read_text("utf-8")
        nobodys = StatementKey.of(Ed25519PrivateKey.generate())
        text = with_key(self._before, peer, str(nobodys))
        self._wanted = digest_of(text)
        file, log = (self._folder / f"apply-{self._config.name}.{end}" for end in ("toml", "log"))
        file.write_text(text, "utf-8")
        code = await moonmesh(
            *("config", "apply", str(file), "-c", str(self._path), "--detach"),
            log=log,
            timeout=APPLY_S,
        )
        if code != 0 or self._trial() is None:
            raise ChaosError(f"nothing is on trial:\n{last_lines(log)}", where=str(log))

    def end(self) -> dict[str, float]:
        """What came of it. Whatever that is, the old file is in force at the gateway's next start."""
        trial = self._trial()
        if trial is None:
            return {"taken_back": 0}
        if trial.state == "trying":
            TrialFile(self._config.data_dir).take_back(trial, OVER)
        elif trial.state == "kept":
            replace_text(self._peering, self._before)
        in_force = self._peering.read_text("utf-8") == self._before
        took = trial.changed_at - trial.started_at
        return {
            "taken_back": trial.state == "rolled back",
            "in_force": in_force,
            "took_ms": round(1000 * took),
        }

    def _trial(self) -> Trial | None:
        latest = TrialFile(self._config.data_dir).read()
        return latest if latest is not None and latest.wanted == self._wanted else None


def shown(status: dict[str, Any]) -> str:
    """How the latest trial of a gateway went, as its `status` has it; "" where it says nothing."""
    return str((status.get("trial") or {}).get("state", ""))
