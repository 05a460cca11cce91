"""Worlds in which everything breaks: 50 seeds, every invariant at every step."""

from __future__ import annotations

import os

import pytest

from chaos.sim.run import Request, run_seeds

SEEDS = range(50)


@pytest.mark.timeout(600)  # two minutes on two cores
def test_every_invariant_holds_in_every_world() -> None:
    requests = [Request(groups=16, seed=seed, rounds=200, faults="all") for seed in SEEDS]
    broken = {
        result.request.seed: (result.failure.invariant, result.failure.detail)
        for result in run_seeds(requests, len(os.sched_getaffinity(0)))
        if result.failure is not None
    }
    assert not broken, f"{broken}\nits story: {requests[min(broken)].command}"
