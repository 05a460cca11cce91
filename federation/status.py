"""What a gateway says of itself: one JSON document for `moonmesh status`, tests and benchmarks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from federation import telemetry
from federation.config import GroupFile
from federation.counters import Samples, counters
from federation.following.follower import Follower
from federation.following.leader import GroupService
from federation.leading import Leading
from federation.listings import Listings
from federation.peers.gateways import NOT_YET
from federation.peers.processes import ServingProcesses
from federation.peers.pulling import PullWorkers
from federation.peers.side import PeerSide
from federation.switchboard import Switchboard
from federation.transfer.puller import Puller
from federation.transfer.slots import Slots
from federation.transfer.staging import Staging
from federation.trial_watch import TrialWatch
from federation.trust.handshakes import RefusalLog
from federation.watchdog import StallBook
from gossip.quarantine import Quarantine
from local_group.holdings import Holdings
from local_group.store import StoreClient

PROBLEMS_MAX = 16
NOT_GREETED = "not greeted from here: the gateway that leads this group does that"
"""Why a follower has nothing to say of its way to a peer that it has not asked for anything."""
REFRESH_SECONDS = 0.3
"""How long a question for the status waits for the serving process's newest numbers."""


class Problems:
    """The latest things that went wrong here, each once."""

    def __init__(self) -> None:
        self._latest: deque[str] = deque(maxlen=PROBLEMS_MAX)

    def note(self, what: str) -> None:
        """Remembers a problem; the same again moves it to the end."""
        if what in self._latest:
            self._latest.remove(what)
        self._latest.append(what)

    def list(self) -> list[str]:
        """Oldest first."""
        return list(self._latest)


class StatusReport:
    """Gathers the state of every part; the parts do not know of it.

    Args:
        queues: how much waits, or is kept, where nothing else here says so.
        listings: what is known of Mooncake's keys.
    """

    def __init__(
        self,
        *,
        config: GroupFile,
        leading: Leading,
        group: GroupService,
        follower: Follower | None,
        store: StoreClient,
        holdings: Holdings,
        staging: Staging,
        slots: Slots,
        puller: Puller,
        queues: Mapping[str, Callable[[], int]],
        problems: Problems,
        refusals: RefusalLog,
        listings: Listings,
        dialled: RefusalLog,
        peers: PeerSide | None,
        serving: ServingProcesses | None,
        pulling: PullWorkers | None,
        switchboard: Switchboard,
        stalls: StallBook,
        trials: TrialWatch,
    ) -> None:
        self._config = config
        self._leading = leading
        self._group = group
        self._follower = follower
        self._store = store
        self._holdings = holdings
        self._staging = staging
        self._slots = slots
        self._puller = puller
        self._queues = queues
        self._problems = problems
        self._refusals = refusals
        self._listings = listings
        self._dialled = dialled
        self._side = peers
        self._serving = serving
        self._pulling = pulling
        self._switchboard = switchboard
        self._stalls = stalls
        self._trials = trials
        self._started_at = time.monotonic()

    async def document(self) -> dict[str, Any]:
        """Everything, in JSON's types. Counters and refusals are the serving process's as well."""
        if self._serving is not None:
            await self._serving.refresh(REFRESH_SECONDS)
        serving, *others = self._serving.status() if self._serving else [None]
        now = time.monotonic()
        names: dict[bytes, str] = {
            e.fingerprint(): name for name, e in self._config.namespaces.items()
        }
        return {
            "group": self._config.name,
            "epoch": self._leading.newest,
            "leading": self._leads(),
            "uptime_s": round(now - self._started_at, 3),
            "switches": self._switchboard.status(),
            "trial": self._trials.status(),
            "certificate_expires": (
                self._side.member.credentials.not_after.isoformat() if self._side else None
            ),
            "peers": self._peers(now, names),
            "gossip": self._gossip(now),
            "serving": serving,
            "serving_others": others,
            "pulling": self._pulling.status() if self._pulling else [],
            "refused": [asdict(entry) for entry in self._refusals.entries()],
            "not_connected": [asdict(entry) for entry in self._dialled.entries()],
            "namespaces": {
                names.get(fingerprint, fingerprint.hex()): {"held": held}
                for fingerprint, held in self._holdings.namespaces()
            },
            "holdings": {
                "blocks": len(self._holdings),
                "unattested": self._holdings.unattested,
                "unmatched_keys": self._listings.unmatched,
                "refused": self._holdings.refused,
                "conflicts": self._holdings.conflicts,
                "changed": self._holdings.changed,
            },
            "staging": {
                "blocks": len(self._staging),
                "bytes": self._staging.bytes,
                "reserved": self._staging.reserved,
                "memory_used": self._slots.used_bytes,
                "refused": self._staging.refused,
            },
            "pulls": {
                "under_way": self._puller.under_way,
                "pull_ms": _spread(self._puller.pull_ms),
                "view_age_ms": _spread(self._puller.view_age_ms),
            },
            "queues": {name: held() for name, held in self._queues.items()},
            "store": asdict(self._store.stats()),
            "counters": counters.snapshot(),
            "stalls": self._stalls.status(),
            "telemetry": telemetry.stats(),
            "problems": self._now_wrong(now) + self._problems.list(),
        }

    def _now_wrong(self, now: float) -> list[str]:
        wrong = [self._listings.trouble(now)]
        if self._side is not None:
            barred = self._leading.barred
            elsewhere = f"this gateway neither leads nor follows: {barred}" if barred else ""
            wrong = [elsewhere, self._leading.problem(now), *wrong]
        return [said for said in wrong if said] + self._switchboard.said()

    def _leads(self) -> dict[str, Any]:
        terms = self._leading
        known = None if terms.valid() else terms.known
        role = "leader" if terms.valid() else "follower"
        return {
            "role": role if self._side else "alone",
            "member": terms.member,
            "leader": None if known is None else asdict(known),
            "barred": terms.barred,
            "told": terms.told,
            "followers": self._group.followers,
            "following": self._follower.status() if self._follower else None,
        }

    def _gossip(self, now: float) -> dict[str, Any] | None:
        if self._side is None:
            return None
        view = self._side.gossip.view(now)
        return {
            "version": str(view.version),
            "speaking": view.speaking,
            "health_score": view.health_score,
            "stalls": view.stalls,
            "events_dropped": view.events_dropped,
        }

    def _peers(self, now: float, names: Mapping[bytes, str]) -> list[dict[str, Any]]:
        side = self._side
        if side is None:
            return []
        views: dict[str, list[dict[str, Any]]] = {}
        for holder, fingerprint, view in side.sessions.subscriptions.views():
            age = view.age(now)
            views.setdefault(holder, []).append(
                {
                    "namespace": names.get(fingerprint, fingerprint.hex()),
                    "blocks": len(view),
                    "age_s": None if age is None else round(age, 3),
                    "cut": view.is_cut,
                    "trouble": view.trouble,
                    "promises": {
                        "kept": view.honesty.kept,
                        "broken": view.honesty.broken,
                        "standing": view.honesty.standing,
                        "standing_share": round(view.honesty.share, 5),
                    },
                }
            )
        out = []
        for peer in side.gossip.view(now).peers:
            link = side.sessions.links[peer.name]
            answered_ago = side.sessions.answered_ago(peer.name, now)
            out.append(
                {
                    "name": peer.name,
                    "address": link.address,
                    "gateways": [
                        {**each, "reason": self._reason(each["reason"])} for each in link.status()
                    ],
                    "state": peer.state.value,
                    "order": self._switchboard.word(peer.name),
                    "reason": self._reason(link.reason),
                    "breaker": link.breaker_state(now),
                    "guards": {
                        "outgoing": side.guards[peer.name].outgoing.status(now),
                        "incoming": self._serving.guards(peer.name) if self._serving else None,
                    },
                    "heard_ago_s": (None if peer.heard_ago is None else round(peer.heard_ago, 3)),
                    "link": None if peer.link is None else peer.link.value,
                    "answers": peer.name not in side.sessions.unanswered,
                    "answered_ago_s": None if answered_ago is None else round(answered_ago, 3),
                    "pullable": peer.pullable,
                    "quarantine": _quarantine(peer.quarantine, now),
                    "witnesses": list(peer.witnesses),
                    "has_ours": None if peer.has_ours is None else str(peer.has_ours),
                    "load": peer.load._asdict(),
                    "limits": peer.limits._asdict(),
                    "version": None if peer.version is None else str(peer.version),
                    "health": peer.health.name.lower(),
                    "health_reason": peer.health_text,
                    "rejected": peer.rejected,
                    "views": views.get(peer.name, []),
                }
            )
        return out

    def _reason(self, why: str) -> str:
        """Why a peer is not reached, as a follower may say it."""
        return NOT_GREETED if why == NOT_YET and not self._leading.valid() else why


def _quarantine(held: Quarantine | None, now: float) -> dict[str, Any] | None:
    if held is None:
        return None
    return {
        "reason": held.reason.value,
        "detail": held.detail,
        "for_s": round(now - held.since, 3),
        "healed_by": held.heal.value,
    }


def _spread(samples: Samples) -> dict[str, float | int | None]:
    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 3)

    return {
        "count": samples.count,
        "mean": rounded(samples.mean()),
        "p50": rounded(samples.quantile(0.50)),
        "p99": rounded(samples.quantile(0.99)),
    }
