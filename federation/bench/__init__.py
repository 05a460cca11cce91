"""Benchmarks on real groups: workloads, figures, targets, and one shared form for their reports.

Imports everything in `federation` but the command line; only `federation.cli` imports it.
"""
