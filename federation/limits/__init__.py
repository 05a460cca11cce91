"""Guards between this group and each peer: sans-IO, `now` is an argument.

Imports `federation.config`; `peers`, `transfer` and the gateway import it.
"""
