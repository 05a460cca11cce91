"""A group with several gateways, and a peer of it: who leads, who follows, who finds what."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import psutil

from tests.support.federation import Federation, read
from tests.support.wait import wait_for


class East(Federation):
    """Group east with further places, and its peer west; an engine at each of the gateways."""

    def __enter__(self) -> East:
        super().__enter__()
        try:
            self.engines = {name: self.store(name) for name in self.groups}
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @property
    def own_places(self) -> list[str]:
        """Those of east."""
        return ["east", *self.places]

    def role(self, place: str) -> str:
        return str(self.status(place).get("leading", {}).get("role", "gone"))

    def leader(self, among: Sequence[str] = ()) -> str:
        """The one place that leads."""

        def one() -> str | None:
            leaders = [p for p in among or self.own_places if self.role(p) == "leader"]
            return leaders[0] if len(leaders) == 1 else None

        return wait_for(one, 15, "one gateway to lead") or ""

    def followers(self) -> list[str]:
        """The others, once each has a copy of all that the leader has."""
        leader = self.leader()
        places = [place for place in self.own_places if place != leader]
        for place in places:
            wait_for(
                lambda p=place: self.following(p).get("complete"),  # type: ignore[misc]
                15,
                f"{place} to follow",
            )
        return places

    def follower(self) -> str:
        """The other one, of two."""
        (place,) = self.followers()
        return place

    def following(self, place: str) -> dict[str, Any]:
        return dict(self.status(place).get("leading", {}).get("following") or {})

    def held(self, place: str) -> int:
        return int(self.status(place)["holdings"]["blocks"])

    def pulls(self, place: str, keys: list[str]) -> None:
        """An engine at a place reads a chain that only the other group has, as soon as that is known."""

        def came() -> bool:
            return read(self.engines[place], keys, deadline_ms=2000) == ["peer"] * len(keys)

        wait_for(came, 20, f"{place} to read {keys}: {self._dump(place)}")

    def epoch_at_west(self) -> int:
        """East's, as west knows it; nothing of it may ever be doubted."""
        east = self.peer("west", "east")
        assert east["quarantine"] is None, east["quarantine"]
        assert east["rejected"] == {}, "a statement of an older term was heard after a newer one"
        return int(str(east["version"]).partition(".")[0])

    def lose_host(self, place: str) -> None:
        """Its gateway and its supervisor die at once, so nothing starts it again. What Mooncake runs there
        ends with its supervisor."""
        group = self.groups[place]
        host = [psutil.Process(group.pid("supervisor")), psutil.Process(group.pid("gateway"))]
        host += host[1].children(recursive=True)
        for process in host:
            os.kill(process.pid, signal.SIGKILL)


def keys_of(what: str, count: int = 4) -> list[str]:
    """Of one chain."""
    return [f"{what}/{index}" for index in range(count)]
