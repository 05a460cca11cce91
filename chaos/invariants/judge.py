"""Judges a record: one verdict for each invariant of its scenario."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable
from typing import Any

from chaos.invariants import bounds, feeling, guarding
from chaos.invariants.comparison import Compared
from chaos.invariants.parameters import (
    Acknowledged,
    Bounded,
    Bytes,
    Contained,
    Counter,
    Deadlines,
    Errors,
    Healthy,
    Hits,
    LateWrites,
    Leased,
    Leftovers,
    Parameters,
    Refused,
    Returns,
)
from chaos.invariants.verdict import Verdict
from chaos.record import Record
from federation.allocator import SERVING_KEPT_BYTES
from federation.codes import RPC_FAIL, RPC_TIMEOUT
from federation.config import Limits
from federation.limits_config import SERVING_BYTES_PER_BLOCK
from local_group.config import MIB, parse_size

GIVEN_UP = frozenset({RPC_FAIL, RPC_TIMEOUT})
"""What a call of the own Mooncake answers that was not waited for, or not tried."""
HELD_BYTES = 40
"""Of a gateway's memory, for a block that its group holds: see `holdings_blocks`."""


def judge(record: Record, limits: dict[str, Any], compared: Compared) -> list[Verdict]:
    """All verdicts.

    Args:
        limits: `[limits]` of the groups, as they ran.
        compared: the local reads of this record.
    """
    wanted = record.scenario.invariants
    rules: list[tuple[Parameters | None, Callable[..., Verdict]]] = [
        (wanted.wrong_bytes, _wrong_bytes),
        (wanted.late_writes, _late_writes),
        (wanted.deadlines, _deadlines),
        (wanted.errors, _errors),
        (wanted.acknowledged, _acknowledged),
        (wanted.bounded, lambda r, p: _bounded(r, p, limits)),
        (wanted.healthy, _healthy),
        (wanted.leftovers, _leftovers),
        (wanted.felt, feeling.felt),
        (wanted.hits, _hits),
        (wanted.returns, _returns),
        (wanted.waits, guarding.waits),
        (wanted.keeps, feeling.keeps),
        (wanted.local_p99, lambda _record, _p: _local_p99(compared)),
        (wanted.contained, _contained),
        (wanted.leased, lambda r, p: _leased(r, p, limits)),
        *((counter, _counter) for counter in wanted.counters),
        *((refused, _refused) for refused in wanted.refused),
        *((book, guarding.booked) for book in wanted.books),
        *((held, guarding.peak) for held in wanted.peaks),
    ]
    found = []
    for parameters, rule in rules:
        if parameters is None:
            continue
        if parameters.off is not None:
            name = type(parameters).__name__
            found.append(Verdict(name=_snake(name), held=True, off=parameters.off))
        else:
            found.append(rule(record, parameters))
    return found


def _snake(name: str) -> str:
    text = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
    return {"bytes": "wrong_bytes", "local_p99": "local_p99"}.get(text, text)


def _wrong_bytes(record: Record, p: Bytes) -> Verdict:
    wrong = sum(t.wrong_bytes for _, t in record.totals())
    wrong += sum(a.wrong_bytes for _, a in record.audits())
    verified = record.verified_bytes()
    enough = verified >= p.verified_mib * MIB
    return Verdict(
        name="wrong_bytes",
        held=wrong == 0 and enough,
        value=wrong,
        limit="0",
        detail="; ".join(
            [
                f"of {verified / MIB:.0f} MiB verified",
                *([] if enough else [f"fewer than {p.verified_mib:g} MiB prove nothing"]),
                *(text for _, totals in record.totals() for text in totals.wrong[:3]),
                *(text for _, found in record.audits() for text in found.wrong[:3]),
            ]
        ),
    )


def _late_writes(record: Record, p: LateWrites) -> Verdict:
    late = sum(t.late_writes for _, t in record.totals())
    return Verdict(name="late_writes", held=late == 0, value=late, limit="0")


def _deadlines(record: Record, p: Deadlines) -> Verdict:
    calls = [(g, s) for one in record.passes for g in one.samples for s in one.of(g)]
    late = [(g, s) for g, s in calls if s.late_ms > p.slack_ms]
    stuck = [g for one in record.passes for g, ended in one.ended.items() if not ended]
    share = len(late) / max(1, len(calls))
    worst = max((s.late_ms for _, s in calls), default=0.0)
    kinds = Count(f"{g} {s.kind}" for g, s in late)
    detail = f"of {len(calls)} calls; the latest by {worst:.1f} ms"
    if late:
        detail += f"; {', '.join(f'{name} {n}' for name, n in kinds.most_common(3))}"
    if stuck:
        detail += f"; calls of {', '.join(stuck)} never ended"
    return Verdict(
        name="deadlines",
        held=share <= p.allowed_share and not stuck,
        value=len(late),
        limit=f"{p.allowed_share:g} of the calls",
        detail=detail,
    )


def _errors(record: Record, p: Errors) -> Verdict:
    errors = [e for _, totals in record.totals() for e in totals.errors]
    codes: Count[str] = Count()
    for _, totals in record.totals():
        codes.update({c: n for c, n in totals.codes.items() if c not in p.codes})
    others = {c: n for c, n in codes.items() if int(c.split()[1]) not in GIVEN_UP}
    calls = [s for one in record.passes for g in one.samples for s in one.of(g)]
    blocks = sum(s.local + s.peer + s.misses for s in calls)
    # A block of the own group that was not found counts whatever its code: with an open breaker the
    # store says that it is not there.
    given_up = sum(s.misses for s in calls if s.kind == "local")
    given_up += sum(n for c, n in codes.items() if c not in others and not c.startswith("local"))
    share = given_up / max(1, blocks)
    shown = [*errors[:3], *(f"{code}: {n}" for code, n in codes.most_common(5))]
    return Verdict(
        name="errors",
        held=not errors and not others and share <= p.given_up_share,
        value=len(errors) + sum(others.values()),
        limit=f"0, and {p.given_up_share:.1%} of the blocks given up in time",
        detail="; ".join([f"{given_up} of {blocks} given up", *shown]),
    )


def _acknowledged(record: Record, p: Acknowledged) -> Verdict:
    audits = list(record.audits())
    lost = sum(a.lost + a.unread for _, a in audits)
    checked = sum(a.checked for _, a in audits)
    examples = [e for _, a in audits for e in a.examples][:3]
    return Verdict(
        name="acknowledged",
        held=lost == 0 and checked > 0,
        value=lost,
        limit="0",
        detail="; ".join([f"of {checked} blocks written", *examples]),
    )


def _limit(limits: dict[str, Any], name: str) -> int:
    """A limit as the groups ran with it: bytes, where it is a size."""
    return int(parse_size(limits.get(name, getattr(Limits(), name))))


def cap_bytes(limits: dict[str, Any], serving: int = 1, pulling: int = 0) -> int:
    """What the limits let a gateway keep in memory.

    Args:
        serving, pulling: processes that it has for each. A further one that serves has bounce buffers of its
            own, and staging counts as memory of each that pulls. One that serves keeps free memory for
            messages besides, and knows all blocks of the group as the gateway does.
    """
    staging, bounce = _limit(limits, "staging_bytes"), _limit(limits, "bounce_bytes")
    held = _limit(limits, "holdings_blocks")
    served = serving * (bounce + SERVING_KEPT_BYTES + SERVING_BYTES_PER_BLOCK * held)
    blocks = HELD_BYTES * held + _limit(limits, "views_bytes")
    return (1 + pulling) * staging + served + blocks


def _bounded(record: Record, p: Bounded, limits: dict[str, Any]) -> Verdict:
    topology = record.scenario.topology
    cap = cap_bytes(limits, topology.serving_workers, topology.pulling_workers)
    broken, growth_max = [], 0
    for one in record.passes:
        for group, usage in one.usage.items():
            growth = usage.rss - record.base_rss.get(group, 0)
            growth_max = max(growth_max, growth)
            checks = (
                ("memory", growth / MIB, cap * (1 + p.over_cap) / MIB),
                ("descriptors", usage.descriptors, p.descriptors),
                ("threads", usage.threads, p.threads),
            )
            broken += [f"{group} {n} {v:.0f} > {top:.0f}" for n, v, top in checks if v > top]
            exceeded = bounds.broken(usage.held, Limits(**limits), p.over_cap)
            broken += [f"{group} {what}" for what in exceeded]
            if not usage.seen:
                broken.append(f"{group} was never seen")
    return Verdict(
        name="bounded",
        held=not broken,
        value=round(growth_max / MIB, 1),
        limit=f"{cap * (1 + p.over_cap) / MIB:.0f} MiB more than at the start",
        detail="; ".join(broken),
    )


def _healthy(record: Record, p: Healthy) -> Verdict:
    return Verdict(
        name="healthy",
        held=not record.problems,
        value=round(record.healthy_s, 2),
        limit=f"{p.within_s:g} s",
        detail="; ".join(record.problems[:4]),
    )


def _leftovers(record: Record, p: Leftovers) -> Verdict:
    return Verdict(
        name="leftovers",
        held=not record.leftovers,
        value=len(record.leftovers),
        limit="0",
        detail="; ".join(record.leftovers[:4]),
    )


def _hits(record: Record, p: Hits) -> Verdict:
    found = wanted = 0
    for group in record.scenario.topology.groups:
        for s in record.fault.during(group, "peer"):
            found += s.local + s.peer
            wanted += s.local + s.peer + s.misses
    share = found / max(1, wanted)
    return Verdict(
        name="hits",
        held=wanted > 0 and share >= p.at_least,
        value=round(share, 3),
        limit=f">= {p.at_least:g}",
        detail=f"{found} of {wanted} fresh blocks while it lasted",
    )


def _returns(record: Record, p: Returns) -> Verdict:
    owners = record.scenario.returning
    groups = record.fault.asking(record.scenario.topology.groups, owners)
    took = {group: record.fault.returned(group, p.chains, owners) for group in groups}
    late = [g for g, t in took.items() if t is None or t > p.within_s]
    known = [t for t in took.values() if t is not None]
    return Verdict(
        name="returns",
        held=bool(took) and not late,
        value=round(max(known), 2) if known else None,
        limit=f"{p.within_s:g} s",
        detail="; ".join(
            f"{g}: {'not at all' if took[g] is None else f'{took[g]:.2f} s'}" for g in late
        ),
    )


def _local_p99(compared: Compared) -> Verdict:
    return Verdict(
        name="local_p99",
        held=not compared.worse,
        unsure=compared.unsure,
        value=compared.fault_ms,
        limit=f"<= {compared.allowed_ms:.3f} ms",
        detail=compared.text(),
    )


def _counter(record: Record, p: Counter) -> Verdict:
    counters = record.counters.get(p.group, {})
    # A name without labels is the sum over them.
    value = sum(
        n for name, n in counters.items() if name == p.name or name.startswith(p.name + "{")
    )
    high = p.at_most is None or value <= p.at_most
    limit = f">= {p.at_least}" + ("" if p.at_most is None else f" and <= {p.at_most}")
    return Verdict(
        name=f"counter {p.name}", held=value >= p.at_least and high, value=value, limit=limit
    )


def _refused(record: Record, p: Refused) -> Verdict:
    entries = record.statuses.get(p.group, {}).get("refused", [])
    met = [e for e in entries if e["who"] == p.who and p.says in e["reason"]]
    return Verdict(
        name=f"refused {p.who}",
        held=bool(met),
        value=sum(e["count"] for e in met),
        limit=f"says {p.says!r}",
        detail="" if met else f"what it does say: {[e['reason'] for e in entries][:3]}",
    )


def _contained(record: Record, p: Contained) -> Verdict:
    poisoned = sum(t.poisoned_bytes for g, t in record.totals() if g == p.group)
    origins = record.origins.get(p.group, {})
    guests = {name: n for name, n in origins.items() if name.startswith("guest/")}
    elsewhere = {
        name: n
        for name, n in origins.items()
        if name.endswith(f"/{p.origin}") and not name.startswith("guest/")
    }
    others = set(guests) - {f"guest/{p.origin}"}
    purged = record.purged if isinstance(record.purged, tuple) else (0, 0)
    held = poisoned >= p.poisoned_bytes and bool(guests) and not elsewhere and not others
    held = held and purged[0] > 0 and purged[1] == 0
    return Verdict(
        name="contained",
        held=held,
        value=poisoned,
        limit=f"in guest alone, of {p.origin} alone, and purged",
        detail=f"bytes read wrong where {p.origin} is trusted; on record: {guests or 'nothing'}"
        + (f"; outside of it: {elsewhere}" if elsewhere else "")
        + (f"; of others: {sorted(others)}" if others else "")
        + f"; purged: {record.purged}",
    )


def _leased(record: Record, p: Leased, limits: dict[str, Any]) -> Verdict:
    topology = record.scenario.topology
    pool = topology.stores * topology.dram
    share = _limit(limits, "peer_leased_percent") / 100 * pool
    # The peer counts when bytes arrive, a little after they were leased.
    allowed = (1 + p.tolerance) * max(share, _limit(limits, "peer_leased_bytes_min"))
    got = int(record.books.get(p.name, {}).get("window_bytes_max", 0))
    puts = sum(t.puts for _, t in record.totals())
    stored = sum(t.stored for _, t in record.totals()) / max(1, puts)
    return Verdict(
        name="leased",
        held=0 < got <= allowed and stored >= p.puts_stored,
        value=round(got / MIB, 1),
        limit=f"{allowed / MIB:.0f} MiB within a lease",
        detail=f"{stored:.1%} of {puts} puts were stored",
    )
