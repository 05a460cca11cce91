"""A federation in one process and no time: virtual clock, seeded network, the real gossip engine.

The same seed gives the same run, byte for byte, so that what breaks once breaks again.
"""
