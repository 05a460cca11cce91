"""Errors of the chaos runner; each has a stable code."""

from __future__ import annotations

from federation.errors import MoonmeshError

INTERRUPTED = "interrupted"
"""The `error` of a scenario that a signal ended."""


class ChaosError(MoonmeshError):
    """A run could not be made, or broke off: it says nothing about the invariants."""

    code = "MM501"
