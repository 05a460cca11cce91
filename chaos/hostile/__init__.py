"""Peers that speak the protocol with valid certificates and lie.

May be imported by `chaos` and the tests.
"""
