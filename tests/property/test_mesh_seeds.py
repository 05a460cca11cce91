"""Worlds of whole gateways in which everything breaks: 50 seeds, every invariant at every step."""

from __future__ import annotations

import os

import pytest

from chaos.sim.mesh.run import Request, run_seeds

SEEDS = range(50)
LARGE = 49
ROUNDS = 50


def groups(seed: int) -> int:
    """A world of 16 groups costs as much as ten of four."""
    return 16 if seed == LARGE else 2 + seed % 4


@pytest.mark.timeout(600)  # a minute and a half of one core
def test_every_invariant_holds_in_every_world() -> None:
    requests = [
        Request(groups=groups(seed), seed=seed, rounds=ROUNDS, faults="all") for seed in SEEDS
    ]
    broken = {
        result.request.seed: (result.failure.invariant, result.failure.detail)
        for result in run_seeds(requests, len(os.sched_getaffinity(0)))
        if result.failure is not None
    }
    assert not broken, f"{broken}\nits story: {requests[min(broken)].command}"
