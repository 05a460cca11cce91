"""Breaks things on purpose: faults on real processes, hostile peers.

Imports everything; nothing imports it but the tests.
"""
