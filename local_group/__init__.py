"""One group: the only code that knows Mooncake, its processes, its store client and what is held.

Imports neither `gossip` nor `federation`; `federation` and `chaos` may import it.
"""
