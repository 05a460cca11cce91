"""Whole gateways in one process and no time: production's own parts, on a clock that is the world's."""
