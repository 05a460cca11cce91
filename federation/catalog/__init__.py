"""What a group holds, told to peers as a log, and what a peer is believed to hold: sans-IO.

Imports `federation.identity` and `moonmesh.v1`; `peers`, `transfer` and the gateway import it.
"""
