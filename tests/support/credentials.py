"""A federation's credentials for tests: good ones, expired ones, and those of another CA."""

from __future__ import annotations

import datetime
import shutil
from dataclasses import dataclass
from pathlib import Path

from federation.peering import Peering, load_peering
from federation.trust.authority import Authority
from federation.trust.credentials import Credentials, load_credentials, utc_now

MONTH = datetime.timedelta(days=30)


@dataclass
class Made:
    """A federation's folder: `east`, `west`, `north`; `old/west` has expired; `other/west` is by
    another CA, `old/east` and `other/east` likewise."""

    root: Path
    names: tuple[str, ...] = ("east", "west", "north")

    def __post_init__(self) -> None:
        authority = Authority(self.root / "ca", "demo")
        self.keys = {name: authority.group(name, self.root / name) for name in self.names}
        # Made by the same CA a month ago, for two days.
        shutil.copytree(self.root / "ca", self.root / "old/ca")
        old = Authority(self.root / "old/ca", "demo", now=utc_now() - MONTH, days=2)
        old.group("west", self.root / "old/west")
        old.group("east", self.root / "old/east")
        other = Authority(self.root / "other/ca", "demo")
        other.group("west", self.root / "other/west")
        other.group("east", self.root / "other/east")

    def of(self, folder: str) -> Credentials:
        name = folder.rsplit("/", 1)[-1]
        now = utc_now() - MONTH if folder.startswith("old/") else None
        return load_credentials(self.root / folder, name, "demo", now=now)

    def peering(self, own: str, *peers: str) -> Peering:
        text = f'federation = "demo"\n[self]\ngroup = "{own}"\ncredentials = "{own}"\n'
        for index, name in enumerate(peers):
            text += f'[[peers]]\nname = "{name}"\naddress = "127.0.0.1:{index + 1}"\n'
            text += f'key = "{self.keys[name]}"\n'
        path = self.root / f"{own}.toml"
        path.write_text(text)
        return load_peering(path)
