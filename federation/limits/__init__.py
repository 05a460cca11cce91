"""Guards between this group and each peer: sans-IO, `now` is an argument.

`guards.Guards` puts them together, one `guard.Guard` a peer and direction; nothing else refuses a peer
for load. Imports `federation.config`; `peers`, `transfer` and the gateway import it.
"""
