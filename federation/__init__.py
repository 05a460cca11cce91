"""The federation: gateways, what they tell each other, and the store that engines use.

Imports `local_group`, `gossip` and `moonmesh.v1`; only `chaos` may import it.
"""
