"""Breaks things on purpose: hostile peers with valid certificates.

Imports everything; nothing imports it but the tests.
"""
