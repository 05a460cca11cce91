"""Catalog messages from a peer, damaged: each is read, or refused as no catalog, in little memory."""

from __future__ import annotations

import random
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from federation.catalog.answers import Answers
from federation.catalog.coverage import cover
from federation.catalog.log import HoldingsLog, Position
from federation.catalog.view import CatalogView
from federation.catalog.wire import Assembler, CatalogError
from moonmesh.v1 import peer_pb2

BLOCKS_MAX: Final = 100_000
"""Of the views that are fed; a damaged message may claim 2^64."""
MEMORY_MAX: Final = 64 << 20
"""Bytes that reading may take on top of what was there: a view of `BLOCKS_MAX`, the one that it replaces, and
40 bytes for each word of a message of a MiB."""
_EDGES = (0, 1, 2, 5, 6, 25, 26, 27, 40, 41, 64, 1 << 26, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63)


@dataclass
class Outcome:
    """What became of damaged messages."""

    tried: int = 0
    refused: int = 0
    """No message at all, or a `CatalogError`."""
    believed: int = 0
    """Whole answers; a view was brought up to them."""
    escaped: Counter[str] = field(default_factory=Counter)
    """Other exceptions: each is a defect."""
    grown_bytes: int | None = None
    """Most resident memory meanwhile, beyond what there was before; None where the kernel does not tell."""


def run(count: int, seed: int) -> Outcome:
    """Feeds so many damaged answers, of one or two messages each, to views."""
    rng = random.Random(seed)
    sound = _sound()
    outcome = Outcome()
    before = _begin_peak()
    view = CatalogView(blocks_max=BLOCKS_MAX)
    for _ in range(count):
        outcome.tried += 1
        answer = list(rng.choice(sound))
        place = rng.randrange(len(answer))
        answer[place] = rng.choice(_DAMAGES)(rng, answer[place], sound)
        try:
            _read(view, answer, rng)
            outcome.believed += 1
        except (CatalogError, DecodeError):
            outcome.refused += 1
        except Exception as error:
            outcome.escaped[f"{type(error).__name__}: {error}"] += 1
        if rng.random() < 0.01:
            view = CatalogView(blocks_max=BLOCKS_MAX)
    if before is not None:
        outcome.grown_bytes = _resident("VmHWM") - before
    return outcome


def run_restricted(count: int, seed: int) -> Outcome:
    """The same, where the kernel gives no more than `MEMORY_MAX` besides what there is; for a process of its
    own."""
    restrict()
    return run(count, seed)


def restrict() -> None:
    """From now on this process gets no more memory than `MEMORY_MAX` besides what it has: a `MemoryError`."""
    data = _resident("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (data + MEMORY_MAX, data + MEMORY_MAX))


def _begin_peak() -> int | None:
    """Resident memory now, from which the peak (`VmHWM`) begins anew: a spawned process has its parent's."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return None
    return _resident("VmRSS")


def _resident(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def _read(view: CatalogView, answer: Sequence[bytes], rng: random.Random) -> None:
    assembler = Assembler(BLOCKS_MAX, view.bits if view.position is not None else None)
    for raw in answer:
        news = assembler.feed(peer_pb2.CatalogPage.FromString(raw))
        if news is not None:
            view.apply(news, 0.0)
            cover([rng.getrandbits(64) for _ in range(8)], [view], 0.0)
            if not 0 <= len(view) <= BLOCKS_MAX:
                raise AssertionError(f"a view of {len(view)} blocks")
            return
    raise CatalogError("no last page")


def _sound() -> list[list[bytes]]:
    """Sound answers: small and larger snapshots, with changes to them."""
    random_hashes = np.random.default_rng(1)
    answers: list[list[bytes]] = [[]]
    for blocks in (0, 3, 1000, 30_000):
        log = HoldingsLog(bytes(16), 1 << 18)
        log.extend(random_hashes.integers(0, 1 << 64, blocks, dtype=np.uint64))
        told = Answers(log, 20_000)
        answers.append(list(told.since(None)))
        at = log.position
        log.extend(random_hashes.integers(0, 1 << 64, 40, dtype=np.uint64))
        for key_hash in (1, 1 << 63):
            log.add(key_hash)
            log.remove(key_hash)
        answers.append(list(told.since(at)))
        answers.append(list(told.since(Position(at.log_id, log.position.n))))
    return [answer for answer in answers if answer]


def _flip(rng: random.Random, raw: bytes, _: list[list[bytes]]) -> bytes:
    damaged = bytearray(raw)
    for _place in range(rng.randint(1, 4)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _head(rng: random.Random, raw: bytes, _: list[list[bytes]]) -> bytes:
    """The first bytes, where all but the prints stands."""
    damaged = bytearray(raw)
    damaged[rng.randrange(min(64, len(damaged)))] = rng.randrange(256)
    return bytes(damaged)


def _cut(rng: random.Random, raw: bytes, _: list[list[bytes]]) -> bytes:
    first = rng.randrange(len(raw) + 1)
    return raw[:first] + raw[rng.randint(first, len(raw)) :]


def _grow(rng: random.Random, raw: bytes, _: list[list[bytes]]) -> bytes:
    at = rng.randrange(len(raw) + 1)
    return raw[:at] + rng.randbytes(rng.randint(1, 40)) + raw[at:]


def _splice(rng: random.Random, raw: bytes, sound: list[list[bytes]]) -> bytes:
    other = rng.choice(rng.choice(sound))
    return raw[: rng.randrange(len(raw) + 1)] + other[rng.randrange(len(other) + 1) :]


def _field(rng: random.Random, raw: bytes, _: list[list[bytes]]) -> bytes:
    """A sound message in which a field or two say something else."""
    page = peer_pb2.CatalogPage.FromString(raw)
    for _change in range(rng.randint(1, 2)):
        value = rng.choice(_EDGES)
        prints = page.added if rng.random() < 0.7 else page.removed
        match rng.randrange(9):
            case 0:
                page.bits = value & 0xFFFFFFFF
            case 1:
                page.blocks = value
            case 2:
                prints.base = value
            case 3:
                prints.width = value & 0xFFFFFFFF
            case 4:
                page.snapshot = not page.snapshot
            case 5:
                page.last = not page.last
            case 6:
                prints.gaps = rng.randbytes(rng.randint(0, 2000))
            case 7:
                prints.gaps = bytes([rng.choice((0, 255))]) * rng.choice(
                    (1, 2, 60, 200_000, 999_990)
                )
            case _:
                page.position.n = value & ((1 << 63) - 1)
    return page.SerializeToString()


_DAMAGES: Sequence[Callable[[random.Random, bytes, list[list[bytes]]], bytes]] = (
    _flip,
    _head,
    _cut,
    _grow,
    _splice,
    _field,
    _field,
)
