"""Judgements on what guards hold back: waits, what hostile peers got, what was held for them."""

from __future__ import annotations

import statistics

from chaos.invariants.parameters import Booked, Peak, Waits
from chaos.invariants.verdict import Verdict
from chaos.record import Record


def waits(record: Record, p: Waits) -> Verdict:
    """Half of the reads of peers' chains took no longer than so."""
    took = [
        s.ms
        for group in record.scenario.topology.groups
        for s in record.fault.during(group, "peer")
    ]
    median, worst = (statistics.median(took), max(took)) if took else (None, None)
    held = median is not None and len(took) >= p.calls and median <= p.median_ms
    if p.worst_ms is None or median is None or worst is None:
        return Verdict(
            name="waits",
            held=held,
            value=None if median is None else round(median, 1),
            limit=f"<= {p.median_ms:g} ms",
            detail=f"the median of {len(took)} reads while it lasted",
        )
    return Verdict(
        name="waits",
        held=held and worst <= p.worst_ms,
        value=round(worst, 1),
        limit=f"<= {p.worst_ms:g} ms, and half of them <= {p.median_ms:g} ms",
        detail=f"the longest of {len(took)} reads while it lasted; half took {median:.1f} ms",
    )


def booked(record: Record, p: Booked) -> Verdict:
    """A hostile peer got, or was asked, no more than so, and something."""
    books = record.books.get(p.name, {})
    found: float | None = books.get(p.what)
    enough = found is not None and found >= p.at_least
    if found is not None and p.per_s:
        found = round(found / max(float(books.get("seconds", 0.0)), 1e-3), 1)
    few = found is not None and (p.at_most is None or found <= p.at_most)
    most = "" if p.at_most is None else f" and <= {p.at_most}{' a second' if p.per_s else ''}"
    return Verdict(
        name=f"books {p.name} {p.what}",
        held=enough and few,
        value=found,
        limit=f">= {p.at_least}{most}",
        detail="" if enough else f"fewer than {p.at_least} in all show nothing",
    )


def peak(record: Record, p: Peak) -> Verdict:
    """A guard held no more than so, and something."""
    name = f"{p.peer}.{p.what}"
    seen = [
        one.usage[p.group].guards[name]
        for one in record.passes
        if p.group in one.usage and name in one.usage[p.group].guards
    ]
    most = max(seen, default=None)
    enough = most is not None and most >= p.at_least
    return Verdict(
        name=f"peak {name}",
        held=enough and most is not None and most <= p.at_most,
        value=most,
        limit=f"<= {p.at_most}",
        detail="" if enough else f"less than {p.at_least} shows nothing",
    )
