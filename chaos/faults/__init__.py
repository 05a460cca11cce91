"""Faults that are made for real: signals to processes that a test or a run started itself.

May be imported by `chaos` and the tests.
"""
