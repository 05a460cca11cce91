"""Processes that play worlds beside each other."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor


def fresh_processes(count: int) -> ProcessPoolExecutor:
    """So many, each started afresh: a fork of a process that has threads (gRPC's, say) dies at times."""
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
